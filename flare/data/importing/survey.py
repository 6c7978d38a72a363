"""Summary of a set of simulation files: sizes, cells, fields, ranges and non-finite values."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from flare.data.checks.precision import merged_by_rounding, steps_between
from flare.data.importing.cases import CaseLocation, read_case
from flare.data.importing.fields import AXES, identifier
from flare.mesh.mesh import DIMENSION, OTHER, Mesh
from flare.utils.errors import DataError
from flare.utils.progress import progress
from flare.utils.text import counted

Where = Literal["points", "cells", "whole"]


@dataclass
class FieldSummary:
    """One array by its name in the files, over all cases."""

    name: str
    where: Where
    widths: set[int] = field(default_factory=set)
    """Numbers of components; several if files disagree."""
    cases: list[int] = field(default_factory=list)
    """Cases that have it."""
    low: float = np.inf
    high: float = -np.inf
    bad: int = 0
    """Number of NaN and infinite values."""
    first_bad: tuple[int, int] | None = None
    """Case and row of the first of them."""
    bad_cases: list[int] = field(default_factory=list)
    """Cases that have some."""
    first: np.ndarray | None = None
    """Value in the first case, for data of the whole mesh."""
    varies: bool = False
    """Whether it has more than one value; for a vector of the whole mesh, whether any component varies."""
    counts: bool = True
    """Whether it only numbers the points or cells in every file, such as node numbers."""

    def add(self, index: int, values: np.ndarray) -> None:
        """Add the values of a case."""
        rows = values.reshape(1, -1) if self.where == "whole" else values.reshape(len(values), -1)
        self.widths.add(rows.shape[1])
        self.cases.append(index)
        self.counts = self.counts and _counts(rows)
        finite = np.isfinite(rows)
        if not finite.all():
            self.bad += int((~finite).sum())
            self.bad_cases.append(index)
            self.first_bad = self.first_bad or (index, int((~finite).any(1).argmax()))
        if finite.any():
            self.low = min(self.low, float(rows[finite].min()))
            self.high = max(self.high, float(rows[finite].max()))
        if self.where == "whole":
            self.first = rows if self.first is None else self.first
            self.varies = self.varies or not np.array_equal(rows, self.first)
        else:
            self.varies = self.low < self.high


def _counts(rows: np.ndarray) -> bool:
    """Return whether (N, components) is one column of consecutive integers, in any order."""
    if rows.shape[1] != 1 or len(rows) < 2 or rows.max() - rows.min() != len(rows) - 1:
        return False
    ordered = np.sort(rows[:, 0])
    return bool(ordered[0] == np.floor(ordered[0]) and (np.diff(ordered) == 1).all())


@dataclass(frozen=True)
class CaseSummary:
    """Size, bounding box and digests of one case."""

    name: str
    points: int
    cells: Mapping[str, int]
    """Type -> number of cells."""
    low: np.ndarray
    high: np.ndarray
    """Corners of the bounding box."""
    digest: str
    """Digest of points and fields; equal if two files have the same content."""
    dimension: int | None
    """Dimension of its cells; None if it has none."""
    notes: Sequence[str] = ()
    lost: int = 0
    """Points with non-finite coordinates."""
    content: str = ""
    """Digest of everything that is read, cells included; equal if nothing has changed."""
    merged: int = 0
    """Points that coincide with others in single precision."""
    steps: float = np.inf
    """Steps of single precision between neighboring points."""


@dataclass(frozen=True)
class Survey:
    """Summary of all files."""

    cases: Sequence[CaseSummary]
    fields: Mapping[tuple[Where, str], FieldSummary]
    units: Mapping[str, Mapping[str, Sequence[int]]]
    """Field -> unit -> cases whose files state it; fields without a stated unit are not listed."""

    def exactly(self, name: str) -> dict[Where, FieldSummary]:
        """Return the places at which the files have a field of exactly this name."""
        return {where: found for (where, own), found in self.fields.items() if own == name}

    def named(self, name: str) -> dict[Where, FieldSummary]:
        """Return the places at which the files have a field of this name, in its own or a schema's spelling.

        Raises:
            DataError: Two names have the same spelling in a schema. A prediction, which only has that spelling, could
                not tell them apart.
        """
        alike = {own: found for (_, own), found in self.fields.items() if identifier(own) == identifier(name)}
        if len(alike) > 1:
            both = " and ".join(
                f"{own!r} (first: {self.cases[found.cases[0]].name})" for own, found in sorted(alike.items())
            )
            raise DataError(
                f"{both} would all become {identifier(name)} in a dataset, where names have letters, digits and _ "
                f"only; rename all but one of them in the files"
            )
        return self.exactly(next(iter(alike), name))

    @property
    def axes(self) -> tuple[str, ...]:
        """Axes of the coordinates, without those along which all files lie in one plane."""
        low = np.array([case.low for case in self.cases])
        high = np.array([case.high for case in self.cases])
        size = max(float((high - low).max()), 1e-300)
        spread = high.max(0) - low.min(0)
        kept = tuple(axis for axis, length in zip(AXES, spread, strict=False) if length > 1e-9 * size)
        return kept or tuple(AXES[: low.shape[1]])

    @property
    def cell_kinds(self) -> dict[str, int]:
        """Type -> number of cells of all cases, of the highest dimension only."""
        counts: Counter[str] = Counter()
        for case in self.cases:
            counts.update(case.cells)
        most = self.dimension or 0
        return {kind: number for kind, number in counts.items() if DIMENSION.get(kind, most) == most}

    @property
    def dimension(self) -> int | None:
        """Highest dimension of the cells of all files; None if a file has no cells."""
        found = [case.dimension for case in self.cases]
        return None if None in found else max((d for d in found if d is not None), default=None)

    @property
    def notes(self) -> list[str]:
        """Decisions of the readers, each with the files it applies to."""
        files: dict[str, list[str]] = {}
        for case in self.cases:
            for note in case.notes:
                files.setdefault(note, []).append(case.name)
        return [f"{counted(len(names), 'file')} (first: {names[0]}): {note}" for note, names in files.items()]

    @property
    def cell_type(self) -> str | None:
        """The one cell type of a dataset of these files; triangles and quadrilaterals become triangles."""
        kinds = set(self.cell_kinds)
        if not kinds or any(not case.cells for case in self.cases):
            return None
        if kinds == {"triangle", "quad"}:
            return "triangle"
        return kinds.pop() if len(kinds) == 1 and OTHER not in kinds else None


def survey(locations: Iterable[CaseLocation], *, points: str | None = None, quiet: bool = False) -> Survey:
    """Read every case once and summarize all of them.

    Args:
        locations: Cases to read.
        points: Name of the coordinates in files of arrays, if it is an unusual one.
        quiet: Shows no progress.
    """
    locations = list(locations)
    cases: list[CaseSummary] = []
    fields: dict[tuple[Where, str], FieldSummary] = {}
    units: dict[str, dict[str, list[int]]] = {}
    with progress("reading", len(locations), unit="files", quiet=quiet) as update:
        for index, location in enumerate(locations):
            try:
                mesh = read_case(location, points=points)
            except DataError as error:
                raise DataError(f'{error} (to import without it, pass exclude="{location.path.name}")') from None
            cases.append(_summary(mesh))
            for name, unit in mesh.units.items():
                if unit.strip() not in ("", "1"):
                    units.setdefault(name, {}).setdefault(unit.strip(), []).append(index)
            groups: list[tuple[Where, Mapping[str, np.ndarray]]] = [
                ("points", mesh.point_data),
                ("cells", mesh.cell_data),
                ("whole", mesh.parameters),
            ]
            for where, arrays in groups:
                for name, values in arrays.items():
                    fields.setdefault((where, name), FieldSummary(name, where)).add(index, values)
            update()
    _check_dimensions(cases)
    return Survey(cases, fields, units)


def _check_dimensions(cases: Sequence[CaseSummary]) -> None:
    """Raise DataError if files have different numbers of coordinates."""
    usual = Counter(len(case.low) for case in cases).most_common(1)[0][0] if cases else 0
    odd = [case for case in cases if len(case.low) != usual]
    if odd:
        raise DataError(
            f"{len(odd)} of {len(cases)} files have {len(odd[0].low)} coordinates per point, the others {usual} "
            f"(first: "
            f'{odd[0].name}); skip them with exclude="NAME", or export all files alike'
        )


def _summary(mesh: Mesh) -> CaseSummary:
    digest = hashlib.sha256()
    for name, array in [("", mesh.points), *sorted(mesh.point_data.items()), *sorted(mesh.cell_data.items())]:
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    for name, array in sorted(mesh.parameters.items()):
        digest.update(f"{name}{array.tolist()}".encode())
    content = digest.copy()
    for kind, cells in sorted(mesh.cells.items()):
        content.update(f"{kind}{cells.shape}".encode())
        content.update(np.ascontiguousarray(cells).tobytes())
    box = mesh.points[np.isfinite(mesh.points).all(1)]  # a NaN must not affect the bounding box
    lost = len(mesh.points) - len(box)
    box = box if len(box) else np.zeros((1, mesh.points.shape[1]))
    return CaseSummary(
        mesh.name,
        len(mesh.points),
        {kind: len(cells) for kind, cells in mesh.cells.items()},
        box.min(0).astype(np.float64),
        box.max(0).astype(np.float64),
        digest.hexdigest(),
        mesh.dimension,
        mesh.notes,
        lost,
        content.hexdigest(),
        merged_by_rounding(box),
        steps_between(box),
    )

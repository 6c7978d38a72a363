"""Summary of a set of simulation files: sizes, cells, fields, ranges and non-finite values."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from flare.data.importing.cases import CaseLocation, read_case
from flare.data.importing.fields import AXES, identifier
from flare.mesh.mesh import DIMENSION, OTHER, Mesh
from flare.utils.errors import DataError
from flare.utils.progress import progress
from flare.utils.text import counted

Where = Literal["points", "cells", "whole"]
STEPS = 1000
"""Fewest float32 steps across a mesh: datasets store float32, in which a mesh far from the origin collapses."""


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
    first: np.ndarray | None = None
    """Its first row of components."""
    varies: bool = False
    """Whether any row differs from the first."""

    def add(self, index: int, values: np.ndarray) -> None:
        """Add the values of a case."""
        rows = values.reshape(1, -1) if self.where == "whole" else values.reshape(len(values), -1)
        self.widths.add(rows.shape[1])
        self.cases.append(index)
        finite = rows[np.isfinite(rows)]
        self.bad += rows.size - finite.size
        if finite.size:
            self.low, self.high = min(self.low, float(finite.min())), max(self.high, float(finite.max()))
        if len(rows):
            self.first = rows[:1] if self.first is None else self.first
            self.varies = self.varies or rows.shape[1] != self.first.shape[1] or bool((rows != self.first).any())


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
    """Digest of points, cells and fields; equal if two files have the same content."""
    dimension: int | None
    """Dimension of its cells; None if it has none."""
    notes: Sequence[str]
    finite: bool
    """Whether it has no NaN or infinite value."""


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
        alike = sorted({own for _, own in self.fields if identifier(own) == identifier(name)})
        if len(alike) > 1:
            both = " and ".join(map(repr, alike))
            raise DataError(f"{both} would both become {identifier(name)} in a dataset; rename one in the files")
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
    _check_points(cases)
    return Survey(cases, fields, units)


def _check_points(cases: Sequence[CaseSummary]) -> None:
    """Raise DataError if files have different numbers of coordinates, or if points would coincide in a dataset."""
    for case in cases:
        if len(case.low) != len(cases[0].low):
            counts = f"{len(case.low)} coordinates per point, {cases[0].name} has {len(cases[0].low)}"
            raise DataError(f'{case.name} has {counts}; skip one of them with exclude="NAME"')
        step = np.spacing(np.float32(max(np.abs(case.low).max(), np.abs(case.high).max())))
        extent = (case.high - case.low).max()
        if 0 < extent < STEPS * step:
            far = f"{case.name} extends over {extent:.4g} where float32 has steps of {step:.4g}"
            raise DataError(f"{far}; move it closer to the origin before the export")


def _summary(mesh: Mesh) -> CaseSummary:
    arrays = [("", mesh.points), *sorted(mesh.point_data.items()), *sorted(mesh.cell_data.items())]
    digest = hashlib.sha256()
    for name, array in arrays:
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    for name, array in sorted(mesh.parameters.items()):
        digest.update(f"{name}{array.tolist()}".encode())
    for kind, cells in sorted(mesh.cells.items()):
        digest.update(f"{kind}{cells.shape}".encode())
        digest.update(np.ascontiguousarray(cells).tobytes())
    box = mesh.points[np.isfinite(mesh.points).all(1)]  # a NaN must not affect the bounding box
    box = box if len(box) else np.zeros((1, mesh.points.shape[1]))
    return CaseSummary(
        name=mesh.name,
        points=len(mesh.points),
        cells={kind: len(cells) for kind, cells in mesh.cells.items()},
        low=box.min(0).astype(np.float64),
        high=box.max(0).astype(np.float64),
        digest=digest.hexdigest(),
        dimension=mesh.dimension,
        notes=mesh.notes,
        finite=all(np.isfinite(array).all() for _, array in [*arrays, *mesh.parameters.items()]),
    )

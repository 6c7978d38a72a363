"""What a set of files holds, read once and changed nowhere: sizes, cells, fields, ranges, numbers that are none."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from flare.data.checks.precision import merged_by_rounding, steps_between
from flare.data.importing.cases import Case, Place, read_case
from flare.data.importing.fields import AXES, identifier
from flare.data.sample import DIMENSION
from flare.utils.errors import DataError
from flare.utils.progress import progress
from flare.utils.text import counted

Where = Literal["points", "cells", "whole"]


@dataclass
class FieldFound:
    """One array, as it is called in the files, over all cases."""

    name: str
    where: Where
    widths: set[int] = field(default_factory=set)
    """Channels; several where files disagree."""
    cases: list[int] = field(default_factory=list)
    """Which have it."""
    low: float = np.inf
    high: float = -np.inf
    bad: int = 0
    """Values that are NaN or infinite."""
    first_bad: tuple[int, int] | None = None
    """Case and place of the first of them."""
    bad_cases: list[int] = field(default_factory=list)
    """Which have some."""
    first: np.ndarray | None = None
    """Value in the first case, of a field of the whole."""
    varies: bool = False
    """Whether it has another value, at any place or in any case; a vector of the whole, whether one of its channels."""
    counts: bool = True
    """Whether it only numbers the points or cells, in every file: the number of a node, not a field."""

    def take(self, index: int, values: np.ndarray) -> None:
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
    """Whether (N, channels) is one column of consecutive whole numbers, in any order."""
    if rows.shape[1] != 1 or len(rows) < 2 or rows.max() - rows.min() != len(rows) - 1:
        return False
    ordered = np.sort(rows[:, 0])
    return bool(ordered[0] == np.floor(ordered[0]) and (np.diff(ordered) == 1).all())


@dataclass(frozen=True)
class CaseFound:
    """The outline of one case."""

    name: str
    points: int
    cells: Mapping[str, int]
    """Type -> how many."""
    low: np.ndarray
    high: np.ndarray
    """Corners of the box around the points."""
    digest: str
    """Of points and fields: equal where two files hold the same."""
    dimension: int | None
    """Of its cells; None where it has none."""
    remarks: Sequence[str] = ()
    lost: int = 0
    """Points whose coordinates are no numbers."""
    content: str = ""
    """Digest of all that is read of it, cells as well: the same where nothing has changed."""
    merged: int = 0
    """Places that single precision takes for others."""
    steps: float = np.inf
    """Of single precision between neighbours, where they lie far from the origin."""


@dataclass(frozen=True)
class Survey:
    cases: Sequence[CaseFound]
    fields: Mapping[tuple[Where, str], FieldFound]
    units: Mapping[str, Mapping[str, Sequence[int]]]
    """Field -> unit -> cases whose files state it; a field that no file states a unit of is not there."""

    def called(self, name: str) -> dict[Where, FieldFound]:
        """Where the files have a field of exactly this name."""
        return {where: found for (where, own), found in self.fields.items() if own == name}

    def named(self, name: str) -> dict[Where, FieldFound]:
        """Where the files have a field of this name, in its own or a schema's spelling.

        Two names that a schema spells alike are refused even where one is meant exactly: whoever reads the files
        later, for a prediction, has the schema's spelling only.
        """
        alike = {own: found for (_, own), found in self.fields.items() if identifier(own) == identifier(name)}
        if len(alike) > 1:
            said = " and ".join(
                f"{own!r} (first: {self.cases[found.cases[0]].name})" for own, found in sorted(alike.items())
            )
            raise DataError(
                f"{said} would all be {identifier(name)} in a dataset, which knows letters, digits and _ only; rename "
                f"all but one of them in the files"
            )
        return self.called(next(iter(alike), name))

    @property
    def axes(self) -> tuple[str, ...]:
        """Of the coordinates; an axis along which no file extends, and all lie at the same place, is left out."""
        low = np.array([case.low for case in self.cases])
        high = np.array([case.high for case in self.cases])
        size = max(float((high - low).max()), 1e-300)
        spread = high.max(0) - low.min(0)
        kept = tuple(axis for axis, length in zip(AXES, spread, strict=False) if length > 1e-9 * size)
        return kept or tuple(AXES[: low.shape[1]])

    @property
    def cell_kinds(self) -> dict[str, int]:
        """Type -> cells of all cases, of the highest dimension there is: edges of a mesh of triangles are left out."""
        counts: Counter[str] = Counter()
        for case in self.cases:
            counts.update(case.cells)
        most = self.dimension or 0
        return {kind: number for kind, number in counts.items() if DIMENSION.get(kind, most) == most}

    @property
    def dimension(self) -> int | None:
        """Of the cells of all files; None where a file has none."""
        found = [case.dimension for case in self.cases]
        return None if None in found else max((d for d in found if d is not None), default=None)

    @property
    def remarks(self) -> list[str]:
        """What was decided while reading, with the files for which it was."""
        said: dict[str, list[str]] = {}
        for case in self.cases:
            for remark in case.remarks:
                said.setdefault(remark, []).append(case.name)
        return [f"{counted(len(files), 'file')} (first: {files[0]}): {remark}" for remark, files in said.items()]

    @property
    def cell_type(self) -> str | None:
        """The one type a dataset of these can hold; plane cells of two types become triangles."""
        kinds = set(self.cell_kinds)
        if not kinds or any(not case.cells for case in self.cases):
            return None
        if kinds == {"triangle", "quad"}:
            return "triangle"
        return kinds.pop() if len(kinds) == 1 and "other" not in kinds else None


def survey(places: Iterable[Place], *, points: str | None = None, quiet: bool = False) -> Survey:
    """Read every case once."""
    places = list(places)
    cases: list[CaseFound] = []
    fields: dict[tuple[Where, str], FieldFound] = {}
    units: dict[str, dict[str, list[int]]] = {}
    with progress("reading", len(places), unit="files", quiet=quiet) as update:
        for index, place in enumerate(places):
            try:
                case = read_case(place, points=points)
            except DataError as error:
                raise DataError(f"{error} (an import leaves it out with --exclude {place.path.name})") from None
            cases.append(_outline(case))
            for name, unit in case.units.items():
                if unit.strip() not in ("", "1"):  # as good as none
                    units.setdefault(name, {}).setdefault(unit.strip(), []).append(index)
            groups: list[tuple[Where, Mapping[str, np.ndarray]]] = [
                ("points", case.point_fields),
                ("cells", case.cell_fields),
                ("whole", case.parameters),
            ]
            for where, arrays in groups:
                for name, values in arrays.items():
                    fields.setdefault((where, name), FieldFound(name, where)).take(index, values)
            update()
    _refuse_other_spaces(cases)
    return Survey(cases, fields, units)


def _refuse_other_spaces(cases: Sequence[CaseFound]) -> None:
    """Files of the plane and files of space are no one dataset."""
    usual = Counter(len(case.low) for case in cases).most_common(1)[0][0] if cases else 0
    odd = [case for case in cases if len(case.low) != usual]
    if odd:
        raise DataError(
            f"{len(odd)} of {len(cases)} files have {len(odd[0].low)} coordinates a point, the others {usual} (first: "
            f"{odd[0].name}); leave them out with --exclude NAME, or export all alike"
        )


def _outline(case: Case) -> CaseFound:
    digest = hashlib.sha256()
    for name, array in [("", case.points), *sorted(case.point_fields.items()), *sorted(case.cell_fields.items())]:
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    for name, array in sorted(case.parameters.items()):
        digest.update(f"{name}{array.tolist()}".encode())
    alike = digest.hexdigest()
    for kind, cells in sorted(case.cells.items()):
        digest.update(f"{kind}{cells.shape}".encode())
        digest.update(np.ascontiguousarray(cells).tobytes())
    box = case.points[np.isfinite(case.points).all(1)]  # a NaN has no place, and must not take an axis with it
    lost = len(case.points) - len(box)
    box = box if len(box) else np.zeros((1, case.points.shape[1]))
    return CaseFound(
        case.name,
        len(case.points),
        {kind: len(cells) for kind, cells in case.cells.items()},
        box.min(0).astype(np.float64),
        box.max(0).astype(np.float64),
        alike,
        case.dimension,
        case.remarks,
        lost,
        digest.hexdigest(),
        merged_by_rounding(box),
        steps_between(box),
    )

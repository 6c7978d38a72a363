"""What can be wrong with the numbers of a sample, a function for each; `check.py` asks them about whole datasets."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from flare.utils.files import making

SPIKE = 1e4
"""Values this many times the usual spread away from the middle are no field: marks such as 1e30 or -9999."""
OTHER_UNIT = 20.0
"""Samples this many times larger or smaller than usual may be in another unit; an inch is 25.4 mm."""
KNOWN_FACTORS = {
    1000.0: "mm for m, or kPa for Pa",
    25.4: "mm for inch",
    1e6: "MPa for Pa",
    100.0: "cm for m",
}
TETRAHEDRA = {
    "tetra": [[0, 1, 2, 3]],
    "pyramid": [[0, 1, 2, 4], [0, 2, 3, 4]],
    "wedge": [[0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5]],
    "hexahedron": [[0, 1, 3, 4], [1, 2, 3, 6], [1, 3, 4, 6], [1, 4, 5, 6], [3, 4, 6, 7]],
}
"""Whose signed volumes add up to that of the cell."""


Size = tuple[str, str]
"""What is measured of a sample: ("extent", ""), or a place and the name of a field there."""
NO_SIZE = 1.25
"""Steps of single precision, times extent: rounding makes no more of a flat cell (1.01 was the most of 20,000)."""
SEAM = "lie on another one that has other values"
IN_THE_MESHER = "Repair the mesh where it is made; points and fields are right, and all that a model learns from"


@dataclass(frozen=True)
class Finding:
    """One complaint."""

    where: str
    """File or sample."""
    what: str
    count: int = 1
    first: int | None = None
    """Index of the first point, cell or sample concerned."""
    fix: str = ""
    serious: bool = True
    """Training would fail or its result mislead; otherwise it is worth knowing."""

    def __str__(self) -> str:
        end = "" if self.what.endswith("?") else "."
        return f"{self.where}: {self.what}" + (f"{end} {self.fix}" if self.fix else "")


def bad_values(where: str, name: str, values: np.ndarray, fix: str, at: str = "points") -> Iterator[Finding]:
    """NaN and infinity; and numbers so far from all others that they must be marks. `at`: points, cells or values."""
    rows = values.reshape(len(values), -1)
    finite = np.isfinite(rows).all(1)
    if not finite.all():
        bad = np.flatnonzero(~finite)
        what = f"{name!r} has NaN or infinity at {len(bad):,} of {len(rows):,} {at} (first: {bad[0]})"
        yield Finding(where, what, len(bad), int(bad[0]), fix)
    whole = rows[finite].astype(np.float64)
    if len(whole) < 10:
        return
    low, middle, high = np.quantile(whole, [0.05, 0.5, 0.95], axis=0)
    far = (np.abs(rows - middle) > SPIKE * np.maximum(high - low, 1e-300)) & (high > low) & finite[:, None]
    if far.any():
        places = np.flatnonzero(far.any(1))
        value = rows[places[0]][far[places[0]]][0]
        share = f"{len(places):,} of {len(rows):,} {at} (first: {places[0]}, {value:.4g})"
        what = f"{name!r} leaves its range by far at {share}"
        fix = "If that is a mark for no value, make it NaN in the files and import with --on-nan drop"
        yield Finding(where, what, len(places), int(places[0]), fix, serious=False)


def constant(where: str, name: str, values: np.ndarray, at: str = "points") -> Iterator[Finding]:
    """A field that does not vary within a sample."""
    rows = values.reshape(len(values), -1)
    if len(rows) > 1 and (rows == rows[0]).all():
        what = f"{name!r} is {plain(rows[0])} at all {len(rows):,} {at}"
        fix = "If it should vary, run that simulation again or import with --exclude and its name"
        yield Finding(where, what, len(rows), 0, fix, serious=False)


def duplicated(where: str, points: np.ndarray, values: Sequence[np.ndarray], mend: str) -> Iterator[Finding]:
    """Points at the very same place as an earlier one: with all its values, which can be mended, or with others."""
    again = repeats(points)
    if not again.any():
        return
    whole = repeats(np.concatenate([points, *(v.reshape(len(points), -1) for v in values)], axis=1))
    seam = "Merge them in the mesh, if they are meant as one; two values at one place are an average to a model"
    for which, words, fix in ((again & whole, "lie on another one", mend), (again & ~whole, SEAM, seam)):
        if which.any():
            what = f"{which.sum():,} of {len(points):,} points {words} (first: {which.argmax()})"
            yield Finding(where, what, int(which.sum()), int(which.argmax()), fix, serious=False)


def repeats(rows: np.ndarray) -> np.ndarray:
    """(N,) bool: equal to an earlier row."""
    _, first = np.unique(rows, axis=0, return_index=True)
    again = np.ones(len(rows), dtype=bool)
    again[first] = False
    return again


def flat_cells(kind: str, cells: np.ndarray, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(E,) bool each: two equal corners or no size; and inside out. All corners exist.

    Points count as a dataset has them, in single precision, so that files and their dataset are judged alike.
    """
    points = points.astype(np.float32).astype(np.float64)
    ordered = np.sort(cells, axis=1)
    flat = (ordered[:, 1:] == ordered[:, :-1]).any(1)
    numbers = np.isfinite(points).all(1)
    size = measure(kind, cells, np.where(numbers[:, None], points, 0.0))
    turned = np.zeros(len(cells), dtype=bool)
    if size is not None:
        known = numbers[cells].all(1)  # what is no number is said elsewhere
        flat |= known & (np.abs(size) <= _rounding(kind, cells, np.where(numbers[:, None], points, 0.0)))
        turned = known & (size < 0) & ~flat if kind in TETRAHEDRA else turned
    return flat, turned


def _rounding(kind: str, cells: np.ndarray, points: np.ndarray) -> np.ndarray:
    """(E,): area or volume that a cell has by rounding alone: its extent, times the step that its coordinates have."""
    corner = points[cells]
    extent = np.ptp(corner, axis=1).max(1)
    step = np.spacing(np.abs(corner).max((1, 2)).astype(np.float32)).astype(np.float64)
    return NO_SIZE * step * (extent**2 if kind in TETRAHEDRA else extent)


def broken_cells(where: str, kind: str, cells: np.ndarray, points: np.ndarray, fix: str = "") -> Iterator[Finding]:
    """Corners that do not exist, two equal corners, no size, inside out."""
    outside = ((cells < 0) | (cells >= len(points))).any(1)
    if outside.any():
        what = (
            f"cells refer to points it does not have: {outside.sum():,} of {len(cells):,} (first: {outside.argmax()})"
        )
        yield Finding(where, what, int(outside.sum()), int(outside.argmax()), fix)
        return
    flat, turned = flat_cells(kind, cells, points)
    for bad, words, mend in ((flat, "have no size", fix), (turned, "are inside out", IN_THE_MESHER)):
        if bad.any():
            what = f"{bad.sum():,} of {len(cells):,} cells {words} (first: {bad.argmax()})"
            yield Finding(where, what, int(bad.sum()), int(bad.argmax()), mend, serious=False)


def measure(kind: str, cells: np.ndarray, points: np.ndarray) -> np.ndarray | None:
    """(E,) areas of plane cells, or signed volumes of solid ones."""
    x = np.zeros((len(points), 3))
    x[:, : points.shape[1]] = points
    corner = x[cells]
    if kind in ("triangle", "quad"):
        diagonal = (corner[:, 1] - corner[:, 0], corner[:, 2] - corner[:, 0])
        if kind == "quad":
            diagonal = (corner[:, 2] - corner[:, 0], corner[:, 3] - corner[:, 1])
        return 0.5 * np.linalg.norm(np.cross(*diagonal), axis=1)
    if kind not in TETRAHEDRA:
        return None
    volume = np.zeros(len(cells))
    for four in TETRAHEDRA[kind]:
        a, b, c, d = (corner[:, i] for i in four)
        volume += np.einsum("ij,ij->i", np.cross(b - a, c - a), d - a) / 6
    return volume


def other_units(sizes: Mapping[Size, np.ndarray | Sequence[float]], labels: Sequence[str]) -> Iterator[Finding]:
    """Samples whose extent or field is out of scale with the rest; sizes are of each sample, 0 where it has none."""
    for (kind, field), numbers in sizes.items():
        name, values = "its extent" if kind == "extent" else repr(field), np.asarray(numbers)
        usual = float(np.median(values[values > 0])) if (values > 0).any() else 0.0
        if usual == 0 or len(values) < 3:
            continue
        ratio = np.maximum(values, 1e-300) / usual
        odd = (ratio > OTHER_UNIT) | ((ratio < 1 / OTHER_UNIT) & (values > 0))
        for index in map(int, np.flatnonzero(odd)):
            factor = float(max(ratio[index], 1 / ratio[index]))
            nearest = min(KNOWN_FACTORS, key=lambda known: abs(np.log(known / factor)))
            guess = f": {KNOWN_FACTORS[nearest]}?" if abs(np.log(nearest / factor)) < np.log(1.6) else ""
            side = "larger" if ratio[index] > 1 else "smaller"
            what = f"{name} is {factor:,.3g} times {side} than usual{guess}"
            yield Finding(
                labels[index], what, 1, int(index), "Convert it, or import with --exclude and its name", serious=False
            )


def write_findings(path: str | os.PathLike[str], found: Sequence[Finding]) -> None:
    """All of them as a table."""
    names = [field.name for field in fields(Finding)]
    with making(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(names)
        table.writerows([getattr(finding, name) for name in names] for finding in found)


def plain(row: np.ndarray) -> str:
    return ", ".join(f"{value:g}" for value in row)

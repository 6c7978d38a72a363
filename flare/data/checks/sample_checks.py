"""Checks of the values of one sample, one function per problem. `check.py` applies them to datasets and files."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from flare.utils.files import create_file

SPIKE = 1e4
"""Distance from the median, in multiples of the usual spread, from which a value is a marker such as 1e30 or -9999."""
OTHER_UNIT = 20.0
"""Ratio to the usual size from which a sample may be in another unit; an inch is 25.4 mm."""
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
"""Cell type -> tetrahedra whose signed volumes add up to that of the cell."""
NO_SIZE = 1.25
"""Largest size of a flat cell due to rounding, in float32 steps times its extent (at most 1.01 in 20,000 trials)."""
FIX_IN_MESHER = "Fix the mesh where it is made; points and fields, which a model learns from, are not affected"

Quantity = tuple[str, str]
"""A size of a sample that is compared between samples: ("extent", ""), or a location and the name of a field."""


@dataclass(frozen=True)
class Finding:
    """A problem that a data check has found."""

    where: str
    """File or sample."""
    what: str
    """Description of the problem."""
    count: int = 1
    """Number of points, cells or samples concerned."""
    first: int | None = None
    """Index of the first of them."""
    fix: str = ""
    """Suggested remedy."""
    serious: bool = True
    """Whether training would fail or its result mislead; otherwise the finding is a note."""

    def __str__(self) -> str:
        end = "" if self.what.endswith("?") else "."
        return f"{self.where}: {self.what}" + (f"{end} {self.fix}" if self.fix else "")


def find_bad_values(where: str, name: str, values: np.ndarray, fix: str, at: str = "points") -> Iterator[Finding]:
    """Find NaN and inf, and values so far from all others that they must be markers.

    Args:
        where: File or sample.
        name: Name of the field.
        values: Values of the field, shape (N, ...).
        fix: Remedy against NaN and inf.
        at: Location of the values: points, cells or values.
    """
    rows = values.reshape(len(values), -1)
    finite = np.isfinite(rows).all(1)
    if not finite.all():
        bad = np.flatnonzero(~finite)
        what = f"{name!r} is NaN or inf at {len(bad):,} of {len(rows):,} {at} (first: {bad[0]})"
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
        what = f"{name!r} is far outside its usual range at {share}"
        fix = "If this value marks missing data, replace it by NaN in the files and import with `on_nan=drop`"
        yield Finding(where, what, len(places), int(places[0]), fix, serious=False)


def find_constant_field(where: str, name: str, values: np.ndarray, at: str = "points") -> Iterator[Finding]:
    """Find a field that does not vary within a sample."""
    rows = values.reshape(len(values), -1)
    if len(rows) > 1 and (rows == rows[0]).all():
        what = f"{name!r} is {plain(rows[0])} at all {len(rows):,} {at}"
        fix = "If it should vary, run the simulation again, or leave the file out with `exclude`"
        yield Finding(where, what, len(rows), 0, fix, serious=False)


def find_duplicate_points(where: str, points: np.ndarray, values: Sequence[np.ndarray], fix: str) -> Iterator[Finding]:
    """Find points that coincide with an earlier one.

    Args:
        where: File or sample.
        points: Coordinates, shape (N, d).
        values: All fields at the points. Duplicates with equal values can be fixed, others cannot.
        fix: Remedy against duplicates with equal values.
    """
    duplicate = _repeats(points)
    if not duplicate.any():
        return
    equal = _repeats(np.concatenate([points, *(v.reshape(len(points), -1) for v in values)], axis=1))
    seam = "If they are meant as one point, merge them in the mesh; a model learns the average of two values"
    for which, text, remedy in (
        (duplicate & equal, "coincide with another point", fix),
        (duplicate & ~equal, "coincide with another point that has other values", seam),
    ):
        if which.any():
            what = f"{which.sum():,} of {len(points):,} points {text} (first: {which.argmax()})"
            yield Finding(where, what, int(which.sum()), int(which.argmax()), remedy, serious=False)


def _repeats(rows: np.ndarray) -> np.ndarray:
    """Return a boolean array, shape (N,), that is True at rows equal to an earlier row."""
    _, first = np.unique(rows, axis=0, return_index=True)
    again = np.ones(len(rows), dtype=bool)
    again[first] = False
    return again


def flat_cells(kind: str, cells: np.ndarray, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find cells with two equal corners or no size, and cells that are inside out.

    Points are rounded to single precision, as a dataset stores them, so that files and their dataset agree.

    Args:
        kind: Cell type.
        cells: Point indices, shape (E, corners); all must exist.
        points: Coordinates, shape (N, d).

    Returns:
        Two boolean arrays of shape (E,): flat cells, inverted cells.
    """
    points = points.astype(np.float32).astype(np.float64)
    ordered = np.sort(cells, axis=1)
    flat = (ordered[:, 1:] == ordered[:, :-1]).any(1)
    finite = np.isfinite(points).all(1)
    points = np.where(finite[:, None], points, 0.0)
    size = cell_sizes(kind, cells, points)
    inverted = np.zeros(len(cells), dtype=bool)
    if size is not None:
        known = finite[cells].all(1)  # NaN is a finding of its own
        corner = points[cells]
        extent = np.ptp(corner, axis=1).max(1)
        step = np.spacing(np.abs(corner).max((1, 2)).astype(np.float32)).astype(np.float64)
        flat |= known & (np.abs(size) <= NO_SIZE * step * (extent**2 if kind in TETRAHEDRA else extent))
        inverted = known & (size < 0) & ~flat if kind in TETRAHEDRA else inverted
    return flat, inverted


def find_broken_cells(where: str, kind: str, cells: np.ndarray, points: np.ndarray, fix: str = "") -> Iterator[Finding]:
    """Find cells with corners that do not exist, cells without size, and cells that are inside out."""
    outside = ((cells < 0) | (cells >= len(points))).any(1)
    if outside.any():
        first = outside.argmax()
        what = f"{outside.sum():,} of {len(cells):,} cells refer to points that do not exist (first: {first})"
        yield Finding(where, what, int(outside.sum()), int(first), fix)
        return
    flat, inverted = flat_cells(kind, cells, points)
    for bad, text, remedy in ((flat, "have no size", fix), (inverted, "are inside out", FIX_IN_MESHER)):
        if bad.any():
            what = f"{bad.sum():,} of {len(cells):,} cells {text} (first: {bad.argmax()})"
            yield Finding(where, what, int(bad.sum()), int(bad.argmax()), remedy, serious=False)


def cell_sizes(kind: str, cells: np.ndarray, points: np.ndarray) -> np.ndarray | None:
    """Return areas of plane cells or signed volumes of solid ones, shape (E,); None for other cells."""
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


def find_other_units(
    sizes: Mapping[Quantity, np.ndarray | Sequence[float]], labels: Sequence[str]
) -> Iterator[Finding]:
    """Find samples whose extent or field differs from the others by a factor, as values in another unit do.

    Args:
        sizes: Quantity -> its size in each sample, 0 if a sample lacks it.
        labels: Name of each sample.
    """
    for (kind, field), numbers in sizes.items():
        name, values = "the extent" if kind == "extent" else repr(field), np.asarray(numbers)
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
            yield Finding(labels[index], what, 1, index, "Convert it, or leave it out with `exclude`", serious=False)


def write_findings(path: str | os.PathLike[str], found: Sequence[Finding]) -> None:
    """Write findings as a CSV table."""
    names = [field.name for field in fields(Finding)]
    with create_file(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(names)
        table.writerows([getattr(finding, name) for name in names] for finding in found)


def plain(row: np.ndarray) -> str:
    """Return the numbers of a row separated by commas."""
    return ", ".join(f"{value:g}" for value in row)

"""Checks of the values of one sample, one function per problem. `check.py` applies them to datasets and files."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields

import numpy as np
from numpy.typing import ArrayLike

from flare.utils.files import create_file

SPIKE = 1e4
"""Distance from the median, in multiples of the usual spread, from which a value is a marker such as 1e30 or -9999."""
OTHER_UNIT = 20.0
"""Ratio to the usual size from which a sample may be in another unit; an inch is 25.4 mm."""
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
        return f"{self.where}: {self.what}" + (f". {self.fix}" if self.fix else "")


def find_marked(
    where: str, what: str, bad: ArrayLike, fix: str, at: str = "points", *, serious: bool = False
) -> Iterator[Finding]:
    """Report the rows where `bad`, shape (N,), is True, if there are any."""
    bad = np.asarray(bad)
    if bad.any():
        places = f"{bad.sum():,} of {len(bad):,} {at} (first: {bad.argmax()})"
        yield Finding(where, f"{what} at {places}", int(bad.sum()), int(bad.argmax()), fix, serious)


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
    yield from find_marked(where, f"{name!r} is NaN or inf", ~finite, fix, at, serious=True)
    whole = rows[finite].astype(np.float64)
    if len(whole) < 10:
        return
    low, middle, high = np.quantile(whole, [0.05, 0.5, 0.95], axis=0)
    far = (np.abs(rows - middle) > SPIKE * np.maximum(high - low, 1e-300)) & (high > low) & finite[:, None]
    what = f"{name!r} is far outside its usual range ({rows[far][0] if far.any() else 0:.4g})"
    remedy = "If this value marks missing data, replace it by NaN in the files and import with `on_nan=drop`"
    yield from find_marked(where, what, far.any(1), remedy, at)


def find_constant_field(where: str, name: str, values: np.ndarray, at: str = "points") -> Iterator[Finding]:
    """Find a field that does not vary within a sample."""
    rows = values.reshape(len(values), -1)
    if len(rows) > 1 and (rows == rows[0]).all():
        fix = "If it should vary, run the simulation again, or leave the file out with `exclude`"
        yield from find_marked(where, f"{name!r} is {plain(rows[0])}", np.ones(len(rows), dtype=bool), fix, at)


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
    yield from find_marked(where, "another point has the same place and values", duplicate & equal, fix)
    yield from find_marked(where, "another point has the same place, but other values", duplicate & ~equal, seam)


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
    if size is None:
        return flat, np.zeros_like(flat)
    known = finite[cells].all(1)  # NaN is a finding of its own
    corner = points[cells]
    extent = np.ptp(corner, axis=1).max(1)
    step = np.spacing(np.abs(corner).max((1, 2)).astype(np.float32)).astype(np.float64)
    solid = kind in TETRAHEDRA
    flat |= known & (np.abs(size) <= NO_SIZE * step * (extent**2 if solid else extent))
    return flat, known & (size < 0) & ~flat & solid


def find_broken_cells(where: str, kind: str, cells: np.ndarray, points: np.ndarray, fix: str = "") -> Iterator[Finding]:
    """Find cells with corners that do not exist, cells without size, and cells that are inside out."""
    outside = ((cells < 0) | (cells >= len(points))).any(1)
    if outside.any():
        yield from find_marked(where, "corners do not exist", outside, fix, "cells", serious=True)
        return
    flat, inverted = flat_cells(kind, cells, points)
    yield from find_marked(where, "no size", flat, fix, "cells")
    yield from find_marked(where, "inside out", inverted, FIX_IN_MESHER, "cells")


def cell_sizes(kind: str, cells: np.ndarray, points: np.ndarray) -> np.ndarray | None:
    """Return areas of plane cells or signed volumes of solid ones, shape (E,); None for other cells."""
    corner = np.pad(points, [(0, 0), (0, 3 - points.shape[1])])[cells]
    if kind in ("triangle", "quad"):
        ends = [(0, 1), (0, 2)] if kind == "triangle" else [(0, 2), (1, 3)]  # two edges, or the diagonals
        a, b = (corner[:, end] - corner[:, start] for start, end in ends)
        return 0.5 * np.linalg.norm(np.cross(a, b), axis=1)
    if kind not in TETRAHEDRA:
        return None
    edges = corner[:, TETRAHEDRA[kind]]
    edges = edges[:, :, 1:] - edges[:, :, :1]
    return np.einsum("etx,etx->e", np.cross(edges[:, :, 0], edges[:, :, 1]), edges[:, :, 2]) / 6


def find_other_units(sizes: Mapping[str, np.ndarray | Sequence[float]], labels: Sequence[str]) -> Iterator[Finding]:
    """Find samples whose extent or field differs from the others by a factor, as values in another unit do.

    Args:
        sizes: Quantity -> its size in each sample, 0 if a sample lacks it.
        labels: Name of each sample.
    """
    for quantity, numbers in sizes.items():
        values = np.asarray(numbers)
        if len(values) < 3 or not (values > 0).any():
            continue
        ratio = values / np.median(values[values > 0])
        for index in map(int, np.flatnonzero((ratio > OTHER_UNIT) | ((ratio < 1 / OTHER_UNIT) & (values > 0)))):
            what = f"{quantity} is {ratio[index]:,.3g} times the usual; is it in another unit?"
            yield Finding(labels[index], what, 1, index, "Convert it, or leave it out with `exclude`", serious=False)


def write_findings(path: str | os.PathLike[str], found: Sequence[Finding]) -> None:
    """Write findings as a CSV table."""
    with create_file(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([[field.name for field in fields(Finding)], *map(astuple, found)])


def plain(row: np.ndarray) -> str:
    """Return the numbers of a row separated by commas."""
    return ", ".join(f"{value:g}" for value in row)

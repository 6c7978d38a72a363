"""Probes of an encoded sample: points along a line, on a plane, on nested grids."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from flare.utils.errors import ConfigError

MAX_PROBE_POINTS = 100_000_000
"""Most points of a probe: 1.2 GB of coordinates."""


@dataclass(frozen=True)
class Probe:
    """Points at which the fields of an encoded sample are evaluated."""

    points: np.ndarray
    """(n, dimensions) float32; the last axis of `shape` runs fastest."""
    shape: tuple[int, ...]
    """Layout of the points."""
    level: int = 0
    """Level of nested grids; 0 is the coarsest."""


def line(start: ArrayLike, end: ArrayLike, count: int) -> Probe:
    """Return `count` points from one end to the other, both included."""
    a, b = np.asarray(start, np.float64), np.asarray(end, np.float64)
    _check_count([count])
    t = np.linspace(0, 1, count)[:, None]
    return Probe(((1 - t) * a + t * b).astype(np.float32), (count,))


def plane(corner: ArrayLike, first: ArrayLike, second: ArrayLike, count: int) -> Probe:
    """Return points on a parallelogram: `count` along the longer side, at the same spacing along the other."""
    o, a, b = (np.asarray(point, np.float64) for point in (corner, first, second))
    sides = [float(np.linalg.norm(end - o)) for end in (a, b)]
    if min(sides) == 0:
        raise ConfigError("the three corners of a plane must differ: one corner, and the ends of the two sides from it")
    rows, columns = (max(2, round(1 + (count - 1) * side / max(sides))) for side in sides)
    _check_count([rows, columns])
    s, t = np.ix_(np.linspace(0, 1, rows), np.linspace(0, 1, columns))
    points = np.empty((rows, columns, len(o)), np.float32)
    for axis in range(len(o)):  # one axis at a time, to save memory
        points[..., axis] = o[axis] + s * (a - o)[axis] + t * (b - o)[axis]
    return Probe(points.reshape(-1, len(o)), (rows, columns))


def grids(low: ArrayLike, high: ArrayLike, cells: int, levels: int) -> Iterator[Probe]:
    """Return nested grids over a box, the coarsest with `cells` along its longest side, each next one twice as fine.

    Every point of a grid is also in the next one. Grids are made one at a time; errors are raised before the first.
    """
    a, b = np.asarray(low, np.float64), np.asarray(high, np.float64)
    if cells < 1 or levels < 1:
        raise ConfigError(f"cells={cells}, levels={levels}: both must be at least 1")
    if (b < a).any() or (b == a).all():
        raise ConfigError(f"a box goes from its lowest to its highest corner, not from {a.tolist()} to {b.tolist()}")
    sides = [max(1, round(side)) for side in (cells * (b - a) / (b - a).max()).tolist()]
    shapes = [
        [1 if x == y else n * 2**level + 1 for n, x, y in zip(sides, a, b, strict=True)] for level in range(levels)
    ]
    _check_count(shapes[-1])
    return (_grid(a, b, shape, level) for level, shape in enumerate(shapes))


def _grid(low: np.ndarray, high: np.ndarray, shape: Sequence[int], level: int) -> Probe:
    points = np.empty((*shape, len(shape)), np.float32)
    axes = [np.linspace(x, y, n) for x, y, n in zip(low, high, shape, strict=True)]
    for axis, along in enumerate(np.ix_(*axes)):
        points[..., axis] = along
    return Probe(points.reshape(-1, len(shape)), tuple(shape), level)


def _check_count(shape: Sequence[int]) -> None:
    if not 2 <= math.prod(shape) <= MAX_PROBE_POINTS:
        raise ConfigError(f"a probe of {math.prod(shape):,} points; use 2 to {MAX_PROBE_POINTS:,}")

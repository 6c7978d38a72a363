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
    a, b = _corners(start, end)
    _check_count(count)
    _check_size("this line", [count], "use a smaller count")
    if (a == b).all():
        raise ConfigError(f"the ends of a line must differ; both are {a.tolist()}")
    t = np.linspace(0, 1, count)[:, None]
    return Probe(((1 - t) * a + t * b).astype(np.float32), (count,))


def plane(corner: ArrayLike, first: ArrayLike, second: ArrayLike, count: int) -> Probe:
    """Return points on a parallelogram: `count` along the longer side, at the same spacing along the other."""
    o, a, b = _corners(corner, first, second)
    _check_count(count)
    sides = [float(np.linalg.norm(end - o)) for end in (a, b)]
    if min(sides) == 0:
        raise ConfigError("the three corners of a plane must differ: one corner, and the ends of the two sides from it")
    rows, columns = (max(2, round(1 + (count - 1) * side / max(sides))) for side in sides)
    _check_size("this plane", [rows, columns], "use a smaller count")
    s, t = np.ix_(np.linspace(0, 1, rows), np.linspace(0, 1, columns))
    points = np.empty((rows, columns, len(o)), np.float32)
    for axis in range(len(o)):  # one axis at a time, to save memory
        points[..., axis] = o[axis] + s * (a - o)[axis] + t * (b - o)[axis]
    return Probe(points.reshape(-1, len(o)), (rows, columns))


def grids(low: ArrayLike, high: ArrayLike, cells: int, levels: int) -> Iterator[Probe]:
    """Return nested grids over a box, the coarsest with `cells` along its longest side, each next one twice as fine.

    Every point of a grid is also in the next one. Grids are made one at a time; errors are raised before the first.
    """
    a, b = _corners(low, high)
    if cells < 1 or levels < 1:
        raise ConfigError(f"cells={cells}, levels={levels}: both must be at least 1")
    if (b < a).any() or (b == a).all():
        raise ConfigError(
            f"a box must go from its lowest to its highest corner; this one goes from {a.tolist()} to {b.tolist()}"
        )
    sides = [max(1, round(side)) for side in (cells * (b - a) / (b - a).max()).tolist()]
    shapes = []
    for level in range(levels):
        shapes.append([1 if x == y else n * 2**level + 1 for n, x, y in zip(sides, a, b, strict=True)])
        _check_size(f"level {level} of these grids", shapes[-1], "use fewer levels or cells")
    return (_grid(a, b, shape, level) for level, shape in enumerate(shapes))


def _grid(low: np.ndarray, high: np.ndarray, shape: Sequence[int], level: int) -> Probe:
    points = np.empty((*shape, len(shape)), np.float32)
    axes = [np.linspace(x, y, n) for x, y, n in zip(low, high, shape, strict=True)]
    for axis, along in enumerate(np.ix_(*axes)):
        points[..., axis] = along
    return Probe(points.reshape(-1, len(shape)), tuple(shape), level)


def _corners(*corners: ArrayLike) -> list[np.ndarray]:
    arrays = [np.asarray(corner, np.float64) for corner in corners]
    if len({array.shape for array in arrays}) != 1 or arrays[0].ndim != 1:
        sizes = ", ".join(str(array.size) for array in arrays)
        raise ConfigError(f"corners have {sizes} coordinates; they must have the same number")
    return arrays


def _check_size(what: str, shape: Sequence[int], remedy: str) -> None:
    if math.prod(shape) > MAX_PROBE_POINTS:
        sides = " x ".join(f"{n:,}" for n in shape)
        raise ConfigError(f"{what} has {sides} = {math.prod(shape):,} points, more than {MAX_PROBE_POINTS:,}; {remedy}")


def _check_count(count: int) -> None:
    if count < 2:
        raise ConfigError(f"count={count}; a probe needs at least 2 points")

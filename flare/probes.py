"""Points to ask an encoded sample about: along a line, over a plane, on ever finer grids."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from flare.utils.errors import ConfigError

MOST = 100_000_000
"""Points of a probe: 1.2 GB of coordinates."""


@dataclass(frozen=True)
class Probe:
    points: np.ndarray
    """(n, dimensions) float32; the last axis of `shape` runs fastest."""
    shape: tuple[int, ...]
    """How they are laid out."""
    level: int = 0
    """Of nested grids: 0 is the coarsest."""


def line(start: ArrayLike, end: ArrayLike, count: int) -> Probe:
    """`count` points from one end to the other, both included."""
    a, b = _corners(start, end)
    _at_least_two(count)
    _refuse_too_many("this line", [count], "take a smaller count")
    if (a == b).all():
        raise ConfigError(f"a line takes two ends that differ; both are {a.tolist()}")
    t = np.linspace(0, 1, count)[:, None]
    return Probe(((1 - t) * a + t * b).astype(np.float32), (count,))


def plane(corner: ArrayLike, first: ArrayLike, second: ArrayLike, count: int) -> Probe:
    """A parallelogram from three corners: `count` points along the longer side, as dense along the other."""
    o, a, b = _corners(corner, first, second)
    _at_least_two(count)
    sides = [float(np.linalg.norm(end - o)) for end in (a, b)]
    if min(sides) == 0:
        raise ConfigError("a plane takes three corners that differ: one, and the ends of two sides from there")
    rows, columns = (max(2, round(1 + (count - 1) * side / max(sides))) for side in sides)
    _refuse_too_many("this plane", [rows, columns], "take a smaller count")
    s, t = np.ix_(np.linspace(0, 1, rows), np.linspace(0, 1, columns))
    points = np.empty((rows, columns, len(o)), np.float32)
    for axis in range(len(o)):  # one by one: in float64 all together would take several times as much
        points[..., axis] = o[axis] + s * (a - o)[axis] + t * (b - o)[axis]
    return Probe(points.reshape(-1, len(o)), (rows, columns))


def grids(low: ArrayLike, high: ArrayLike, cells: int, levels: int) -> Iterator[Probe]:
    """Grids over a box, the coarsest with `cells` along its longest side, each next one twice as fine.

    Every point of a grid is also one of the next, so that a viewer only adds what it has not seen. They are made one by
    one; what is wrong is said before the first.
    """
    a, b = _corners(low, high)
    if cells < 1 or levels < 1:
        raise ConfigError(f"cells={cells}, levels={levels}: at least 1 each")
    if (b < a).any() or (b == a).all():
        raise ConfigError(
            f"a box goes from its lowest corner to its highest; this one from {a.tolist()} to {b.tolist()}"
        )
    sides = [max(1, round(side)) for side in (cells * (b - a) / (b - a).max()).tolist()]
    shapes = []
    for level in range(levels):
        shapes.append([1 if x == y else n * 2**level + 1 for n, x, y in zip(sides, a, b, strict=True)])
        _refuse_too_many(f"level {level} of these grids", shapes[-1], "take fewer levels or cells")
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
        raise ConfigError(f"corners have {sizes} coordinates; give all as many")
    return arrays


def _refuse_too_many(what: str, shape: Sequence[int], remedy: str) -> None:
    if math.prod(shape) > MOST:
        sides = " x ".join(f"{n:,}" for n in shape)
        raise ConfigError(f"{what} has {sides} = {math.prod(shape):,} points, more than {MOST:,}; {remedy}")


def _at_least_two(count: int) -> None:
    if count < 2:
        raise ConfigError(f"count={count}; a probe has at least 2 points")

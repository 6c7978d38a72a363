"""The C-mesh of the benchmark: around the wing section and on along its wake, out to 40 chords.

Node (i, j) lies on a straight line from point i of the inner to point i of the outer boundary:

    i = 0 … 50      wake, from the outflow to the trailing edge, seen from above
    i = 50 … 110    upper side, to the leading edge
    i = 110 … 170   lower side, back to the trailing edge
    i = 170 … 220   wake, to the outflow, seen from below
    j = 0 … 50      from the wing section or wake outwards

so the nodes (i, 0) and (220−i, 0), i ≤ 50, are the same points. Every distribution of points is a function of a real
index: a mesh of half the resolution has every second node, one of double resolution a new node between any two.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import bisect

from flare.physics.airfoil.shape import UNDEFORMED, Array, displace, naca0012
from flare.utils.errors import ConfigError, nearest

Resolution = Literal["half", "full", "double"]
STEP: dict[Resolution, float] = {"half": 2.0, "full": 1.0, "double": 0.5}
"""Of the index from one node to the next."""

WAKE, SIDE, OUT = 50, 60, 50  # cells along the wake, along each side of the section, outwards
RADIUS = 40.0  # of the outer arc, about the undeformed trailing edge; also where the wake ends
GENTLE = 1.02  # the largest ratio of neighbouring steps in the first three quarters of a graded sequence


def grid_of(resolution: Resolution) -> tuple[int, int]:
    """Nodes along i and j: (221, 51) for "full"."""
    if resolution not in STEP:
        raise ConfigError(f"resolution={resolution!r} is unknown; {nearest(str(resolution), get_args(Resolution))}")
    return round(2 * (WAKE + SIDE) / STEP[resolution]) + 1, round(OUT / STEP[resolution]) + 1


def c_mesh(displacements: ArrayLike = UNDEFORMED, *, resolution: Resolution = "full") -> Array:
    """(I, J, 2) nodes around NACA-0012 deformed by eight displacements of its design element.

    `resolution`: half, full (the published 221 × 51) or double, for studies of convergence.
    """
    rows, columns = grid_of(resolution)
    i, j = (np.arange(n, dtype=np.float64) * STEP[resolution] for n in (rows, columns))
    w = graded(j, OUT + 1, first=2 / 120 / RADIUS)[:, None]
    return _inner(i, displacements)[:, None] * (1 - w) + _outer(i)[:, None] * w


def graded(index: Array, count: int, *, first: float) -> Array:
    """Positions, at real indices, in a sequence of `count` points from 0 to 1 that begins with a step of `first`.

    Steps grow by one ratio if 1.02 or less is enough. Otherwise they grow by 1.02 up to point ⌊3·count/4⌋ − 1, and
    from there by the ratio that meets the end.
    """
    last = count - 1
    ratio = _ratio(first, last, length=1.0)
    if ratio <= GENTLE:
        position = _series(index, first, ratio)
    else:
        bend = 3 * count // 4 - 1
        start, step = float(_series(bend, first, GENTLE)), first * GENTLE**bend
        steep = _ratio(step, last - bend, length=1 - start)
        gentle = _series(np.minimum(index, bend), first, GENTLE)
        position = gentle + _series(np.maximum(index - bend, 0), step, steep)
    return np.where(index < last, position, 1.0)  # the ratio is rounded, the end is not


def _series(index: Array | int, first: float, ratio: float) -> Array:
    """Sum of `index` steps first · (1, ratio, ratio², …)."""
    return first * (np.power(ratio, index) - 1) / (ratio - 1)


def _ratio(first: float, steps: int, *, length: float) -> float:
    return bisect(lambda r: float(_series(steps, first, r)) - length, 1 + 1e-4, 2.0, xtol=1e-15, rtol=1e-15)


def _stations(index: Array) -> Array:
    """x of the points of a side, 0 … 60 from the leading edge: 0, 1/236, 1/59, 2/59, …, 1.

    Between the first three x grows as the square of the index, as the rounded nose asks for.
    """
    return np.where(index < 2, index**2 / 4, index - 1) / (SIDE - 1)


def _inner(i: Array, displacements: ArrayLike) -> Array:
    """(I, 2) points of the wake and of the wing section."""
    from_nose = np.abs(i - (WAKE + SIDE))
    x = _stations(np.minimum(from_nose, SIDE))
    y = np.sign(WAKE + SIDE - i) * np.where(from_nose < SIDE, naca0012(x), 0.0)  # exactly closed, for the wake to meet
    section = displace(np.stack([x, y], axis=-1), displacements)
    panel = np.hypot(1 / (SIDE - 1), naca0012(1 - 1 / (SIDE - 1)))
    s = graded(np.maximum(from_nose - SIDE, 0), WAKE + 1, first=float(panel) / (RADIUS - 1))[:, None]
    return section * (1 - s) + np.array([RADIUS, 0.0]) * s


def _outer(i: Array) -> Array:
    """(I, 2) points of the outer boundary: a half circle with equal angles, and straight to the outflow."""
    angle = np.pi / 2 + np.pi * np.clip((i - WAKE) / (2 * SIDE), 0, 1)
    downstream = np.maximum(np.abs(i - (WAKE + SIDE)) - SIDE, 0) / WAKE
    return np.stack([1 + RADIUS * np.cos(angle) + (RADIUS - 1) * downstream, RADIUS * np.sin(angle)], axis=-1)

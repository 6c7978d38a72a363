"""Airfoil and C-mesh of the benchmark. Lengths are in chords.

The airfoil is a NACA-0012 section in a design element, a box of eight control nodes that move up and down:

    8 ───── 7 ───── 6 ───── 5     y = +0.1
    │    ⟨ NACA-0012 ⟩      │
    1 ───── 2 ───── 3 ───── 4     y = −0.1
    −0.25   0.25    0.75    1.25

The leading edge is at (0, 0), the closed trailing edge at (1, 0). The mesh surrounds the airfoil and its wake, out to
40 chords. Node (i, j) lies on a straight line from point i of the inner to point i of the outer boundary:

    i = 0 … 50      wake, from the outflow to the trailing edge, upper side
    i = 50 … 110    upper surface, to the leading edge
    i = 110 … 170   lower surface, back to the trailing edge
    i = 170 … 220   wake, to the outflow, lower side
    j = 0 … 50      from the airfoil or wake outwards

so the nodes (i, 0) and (220−i, 0), i ≤ 50, coincide. Every distribution of points is a function of a real index: a mesh
of half the resolution has every second node, one of double resolution a new node between any two.
"""

from __future__ import annotations

from functools import reduce
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import bisect

from flare.utils.errors import ConfigError, DataError, suggest_name

Array = NDArray[np.float64]

CONTROL_X = (-0.25, 0.25, 0.75, 1.25)
CONTROL_Y = (-0.1, 0.1)
MAX_DISPLACEMENT = 0.05
"""Largest displacement of a control node in the benchmark, up or down."""
UNDEFORMED = (0.0,) * 8

Resolution = Literal["half", "full", "double"]
STEP: dict[Resolution, float] = {"half": 2.0, "full": 1.0, "double": 0.5}
"""Step of the index from one node to the next."""

WAKE, SIDE, OUT = 50, 60, 50  # cells along the wake, along each side of the section, outwards
RADIUS = 40.0  # of the outer arc around the undeformed trailing edge; the wake ends at the same distance
MAX_RATIO = 1.02  # of neighboring steps in the first three quarters of a graded sequence


def random_displacements(rng: np.random.Generator) -> Array:
    """Draw control-node displacements, shape (8,): the first is 0, the others are independent U[−0.05, 0.05]."""
    return np.concatenate([[0.0], rng.uniform(-MAX_DISPLACEMENT, MAX_DISPLACEMENT, 7)])


def naca0012(x: ArrayLike) -> Array:
    """Return half the thickness at x in [0, 1], in the shape of x. It is zero at both ends."""
    x = np.asarray(x, dtype=np.float64)
    return 0.6 * (0.2969 * np.sqrt(x) + x * (-0.1260 + x * (-0.3516 + x * (0.2843 - x * 0.1036))))


def displace(points: Array, displacements: ArrayLike) -> Array:
    """Move points with the design element: Δy = Σ d_m Φ_m(x) Ψ_m(y), with cubic Φ and linear Ψ Lagrange polynomials.

    Args:
        points: x and y, shape (..., 2).
        displacements: Displacements of the control nodes in the order of the figure above, shape (8,).

    Raises:
        DataError: `displacements` are not eight numbers.
    """
    d = np.asarray(displacements, dtype=np.float64)
    if d.shape != (8,):
        raise DataError(f"displacements={d.tolist()}: must be eight numbers, one per control node")
    x, y = points[..., 0], points[..., 1]
    bottom, top = (_lagrange(CONTROL_Y, k, y) for k in (0, 1))
    shift = sum(_lagrange(CONTROL_X, k, x) * (d[k] * bottom + d[7 - k] * top) for k in range(4))
    return np.stack([x, y + shift], axis=-1)


def grid_shape(resolution: Resolution) -> tuple[int, int]:
    """Return the number of nodes along i and j: (221, 51) for "full"."""
    if resolution not in STEP:
        raise ConfigError(f"resolution={resolution!r} is unknown; {suggest_name(str(resolution), STEP)}")
    return round(2 * (WAKE + SIDE) / STEP[resolution]) + 1, round(OUT / STEP[resolution]) + 1


def c_mesh(displacements: ArrayLike = UNDEFORMED, *, resolution: Resolution = "full") -> Array:
    """Return the nodes around NACA-0012, deformed by the displacements of its design element, shape (I, J, 2).

    Args:
        displacements: Displacements of the eight control nodes.
        resolution: half, full (the published 221 × 51) or double, for convergence studies.
    """
    rows, columns = grid_shape(resolution)
    i, j = (np.arange(n, dtype=np.float64) * STEP[resolution] for n in (rows, columns))
    w = graded(j, OUT + 1, first=2 / 120 / RADIUS)[:, None]
    return _inner(i, displacements)[:, None] * (1 - w) + _outer(i)[:, None] * w


def graded(index: Array, count: int, *, first: float) -> Array:
    """Return positions at real indices in a sequence of `count` points from 0 to 1 whose first step is `first`.

    Steps grow by a constant ratio if 1.02 or less is enough. Otherwise they grow by 1.02 up to point ⌊3·count/4⌋ − 1,
    and from there by the ratio that reaches the end.
    """
    last = count - 1
    ratio = _ratio(first, last, length=1.0)
    if ratio <= MAX_RATIO:
        position = _series(index, first, ratio)
    else:
        bend = 3 * count // 4 - 1
        start, step = float(_series(bend, first, MAX_RATIO)), first * MAX_RATIO**bend
        steep = _ratio(step, last - bend, length=1 - start)
        gentle = _series(np.minimum(index, bend), first, MAX_RATIO)
        position = gentle + _series(np.maximum(index - bend, 0), step, steep)
    return np.where(index < last, position, 1.0)  # the rounded ratio would miss the end


def _series(index: Array | int, first: float, ratio: float) -> Array:
    """Sum `index` steps first · (1, ratio, ratio², …)."""
    return first * (np.power(ratio, index) - 1) / (ratio - 1)


def _ratio(first: float, steps: int, *, length: float) -> float:
    return bisect(lambda r: float(_series(steps, first, r)) - length, 1 + 1e-4, 2.0, xtol=1e-15, rtol=1e-15)


def _stations(index: Array) -> Array:
    """Return x at points 0 … 60 of a side, from the leading edge: 0, 1/236, 1/59, 2/59, …, 1.

    Between the first three points x grows with the square of the index, to resolve the round nose.
    """
    return np.where(index < 2, index**2 / 4, index - 1) / (SIDE - 1)


def _inner(i: Array, displacements: ArrayLike) -> Array:
    """Return the points of wake and airfoil, shape (I, 2)."""
    from_nose = np.abs(i - (WAKE + SIDE))
    x = _stations(np.minimum(from_nose, SIDE))
    y = np.sign(WAKE + SIDE - i) * np.where(from_nose < SIDE, naca0012(x), 0.0)  # closed exactly at the wake
    section = displace(np.stack([x, y], axis=-1), displacements)
    panel = np.hypot(1 / (SIDE - 1), naca0012(1 - 1 / (SIDE - 1)))
    s = graded(np.maximum(from_nose - SIDE, 0), WAKE + 1, first=float(panel) / (RADIUS - 1))[:, None]
    return section * (1 - s) + np.array([RADIUS, 0.0]) * s


def _outer(i: Array) -> Array:
    """Return the outer boundary, shape (I, 2): a half circle with equal angles, then straight to the outflow."""
    angle = np.pi / 2 + np.pi * np.clip((i - WAKE) / (2 * SIDE), 0, 1)
    downstream = np.maximum(np.abs(i - (WAKE + SIDE)) - SIDE, 0) / WAKE
    return np.stack([1 + RADIUS * np.cos(angle) + (RADIUS - 1) * downstream, RADIUS * np.sin(angle)], axis=-1)


def _lagrange(nodes: tuple[float, ...], k: int, x: Array) -> Array:
    """Evaluate the polynomial that is 1 at node k and 0 at the others."""
    others = (node for node in nodes if node != nodes[k])
    return reduce(lambda value, node: value * (x - node) / (nodes[k] - node), others, np.ones_like(x))

"""The wing section: NACA-0012 in a design element, a box of eight control nodes that are moved up and down.

    8 ───── 7 ───── 6 ───── 5     y = +0.1
    │    ⟨ NACA-0012 ⟩      │
    1 ───── 2 ───── 3 ───── 4     y = −0.1
    −0.25   0.25    0.75    1.25

Lengths are in chords. The leading edge is at (0, 0), the trailing edge, which is closed, at (1, 0).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flare.utils.errors import DataError

Array = NDArray[np.float64]

CONTROL_X = (-0.25, 0.25, 0.75, 1.25)
CONTROL_Y = (-0.1, 0.1)
LARGEST = 0.05
"""Displacement of a control node in the benchmark, up or down."""
UNDEFORMED = (0.0,) * 8


def random_displacements(rng: np.random.Generator) -> Array:
    """(8,) displacements of the control nodes: the first 0, the others independent and U[−0.05, 0.05]."""
    return np.concatenate([[0.0], rng.uniform(-LARGEST, LARGEST, 7)])


def naca0012(x: ArrayLike) -> Array:
    """Half the thickness at x in [0, 1], of the shape of x; zero at both ends."""
    x = np.asarray(x, dtype=np.float64)
    return 0.6 * (0.2969 * np.sqrt(x) + x * (-0.1260 + x * (-0.3516 + x * (0.2843 - x * 0.1036))))


def displace(points: Array, displacements: ArrayLike) -> Array:
    """Points moved with the design element: Δy = Σ d_m Φ_m(x) Ψ_m(y), Φ cubic and Ψ linear Lagrange polynomials.

    Args:
        points: (..., 2), x and y.
        displacements: (8,), of the control nodes in the order of the figure above.
    """
    d = np.asarray(displacements, dtype=np.float64)
    if d.shape != (8,) or not np.isfinite(d).all():
        raise DataError(f"displacements are {d.tolist()}; give eight finite numbers, one for each control node")
    x, y = points[..., 0], points[..., 1]
    bottom, top = (_lagrange(CONTROL_Y, k, y) for k in (0, 1))
    shift = sum(_lagrange(CONTROL_X, k, x) * (d[k] * bottom + d[7 - k] * top) for k in range(4))
    return np.stack([x, y + shift], axis=-1)


def _lagrange(nodes: tuple[float, ...], k: int, x: Array) -> Array:
    """The polynomial that is 1 at node k and 0 at the others."""
    value = np.ones_like(x)
    for m, node in enumerate(nodes):
        if m != k:
            value = value * (x - node) / (nodes[k] - node)
    return value

"""Potential and velocity of a flat triangle with uniform sources, anywhere in space, in closed form.

With unit strength and r the distance from p to a point of the triangle, over which the integrals run,

    ∫ 1/r   = Σ_edges t L − h Ω          ∫ (p − y)/r³ = Σ_edges m L + Ω n

where for an edge of length l between corners at distances r₁ and r₂ from p, L = ln((r₁ + r₂ + l) / (r₁ + r₂ − l)), m is
the outward normal of the edge in the plane, and t the distance of the edge from p along m; n is the normal of the
triangle, h the height of p over its plane, and Ω its solid angle, positive on the side of n.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flare.utils.numba_cache import compiled

Array = NDArray[np.float64]


@compiled
def potential(p: Array, corners: Array, normal: Array) -> float:
    """Integrate 1/r over the triangle; finite everywhere, also on its edges and corners.

    Args:
        p: Point, shape (3,).
        corners: Shape (3, 3), counterclockwise seen from the tip of `normal`.
        normal: Unit normal, shape (3,).
    """
    height = 0.0
    for k in range(3):
        height += (p[k] - corners[0, k]) * normal[k]
    total = -height * solid_angle(p, corners, height)
    for a in range(3):
        b = (a + 1) % 3
        ex, ey, ez = corners[b, 0] - corners[a, 0], corners[b, 1] - corners[a, 1], corners[b, 2] - corners[a, 2]
        length = np.sqrt(ex * ex + ey * ey + ez * ez)
        mx, my, mz = ey * normal[2] - ez * normal[1], ez * normal[0] - ex * normal[2], ex * normal[1] - ey * normal[0]
        dx, dy, dz = corners[a, 0] - p[0], corners[a, 1] - p[1], corners[a, 2] - p[2]
        total += (dx * mx + dy * my + dz * mz) / length * edge_logarithm(p, corners[a], corners[b], length)
    return total


@compiled
def velocity(p: Array, corners: Array, normal: Array, angle: float, out: Array) -> None:
    """Add 1/4π times the integral of (p − y)/r³ over the triangle to `out`.

    Args:
        p: Point, shape (3,), not on an edge.
        corners: As in `potential`.
        normal: As in `potential`.
        angle: Solid angle Ω. The caller knows it to be 2π for a point on the outside of the triangle itself.
        out: Shape (3,), changed in place.
    """
    for k in range(3):
        out[k] += angle * normal[k] / (4 * np.pi)
    for a in range(3):
        b = (a + 1) % 3
        ex, ey, ez = corners[b, 0] - corners[a, 0], corners[b, 1] - corners[a, 1], corners[b, 2] - corners[a, 2]
        length = np.sqrt(ex * ex + ey * ey + ez * ez)
        share = edge_logarithm(p, corners[a], corners[b], length) / (4 * np.pi * length)
        out[0] += share * (ey * normal[2] - ez * normal[1])
        out[1] += share * (ez * normal[0] - ex * normal[2])
        out[2] += share * (ex * normal[1] - ey * normal[0])


@compiled
def edge_logarithm(p: Array, a: Array, b: Array, length: float) -> float:
    """Return L of an edge from a to b. On the edge it is a large finite number, so that t L vanishes there with t."""
    ra = np.sqrt((p[0] - a[0]) ** 2 + (p[1] - a[1]) ** 2 + (p[2] - a[2]) ** 2)
    rb = np.sqrt((p[0] - b[0]) ** 2 + (p[1] - b[1]) ** 2 + (p[2] - b[2]) ** 2)
    return np.log((ra + rb + length) / max(ra + rb - length, 1e-16 * length))


@compiled
def solid_angle(p: Array, corners: Array, height: float) -> float:
    """Return the solid angle of the triangle seen from p, with the sign of `height` (van Oosterom and Strackee)."""
    ax, ay, az = corners[0, 0] - p[0], corners[0, 1] - p[1], corners[0, 2] - p[2]
    bx, by, bz = corners[1, 0] - p[0], corners[1, 1] - p[1], corners[1, 2] - p[2]
    cx, cy, cz = corners[2, 0] - p[0], corners[2, 1] - p[1], corners[2, 2] - p[2]
    ra, rb = np.sqrt(ax * ax + ay * ay + az * az), np.sqrt(bx * bx + by * by + bz * bz)
    rc = np.sqrt(cx * cx + cy * cy + cz * cz)
    triple = ax * (by * cz - bz * cy) + ay * (bz * cx - bx * cz) + az * (bx * cy - by * cx)
    below = ra * rb * rc + (ax * bx + ay * by + az * bz) * rc
    below += (bx * cx + by * cy + bz * cz) * ra + (cx * ax + cy * ay + cz * az) * rb
    angle = 2 * np.arctan2(abs(triple), below)
    return angle if height > 0 else -angle

"""Loss of precision of coordinates in float32, the type in which datasets store them.

At 5,000,000 m from the origin, neighboring float32 numbers are half a meter apart: a mesh with millimeter spacing there
collapses into a few points.
"""

from __future__ import annotations

import numpy as np
from scipy.spatial import cKDTree

FAR = 10.0
"""Distance from the origin, in multiples of the extent of a mesh, from which it costs a relevant number of digits."""
STEPS = 1000.0
"""Float32 steps between neighboring points, below which fewer than three digits of a distance are left."""
PROBES = 1000
"""Number of points whose neighbors are searched."""
MIX = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9], dtype=np.uint64)
"""Odd factors that hash the coordinates of a point."""


def merged_by_rounding(points: np.ndarray) -> int:
    """Return how many distinct points of shape (N, 1 to 3) coincide with another one in float32."""
    rounded = points.astype(np.float32) + np.float32(0)  # -0 and 0 are equal
    if np.array_equal(rounded, points):
        return 0
    bits = np.ascontiguousarray(rounded).view(np.uint32).astype(np.uint64)
    keys = (bits * MIX[: points.shape[1]]).sum(1, dtype=np.uint64)
    _, place, count = np.unique(keys, return_inverse=True, return_counts=True)
    again = (
        count[place.reshape(-1)] > 1
    )  # only repeated hashes are compared row by row, which is cheap for large meshes
    if not again.any():
        return 0
    return len(np.unique(points[again], axis=0)) - len(np.unique(rounded[again], axis=0))


def steps_between(points: np.ndarray) -> float:
    """Return the median distance of neighbors in float32 steps; inf if the mesh is not far from the origin."""
    if len(points) < 2 or not far_axes(points.min(0), points.max(0)):
        return np.inf
    moved = points.astype(np.float64) - points.min(0)
    probes = moved[:: max(1, len(moved) // PROBES)]
    nearest = np.asarray(cKDTree(moved).query(probes, k=2)[0])[:, 1]
    axes = np.ptp(moved, axis=0) > 0
    step = float(np.spacing(np.float32(np.abs(points[:, axes]).max())))
    return float(np.median(nearest[nearest > 0])) / step if (nearest > 0).any() else np.inf


def far_axes(low: np.ndarray, high: np.ndarray) -> dict[int, float]:
    """Return the axes along which a box is far from the origin, each with a round number to subtract."""
    size, middle = float((high - low).max()), (low.astype(np.float64) + high) / 2
    axes = [i for i in range(len(low)) if high[i] > low[i] and abs(middle[i]) > FAR * size]
    return {i: round(float(low[i]), -int(np.ceil(np.log10(size)))) for i in axes}

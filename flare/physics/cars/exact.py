"""Exact potential flow past ellipsoids, to verify the panel method."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.integrate import quad

from flare.mesh.surface import Surface

Array = NDArray[np.float64]


def ellipsoid(axes: Sequence[float], subdivisions: int) -> Surface:
    """Return an ellipsoid of 20 · 4^subdivisions triangles; `axes` are its half lengths along x, y, z."""
    from trimesh.creation import icosphere

    sphere = Surface.of(icosphere(subdivisions=subdivisions, radius=1.0))
    return Surface(sphere.vertices * np.asarray(axes), sphere.faces)


def ellipsoid_cp(axes: Sequence[float], points: Array) -> Array:
    """Return the pressure coefficient at points of the surface in a stream along x, shape (P,).

    The potential is (1 + k) x there, with k = α / (2 − α) and α = abc ∫₀^∞ ds / ((a² + s) √((a² + s)(b² + s)(c² + s)))
    (Lamb, Hydrodynamics, § 114). A sphere has 1 + k = 3/2.
    """
    a, b, c = (float(axis) ** 2 for axis in axes)
    integral, _ = quad(lambda s: 1 / ((a + s) * np.sqrt((a + s) * (b + s) * (c + s))), 0, np.inf)
    alpha = np.sqrt(a * b * c) * integral
    normals = points / np.array([a, b, c])
    normals /= np.linalg.norm(normals, axis=1)[:, None]
    peak_speed = 1 + alpha / (2 - alpha)
    return 1 - peak_speed**2 * (1 - normals[:, 0] ** 2)

"""Bodies whose potential flow is known exactly."""

import numpy as np
import trimesh
from scipy.integrate import quad

from flare.mesh.surface import Surface


def icosphere(subdivisions):
    """The unit sphere of 20 · 4^subdivisions triangles, vertices on it."""
    return Surface.of(trimesh.creation.icosphere(subdivisions=subdivisions, radius=1.0))


def ellipsoid(axes, subdivisions):
    sphere = icosphere(subdivisions)
    return Surface(sphere.vertices * axes, sphere.faces)


def ellipsoid_cp(axes, points):
    """Exact, for a stream along x: φ = (1 + k) x on the surface, with Lamb's k = α / (2 − α)."""
    a, b, c = axes
    alpha = (
        a * b * c * quad(lambda s: 1 / ((a * a + s) * np.sqrt((a * a + s) * (b * b + s) * (c * c + s))), 0, np.inf)[0]
    )
    normal = points / np.square(axes)
    normal /= np.linalg.norm(normal, axis=1)[:, None]
    fastest = 1 + alpha / (2 - alpha)
    return 1 - fastest**2 * (1 - normal[:, 0] ** 2)


def moved(surface, by):
    return Surface(surface.vertices + np.asarray(by), surface.faces)


def rms(values):
    return float(np.sqrt(np.mean(np.square(values))))

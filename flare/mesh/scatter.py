"""Random points on a surface, evenly by area."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flare.mesh.surface import Array, Surface
from flare.utils.errors import ConfigError, DataError


def scatter(surface: Surface, count: int, rng: np.random.Generator) -> tuple[NDArray[np.int64], Array]:
    """(count,) faces and (count, 3) weights of their corners; a point is weights @ corners, and so is a field there."""
    if count < 1:
        raise ConfigError(f"{count} points cannot be drawn; at least 1")
    a, b, c = np.moveaxis(surface.vertices[surface.faces], 1, 0)
    ends = np.cumsum(np.linalg.norm(np.cross(b - a, c - a), axis=1))
    if not len(ends) or not 0 < ends[-1] < np.inf:
        raise DataError("the surface has no area, so no point can be drawn on it")
    faces = np.searchsorted(ends, rng.random(count) * ends[-1], side="right")
    # The square root makes points as dense near a corner as near the side across from it.
    away, along = np.sqrt(rng.random(count)), rng.random(count)
    weights = np.stack([1 - away, away * (1 - along), away * along], axis=1)
    return np.minimum(faces, len(ends) - 1), weights

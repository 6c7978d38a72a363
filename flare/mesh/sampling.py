"""Points on a surface and voxels inside it, for geometry without points of its own."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flare.mesh.mesh import Mesh
from flare.mesh.surface import Array, GeometryError, Surface
from flare.utils.errors import ConfigError, DataError, TooLarge

MAX_POINTS = 50_000_000
"""Most points on one surface; they take about 200 bytes each while they are made."""
MAX_BOX = 8
"""Voxels of the bounding box per accepted point, at most; most of them are outside the solid."""


def scatter(surface: Surface, count: int, rng: np.random.Generator) -> tuple[NDArray[np.int64], Array]:
    """Draw random points on a surface, uniform by area.

    Returns:
        Face of each point, (count,), and weights of its corners, (count, 3): a point is `weights @ corners`, and so is
        the value of a field there.
    """
    if count < 1:
        raise ConfigError(f"count={count}; draw at least 1 point")
    ends = np.cumsum(np.linalg.norm(surface.normals, axis=1))
    if not len(ends) or not 0 < ends[-1] < np.inf:
        raise DataError("the surface has no area, so no point can be drawn on it")
    faces = np.searchsorted(ends, rng.random(count) * ends[-1], side="right")
    # The square root makes the density near a corner equal to that near the opposite side.
    away, along = np.sqrt(rng.random(count)), rng.random(count)
    weights = np.stack([1 - away, away * (1 - along), away * along], axis=1)
    return np.minimum(faces, len(ends) - 1), weights


def points_on_surface(mesh: Mesh, spacing: float, *, seed: int = 0, max_points: int = MAX_POINTS) -> Mesh:
    """Spread points evenly over the triangles of a mesh, one per square of side `spacing`.

    Raises:
        TooLarge: That would be more than `max_points`.
    """
    surface = mesh.surface()
    area = 0.5 * np.linalg.norm(surface.normals, axis=1)
    needed = float(area.sum()) / spacing**2
    if needed > max_points:
        limit = f"at a spacing of {spacing:.3g}; the limit is {max_points:.2g}. Is it in the unit of the training data?"
        raise TooLarge(f"{mesh.name} needs {needed:.3g} points {limit}")
    a, b, c = surface.corners
    count = max(1, round(needed))
    rng = np.random.default_rng(seed)
    # One point in each of `count` equal parts of the area: independent draws would cluster.
    place = (np.arange(count) + rng.random(count)) / count * area.sum()
    chosen = np.minimum(np.searchsorted(np.cumsum(area), place), len(area) - 1)
    u, v = rng.random((2, count, 1))
    u, v = np.where(u + v > 1, 1 - u, u), np.where(u + v > 1, 1 - v, v)
    points = (a[chosen] + u * (b - a)[chosen] + v * (c - a)[chosen]).astype(np.float32)
    number = np.arange(count, dtype=np.int64)
    return Mesh(points, number, number + 1, np.ones(count, np.uint8), name=mesh.name)


def fill_with_voxels(mesh: Mesh, spacing: float, *, max_points: int | None = None) -> Mesh:
    """Fill a closed surface with cubes of edge `spacing`, wherever their centers are inside.

    Raises:
        GeometryError: The surface is not one closed solid, or no voxel center is inside.
        TooLarge: The bounding box has too many voxels for `max_points`.
    """
    from flare.mesh.octree import merged
    from flare.mesh.parts import read_part
    from flare.mesh.voxelization import voxelize  # imports numba

    if max_points is not None and np.prod(mesh.surface().extents / spacing) > MAX_BOX * max_points:
        raise TooLarge(f"{mesh.name} is too large for voxels of {spacing:.3g}; the limit is {max_points:,} points")
    solid = read_part(mesh, unit=None)
    try:
        return merged(voxelize(solid, spacing), levels=0).to_mesh(mesh.name)
    except DataError as error:
        message = f"{mesh.name}: {error}. Is it in the unit of the training data?"
        raise GeometryError(getattr(error, "reason", "size"), message) from None


def center_spacing(surface: Surface) -> float:
    """Return the median distance from a triangle's center to the nearest other; infinite for a single triangle."""
    from scipy.spatial import KDTree

    centers = surface.vertices[surface.faces].mean(axis=1)
    some = centers[:: max(1, len(centers) // 1000)]
    distances: Array = np.asarray(KDTree(centers).query(some, k=2)[0])
    return float(np.median(distances[:, 1]))


def median_edge(surface: Surface) -> float:
    """Return the median length of the edges of a surface."""
    corners = surface.vertices[surface.faces]
    return float(np.median(np.linalg.norm(corners - np.roll(corners, 1, axis=1), axis=2)))

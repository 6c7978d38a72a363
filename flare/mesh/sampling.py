"""Points for a part that comes as a bare surface: its vertices, more points on it, or voxels that fill it."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from flare.mesh.file import MeshFile, mesh_of, mesh_of_points
from flare.mesh.surface import Array, Surface
from flare.mesh.unfit import THINNER, Unfit
from flare.utils.errors import ConfigError, DataError

if TYPE_CHECKING:
    from flare.mesh.octree import HexMesh

logger = logging.getLogger(__name__)

MOST_POINTS = 50_000_000
"""Put on one surface: they take some 200 bytes each while they are made."""
MANY_POINTS = 5_000_000
"""That take so long that their number is said before they are made."""


def on_surface(mesh: MeshFile, spacing: float, *, seed: int = 0) -> MeshFile:
    """Points spread evenly over its triangles."""
    surface = surface_of(mesh)
    _say_many(mesh.name, spread_count(surface, spacing), "points", spacing)
    return mesh_of_points(spread(surface, spacing, name=mesh.name, seed=seed), mesh.name)


def spread(surface: Surface, spacing: float, *, name: str = "the surface", seed: int = 0) -> np.ndarray:
    """(N, 3) float32 points all over the triangles, as many as a square of side `spacing` each would take."""
    needed = spread_count(surface, spacing)
    if needed > MOST_POINTS:
        raise DataError(
            f"{name} needs {needed:.3g} points, {spacing:.3g} apart; the limit is {MOST_POINTS:.2g}. Is the part in "
            f"another unit than the training? If not, let --spacing be larger"
        )
    a, b, c = _corners(surface)
    area = _areas(surface)
    count = max(1, round(needed))
    rng = np.random.default_rng(seed)
    # One point in each of `count` equal parts of the area: even, where drawing them one by one would clump.
    place = (np.arange(count) + rng.random(count)) / count * area.sum()
    chosen = np.minimum(np.searchsorted(np.cumsum(area), place), len(area) - 1)
    u, v = rng.random((2, count, 1))
    u, v = np.where(u + v > 1, 1 - u, u), np.where(u + v > 1, 1 - v, v)
    points = a[chosen] + u * (b - a)[chosen] + v * (c - a)[chosen]
    return points.astype(np.float32)


def spread_count(surface: Surface, spacing: float) -> float:
    """How many points `spread` makes, before rounding."""
    return float(_areas(surface).sum()) / spacing**2


def filled(path: str | os.PathLike[str], spacing: float) -> MeshFile:
    """Cubes of that edge, wherever their centres are inside the part."""
    from flare.mesh.read import read_part

    part = read_part(path, unit=None)
    _say_many(str(path), abs(part.volume) / spacing**3, "voxels", spacing)
    try:
        return of_hexahedra(cubes(part, spacing), str(path))
    except DataError as error:
        thin = isinstance(error, Unfit) and error.reason == THINNER
        raise DataError(f"{path}: {error}{' If not, let --spacing be smaller' if thin else ''}") from None


def cubes(part: Surface, spacing: float) -> HexMesh:
    """The same of a closed surface that is here already."""
    from flare.mesh.octree import merged
    from flare.mesh.voxelise import voxelise  # compiled when imported

    try:
        return merged(voxelise(part, spacing), levels=0)
    except Unfit as error:
        if error.reason != THINNER:
            raise
        size = " × ".join(f"{edge:.4g}" for edge in part.extents)
        message = f"no voxel centre is inside the part: it measures {size}, a voxel {spacing:.4g}."
        raise Unfit(THINNER, f"{message} Is the part in another unit than the training?") from None


def _say_many(name: str, count: float, what: str, spacing: float) -> None:
    if count > MANY_POINTS:
        logger.info(
            f"{name}: some {count / 1e6:.3g} million {what}, {spacing:.3g} apart; a larger --spacing makes fewer"
        )


def centre_spacing(surface: Surface) -> float:
    """Median distance from a triangle's centre to the nearest other; infinite for a single triangle."""
    from scipy.spatial import KDTree

    centres = surface.vertices[surface.faces].mean(axis=1)
    some = centres[:: max(1, len(centres) // 1000)]
    distances: Array = np.asarray(KDTree(centres).query(some, k=2)[0])
    return float(np.median(distances[:, 1]))


def median_edge(surface: Surface) -> float:
    corners = surface.vertices[surface.faces]
    return float(np.median(np.linalg.norm(corners - np.roll(corners, 1, axis=1), axis=2)))


def of_hexahedra(mesh: HexMesh, name: str) -> MeshFile:
    import pyvista

    cells: Any = np.concatenate([np.full((len(mesh.hexahedra), 1), 8), mesh.hexahedra], axis=1).ravel()
    return mesh_of(pyvista.UnstructuredGrid(cells, np.full(len(mesh.hexahedra), 12, np.uint8), mesh.points), name)


def surface_of(mesh: MeshFile) -> Surface:
    triangles = mesh.cells.get("triangle")
    if triangles is None or not len(triangles):
        raise DataError(f"{mesh.name} has no triangles to put points on")
    return Surface(mesh.points.astype(np.float64), triangles)


def _corners(surface: Surface) -> tuple[Array, Array, Array]:
    a, b, c = (surface.vertices[surface.faces[:, i]] for i in range(3))
    return a, b, c


def _areas(surface: Surface) -> Array:
    a, b, c = _corners(surface)
    return 0.5 * np.linalg.norm(np.cross(b - a, c - a), axis=1)


def refuse_spacing(spacing: float | None) -> float:
    if spacing is None or not 0 < spacing < np.inf:
        raise ConfigError(
            "how densely the training points lie is not known; say it with --spacing, or run:  flare calibrate RUN  "
            "(with --checkpoint or --ema, as the weights are)"
        )
    return spacing

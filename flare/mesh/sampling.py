"""Points for a part that comes as a bare surface: its vertices, more points on it, or voxels that fill it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from flare.errors import ConfigError, DataError
from flare.mesh.file import MeshFile, mesh_of, mesh_of_points

if TYPE_CHECKING:
    from flare.mesh.octree import HexMesh


def on_surface(mesh: MeshFile, spacing: float, *, seed: int = 0) -> MeshFile:
    """Points spread evenly over the triangles, as many as a square of side `spacing` each would take."""
    triangles = _triangles(mesh)
    a, b, c = (mesh.points[triangles[:, i]].astype(np.float64) for i in range(3))
    area = 0.5 * np.linalg.norm(np.cross(b - a, c - a), axis=1)
    count = max(1, round(float(area.sum()) / spacing**2))
    rng = np.random.default_rng(seed)
    # One point in each of `count` equal parts of the area: even, where drawing them one by one would clump.
    place = (np.arange(count) + rng.random(count)) / count * area.sum()
    chosen = np.minimum(np.searchsorted(np.cumsum(area), place), len(area) - 1)
    u, v = rng.random((2, count, 1))
    u, v = np.where(u + v > 1, 1 - u, u), np.where(u + v > 1, 1 - v, v)
    points = a[chosen] + u * (b - a)[chosen] + v * (c - a)[chosen]
    return mesh_of_points(points.astype(np.float32), mesh.name)


def filled(path: str | os.PathLike[str], spacing: float) -> MeshFile:
    """Cubes of that edge, wherever their centres are inside the part."""
    from flare.mesh.octree import merged
    from flare.mesh.read import read_part
    from flare.mesh.voxelise import voxelise  # compiled when imported

    return of_hexahedra(merged(voxelise(read_part(path, unit=None), spacing), levels=0), str(path))


def spacing_of(mesh: MeshFile) -> float:
    """Median edge of the triangles."""
    corners = mesh.points[_triangles(mesh)].astype(np.float64)
    return float(np.median(np.linalg.norm(corners - np.roll(corners, 1, axis=1), axis=2)))


def of_hexahedra(mesh: HexMesh, name: str) -> MeshFile:
    import pyvista

    cells: Any = np.concatenate([np.full((len(mesh.hexahedra), 1), 8), mesh.hexahedra], axis=1).ravel()
    return mesh_of(pyvista.UnstructuredGrid(cells, np.full(len(mesh.hexahedra), 12, np.uint8), mesh.points), name)


def _triangles(mesh: MeshFile) -> np.ndarray:
    triangles = mesh.cells.get("triangle")
    if triangles is None or not len(triangles):
        raise DataError(f"{mesh.name} has no triangles to put points on")
    return triangles


def refuse_spacing(spacing: float | None) -> float:
    if spacing is None or not 0 < spacing < np.inf:
        raise ConfigError(
            "how densely the training points lie is not known; say it with --spacing, or run:  flare calibrate RUN"
        )
    return spacing

"""A bare surface (STL) with points like those of the training: the rule of `flare predict`, without VTK."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from flare.mesh.sampling import cubes, spread, spread_count
from flare.mesh.unstructured import Grid, cloud_grid, grid_of, surface_grid
from flare.part import ALL_OVER, PRINTED, UNKNOWN_KIND, own_points, printed, too_sparse, training_kind
from flare.utils.errors import DataError, TooLarge

if TYPE_CHECKING:
    from flare.data.sample import Schema
    from flare.mesh.octree import HexMesh
    from flare.mesh.surface import Surface

BOX = 8
"""Voxels of the box around a part, in units of the points that are accepted; most are outside the part."""


def pointed(surface: Surface, schema: Schema, spacing: float | None, most: int, name: str) -> tuple[Grid, str]:
    """A mesh whose points the model can take, and in words what they are.

    Args:
        surface: triangles with vertices of their own, as an STL file has them.
        spacing: of the training points; None where the run is not calibrated.
        most: points that are accepted.
    """
    if not len(surface.faces):
        raise DataError(f"{name} has no triangles, so there are no points in it")
    if not np.isfinite(surface.vertices).all():
        raise DataError(f"{name} has coordinates that are no numbers (NaN or infinite)")
    kind = training_kind(schema)
    if kind == "printed":
        return _hexahedra(printed(surface, name)), f"the part is {PRINTED}"
    if kind == "voxels":
        return _filled(surface, spacing, most, name), f"voxels of {spacing:.3g} fill the surface, as in the training"
    if kind is None:
        raise DataError(f"{name}: {UNKNOWN_KIND}; send a mesh, or a table of points")
    sparse = too_sparse(schema, surface, spacing)
    if sparse and spacing:
        count = spread_count(surface, spacing)
        if count > most:
            raise TooLarge(f"{name} needs {count:,.0f} points, {spacing:.3g} apart; this server accepts {most:,}")
        return cloud_grid(spread(surface, spacing)), f"{sparse}: {ALL_OVER}"
    points, inverse = np.unique(surface.vertices.astype(np.float32), axis=0, return_inverse=True)
    return surface_grid(points, inverse.reshape(-1)[surface.faces]), f"{own_points(schema)}, equal vertices once"


def _filled(surface: Surface, spacing: float | None, most: int, name: str) -> Grid:
    from flare.mesh.read import read_part

    if not spacing:
        raise DataError(
            f"{name}: this model was trained on volumes, and how densely is not known (flare calibrate); send a mesh"
        )
    if np.prod(surface.extents / spacing) > BOX * most:
        raise TooLarge(f"{name} is too large for voxels of {spacing:.3g}; this server accepts {most:,} points")
    return _hexahedra(cubes(read_part(surface, unit=None), spacing))


def _hexahedra(mesh: HexMesh) -> Grid:
    return grid_of(mesh.points, {12: mesh.hexahedra})

"""A bare surface (STL) with points like those of the training: the rule of `flare predict`, without VTK."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from flare.data.cards import is_benchmark
from flare.data.fields_of import CENTRES
from flare.errors import DataError, TooLarge
from flare.mesh.sampling import centre_spacing, cubes, median_edge, spread, spread_count
from flare.mesh.unstructured import Grid, cloud_grid, grid_of, surface_grid
from flare.part import SPARSE

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
    if schema.name == "lpbf" and is_benchmark(schema):
        return _printed(surface), "the part is placed on the build plate, 60 mm long, and meshed as the benchmark was"
    if schema.mesh_dimension == 3:
        return _filled(surface, spacing, most, name), f"voxels of {spacing:.3g} fill the surface, as in the training"
    if schema.mesh_dimension is None and len(schema.fields[schema.points].components) == 3:
        raise DataError(
            f"{name}: the model was trained on points without cells, so whether they lay on surfaces or filled volumes "
            f"is not known; send a mesh, or a table of points"
        )
    at_cells = schema.points == CENTRES
    apart = centre_spacing(surface) if at_cells else median_edge(surface)
    if spacing and apart > SPARSE * spacing:
        count = spread_count(surface, spacing)
        if count > most:
            raise TooLarge(f"{name} needs {count:,.0f} points, {spacing:.3g} apart; this server accepts {most:,}")
        return cloud_grid(spread(surface, spacing)), (
            f"its {'triangle centres' if at_cells else 'corners'} are {apart:.3g} apart, training points "
            f"{spacing:.3g}: points are put all over its surface"
        )
    points, inverse = np.unique(surface.vertices.astype(np.float32), axis=0, return_inverse=True)
    what = "the fields are at the centres of its triangles" if at_cells else "its corners are the points"
    return surface_grid(points, inverse.reshape(-1)[surface.faces]), f"{what}, equal corners once"


def _filled(surface: Surface, spacing: float | None, most: int, name: str) -> Grid:
    from flare.mesh.read import read_part

    if not spacing:
        raise DataError(
            f"{name}: this model was trained on volumes, and how densely is not known (flare calibrate); send a mesh"
        )
    if np.prod(surface.extents / spacing) > BOX * most:
        raise TooLarge(f"{name} is too large for voxels of {spacing:.3g}; this server accepts {most:,} points")
    return _hexahedra(cubes(read_part(surface, unit=None), spacing))


def _printed(surface: Surface) -> Grid:
    from flare.mesh.read import read_part
    from flare.mesh.surface import placed
    from flare.physics.lpbf.parts import meshed

    return _hexahedra(meshed(placed(read_part(surface, unit=None), longest=60.0))[1])


def _hexahedra(mesh: HexMesh) -> Grid:
    return grid_of(mesh.points, {12: mesh.hexahedra})

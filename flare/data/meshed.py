"""A mesh with fields as the inputs of one sample."""

from __future__ import annotations

from typing import Any

import numpy as np

from flare.data.sample import CORNERS, Schema
from flare.errors import DataError
from flare.mesh.unstructured import Grid

VTK_TYPES = {"line": 3, "triangle": 5, "quad": 9, "tetra": 10, "hexahedron": 12, "wedge": 13, "pyramid": 14}
DIMENSION = {"line": 1, "triangle": 2, "quad": 2, "tetra": 3, "hexahedron": 3, "wedge": 3, "pyramid": 3}


def grid_inputs(grid: Grid, schema: Schema, name: str) -> dict[str, Any]:
    """Points, the features among its point fields and the parameters among its values; `name` is for messages."""
    fields: dict[str, Any] = {schema.points: coordinates(grid.points, schema, name)}
    fields |= {key: grid.point_fields[key] for key in schema.named("feature") if key in grid.point_fields}
    return fields | {key: grid.values[key].reshape(-1) for key in schema.named("parameter") if key in grid.values}


def coordinates(points: np.ndarray, schema: Schema, name: str) -> np.ndarray:
    """(N, 3) of a mesh -> (N, dimensions) of the model; a flat mesh lies at one z."""
    if len(schema.fields[schema.points].components) == 2:
        if len(points) and not (points[:, 2] == points[0, 2]).all():
            raise DataError(f"{name} is a mesh in space; this model takes flat ones, with one z for all points")
        return points[:, :2]
    return points


def grid_cells(grid: Grid) -> dict[str, np.ndarray]:
    """Type -> (cells, corners), of the cells of the highest dimension that the mesh has."""
    found = {kind: grid.cells(number, CORNERS[kind]) for kind, number in VTK_TYPES.items() if number in grid.types}
    highest = max((DIMENSION[kind] for kind in found), default=0)
    return {kind: cells for kind, cells in found.items() if DIMENSION[kind] == highest}

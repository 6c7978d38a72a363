"""A mesh of `flare.mesh.unstructured` as the inputs of one sample: read as an import reads files, without VTK."""

from __future__ import annotations

from typing import Any

import numpy as np

from flare.data.cases import Case
from flare.data.fields_of import CENTRES, coordinates, identifier
from flare.data.sample import CORNERS, Schema
from flare.errors import DataError
from flare.mesh.file import VTK_NAMES
from flare.mesh.unstructured import Grid

DIMENSION = {"line": 1, "triangle": 2, "quad": 2, "tetra": 3, "hexahedron": 3, "wedge": 3, "pyramid": 3}


def grid_inputs(grid: Grid, schema: Schema, name: str) -> dict[str, Any]:
    """Points, the features among its point fields and the parameters among its values; `name` is for messages."""
    fields: dict[str, Any] = {schema.points: places(grid.points, schema, name)}
    features = {identifier(own): values for own, values in grid.point_fields.items()}
    values = {identifier(own): values.reshape(-1) for own, values in grid.values.items()}
    fields |= {key: features[key] for key in schema.named("feature") if key in features}
    return fields | {key: values[key] for key in schema.named("parameter") if key in values}


def places(points: np.ndarray, schema: Schema, name: str) -> np.ndarray:
    """(N, 3) of a mesh -> (N, dimensions) of the model."""
    if schema.points == CENTRES:
        raise DataError(
            f"{name}: this model has its fields at cell centres, and meshes are read here at their points; give the "
            f"centres as a table of points, or take flare predict"
        )
    return coordinates(Case(name, points, {}), schema)


def grid_cells(grid: Grid) -> dict[str, np.ndarray]:
    """Type -> (cells, corners), of the cells of the highest dimension that the mesh has."""
    found = {kind: grid.cells(number, CORNERS[kind]) for number, kind in VTK_NAMES.items() if number in grid.types}
    highest = max((DIMENSION[kind] for kind in found), default=0)
    return {kind: cells for kind, cells in found.items() if DIMENSION[kind] == highest}

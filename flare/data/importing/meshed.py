"""A mesh of `flare.mesh.unstructured` as a case: read as an import reads files, without VTK."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from flare.data.importing.cases import Case
from flare.data.sample import CORNERS, DIMENSION
from flare.mesh.faces import surface_triangles
from flare.mesh.file import UNITS, VTK_NAMES, told_units
from flare.mesh.unstructured import Grid, grid_of


def grid_case(grid: Grid, name: str) -> Case:
    """The mesh as `fields_of` takes it; `name` is for messages."""
    values = {own: numbers.reshape(-1) for own, numbers in grid.values.items() if numbers.dtype.kind != "U"}
    units = told_units(unit_words(grid))
    return Case(name, grid.points, grid.point_fields, grid.cell_fields, values, units=units, grid=grid)


def unit_words(grid: Grid) -> list[str]:
    """Field data `units` word by word, as `MeshFile.unit_words`."""
    words = grid.values.get(UNITS)
    return [] if words is None else [str(word) for word in words.reshape(-1)]


def grid_cells(grid: Grid) -> dict[str, np.ndarray]:
    """Type -> (cells, corners), of the cells of the highest dimension that the mesh has."""
    found = {kind: grid.cells(number, CORNERS[kind]) for number, kind in VTK_NAMES.items() if number in grid.types}
    return highest(found)


def cells_grid(points: np.ndarray, cells: Mapping[str, np.ndarray]) -> Grid:
    """The mesh of such cells; planes get z = 0."""
    numbers = {kind: number for number, kind in VTK_NAMES.items()}
    return grid_of(points, {numbers[kind]: corners for kind, corners in cells.items()})


def outer_triangles(cells: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """(T, 3) triangles of surfaces, or of the outside of solids; None where there is neither."""
    found = [surface_triangles(corners, kind) for kind, corners in highest(cells).items()]
    drawn = [triangles for triangles in found if triangles is not None]
    return np.concatenate(drawn).astype(np.uint32) if drawn else None


def highest(cells: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Those of the highest dimension: the solids of a mesh that also lists its walls."""
    most = max((DIMENSION[kind] for kind in cells), default=0)
    return {kind: corners for kind, corners in cells.items() if DIMENSION[kind] == most}

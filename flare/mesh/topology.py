"""Faces of cells: the outer surface of a mesh as triangles, cell selection and area vectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flare.mesh.mesh import CELL_TYPES, DIMENSION, OTHER, Array, Mesh
from flare.utils.errors import DataError, suggest_name

Numbers = NDArray[np.integer]

NONE = -1  # the missing fourth corner of a triangle
# Faces of each cell in VTK's order, counterclockwise seen from outside.
FACES: dict[str, Numbers] = {
    "tetra": np.array([[0, 2, 1, NONE], [0, 1, 3, NONE], [1, 2, 3, NONE], [2, 0, 3, NONE]]),
    "pyramid": np.array([[0, 3, 2, 1], [0, 1, 4, NONE], [1, 2, 4, NONE], [2, 3, 4, NONE], [3, 0, 4, NONE]]),
    "wedge": np.array([[0, 1, 2, NONE], [3, 5, 4, NONE], [0, 3, 4, 1], [1, 4, 5, 2], [2, 5, 3, 0]]),
    "hexahedron": np.array([[0, 3, 2, 1], [4, 5, 6, 7], [0, 1, 5, 4], [1, 2, 6, 5], [2, 3, 7, 6], [3, 0, 4, 7]]),
}


def outer_faces(cells: ArrayLike, cell_type: str = "hexahedron") -> tuple[Numbers, Numbers]:
    """Find the faces that belong to one cell only.

    Returns:
        Points of the faces, (F, 4), counterclockwise seen from outside, with −1 as the fourth corner of triangles; and
        the cell of each, (F,).
    """
    if cell_type not in FACES:
        raise DataError(f"cells of type {cell_type!r} have no faces; {suggest_name(cell_type, FACES)}")
    corners = FACES[cell_type]
    cells = np.asarray(cells, dtype=np.int64)
    faces = np.where(corners == NONE, NONE, cells[:, corners]).reshape(-1, 4)
    if not len(faces):
        return faces, np.zeros(0, dtype=np.int64)
    count = int(cells.max()) + 1
    # The three lowest corners identify a face; a missing corner counts as the highest.
    a, b, c = np.sort(np.where(faces == NONE, count, faces), axis=1)[:, :3].T
    order = np.lexsort((c, a * count + b))  # two keys: a product of three overflows beyond two million points
    low, high = (a * count + b)[order], c[order]
    fresh = np.concatenate([[True], (low[1:] != low[:-1]) | (high[1:] != high[:-1]), [True]])
    alone = np.sort(order[fresh[:-1] & fresh[1:]])
    return faces[alone], alone // len(corners)


def surface_triangles(cells: ArrayLike, cell_type: str) -> Numbers | None:
    """Return the triangles of the outer surface, (T, 3); None for lines, which have no surface."""
    return None if cell_type == "line" else _triangles_with_cells(np.asarray(cells), cell_type)[0]


def _triangles_with_cells(cells: Array, cell_type: str) -> tuple[Array, Array]:
    """Return the triangles of the outer surface, (T, 3), and the cell of each, (T,)."""
    number = np.arange(len(cells))
    if cell_type == "triangle":
        return cells, number
    faces, owners = (cells, number) if cell_type == "quad" else outer_faces(cells, cell_type)
    whole = faces[:, 3] != NONE
    triangles = np.concatenate([faces[:, [0, 1, 2]], faces[whole][:, [0, 2, 3]]])
    return triangles, np.concatenate([owners, owners[whole]])


def grid_triangles(rows: int, columns: int) -> Numbers:
    """Return the triangles between the points of a structured grid stored row by row, (T, 3)."""
    number = np.arange(rows * columns).reshape(rows, columns)
    quads = np.stack([number[:-1, :-1], number[:-1, 1:], number[1:, 1:], number[1:, :-1]], -1).reshape(-1, 4)
    return np.concatenate([quads[:, [0, 1, 2]], quads[:, [0, 2, 3]]])


def highest_cells(cells: Mapping[str, Array]) -> dict[str, Array]:
    """Return the cells of the highest dimension: the solids of a mesh that also lists its walls."""
    known = {kind: corners for kind, corners in cells.items() if kind in DIMENSION}
    most = max((DIMENSION[kind] for kind in known), default=0)
    return {kind: corners for kind, corners in known.items() if DIMENSION[kind] == most}


def outer_triangles(mesh: Mesh) -> tuple[Array, Array] | None:
    """Return triangles of the outer surface, (T, 3), and the cell of each, (T,); None if the mesh has no surface.

    Cells of types that `Mesh.cells` does not name, such as polyhedra and quadratic cells, need VTK.
    """
    if mesh.dimension is None or mesh.dimension < 2:
        return None
    if mesh._source is not None or OTHER in mesh.cells:
        from flare.mesh.io import vtk_library

        triangles, owners = vtk_library.extract_surface(mesh)
    else:
        parts = [_triangles_with_owners(mesh, kind) for kind in highest_cells(mesh.cells)]
        triangles, owners = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
    return (triangles, owners) if len(triangles) else None


def _triangles_with_owners(mesh: Mesh, kind: str) -> tuple[Array, Array]:
    numbers = {"quad": (8, 9), "hexahedron": (11, 12)}.get(kind, (CELL_TYPES[kind],))  # in the order of `Mesh.cells`
    places = np.concatenate([np.flatnonzero(mesh.cell_types == n) for n in numbers])
    triangles, owners = _triangles_with_cells(mesh.cells[kind], kind)
    return triangles, places[owners]


def extract_cells(mesh: Mesh, chosen: NDArray[np.integer]) -> Mesh:
    """Return a mesh of some of the cells, in this order, on the same points."""
    counts = np.diff(mesh.offsets, prepend=0)
    starts, lengths = (mesh.offsets - counts)[chosen], counts[chosen]
    ends = np.cumsum(lengths)
    places = np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - (ends - lengths), lengths)
    return replace(
        mesh,
        connectivity=mesh.connectivity[places],
        offsets=ends,
        cell_types=mesh.cell_types[chosen],
        cell_data={name: values[chosen] for name, values in mesh.cell_data.items()},
        _source=None,
    )


def area_vectors(mesh: Mesh) -> NDArray[np.float64]:
    """Compute area times normal of each polygon, (E, 3); corners are counterclockwise seen from the tip."""
    if not mesh.cell_count:
        return np.zeros((0, 3))
    ends = mesh.offsets.astype(np.int64)
    counts = np.diff(ends, prepend=0)
    away = mesh.points[mesh.connectivity].astype(np.float64) - np.repeat(mesh.cell_centers(), counts, axis=0)
    following = np.arange(1, len(away) + 1)
    following[ends - 1] = ends - counts
    return np.add.reduceat(np.cross(away, away[following]), ends - counts, axis=0) / 2

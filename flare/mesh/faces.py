"""The outside of a mesh: faces that belong to one cell only, and triangles to draw them with."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flare.utils.errors import DataError, nearest

Numbers = NDArray[np.integer]

NONE = -1  # the missing fourth corner of a triangle
# Faces of each cell in VTK's order, counter-clockwise seen from outside.
FACES: dict[str, Numbers] = {
    "tetra": np.array([[0, 2, 1, NONE], [0, 1, 3, NONE], [1, 2, 3, NONE], [2, 0, 3, NONE]]),
    "pyramid": np.array([[0, 3, 2, 1], [0, 1, 4, NONE], [1, 2, 4, NONE], [2, 3, 4, NONE], [3, 0, 4, NONE]]),
    "wedge": np.array([[0, 1, 2, NONE], [3, 5, 4, NONE], [0, 3, 4, 1], [1, 4, 5, 2], [2, 5, 3, 0]]),
    "hexahedron": np.array([[0, 3, 2, 1], [4, 5, 6, 7], [0, 1, 5, 4], [1, 2, 6, 5], [2, 3, 7, 6], [3, 0, 4, 7]]),
}


def outer_faces(cells: ArrayLike, cell_type: str = "hexahedron") -> tuple[Numbers, Numbers]:
    """(F, 4) points of the faces that belong to one cell only, and (F,) which one that is.

    Triangles have −1 in place of their fourth corner. Each face is counter-clockwise seen from outside.
    """
    if cell_type not in FACES:
        raise DataError(f"{cell_type!r} has no faces to take the outer ones of; {nearest(cell_type, FACES)}")
    corners = FACES[cell_type]
    cells = np.asarray(cells, dtype=np.int64)
    faces = np.where(corners == NONE, NONE, cells[:, corners]).reshape(-1, 4)
    if not len(faces):
        return faces, np.zeros(0, dtype=np.int64)
    count = int(cells.max()) + 1
    # The three lowest corners tell which face it is; a missing one counts as the highest.
    a, b, c = np.sort(np.where(faces == NONE, count, faces), axis=1)[:, :3].T
    order = np.lexsort((c, a * count + b))  # two keys: one of three factors overflows beyond two million points
    low, high = (a * count + b)[order], c[order]
    fresh = np.concatenate([[True], (low[1:] != low[:-1]) | (high[1:] != high[:-1]), [True]])
    alone = np.sort(order[fresh[:-1] & fresh[1:]])
    return faces[alone], alone // len(corners)


def surface_triangles(cells: ArrayLike, cell_type: str) -> Numbers | None:
    """(T, 3) triangles that show a mesh from outside; None for lines, which have no surface."""
    if cell_type == "line":
        return None
    cells = np.asarray(cells)
    if cell_type == "triangle":
        return cells
    faces = cells if cell_type == "quad" else outer_faces(cells, cell_type)[0]
    whole = faces[:, 3] != NONE
    return np.concatenate([faces[:, [0, 1, 2]], faces[whole][:, [0, 2, 3]]])


def grid_triangles(rows: int, columns: int) -> Numbers:
    """(T, 3) triangles between the points of a grid, row by row, straight or curved."""
    number = np.arange(rows * columns).reshape(rows, columns)
    quads = np.stack([number[:-1, :-1], number[:-1, 1:], number[1:, 1:], number[1:, :-1]], -1).reshape(-1, 4)
    return np.concatenate([quads[:, [0, 1, 2]], quads[:, [0, 2, 3]]])

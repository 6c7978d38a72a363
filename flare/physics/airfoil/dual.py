"""Median-dual control volumes of a mesh of quadrilaterals: all that a node-centred scheme needs to know of it.

The volume of a node is cut out of its cells by lines from their centres to the middles of their sides. Two nodes of a
side (an edge) share the face made of the two such lines that meet there; at the boundary a node has two half sides.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flare.utils.errors import DataError

Array = NDArray[np.float64]
Indices = NDArray[np.int64]


class DualMesh(NamedTuple):
    """P nodes, E edges. The length of a normal is that of its face. (A tuple, because compiled code takes those.)"""

    points: Array
    """(P, 2)."""
    volumes: Array
    """(P,), areas in two dimensions."""
    edges: Indices
    """(E, 2) nodes."""
    normals: Array
    """(E, 2), from the first node of the edge to the second."""
    slopes: Array
    """(E, 2, 2): what a difference of one along the edge adds to the gradient at its first and at its second node."""
    wall: Indices
    """(W,) node of each piece of wall."""
    wall_normals: Array
    """(W, 2), out of the domain."""
    far: Indices
    """(F,) node of each piece of open boundary."""
    far_normals: Array
    """(F, 2), out of the domain."""


def dual_mesh(points: ArrayLike, cells: ArrayLike, wall: ArrayLike) -> DualMesh:
    """The dual of a mesh of convex quadrilaterals.

    Args:
        points: (P, 2).
        cells: (C, 4) nodes of each cell, counterclockwise.
        wall: (P,), True at nodes of a wall. A side at the boundary is wall where both its nodes are, otherwise open.

    Raises:
        DataError: a part of a cell has no positive area: it is folded, or its nodes are in clockwise order.
    """
    points, cells, wall = np.asarray(points, dtype=np.float64), np.asarray(cells), np.asarray(wall, dtype=bool)
    corner = points[cells]  # (C, 4, 2)
    middle = (corner + np.roll(corner, -1, axis=1)) / 2  # of the side from each corner to the next
    centre = corner.mean(axis=1, keepdims=True)
    part = _cross(centre - corner, np.roll(middle, 1, axis=1) - middle) / 2  # (C, 4), the corner's share of the cell
    if not (part > 0).all():
        bad = int((~(part > 0)).any(axis=1).sum())
        where = corner[np.argmin(part.min(axis=1))].mean(axis=0)
        raise DataError(f"{bad:,} of {len(cells):,} cells are folded (worst near {where}); deform the mesh less")
    volumes = _sum_at(cells.ravel(), part.ravel(), len(points))

    start, end = cells.ravel(), np.roll(cells, -1, axis=1).ravel()
    half_face = _turned(centre - middle).reshape(-1, 2)  # through the side, from its start to its end
    pair = np.stack([np.minimum(start, end), np.maximum(start, end)], axis=1)
    edges, edge, count = np.unique(pair, axis=0, return_inverse=True, return_counts=True)
    edge = edge.ravel()  # numpy 2.0 gives it two axes
    normals = _sum_at(edge, np.where(start < end, 1.0, -1.0)[:, None] * half_face, len(edges))

    outside = count[edge] == 1
    a, b = start[outside], end[outside]
    half_side = _turned(points[b] - points[a]) / 2
    node, normal = np.concatenate([a, b]), np.concatenate([half_side, half_side])
    solid = np.tile(wall[a] & wall[b], 2)
    return DualMesh(
        points=points,
        volumes=volumes,
        edges=edges,
        normals=normals,
        slopes=_slopes(points, edges),
        wall=node[solid],
        wall_normals=normal[solid],
        far=node[~solid],
        far_normals=normal[~solid],
    )


def structured_cells(numbers: Indices) -> Indices:
    """(C, 4) cells of a grid whose node (i, j) has the given number; counterclockwise where i is to the left of j."""
    n = numbers
    return np.stack([n[:-1, :-1], n[:-1, 1:], n[1:, 1:], n[1:, :-1]], axis=-1).reshape(-1, 4)


def _slopes(points: Array, edges: Indices) -> Array:
    """Least squares at each node over its edges, unweighted: ∇V = Σ M⁻¹ d (V_neighbour − V), M = Σ d dᵀ."""
    d = points[edges[:, 1]] - points[edges[:, 0]]
    square = d[:, :, None] * d[:, None, :]
    moments = _sum_at(edges.ravel(), np.repeat(square, 2, axis=0), len(points))
    # d and the difference of V both change sign at the second node, so one rule serves both.
    return np.einsum("eskl,el->esk", np.linalg.inv(moments)[edges], d)


def _sum_at(index: Indices, values: Array, count: int) -> Array:
    """(count, ...): the sum of the values that have each index."""
    total = np.zeros((count, *values.shape[1:]))
    np.add.at(total, index, values)
    return total


def _cross(a: Array, b: Array) -> Array:
    return a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]


def _turned(a: Array) -> Array:
    """A quarter turn clockwise."""
    return np.stack([a[..., 1], -a[..., 0]], axis=-1)

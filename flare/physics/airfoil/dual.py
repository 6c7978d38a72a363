"""Median-dual control volumes of a quadrilateral mesh, for a node-centered finite-volume scheme.

The volume of a node is cut out of its cells by lines from their centers to the midpoints of their sides. The two nodes
of a side (an edge) share the face made of the two lines that meet there. A boundary node also has two half sides.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flare.utils.errors import DataError

Array = NDArray[np.float64]
Indices = NDArray[np.int64]


class DualMesh(NamedTuple):
    """Dual mesh with P nodes and E edges. A normal is as long as its face. (A tuple, because compiled code accepts
    those.)"""

    points: Array
    """Node positions, shape (P, 2)."""
    volumes: Array
    """Volumes (areas in two dimensions), shape (P,)."""
    edges: Indices
    """Nodes of the edges, shape (E, 2)."""
    normals: Array
    """Face normals from the first node of the edge to the second, shape (E, 2)."""
    slopes: Array
    """Gradient at both nodes of an edge per unit difference along it, shape (E, 2, 2)."""
    wall: Indices
    """Node of each wall segment, shape (W,)."""
    wall_normals: Array
    """Normals out of the domain, shape (W, 2)."""
    far: Indices
    """Node of each open-boundary segment, shape (F,)."""
    far_normals: Array
    """Normals out of the domain, shape (F, 2)."""


def dual_mesh(points: ArrayLike, cells: ArrayLike, wall: ArrayLike) -> DualMesh:
    """Build the dual of a mesh of convex quadrilaterals.

    Args:
        points: Node positions, shape (P, 2).
        cells: Nodes of each cell, counterclockwise, shape (C, 4).
        wall: True at wall nodes, shape (P,). A boundary side is a wall if both its nodes are, and open otherwise.

    Raises:
        DataError: A cell is folded, or its nodes are in clockwise order.
    """
    points, cells, wall = np.asarray(points, dtype=np.float64), np.asarray(cells), np.asarray(wall, dtype=bool)
    corner = points[cells]  # (C, 4, 2)
    middle = (corner + np.roll(corner, -1, axis=1)) / 2  # of the side from each corner to the next
    center = corner.mean(axis=1, keepdims=True)
    a, b = center - corner, np.roll(middle, 1, axis=1) - middle
    area = (a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]) / 2  # (C, 4), a corner's share of its cell
    if not (area > 0).all():
        bad = int((~(area > 0)).any(axis=1).sum())
        raise DataError(f"{bad:,} of {len(cells):,} cells are folded; deform the mesh less")
    volumes = _sum_at(cells.ravel(), area.ravel(), len(points))

    start, end = cells.ravel(), np.roll(cells, -1, axis=1).ravel()
    half_face = _turned(center - middle).reshape(-1, 2)  # through the side, from its start to its end
    pair = np.stack([np.minimum(start, end), np.maximum(start, end)], axis=1)
    edges, edge, count = np.unique(pair, axis=0, return_inverse=True, return_counts=True)
    edge = edge.ravel()  # numpy 2.0 returns two axes
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
    """Return the cells of a grid of node numbers, shape (C, 4), counterclockwise where i is to the left of j."""
    n = numbers
    return np.stack([n[:-1, :-1], n[:-1, 1:], n[1:, 1:], n[1:, :-1]], axis=-1).reshape(-1, 4)


def _slopes(points: Array, edges: Indices) -> Array:
    """Fit gradients by unweighted least squares over the edges of a node: ∇V = Σ M⁻¹ d (V_neighbor − V), M = Σ d dᵀ."""
    d = points[edges[:, 1]] - points[edges[:, 0]]
    square = d[:, :, None] * d[:, None, :]
    moments = _sum_at(edges.ravel(), np.repeat(square, 2, axis=0), len(points))
    # d and the difference of V both change sign at the second node, so one formula serves both.
    return np.einsum("eskl,el->esk", np.linalg.inv(moments)[edges], d)


def _sum_at(index: Indices, values: Array, count: int) -> Array:
    """Sum the values that share an index, shape (count, ...)."""
    total = np.zeros((count, *values.shape[1:]))
    np.add.at(total, index, values)
    return total


def _turned(a: Array) -> Array:
    """Rotate vectors by a quarter turn clockwise."""
    return np.stack([a[..., 1], -a[..., 0]], axis=-1)

"""Meshes of nine-node quadrilaterals: shape functions, Gauss points, named edges.

An element is the image of the square [−1, 1]² under x(ξ, η) = Σ_a N_a(ξ, η) x_a. Its node a = 3p + q is the image of
(p − 1, q − 1), and N_a is the product of the quadratics that are 1 there and 0 at the other two nodes of their line.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flare.utils.errors import NotConverged

# e elements, g Gauss points of an element (9), a and b its nodes (9), i, j, k, l the two directions
Array = NDArray[np.float64]
Indices = NDArray[np.int64]


def line_shape(t: Array) -> tuple[Array, Array]:
    """Evaluate the three quadratics through −1, 0, 1 at t (...): values and derivatives, both (..., 3)."""
    return np.stack([t * (t - 1) / 2, 1 - t * t, t * (t + 1) / 2], -1), np.stack([t - 0.5, -2 * t, t + 0.5], -1)


def shape(local: Array) -> tuple[Array, Array]:
    """Evaluate the nine shape functions at (ξ, η), (..., 2): values (..., 9), derivatives by ξ and η (..., 9, 2)."""
    (p, dp), (q, dq) = line_shape(local[..., 0]), line_shape(local[..., 1])

    def product(u: Array, v: Array) -> Array:
        return (u[..., :, None] * v[..., None, :]).reshape(*u.shape[:-1], 9)

    return product(p, q), np.stack([product(dp, q), product(p, dq)], -1)


LINE_POINTS, LINE_WEIGHTS = np.polynomial.legendre.leggauss(3)
GAUSS_POINTS: Array = np.stack(np.meshgrid(LINE_POINTS, LINE_POINTS, indexing="ij"), -1).reshape(9, 2)
GAUSS_WEIGHTS: Array = np.outer(LINE_WEIGHTS, LINE_WEIGHTS).ravel()
LOCAL_NODES: Array = np.stack(np.meshgrid([-1.0, 0.0, 1.0], [-1.0, 0.0, 1.0], indexing="ij"), -1).reshape(9, 2)


@dataclass(frozen=True)
class QuadMesh:
    """Nodes, elements and named boundary edges. An inverted element raises `NotConverged`."""

    nodes: Array
    """Coordinates, shape (nodes, 2)."""
    elements: Indices
    """Node numbers, shape (elements, 9)."""
    edges: Mapping[str, Indices]
    """Node numbers along the edges of each named boundary, shape (edges, 3)."""

    def __post_init__(self) -> None:
        probes = np.concatenate([GAUSS_POINTS, LOCAL_NODES])
        area = np.linalg.det(self.jacobian(self.all_elements, probes))
        if not (area > 0).all():
            raise NotConverged(f"{(area <= 0).any(1).sum()} of {len(area)} elements are inverted; use more elements")

    @property
    def all_elements(self) -> Indices:
        """Element numbers, shape (elements, 1); together with local coordinates (9, 2) they address these points in
        all elements."""
        return np.arange(len(self.elements))[:, None]

    def position(self, element: Indices, local: Array) -> Array:
        """Map local coordinates (..., 2) of elements (...) to points (..., 2)."""
        return np.einsum("...a,...ai->...i", shape(local)[0], self.nodes[self.elements[element]])

    def jacobian(self, element: Indices, local: Array) -> Array:
        """Return ∂x_i/∂ξ_k, shape (..., 2, 2)."""
        return np.einsum("...ak,...ai->...ik", shape(local)[1], self.nodes[self.elements[element]])

    def gradients(self, element: Indices, local: Array) -> Array:
        """Return ∂N_a/∂x_i, shape (..., 9, 2)."""
        return shape(local)[1] @ np.linalg.inv(self.jacobian(element, local))

    def gauss_points(self) -> Array:
        """Return the Gauss points element by element, shape (9 · elements, 2)."""
        return self.position(self.all_elements, GAUSS_POINTS).reshape(-1, 2)

    def gauss_weights(self) -> Array:
        """Return the area of each Gauss point, shape (elements, 9); they add up to the area of the mesh."""
        return GAUSS_WEIGHTS * np.linalg.det(self.jacobian(self.all_elements, GAUSS_POINTS))

    def local_coordinates(self, points: Array, element: Indices, guess: Array) -> Array:
        """Find the local coordinates (p, 2) of points (p, 2) in their elements (p,), by Newton's method from a good
        guess."""
        local = guess
        for _ in range(4):
            error = points - self.position(element, local)
            local = local + np.linalg.solve(self.jacobian(element, local), error[..., None])[..., 0]
        return local

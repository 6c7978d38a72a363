"""The eight-node box element: stiffness with incompatible modes, strain at its center.

Corners follow VTK: the bottom quadrilateral counterclockwise, then the top one. The 24 degrees of freedom are (corner,
component), component fastest. Strains and stresses are (xx, yy, zz, yz, zx, xy) with engineering shear strains. All
boxes of one size share one matrix; a refined or hanging mesh only maps it onto other nodes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Size = tuple[float, float, float]

CORNERS = np.array([[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0], [0, 0, 1], [1, 0, 1], [1, 1, 1], [0, 1, 1]])
"""Corners of the unit cube, shape (8, 3)."""

_GAUSS = np.stack(np.meshgrid(*[np.array([-1.0, 1.0]) / np.sqrt(3.0)] * 3, indexing="ij"), -1).reshape(8, 3)


def elasticity_matrix(young: float, poisson: float) -> Array:
    """Return the stress of an isotropic solid per unit strain, in the unit of `young`, shape (6, 6)."""
    lame, shear = young * poisson / ((1 + poisson) * (1 - 2 * poisson)), young / (2 * (1 + poisson))
    matrix = np.diag([2 * shear] * 3 + [shear] * 3)
    matrix[:3, :3] += lame
    return matrix


def shape(point: Array) -> Array:
    """Return the trilinear weights of the corners at `point`, (..., 3) in the unit cube, shape (..., 8)."""
    return np.prod(np.where(CORNERS == 1, point[..., None, :], 1 - point[..., None, :]), axis=-1)


def strain_matrix(size: Size, point: Array | None = None) -> Array:
    """Return the strain per corner displacement at `point` in [-1, 1]³, shape (6, 24). None is the center: the mean
    strain."""
    xi = np.zeros(3) if point is None else point
    sign = 2.0 * CORNERS - 1
    factor = 1 + sign * xi
    gradient = sign / 4 / np.asarray(size) * (np.prod(factor, 1)[:, None] / factor)
    return _symmetric_gradient(gradient)


def stiffness(size: Size, young: float, poisson: float, *, incompatible: bool = True) -> Array:
    """Return the stiffness of a box with edges `size`, shape (24, 24), with 2×2×2 Gauss points.

    The incompatible modes 1 − ξ², 1 − η², 1 − ζ² in each component let the box bend without parasitic shear. Their
    strains have zero mean on a box, so a uniform strain does not excite them (the patch test holds) and a uniform
    eigenstrain loads only the corners. The nine modes are condensed out. `incompatible=False` gives the trilinear box.
    """
    elastic, volume = elasticity_matrix(young, poisson), float(np.prod(size))
    matrix = np.zeros((33, 33))
    for xi in _GAUSS:
        bubble = _symmetric_gradient(np.diag(-4 * xi / np.asarray(size)))
        strain = np.hstack([strain_matrix(size, xi), bubble])
        matrix += volume / 8 * strain.T @ elastic @ strain
    corners, coupling, modes = matrix[:24, :24], matrix[:24, 24:], matrix[24:, 24:]
    if not incompatible:
        return (corners + corners.T) / 2
    condensed = corners - coupling @ np.linalg.solve(modes, coupling.T)
    return (condensed + condensed.T) / 2


def _symmetric_gradient(gradient: Array) -> Array:
    """Return the strain operator of n functions with gradients (n, 3), shape (6, 3n)."""
    matrix = np.zeros((6, len(gradient), 3))
    for component in range(3):
        matrix[component, :, component] = gradient[:, component]
    for row, (a, b) in enumerate(((1, 2), (2, 0), (0, 1)), start=3):
        matrix[row, :, a], matrix[row, :, b] = gradient[:, b], gradient[:, a]
    return matrix.reshape(6, -1)

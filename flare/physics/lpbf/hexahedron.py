"""The eight-node box element: stiffness with incompatible modes, strain at its centre, force of a uniform eigenstrain.

Corners follow VTK: the bottom quadrilateral counter-clockwise, then the top one. The 24 degrees of freedom are
(corner, component), component fastest. Strains and stresses are (xx, yy, zz, yz, zx, xy), shear strains engineering.
All boxes of one size share one matrix; a refined or hanging mesh only maps it onto other nodes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Size = tuple[float, float, float]

CORNERS = np.array([[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0], [0, 0, 1], [1, 0, 1], [1, 1, 1], [0, 1, 1]])
"""(8, 3), corner a of the unit cube."""

_GAUSS = np.stack(np.meshgrid(*[np.array([-1.0, 1.0]) / np.sqrt(3.0)] * 3, indexing="ij"), -1).reshape(8, 3)


def elasticity_matrix(young: float, poisson: float) -> Array:
    """(6, 6) stress of an isotropic solid per unit strain, in the unit of `young`."""
    lame, shear = young * poisson / ((1 + poisson) * (1 - 2 * poisson)), young / (2 * (1 + poisson))
    matrix = np.diag([2 * shear] * 3 + [shear] * 3)
    matrix[:3, :3] += lame
    return matrix


def shape(point: Array) -> Array:
    """(..., 8) trilinear weights of the corners at `point`, (..., 3) in the unit cube."""
    return np.prod(np.where(CORNERS == 1, point[..., None, :], 1 - point[..., None, :]), axis=-1)


def strain_matrix(size: Size, point: Array | None = None) -> Array:
    """(6, 24) strain per corner displacement at `point` in [-1, 1]³. None: the centre; that is the mean strain."""
    xi = np.zeros(3) if point is None else point
    sign = 2.0 * CORNERS - 1
    factor = 1 + sign * xi
    gradient = sign / 4 / np.asarray(size) * (np.prod(factor, 1)[:, None] / factor)
    return _symmetric_gradient(gradient)


def stiffness(size: Size, young: float, poisson: float, *, incompatible: bool = True) -> Array:
    """(24, 24) stiffness of a box with edges `size`, 2×2×2 Gauss points, the nine incompatible modes condensed out.

    The modes 1 − ξ², 1 − η², 1 − ζ² in each component let the box bend without parasitic shear. Their strains have
    mean zero on a box, so a uniform strain never excites them (the patch test holds) and a uniform eigenstrain loads
    only the corners. Without them (`incompatible=False`) it is the plain trilinear box.
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
    """(6, 3n) strain operator of n functions with gradients (n, 3)."""
    matrix = np.zeros((6, len(gradient), 3))
    for component in range(3):
        matrix[component, :, component] = gradient[:, component]
    for row, (a, b) in enumerate(((1, 2), (2, 0), (0, 1)), start=3):
        matrix[row, :, a], matrix[row, :, b] = gradient[:, b], gradient[:, a]
    return matrix.reshape(6, -1)

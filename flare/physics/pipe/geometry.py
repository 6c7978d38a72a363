"""Pipe geometry: a random center line and the mesh around it.

Nine numbers describe a center line c(x), in the order s0, y1, s1, y2, s2, y3, s3, y4, s4: its heights y and slopes s at
the five control points x = 0, 2.5, 5, 7.5, 10, with y0 = 0. A slope is the rise per piece of 2.5: dc/dx = s / 2.5.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.interpolate import CubicHermiteSpline

from flare.utils.errors import ConfigError, DataError

Array = NDArray[np.float64]

LENGTH, WIDTH, PIECES = 10.0, 1.0, 4
MAX_HEIGHT, MAX_SLOPE = 1.0, 2.0
MIN_NODES = 5  # nodes each way: two elements


def random_parameters(rng: np.random.Generator) -> Array:
    """Draw the parameters of a pipe as in the published files, shape (9,): heights U[−1, 1], slopes U[−2, 2]."""
    slopes_and_heights = np.resize([MAX_SLOPE, MAX_HEIGHT], 2 * PIECES + 1)
    return rng.uniform(-slopes_and_heights, slopes_and_heights)


def center_line(parameters: ArrayLike) -> CubicHermiteSpline:
    """Return c(x) on 0 ≤ x ≤ 10: four cubic pieces with continuous height and slope.

    Args:
        parameters: s0, y1, s1, ..., y4, s4, shape (9,).
    """
    given = np.asarray(parameters, dtype=np.float64)
    if given.shape != (2 * PIECES + 1,):
        raise DataError(f"parameters has shape {given.shape}; must be {2 * PIECES + 1} numbers")
    x = np.linspace(0.0, LENGTH, PIECES + 1)
    heights, slopes = np.concatenate([[0.0], given[1::2]]), given[0::2]
    return CubicHermiteSpline(x, heights, slopes / (LENGTH / PIECES))


def mesh(parameters: ArrayLike, *, nodes: int = 129) -> Array:
    """Return the nodes of the pipe with this center line: x = 10 i/(n−1), y = c(x) + j/(n−1) − ½.

    Args:
        parameters: See `center_line`.
        nodes: n, odd, because two steps span an element.

    Returns:
        Points for `solve`, shape (n, n, 2), indexed [i along the pipe, j across it, from the lower wall].
    """
    check_nodes(nodes)
    unit = np.arange(nodes) / (nodes - 1)
    x, across = LENGTH * unit, WIDTH * (unit - 0.5)
    y = center_line(parameters)(x)[:, None] + across
    return np.stack(np.broadcast_arrays(x[:, None], y), axis=-1)


def check_nodes(nodes: int) -> None:
    """Raise a `ConfigError` unless the nodes make whole elements."""
    if nodes < MIN_NODES or nodes % 2 == 0:
        raise ConfigError(f"nodes={nodes}: must be odd and at least {MIN_NODES}, such as 65 or 129")

"""The shape of a pipe: a random centre line, and the mesh around it.

Nine numbers describe a centre line c(x), in the order s0, y1, s1, y2, s2, y3, s3, y4, s4: its heights y and slopes s at
the five control points x = 0, 2.5, 5, 7.5, 10, with y0 = 0. A slope is the rise per piece of 2.5: dc/dx = s / 2.5.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.interpolate import CubicHermiteSpline

from flare.utils.errors import ConfigError, DataError

Array = NDArray[np.float64]

LENGTH, WIDTH, PIECES = 10.0, 1.0, 4
LARGEST_HEIGHT, LARGEST_SLOPE = 1.0, 2.0
SMALLEST = 5  # nodes each way: two elements


def random_parameters(rng: np.random.Generator) -> Array:
    """(9,) parameters of a pipe as in the published files: heights U[−1, 1], slopes U[−2, 2]."""
    slopes_and_heights = np.resize([LARGEST_SLOPE, LARGEST_HEIGHT], 2 * PIECES + 1)
    return rng.uniform(-slopes_and_heights, slopes_and_heights)


def centre_line(parameters: ArrayLike) -> CubicHermiteSpline:
    """The function c(x) on 0 ≤ x ≤ 10: four cubic pieces that meet with one height and one slope.

    Args:
        parameters: (9,), s0, y1, s1, ..., y4, s4.
    """
    given = np.asarray(parameters, dtype=np.float64)
    if given.shape != (2 * PIECES + 1,) or not np.isfinite(given).all():
        raise DataError(
            f"a centre line has {2 * PIECES + 1} finite parameters, s0, y1, s1, ..., y4, s4; these have shape "
            f"{given.shape}, {np.count_nonzero(~np.isfinite(given))} of them not finite"
        )
    x = np.linspace(0.0, LENGTH, PIECES + 1)
    heights, slopes = np.concatenate([[0.0], given[1::2]]), given[0::2]
    return CubicHermiteSpline(x, heights, slopes / (LENGTH / PIECES))


def mesh(parameters: ArrayLike, *, nodes: int = 129) -> Array:
    """Nodes of the pipe with this centre line: x = 10 i/(n−1), y = c(x) + j/(n−1) − ½.

    Args:
        parameters: as for `centre_line`.
        nodes: n, odd, for two of them span an element.

    Returns:
        (n, n, 2), indexed [i along the pipe, j across it, from the lower wall]: the points of `solve`.
    """
    check_nodes(nodes)
    x, across = LENGTH * _unit(nodes), WIDTH * (_unit(nodes) - 0.5)
    y = centre_line(parameters)(x)[:, None] + across
    return np.stack(np.broadcast_arrays(x[:, None], y), axis=-1)


def check_nodes(nodes: int) -> None:
    if nodes < SMALLEST or nodes % 2 == 0:
        raise ConfigError(f"nodes={nodes}: use an odd number, {SMALLEST} or more, such as 65 or 129")


def _unit(nodes: int) -> Array:
    return np.arange(nodes) / (nodes - 1)

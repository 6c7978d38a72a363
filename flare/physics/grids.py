"""Fields on the nodes of a grid: fewer nodes for a sample, more for a finer mesh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from flare.utils.errors import ConfigError


def check_stride(stride: int, shape: Sequence[int]) -> None:
    """Raise a `ConfigError` unless the stride reaches both ends of a grid of this shape."""
    if stride < 1 or any((nodes - 1) % stride for nodes in shape):
        raise ConfigError(f"stride={stride} does not reach both ends of a mesh of {shape} nodes")


def every(stride: int, fields: Mapping[str, NDArray]) -> dict[str, NDArray]:
    """Return fields of shape (I, J) or (I, J, C) at every stride-th node, each of shape (nodes, C)."""
    kept = {name: value[::stride, ::stride] for name, value in fields.items()}
    return {name: value.reshape(value.shape[0] * value.shape[1], -1) for name, value in kept.items()}


def insert_means(values: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
    """Insert the mean of any two neighbors along an axis: n values become 2n − 1."""
    v = np.moveaxis(values, axis, 0)
    finer = np.empty((2 * len(v) - 1, *v.shape[1:]))
    finer[::2], finer[1::2] = v, (v[:-1] + v[1:]) / 2
    return np.moveaxis(finer, 0, axis)

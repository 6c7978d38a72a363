"""Channel statistics of a dataset, accumulated sample by sample in double precision."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from flare.data.dataset import Dataset
from flare.data.sample import INPUT_ROLES, Role, Sample, Schema, input_array, target_array
from flare.utils.errors import DataError


@dataclass(frozen=True)
class ChannelStatistics:
    """Statistics of every channel over all points of some samples; arrays have shape (channels,)."""

    count: int
    """Number of points."""
    mean: np.ndarray
    std: np.ndarray
    """Unbiased standard deviation."""
    low: np.ndarray
    high: np.ndarray


def moments(array: np.ndarray) -> np.ndarray:
    """Return count, mean, sum of squared deviations, minimum and maximum, shape (5, C), of an (N, C) array."""
    rows = np.asarray(array, dtype=np.float64)
    mean = rows.mean(0)
    count = np.full_like(mean, len(rows))
    return np.stack([count, mean, ((rows - mean) ** 2).sum(0), rows.min(0), rows.max(0)])


def merge_moments(parts: Iterable[np.ndarray]) -> ChannelStatistics:
    """Combine the moments of several arrays into the statistics of all of them.

    Raises:
        DataError: There are no arrays.
    """
    count, mean, squares, low, high = 0, np.zeros(1), np.zeros(1), np.array([np.inf]), np.array([-np.inf])
    for (size, *_), part_mean, part_squares, part_low, part_high in parts:
        shift, total = part_mean - mean, count + int(size)
        # Chan's pairwise update: exact for any order of the parts, and no difference of large sums.
        squares = squares + part_squares + shift**2 * (count * int(size) / total)
        mean = mean + shift * (int(size) / total)
        low, high, count = np.minimum(low, part_low), np.maximum(high, part_high), total
    if count == 0:
        raise DataError("there are no samples to compute statistics of")
    return ChannelStatistics(count, mean, np.sqrt(squares / max(count - 1, 1)), low, high)


def channel_statistics(arrays: Iterable[np.ndarray]) -> ChannelStatistics:
    """Return the joint statistics of (N, C) arrays, of which one at a time is held in memory."""
    return merge_moments(map(moments, arrays))


def input_statistics(dataset: Dataset, indices: Iterable[int]) -> ChannelStatistics:
    """Return the statistics of the input channels of some samples.

    Raises:
        DataError: A sample has no points, or a value is NaN or inf.
    """
    return merge_moments(_input_moments(dataset, index, dataset[int(index)]) for index in indices)


def target_statistics(dataset: Dataset, indices: Iterable[int]) -> ChannelStatistics:
    """Return the statistics of the target channels of some samples.

    Raises:
        DataError: A sample has no points, a value is NaN or inf, or a target is zero at every point of a sample.
    """
    return merge_moments(_target_moments(dataset, index, dataset[int(index)]) for index in indices)


def sample_moments(dataset: Dataset, index: int) -> np.ndarray:
    """Return the moments of one sample, shape (5, in_dim + out_dim).

    Raises:
        DataError: As for `input_statistics` and `target_statistics`.
    """
    sample = dataset[index]
    return np.concatenate([_input_moments(dataset, index, sample), _target_moments(dataset, index, sample)], axis=1)


def _input_moments(dataset: Dataset, index: int, sample: Sample) -> np.ndarray:
    return moments(_checked(dataset, index, input_array(dataset.schema, sample), INPUT_ROLES))


def _target_moments(dataset: Dataset, index: int, sample: Sample) -> np.ndarray:
    return moments(_checked(dataset, index, target_array(dataset.schema, sample), ("target",)))


def _checked(dataset: Dataset, index: int, array: np.ndarray, roles: Sequence[Role]) -> np.ndarray:
    problem = describe_bad_values(array, dataset.schema.channels(*roles)) if len(array) else "it has no points"
    if problem is None and roles == ("target",):
        problem = describe_zero_field(dataset.schema, array)
    if problem:
        remedy = f"List all problems with:  flare data check {dataset.path}"
        raise DataError(f"{dataset.path}: sample {index}: {problem}. {remedy}")
    return array


def describe_zero_field(schema: Schema, targets: np.ndarray) -> str | None:
    """Return a message about the first target field that is zero at every point, or None."""
    start = 0
    for name, width in zip(schema.named("target"), schema.widths("target"), strict=True):
        if not targets[:, start : start + width].any():
            return f"{name!r} is zero at every point, so its relative error is undefined"
        start += width
    return None


def describe_bad_values(array: np.ndarray, channels: list[str]) -> str | None:
    """Return a message about the first channel with NaN or inf, its count and first row, or None."""
    bad = ~np.isfinite(array)
    if not bad.any():
        return None
    channel = int(bad.any(0).argmax())
    rows = np.flatnonzero(bad[:, channel])
    return f"{channels[channel]!r} is NaN or inf at {len(rows):,} of {len(array):,} points (first: {rows[0]})"

"""Statistics of a dataset's channels, streamed sample by sample in double precision, refusing what is not a number."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from flare.data.dataset import Dataset
from flare.data.sample import INPUT_ROLES, Role, Sample, Schema, input_array, target_array
from flare.utils.errors import DataError


@dataclass(frozen=True)
class ChannelStatistics:
    """Of every channel over all points of all samples seen; arrays of shape (channels,)."""

    count: int
    mean: np.ndarray
    std: np.ndarray
    """Unbiased."""
    low: np.ndarray
    high: np.ndarray


def moments(array: np.ndarray) -> np.ndarray:
    """(5, channels) of (any, channels): count, mean, squares of what differs from it, smallest, largest."""
    part = np.asarray(array, dtype=np.float64)
    mean = part.mean(0)
    count = np.full_like(mean, len(part))
    return np.stack([count, mean, ((part - mean) ** 2).sum(0), part.min(0), part.max(0)])


def merged(parts: Iterable[np.ndarray]) -> ChannelStatistics:
    """The statistics of the whole from the moments of its parts."""
    count, mean, squares, low, high = 0, np.zeros(1), np.zeros(1), np.array([np.inf]), np.array([-np.inf])
    for (size, *_), part_mean, part_squares, part_low, part_high in parts:
        shift, total = part_mean - mean, count + int(size)
        # Chan's pairwise update: exact for any order of the parts, and no difference of large sums.
        squares = squares + part_squares + shift**2 * (count * int(size) / total)
        mean = mean + shift * (int(size) / total)
        low, high, count = np.minimum(low, part_low), np.maximum(high, part_high), total
    if count == 0:
        raise DataError("no samples to take statistics of")
    return ChannelStatistics(count, mean, np.sqrt(squares / max(count - 1, 1)), low, high)


def channel_statistics(arrays: Iterable[np.ndarray]) -> ChannelStatistics:
    """Statistics of arrays of shape (any, channels), taken together but never held together."""
    return merged(map(moments, arrays))


def input_statistics(dataset: Dataset, indices: Iterable[int]) -> ChannelStatistics:
    """Of the input channels; NaN or infinity is an error that says where."""
    return merged(input_moments(dataset, index, dataset[int(index)]) for index in indices)


def target_statistics(dataset: Dataset, indices: Iterable[int]) -> ChannelStatistics:
    """Of the target channels; NaN, infinity, or a sample that is zero everywhere is an error that says where."""
    return merged(target_moments(dataset, index, dataset[int(index)]) for index in indices)


def sample_moments(dataset: Dataset, index: int) -> np.ndarray:
    """(5, input and target channels) of a sample, which is read once; errors are those of the statistics."""
    sample = dataset[index]
    return np.concatenate([input_moments(dataset, index, sample), target_moments(dataset, index, sample)], axis=1)


def input_moments(dataset: Dataset, index: int, sample: Sample) -> np.ndarray:
    return moments(_sound(dataset, index, input_array(dataset.schema, sample), INPUT_ROLES))


def target_moments(dataset: Dataset, index: int, sample: Sample) -> np.ndarray:
    return moments(_sound(dataset, index, target_array(dataset.schema, sample), ("target",)))


def _sound(dataset: Dataset, index: int, array: np.ndarray, roles: Sequence[Role]) -> np.ndarray:
    problem = describe_bad_values(array, dataset.schema.channels(*roles)) if len(array) else "it has no points"
    if problem is None and roles == ("target",):
        problem = describe_zero_field(dataset.schema, array)
    if problem:
        raise DataError(
            f"{dataset.path}: sample {index}: {problem}. See every sample with:  flare data check {dataset.path}"
        )
    return array


def describe_zero_field(schema: Schema, targets: np.ndarray) -> str | None:
    """`'stress' is zero at every point …` for the first target field that is, or None."""
    start = 0
    for name, width in zip(schema.named("target"), schema.widths("target"), strict=True):
        if not targets[:, start : start + width].any():
            return f"{name!r} is zero at every point, so its relative error has no meaning"
        start += width
    return None


def describe_bad_values(array: np.ndarray, channels: list[str]) -> str | None:
    """`'pressure' has NaN or infinity at 3 of 7,225 points (first: 512)`, or None where all is well."""
    bad = ~np.isfinite(array)
    if not bad.any():
        return None
    channel = int(bad.any(0).argmax())
    rows = np.flatnonzero(bad[:, channel])
    return f"{channels[channel]!r} has NaN or infinity at {len(rows):,} of {len(array):,} points (first: {rows[0]})"

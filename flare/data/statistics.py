"""Statistics of a dataset's channels, streamed sample by sample in double precision, refusing what is not a number."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from flare.data.sample import Sample, Schema, input_array, target_array
from flare.data.store import Dataset
from flare.errors import DataError


@dataclass(frozen=True)
class ChannelStatistics:
    """Of every channel over all points of all samples seen; arrays of shape (channels,)."""

    count: int
    mean: np.ndarray
    std: np.ndarray
    """Unbiased."""
    low: np.ndarray
    high: np.ndarray


def channel_statistics(arrays: Iterable[np.ndarray]) -> ChannelStatistics:
    """Statistics of arrays of shape (any, channels), taken together but never held together."""
    count, mean, squares, low, high = 0, np.zeros(1), np.zeros(1), np.array([np.inf]), np.array([-np.inf])
    for array in arrays:
        part = np.asarray(array, dtype=np.float64)
        part_mean = part.mean(0)
        shift, total = part_mean - mean, count + len(part)
        # Chan's pairwise update: exact for any order of the parts, and no difference of large sums.
        squares = squares + ((part - part_mean) ** 2).sum(0) + shift**2 * (count * len(part) / total)
        mean = mean + shift * (len(part) / total)
        low, high, count = np.minimum(low, part.min(0)), np.maximum(high, part.max(0)), total
    if count == 0:
        raise DataError("no samples to take statistics of")
    return ChannelStatistics(count, mean, np.sqrt(squares / max(count - 1, 1)), low, high)


def input_statistics(dataset: Dataset, indices: Iterable[int]) -> ChannelStatistics:
    """Of the input channels; NaN or infinity is an error that says where."""
    return channel_statistics(_finite(dataset, indices, input_array, ("points", "feature", "parameter")))


def target_statistics(dataset: Dataset, indices: Iterable[int]) -> ChannelStatistics:
    """Of the target channels; NaN, infinity, or a sample that is zero everywhere is an error that says where."""
    return channel_statistics(_finite(dataset, indices, target_array, ("target",)))


def _finite(
    dataset: Dataset, indices: Iterable[int], read: Callable[[Schema, Sample], np.ndarray], roles: tuple
) -> Iterable[np.ndarray]:
    for index in indices:
        array = read(dataset.schema, dataset[int(index)])
        problem = describe_bad_values(array, dataset.schema.channels(*roles)) if len(array) else "it has no points"
        if problem is None and roles == ("target",):
            problem = describe_zero_field(dataset.schema, array)
        if problem:
            raise DataError(
                f"{dataset.path}: sample {index}: {problem}. See every sample with:  flare data check {dataset.path}"
            )
        yield array


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

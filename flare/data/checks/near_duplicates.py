"""Samples that are nearly the same, whatever the order of their points or the density of their mesh.

A sample is a cloud of tuples u (position, features, parameters). Its characteristic function at fixed frequencies,

    φ_k = mean over points of exp(i k·u),

distinguishes clouds and does not depend on the order of the points. Two samples whose φ differ by less than a hundredth
of the median difference in the dataset count as copies.
"""

# S samples, C channels, K frequencies

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from flare.data.sample import Sample, Schema, input_array, target_array

FREQUENCIES = 64
MOST_POINTS = 100_000
"""Points of a sample that are used; larger samples are strided."""
COPY = 0.01
"""Distance of two copies, as a fraction of the median distance between samples."""


class Samples(Protocol):
    """A dataset, or an import that would become one."""

    @property
    def schema(self) -> Schema: ...
    @property
    def splits(self) -> Collection[str]: ...
    def split(self, name: str, /) -> np.ndarray: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Sample: ...


@dataclass(frozen=True)
class NearDuplicates:
    """Pairs (kept, other) of samples with nearly the same inputs."""

    split: dict[int, str]
    """Sample -> split."""
    leaks: list[tuple[int, int]]
    """Pairs in two splits; the second sample is in the later split."""
    contradictions: list[tuple[int, int]]
    """Pairs with different targets."""


def find_near_duplicates(
    dataset: Samples, ranges: tuple[np.ndarray, np.ndarray] | None = None, update: Callable[[], None] = lambda: None
) -> NearDuplicates:
    """Compare all samples of a dataset.

    Args:
        dataset: Dataset to read.
        ranges: `channel_ranges` of the dataset, if known.
        update: Progress callback, called once per sample.
    """
    order = {name: place for place, name in enumerate(dataset.splits)}
    split = {int(i): name for name in dataset.splits for i in dataset.split(name) if i < len(dataset)}
    inputs, both = _signatures(dataset, *(ranges or channel_ranges(dataset)), update)
    usual = float(np.median(np.linalg.norm(both - both.mean(0), axis=1))) if len(both) else 0.0
    leaks, contradictions = [], []
    for group in group_copies(inputs):
        firsts: list[int] = []  # one per distinct target: one geometry may occur under several loads
        for one in sorted(group, key=lambda i: (order.get(split.get(i, ""), len(order)), i)):
            apart = np.linalg.norm(both[firsts] - both[one], axis=1)
            near = np.flatnonzero(apart <= (0.1 * usual or np.inf))
            if not len(near):
                firsts.append(one)
            elif one in split and split[first := firsts[near[0]]] != split[one]:
                leaks.append((first, one))
        contradictions += [(firsts[0], other) for other in firsts[1:]]
    return NearDuplicates(split, leaks, contradictions)


def channel_ranges(dataset: Samples) -> tuple[np.ndarray, np.ndarray]:
    """Return the smallest and largest finite value of every input and target channel."""
    width = dataset.schema.in_dim + dataset.schema.out_dim
    low, high = np.full(width, np.inf), np.full(width, -np.inf)
    for index in range(len(dataset)):
        rows = _finite_rows(dataset, dataset[index])
        if len(rows):
            low, high = np.minimum(low, rows.min(0)), np.maximum(high, rows.max(0))
    return low, high


def signature(channels: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Compute φ, shape (K,), of a cloud of shape (N, C) whose channels range from `low` to `high` in the dataset."""
    low, high = (np.where(np.isfinite(end), end, 0.0) for end in (low, high))  # channels of NaN alone have no range
    span = np.where(high > low, high - low, 1.0)
    some = channels[:: max(1, -(-len(channels) // MOST_POINTS))]
    u = (np.asarray(some, dtype=np.float64) - low) / span
    k = np.random.default_rng(0).normal(scale=4.0, size=(u.shape[1], FREQUENCIES))
    return np.exp(1j * (u @ k)).mean(0)


def group_copies(signatures: np.ndarray) -> list[list[int]]:
    """Return groups of two or more samples with nearly the same signature, from an (S, K) array."""
    count = len(signatures)
    if count < 3:
        return []
    rows = np.arange(0, count, -(-count // 200))
    pairs = np.linalg.norm(signatures[rows][:, None] - signatures[None], axis=2)
    usual = float(np.median(pairs[rows[:, None] != np.arange(count)]))
    group, members = list(range(count)), dict[int, list[int]]()
    for one in range(count):
        near = np.flatnonzero(np.linalg.norm(signatures[:one] - signatures[one], axis=1) <= COPY * usual)
        if len(near):
            group[one] = group[int(near[0])]
        members.setdefault(group[one], []).append(one)
    return [alike for alike in members.values() if len(alike) > 1]


def _signatures(
    dataset: Samples, low: np.ndarray, high: np.ndarray, update: Callable[[], None]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the (S, K) signatures of the inputs, and of inputs and targets together."""
    inputs, both, width = [], [], dataset.schema.in_dim
    for index in range(len(dataset)):
        rows = _finite_rows(dataset, dataset[index])
        rows = rows if len(rows) else np.zeros((1, rows.shape[1]))
        inputs.append(signature(rows[:, :width], low[:width], high[:width]))
        both.append(signature(rows, low, high))
        update()
    return np.array(inputs), np.array(both)


def _finite_rows(dataset: Samples, sample: Sample) -> np.ndarray:
    """Return inputs and targets at the points without NaN or inf, shape (N, C), float64."""
    both = np.concatenate([input_array(dataset.schema, sample), target_array(dataset.schema, sample)], axis=1)
    return both[np.isfinite(both).all(1)].astype(np.float64)

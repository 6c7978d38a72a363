"""Samples that are nearly the same, whatever the order of their points or the density of their mesh.

A sample is a cloud of tuples u (position, features, parameters). Its characteristic function at fixed frequencies,

    φ_k = mean over points of exp(i k·u),

distinguishes clouds and does not depend on the order of the points. Two samples whose φ differ by less than a hundredth
of the median difference in the dataset count as copies.
"""

# S samples, C channels, K frequencies

from __future__ import annotations

import numpy as np

from flare.data.dataset import Dataset
from flare.data.sample import input_array, target_array
from flare.utils.progress import progress

FREQUENCIES = 64
MOST_POINTS = 100_000
"""Points of a sample that are used; larger samples are strided."""
COPY = 0.01
"""Distance of two copies, as a fraction of the median distance between samples."""
Pairs = list[tuple[int, int]]


def find_near_duplicates(
    dataset: Dataset, ranges: tuple[np.ndarray, np.ndarray], *, quiet: bool = False
) -> tuple[Pairs, Pairs]:
    """Compare all samples of a dataset.

    Args:
        dataset: Dataset to read.
        ranges: `channel_ranges` of the dataset.
        quiet: Report no progress.

    Returns:
        Pairs (kept, other) of samples with nearly the same inputs: those in two splits, of which the second is in the
        later split; and those with different targets.
    """
    order = {int(i): place for place, name in enumerate(dataset.splits) for i in dataset.split(name)}
    (low, high), width = ranges, dataset.schema.in_dim
    inputs, both = [], []
    with progress("searching for near duplicates", len(dataset), quiet=quiet) as update:
        for index in range(len(dataset)):
            rows = _finite_rows(dataset, index)
            inputs.append(signature(rows[:, :width], low[:width], high[:width]))
            both.append(signature(rows, low, high))
            update()
    marks = np.array(both)
    usual = float(np.median(np.linalg.norm(marks - marks.mean(0), axis=1)))
    leaks, contradictions = Pairs(), Pairs()
    for group in group_copies(np.array(inputs)):
        firsts: list[int] = []  # one per distinct target: one geometry may occur under several loads
        for one in sorted(group, key=lambda i: (order.get(i, len(dataset)), i)):
            near = np.flatnonzero(np.linalg.norm(marks[firsts] - marks[one], axis=1) <= (0.1 * usual or np.inf))
            if not len(near):
                firsts.append(one)
            elif one in order and order[first := firsts[near[0]]] != order[one]:
                leaks.append((first, one))
        contradictions += [(firsts[0], other) for other in firsts[1:]]
    return leaks, contradictions


def channel_ranges(dataset: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Return the smallest and largest finite value of every input and target channel."""
    width = dataset.schema.in_dim + dataset.schema.out_dim
    low, high = np.full(width, np.inf), np.full(width, -np.inf)
    for index in range(len(dataset)):
        rows = _finite_rows(dataset, index)
        if len(rows):
            low, high = np.minimum(low, rows.min(0)), np.maximum(high, rows.max(0))
    return low, high


def signature(channels: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Compute φ, shape (K,), of a cloud of shape (N, C) whose channels range from `low` to `high` in the dataset."""
    if not len(channels):
        return np.zeros(FREQUENCIES, dtype=complex)
    span = np.where(high > low, high - low, 1.0)
    u = (channels[:: max(1, -(-len(channels) // MOST_POINTS))] - low) / span
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


def _finite_rows(dataset: Dataset, index: int) -> np.ndarray:
    """Return inputs and targets of a sample at the points without NaN or inf, shape (N, C), float64."""
    sample = dataset[index]
    both = np.concatenate([input_array(dataset.schema, sample), target_array(dataset.schema, sample)], axis=1)
    return both[np.isfinite(both).all(1)].astype(np.float64)

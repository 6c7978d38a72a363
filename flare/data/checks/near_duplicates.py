"""Samples that are nearly the same, whatever the order of their points or the density of their mesh.

A sample is a cloud of tuples (position, features, parameters). Its characteristic function at a few fixed frequencies,

    φ_k = mean over points of exp(i k·u),

tells clouds apart and does not know the order of the points. Two samples whose φ differ by less than a hundredth of
what is usual between two samples of the dataset are taken for copies.
"""

# S samples, C channels, K frequencies

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

FREQUENCIES = 64
MOST_POINTS = 100_000
"""Of a sample; of more, every so many."""
COPY = 0.01
"""Of the median distance between samples."""


def signature(channels: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """(K,) complex, of (N, C) channels that go from `low` to `high` in the whole dataset."""
    low, high = (np.where(np.isfinite(end), end, 0.0) for end in (low, high))  # a dataset of NaN alone has no range
    span = np.where(high > low, high - low, 1.0)
    some = channels[:: max(1, -(-len(channels) // MOST_POINTS))]
    u = (np.asarray(some, dtype=np.float64) - low) / span
    k = np.random.default_rng(0).normal(scale=4.0, size=(u.shape[1], FREQUENCIES))
    return np.exp(1j * (u @ k)).mean(0)


def copies(signatures: np.ndarray) -> list[list[int]]:
    """Groups of samples that are nearly the same, from (S, K)."""
    count = len(signatures)
    if count < 3:
        return []
    usual = float(np.median(_distances(signatures, np.arange(0, count, -(-count // 200)))))
    group, members = list(range(count)), dict[int, list[int]]()
    for one in range(count):
        near = np.flatnonzero(np.linalg.norm(signatures[:one] - signatures[one], axis=1) <= COPY * usual)
        if len(near):
            group[one] = group[int(near[0])]
        members.setdefault(group[one], []).append(one)
    return [alike for alike in members.values() if len(alike) > 1]


def _distances(signatures: np.ndarray, rows: Sequence[int] | np.ndarray) -> np.ndarray:
    """Between some samples and all others."""
    some = signatures[rows]
    pairs = np.linalg.norm(some[:, None] - signatures[None], axis=2)
    return pairs[np.asarray(rows)[:, None] != np.arange(len(signatures))]

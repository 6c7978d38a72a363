"""Samples that are the same, whatever the order of their points."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np

from flare.data.dataset import Dataset
from flare.data.sample import input_array, target_array
from flare.utils.progress import progress

Pairs = list[tuple[int, int]]


def find_copies(dataset: Dataset, *, quiet: bool = False) -> tuple[Pairs, Pairs]:
    """Compare the samples of all splits.

    Args:
        dataset: Dataset to read.
        quiet: Report no progress.

    Returns:
        Pairs (first, other) of samples with the same inputs: copies in two splits, of which the second is in the later
        split; and samples with different targets.
    """
    leaks, contradictions = Pairs(), Pairs()
    firsts: dict[bytes, dict[bytes, tuple[int, str]]] = {}  # inputs -> inputs and targets -> first sample, its split
    members = {int(i): split for split in dataset.splits for i in dataset.split(split) if i < len(dataset)}
    with progress("searching for copies", len(members), quiet=quiet) as update:
        for index, split in members.items():
            sample = dataset[index]
            inputs, targets = input_array(dataset.schema, sample), target_array(dataset.schema, sample)
            alike = firsts.setdefault(_digest(inputs), {})
            first, earlier = alike.setdefault(_digest(np.concatenate([inputs, targets], axis=1)), (index, split))
            if earlier != split:
                leaks.append((first, index))
            elif first == index and len(alike) > 1:
                contradictions.append((next(iter(alike.values()))[0], index))
            update()
    return leaks, contradictions


def _digest(rows: np.ndarray) -> bytes:
    """Return a digest of the rows of an array that does not depend on their order."""
    records = np.ascontiguousarray(rows).view(f"V{rows.itemsize * rows.shape[1]}")
    return blake2b(np.sort(records, axis=0).tobytes(), digest_size=16).digest()

"""A quick look over labels and tokens before a model sees them: one out of range would end in an index error.

`flare data check` says more, sample by sample, and takes longer.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from flare.sequence.store import SequenceDataset
from flare.utils.errors import DataError

PIECE = 1 << 22
"""Entries looked at together: the arrays may be larger than the memory."""


def refuse_out_of_range(dataset: SequenceDataset) -> None:
    """Refuse a dataset with a label that is no class, a token that is none, or a sequence of no or too many tokens."""
    schema, see = dataset.schema, f"see all that is wrong with:  flare data check {dataset.path}"
    classes, longest, vocabulary = len(schema.classes), schema.longest, schema.vocabulary
    index = _first(dataset.labels, lambda labels: labels >= classes)
    if index is not None:
        what = f"entry {index} is {dataset.labels[index]}; classes are 0 … {classes - 1}"
        raise DataError(f"{dataset.path / 'labels.npy'}: {what}; {see}")
    for lengths in dataset.lengths.T:
        index = _first(lengths, lambda some: (some < 1) | (some > longest))
        if index is not None:
            what = f"sample {index} has {lengths[index]:,} tokens; 1 to {longest:,} are expected"
            raise DataError(f"{dataset.path}: {what}; {see}")
    if schema.pad is None and np.iinfo(schema.dtype).max < vocabulary:
        return  # any number that can be stored is a token
    pad = -1 if schema.pad is None else schema.pad
    allowed = f"tokens are 0 … {vocabulary - 1}" + ("" if schema.pad is None else f", and not {pad}, the pad")
    for name, tokens in dataset.tokens.items():
        index = _first(tokens, lambda some: (some >= vocabulary) | (some == pad))
        if index is not None:
            raise DataError(f"{dataset.path / name}.npy: entry {index} is {tokens[index]}; {allowed}; {see}")


def _first(values: np.ndarray, wrong: Callable[[np.ndarray], np.ndarray]) -> int | None:
    """Where the first wrong value is, if there is any."""
    for start in range(0, len(values), PIECE):
        found = wrong(values[start : start + PIECE])
        if found.any():
            return start + int(found.argmax())
    return None

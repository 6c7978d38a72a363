"""Batches of token sequences with padding and mask, for single documents and pairs."""

# B batch, N tokens of the longest sequence of the batch

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from flare.data.batching import BatchPlan, PaddedBatch, batches_in_order, planned_loader
from flare.data.batching import pad as pad_arrays
from flare.sequence.store import Example, SequenceDataset
from flare.utils.errors import DataError


@dataclass(frozen=True, kw_only=True)
class TokenBatch(PaddedBatch):
    """Sequences padded to the same length; the two documents of a pair are end to end.

    Without a mask, nothing is padded, or padding counts as tokens.
    """

    ids: Tensor
    """Token ids, [B, N], or [B, 2 N] for pairs."""
    labels: Tensor
    """[B]."""

    @property
    def points(self) -> int:
        """Number of tokens without masked padding."""
        return self.ids.numel() if self.mask is None else int(self.mask.sum())


def collate(samples: Sequence[tuple[int, Example]], *, pad: int | None, fixed: int | None = None) -> TokenBatch:
    """Pad (index, example) pairs to a batch.

    Args:
        samples: Indices and examples.
        pad: Token id of padding; None if all sequences have the same length.
        fixed: Pad to this length and return no mask, so that padding counts as tokens. None pads to the longest.
    """
    documents = [tokens for _, example in samples for tokens in example.documents]
    tokens = [document.astype(np.int64) for document in documents]
    ids, mask = pad_arrays(tokens, value=pad or 0, length=fixed, dtype=torch.long)
    if mask is not None and pad is None:
        raise DataError(f"sequences have {min(map(len, tokens))} and {ids.shape[1]} tokens, and no id to pad with")
    mask = mask if fixed is None else None
    return TokenBatch(
        ids=ids.reshape(len(samples), -1),
        labels=torch.tensor([example.label for _, example in samples]),
        mask=None if mask is None else mask.reshape(len(samples), -1),
        indices=tuple(index for index, _ in samples),
    )


class _Examples(TorchDataset[tuple[int, Example]]):
    """Samples as a loader worker reads them."""

    def __init__(self, dataset: SequenceDataset) -> None:
        self.dataset = dataset

    def __getitem__(self, key: tuple[int, int]) -> tuple[int, Example]:
        _, index = key
        return index, self.dataset[index]


def training_batches(
    dataset: SequenceDataset, plan: BatchPlan, *, fixed: int | None = None, workers: int = 0, pin: bool = False
) -> Iterable[TokenBatch]:
    """Return a loader of micro-batches in the order of the plan; see `collate`."""
    collate_fn = partial(collate, pad=dataset.schema.pad, fixed=fixed)
    return planned_loader(_Examples(dataset), plan, collate_fn, workers=workers, pin=pin)


def evaluation_batches(
    dataset: SequenceDataset, indices: np.ndarray, batch_size: int, *, fixed: int | None = None
) -> Iterator[TokenBatch]:
    """Yield all samples in the order given; the last batch may be smaller."""
    collate_fn = partial(collate, pad=dataset.schema.pad, fixed=fixed)
    return batches_in_order(_Examples(dataset), indices, batch_size, collate_fn)

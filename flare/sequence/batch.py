"""From sequences on disk to batches: padding and mask, one document or two."""

# B batch, N tokens of the longest sequence of the batch

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from flare.data.batching import BatchPlan, planned_loader
from flare.sequence.store import Example, SequenceDataset
from flare.utils.errors import DataError


@dataclass(frozen=True)
class TokenBatch:
    """Sequences side by side, padded to the longest; the two documents of a pair end to end."""

    ids: Tensor
    """[B, N], or [B, 2 N] of pairs."""
    labels: Tensor
    """[B]"""
    mask: Tensor | None
    """Of the shape of `ids`, True at real tokens; None where nothing is padded, or padding is not to be told."""
    indices: tuple[int, ...]
    """Which samples of the dataset these are."""

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def points(self) -> int:
        """Tokens in all, without padding that is told."""
        return self.ids.numel() if self.mask is None else int(self.mask.sum())

    def to(self, device: torch.device) -> TokenBatch:
        mask = None if self.mask is None else self.mask.to(device, non_blocking=True)
        ids, labels = (t.to(device, non_blocking=True) for t in (self.ids, self.labels))
        return replace(self, ids=ids, labels=labels, mask=mask)


def collate(samples: Sequence[tuple[int, Example]], *, pad: int | None, fixed: int | None = None) -> TokenBatch:
    """Put (index, example) pairs side by side.

    Args:
        pad: id to pad with; None where all sequences must be as long.
        fixed: pad to this length and tell no mask, so that padding counts as tokens; None pads to the longest.
    """
    documents = [tokens for _, example in samples for tokens in example.documents]
    lengths = torch.tensor([len(tokens) for tokens in documents])
    longest = int(lengths.max()) if fixed is None else fixed
    padded = bool((lengths < longest).any())
    if padded and pad is None:
        raise DataError(f"sequences of {int(lengths.min())} and {longest} tokens, and no id to pad with")
    ids = torch.full((len(documents), longest), pad or 0, dtype=torch.long)
    for row, tokens in zip(ids, documents, strict=True):
        row[: len(tokens)] = torch.from_numpy(tokens.astype(np.int64))
    mask = torch.arange(longest) < lengths[:, None] if padded and fixed is None else None
    return TokenBatch(
        ids=ids.reshape(len(samples), -1),
        labels=torch.tensor([example.label for _, example in samples]),
        mask=None if mask is None else mask.reshape(len(samples), -1),
        indices=tuple(index for index, _ in samples),
    )


class _Examples(TorchDataset[tuple[int, Example]]):
    """What a loader worker does: read one sample."""

    def __init__(self, dataset: SequenceDataset) -> None:
        self.dataset = dataset

    def __getitem__(self, key: tuple[int, int]) -> tuple[int, Example]:
        _, index = key
        return index, self.dataset[index]


def training_batches(
    dataset: SequenceDataset, plan: BatchPlan, *, fixed: int | None = None, workers: int = 0, pin: bool = False
) -> Iterable[TokenBatch]:
    """Micro-batches in the order of the plan; see `collate`."""
    put_together = partial(collate, pad=dataset.schema.pad, fixed=fixed)
    return planned_loader(_Examples(dataset), plan, put_together, workers=workers, pin=pin)


def evaluation_batches(
    dataset: SequenceDataset, indices: np.ndarray, batch_size: int, *, fixed: int | None = None
) -> Iterator[TokenBatch]:
    """All of the samples, in the order given, the last batch perhaps smaller."""
    for start in range(0, len(indices), batch_size):
        chosen = map(int, indices[start : start + batch_size])
        yield collate([(i, dataset[i]) for i in chosen], pad=dataset.schema.pad, fixed=fixed)

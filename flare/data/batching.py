"""Batches of samples: padding and mask, subsampling of points, and the order of samples in an epoch."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Sampler
from torch.utils.data import Dataset as TorchDataset

from flare.data.augmentation import Symmetry
from flare.data.dataset import Dataset
from flare.data.sample import INPUT_ROLES, input_array, target_array
from flare.utils.errors import ConfigError

# B batch, N points of the largest sample


@dataclass(frozen=True, kw_only=True)
class PaddedBatch:
    """Samples of any kind, padded to the size of the largest."""

    mask: Tensor | None
    """Shape [B, N], True at what is real; None if no sample is padded."""
    indices: tuple[int, ...]
    """Sample numbers in the dataset."""

    def __len__(self) -> int:
        return len(self.indices)

    def to(self, device: torch.device) -> Self:
        """Return a copy of the batch on `device`."""
        moved: dict[str, Any] = {n: v.to(device, non_blocking=True) for n, v in vars(self).items() if hasattr(v, "to")}
        return replace(self, **moved)


@dataclass(frozen=True, kw_only=True)
class Batch(PaddedBatch):
    """Samples in physical units, padded with zeros."""

    inputs: Tensor
    """Model inputs, shape [B, N, in_dim]."""
    targets: Tensor
    """Targets, shape [B, N, out_dim]."""

    @property
    def points(self) -> int:
        """Total number of points without padding."""
        return self.targets[..., 0].numel() if self.mask is None else int(self.mask.sum())


@dataclass(frozen=True)
class Share:
    """Part `index` of `count` nearly equal parts of a sequence."""

    index: int = 0
    count: int = 1

    def of(self, size: int) -> slice:
        """Return this part of a sequence of length `size`; it is empty if there are fewer items than parts."""
        return slice(size * self.index // self.count, size * (self.index + 1) // self.count)


WHOLE = Share()


@dataclass(frozen=True)
class Subsample:
    """Number of points of a sample that an epoch uses: constant, or growing by a constant factor per epoch."""

    points: int | None = None
    """Final number of points; None for all."""
    start: int | None = None
    """Number of points in the first epoch; None for the final number."""
    epochs: float = 0
    """Number of epochs over which the number grows."""

    def of(self, size: int, epoch: int) -> int:
        """Return the number of points to draw from a sample of `size` points."""
        end = size if self.points is None else min(self.points, size)
        if self.start is None or self.start >= end or epoch >= self.epochs:
            return end
        return round(self.start * (end / self.start) ** (epoch / self.epochs))


ALL = Subsample()
NONE = Symmetry()


def collate(samples: Sequence[tuple[int, np.ndarray, np.ndarray]]) -> Batch:
    """Combine (index, inputs, targets) triples of any size into a batch."""
    inputs, mask = pad([inputs for _, inputs, _ in samples])
    targets, _ = pad([targets for _, _, targets in samples])
    return Batch(inputs=inputs, targets=targets, mask=mask, indices=tuple(index for index, _, _ in samples))


def pad(
    arrays: Sequence[np.ndarray], *, value: int = 0, length: int | None = None, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor | None]:
    """Put arrays of shape (n, ...) below each other, filled with `value` to the longest or to `length`.

    Returns:
        The arrays, shape (arrays, N, ...), and a mask, shape (arrays, N), that is None if nothing is padded.
    """
    sizes = torch.tensor([len(array) for array in arrays])
    longest = int(sizes.max()) if length is None else length
    padded = torch.full((len(arrays), longest, *arrays[0].shape[1:]), value, dtype=dtype)
    for row, array in zip(padded, arrays, strict=True):
        row[: len(array)] = torch.from_numpy(array)
    return padded, None if (sizes == longest).all() else torch.arange(longest) < sizes[:, None]


POOL = 50
"""Number of batches that are sorted by length together: more give less padding, fewer more randomness."""


class BatchPlan(Sampler[list[tuple[int, int]]]):
    """Order of the (epoch, sample) pairs of this rank, micro-batch by micro-batch.

    The order depends on (seed, epoch) alone: an optimizer step uses the same samples for any number of ranks and
    micro-batches, and in a resumed run. As in the paper, the last incomplete batch of an epoch is dropped.

    Args:
        indices: Samples of the dataset to train on.
        batch_size: Samples per optimizer step, over all ranks and micro-batches.
        parts: Micro-batches per step on each rank.
        rank: Number of this rank.
        ranks: Number of ranks.
        seed: Seed of the order.
        lengths: Length of every sample of the dataset. If given, samples of similar length share a batch, which
            reduces padding.

    Raises:
        ConfigError: The batch size does not divide evenly, or exceeds the number of samples.
    """

    def __init__(
        self,
        indices: np.ndarray,
        batch_size: int,
        *,
        parts: int = 1,
        rank: int = 0,
        ranks: int = 1,
        seed: int = 0,
        lengths: np.ndarray | None = None,
    ) -> None:
        if batch_size % (parts * ranks):
            multiple = f"a multiple of {parts * ranks}, for {ranks} rank(s) x {parts} micro-batch(es)"
            raise ConfigError(f"data.batch_size={batch_size} must be {multiple}")
        check_batch_size(len(indices), batch_size)
        self.indices, self.batch_size, self.parts = np.asarray(indices), batch_size, parts
        self.rank, self.ranks, self.seed, self.lengths = rank, ranks, seed, lengths
        self.epoch = self.first_step = 0

    @property
    def steps(self) -> int:
        """Optimizer steps per epoch."""
        return len(self.indices) // self.batch_size

    def begin(self, epoch: int, step: int = 0) -> None:
        """Set the epoch of the next iteration, and the optimizer step at which it starts."""
        self.epoch, self.first_step = epoch, step

    def __len__(self) -> int:
        return (self.steps - self.first_step) * self.parts

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        rng = np.random.default_rng([self.seed, self.epoch])
        order = rng.permutation(self.indices)[: self.steps * self.batch_size]
        if self.lengths is not None:
            order = _bucketed(order, self.lengths, self.batch_size, rng)
        share = self.batch_size // (self.parts * self.ranks)
        for step in range(self.first_step, self.steps):
            batch = order[step * self.batch_size : (step + 1) * self.batch_size]
            if self.lengths is None:
                mine = batch.reshape(self.ranks, self.parts, share)[self.rank]
            else:  # sorted by length: alternate, so that no rank always gets the longest
                mine = batch[self.rank :: self.ranks].reshape(self.parts, share)
            for micro in mine:
                yield [(self.epoch, int(i)) for i in micro]


def check_batch_size(samples: int, batch_size: int) -> None:
    """Check that a batch size does not exceed the number of training samples."""
    if samples < batch_size:
        raise ConfigError(f"data.batch_size={batch_size} is more than the {samples} training samples")


def _bucketed(order: np.ndarray, lengths: np.ndarray, batch_size: int, rng: np.random.Generator) -> np.ndarray:
    """Return an order in which batches have similar lengths: sort within `POOL` batches, then shuffle the batches."""
    pools = [order[start : start + POOL * batch_size] for start in range(0, len(order), POOL * batch_size)]
    sorted_pools = [pool[np.argsort(lengths[pool], kind="stable")] for pool in pools]
    return rng.permutation(np.concatenate(sorted_pools).reshape(-1, batch_size)).ravel()


class _Arrays(TorchDataset[tuple[int, np.ndarray, np.ndarray]]):
    """Reader of one sample for a loader worker: draws its points and its symmetry image by (seed, epoch, index)."""

    def __init__(
        self, dataset: Dataset, subsample: Subsample, seed: int, points: Share, symmetry: Symmetry = NONE
    ) -> None:
        self.dataset, self.subsample, self.seed = dataset, subsample, seed
        self.points, self.symmetry = points, symmetry

    def __getitem__(self, key: tuple[int, int]) -> tuple[int, np.ndarray, np.ndarray]:
        epoch, index = key
        size = int(self.dataset.sizes[index])
        rows: slice | np.ndarray | None = self.points.of(size) if self.points.count > 1 else None
        count = self.subsample.of(size, epoch)
        if count < size:
            rng = np.random.default_rng([self.seed, epoch, index])
            rows = np.sort(rng.choice(size, count, replace=False))[self.points.of(count)]
        sample = self.dataset.read(index, rows, roles=(*INPUT_ROLES, "target"))  # drawn rows are copied
        if self.symmetry:
            rng = np.random.default_rng([self.seed, epoch, index, 1])
            sample = self.symmetry.image(self.dataset.schema, sample, rng)
        return index, input_array(self.dataset.schema, sample), target_array(self.dataset.schema, sample)


def training_loader(
    dataset: Dataset,
    plan: BatchPlan,
    *,
    points: Share = WHOLE,
    subsample: Subsample = ALL,
    symmetry: Symmetry = NONE,
    workers: int = 0,
    pin: bool = False,
) -> Iterable[Batch]:
    """Return the micro-batches of a plan.

    Args:
        dataset: Dataset to read.
        plan: Order of the samples.
        points: Part of the points of each sample to read.
        subsample: Number of points to draw from each sample in every epoch.
        symmetry: Mirrors and rotations to draw for each sample in every epoch.
        workers: Loader processes. They share the mapped pages of the dataset.
        pin: Whether batches are in pinned memory.
    """
    arrays = _Arrays(dataset, subsample, plan.seed, points, symmetry)
    return planned_loader(arrays, plan, collate, workers=workers, pin=pin)


def planned_loader(
    arrays: TorchDataset[Any], plan: BatchPlan, collate: Callable[[Any], Any], *, workers: int, pin: bool
) -> Iterable[Any]:
    """Return a loader that collates `arrays[epoch, index]` over every micro-batch of a plan."""
    return DataLoader(
        arrays,
        batch_sampler=plan,
        collate_fn=collate,
        num_workers=workers,
        persistent_workers=False,
        pin_memory=pin,
        worker_init_fn=_ignore_signals,
        generator=torch.Generator().manual_seed(0),  # its own, so that loading does not change the model's random state
    )


def _ignore_signals(worker: int) -> None:
    """Leave signals to the trainer: schedulers signal all processes, and a dead loader would prevent the last save."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def evaluation_batches(
    dataset: Dataset, indices: Sequence[int] | np.ndarray, batch_size: int, points: Share = WHOLE
) -> Iterator[Batch]:
    """Yield batches of all points of the samples in order, or of a part of the points. The last may be smaller."""
    return batches_in_order(_Arrays(dataset, ALL, 0, points), indices, batch_size, collate)


def batches_in_order(
    arrays: TorchDataset[Any], indices: Sequence[int] | np.ndarray, batch_size: int, collate: Callable[[Any], Any]
) -> Iterator[Any]:
    """Collate `arrays[0, index]` over the indices in order; the last batch may be smaller."""
    for start in range(0, len(indices), batch_size):
        yield collate([arrays[0, int(i)] for i in indices[start : start + batch_size]])

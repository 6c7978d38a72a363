"""From samples on disk to batches: padding and mask, point subsampling, and who gets which sample when."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

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


@dataclass(frozen=True)
class Batch:
    """Samples side by side in physical units, padded with zeros to the largest."""

    inputs: Tensor
    """[B, N, in_dim]"""
    targets: Tensor
    """[B, N, out_dim]"""
    mask: Tensor | None
    """[B, N], True at real points; None where no sample is padded."""
    indices: tuple[int, ...]
    """Which samples of the dataset these are."""

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def points(self) -> int:
        """In all, without padding."""
        return self.targets[..., 0].numel() if self.mask is None else int(self.mask.sum())

    def to(self, device: torch.device) -> Batch:
        mask = None if self.mask is None else self.mask.to(device, non_blocking=True)
        inputs, targets = (t.to(device, non_blocking=True) for t in (self.inputs, self.targets))
        return replace(self, inputs=inputs, targets=targets, mask=mask)


@dataclass(frozen=True)
class Share:
    """Part `index` of `count` nearly equal parts."""

    index: int = 0
    count: int = 1

    def of(self, size: int) -> slice:
        """Which of `size` things in a row; none where there are fewer things than parts."""
        return slice(size * self.index // self.count, size * (self.index + 1) // self.count)


WHOLE = Share()


@dataclass(frozen=True)
class Subsample:
    """How many points of a sample each epoch sees: a constant number, or one that grows by a constant factor."""

    points: int | None = None
    """In the end; None: all."""
    start: int | None = None
    """In the first epoch; None: as many as in the end."""
    epochs: float = 0
    """In which the number grows."""

    def of(self, size: int, epoch: int) -> int:
        end = size if self.points is None else min(self.points, size)
        if self.start is None or self.start >= end or epoch >= self.epochs:
            return end
        return round(self.start * (end / self.start) ** (epoch / self.epochs))


ALL = Subsample()
NONE = Symmetry()


def collate(samples: Sequence[tuple[int, np.ndarray, np.ndarray]]) -> Batch:
    """Put (index, inputs, targets) triples of any size side by side."""
    sizes = torch.tensor([len(inputs) for _, inputs, _ in samples])
    return Batch(
        inputs=_pad([inputs for _, inputs, _ in samples]),
        targets=_pad([targets for _, _, targets in samples]),
        mask=None if (sizes == sizes[0]).all() else torch.arange(int(sizes.max())) < sizes[:, None],
        indices=tuple(index for index, _, _ in samples),
    )


def _pad(arrays: list[np.ndarray]) -> Tensor:
    padded = torch.zeros(len(arrays), max(map(len, arrays)), arrays[0].shape[1])
    for row, array in zip(padded, arrays, strict=True):
        row[: len(array)] = torch.from_numpy(array)
    return padded


POOL = 50
"""Batches sorted by length together: with more of them less is padding, with fewer more is chance."""


class BatchPlan(Sampler[list[tuple[int, int]]]):
    """Which (epoch, sample) pairs make up each micro-batch of this rank, from any point of any epoch on.

    The order depends on (seed, epoch) alone: a step sees the same samples for any number of ranks, of micro-batches,
    or of resumed sessions. The last incomplete batch is left out when training, as the paper does.

    Args:
        indices: samples of the dataset to go through.
        batch_size: samples per optimiser step, over all ranks and micro-batches.
        parts: micro-batches per step on each rank.
        lengths: of every sample of the dataset; where given, samples of like length share a batch, so that little of it
            is padding.
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
            raise ConfigError(
                f"data.batch_size={batch_size} cannot be shared by {ranks} rank(s) x {parts} micro-batch(es); "
                f"use a multiple of {parts * ranks}"
            )
        check_batch_size(len(indices), batch_size)
        self.indices, self.batch_size, self.parts = np.asarray(indices), batch_size, parts
        self.rank, self.ranks, self.seed, self.lengths = rank, ranks, seed, lengths
        self.epoch = self.first_step = 0

    @property
    def steps(self) -> int:
        """Optimiser steps per epoch."""
        return len(self.indices) // self.batch_size

    def begin(self, epoch: int, step: int = 0) -> None:
        """The next pass goes through `epoch`, from its optimiser step `step` on."""
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
            else:  # sorted by length: dealt out, so that no rank always has the longest
                mine = batch[self.rank :: self.ranks].reshape(self.parts, share)
            for micro in mine:
                yield [(self.epoch, int(i)) for i in micro]


def check_batch_size(samples: int, batch_size: int) -> None:
    if samples < batch_size:
        raise ConfigError(f"data.batch_size={batch_size} is more than the {samples} training samples")


def _bucketed(order: np.ndarray, lengths: np.ndarray, batch_size: int, rng: np.random.Generator) -> np.ndarray:
    """Whole batches of like length: every `POOL` of them are sorted among themselves, then all batches are shuffled."""
    pools = [order[start : start + POOL * batch_size] for start in range(0, len(order), POOL * batch_size)]
    sorted_pools = [pool[np.argsort(lengths[pool], kind="stable")] for pool in pools]
    return rng.permutation(np.concatenate(sorted_pools).reshape(-1, batch_size)).ravel()


class _Arrays(TorchDataset[tuple[int, np.ndarray, np.ndarray]]):
    """What a loader worker does: read one sample, or some of its points, perhaps an image of them, anew every epoch."""

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
    """Micro-batches in the order of the plan.

    Args:
        points: which part of each sample's points to read.
        subsample: points drawn from each sample anew every epoch.
        symmetry: mirrors and turns of samples, drawn anew every epoch.
        workers: loader processes; they map the dataset's files and share their pages.
    """
    arrays = _Arrays(dataset, subsample, plan.seed, points, symmetry)
    return planned_loader(arrays, plan, collate, workers=workers, pin=pin)


def planned_loader(
    arrays: TorchDataset[Any], plan: BatchPlan, collate: Callable[[Any], Any], *, workers: int, pin: bool
) -> Iterable[Any]:
    """What `collate` makes of the samples `arrays[epoch, index]` of every micro-batch of the plan."""
    return DataLoader(
        arrays,
        batch_sampler=plan,
        collate_fn=collate,
        num_workers=workers,
        persistent_workers=False,
        pin_memory=pin,
        worker_init_fn=_leave_signals_to_the_trainer,
        generator=torch.Generator().manual_seed(0),  # its own, so that loading never moves the model's random state
    )


def _leave_signals_to_the_trainer(worker: int) -> None:
    """Schedulers signal the whole process group; a loader that died of it would take the save down with it."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def evaluation_batches(
    dataset: Dataset, indices: Sequence[int] | np.ndarray, batch_size: int, points: Share = WHOLE
) -> Iterator[Batch]:
    """All points of the samples in order, or a share of them, the last batch perhaps smaller."""
    arrays = _Arrays(dataset, ALL, 0, points)
    for start in range(0, len(indices), batch_size):
        yield collate([arrays[0, int(i)] for i in indices[start : start + batch_size]])

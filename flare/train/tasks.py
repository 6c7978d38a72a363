"""What the loop asks of a task: samples, batches, a loss, errors, and what to say of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from flare.data.batching import BatchPlan
from flare.data.dataset import ArrayFolder, held_by, read_about
from flare.sequence.classifier import Classifier
from flare.surrogate import Surrogate
from flare.train.config import DataConfig, TrainConfig
from flare.train.distributed.ranks import ALONE, Ranks
from flare.utils.errors import ConfigError, DataError

Learner = Surrogate | Classifier
"""A network with all it needs to answer in the user's terms; what is trained and saved."""


class Feed(Protocol):
    """A batch, of whatever kind."""

    @property
    def indices(self) -> tuple[int, ...]: ...

    @property
    def points(self) -> int: ...

    def to(self, device: torch.device) -> Feed: ...


class Task(Protocol):
    """Something to learn from a dataset."""

    train: np.ndarray
    """Samples to learn from."""

    @property
    def dataset(self) -> ArrayFolder: ...

    @property
    def judged(self) -> Mapping[str, np.ndarray]:
        """Split -> samples, all that the result tells of; the first is watched while training."""
        ...

    @property
    def lengths(self) -> np.ndarray | None:
        """Of every sample, where those of like length are to share a batch."""
        ...

    @property
    def learns(self) -> str:
        """What from what, in a few words for a person."""
        ...

    @property
    def guessing(self) -> float:
        """The loss of one who knows nothing, if a loss can fall to nothing: divergence is then measured from there."""
        ...

    def surrogate(self, model: Mapping[str, Any], *, fitted: bool = True) -> Learner:
        """An untrained one for this data; all ranks must ask. Not `fitted`, its constants wait for a checkpoint's."""
        ...

    def batches(self, plan: BatchPlan, epochs: float, *, pin: bool = False) -> Iterable[Any]:
        """Micro-batches of one pass, in a run of so many epochs."""
        ...

    def loss(self, predict: Any, batch: Any) -> Tensor: ...

    def after_step(self, learner: nn.Module, step: int, seed: int) -> None:
        """What a model wants done after an optimiser step, counted from 1."""
        ...

    def errors(self, predict: Any, device: torch.device, indices: np.ndarray) -> np.ndarray:
        """(samples, kinds of error); the lower the better, and their mean is what the best weights are chosen by."""
        ...

    def scores(self, errors: np.ndarray) -> dict[str, float]:
        """Errors as the log has them."""
        ...

    def words(self, errors: np.ndarray) -> str:
        """Errors as a person reads them."""
        ...

    def result(self, errors: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """What a result tells of the errors of each split, beside those of the simplest predictors."""
        ...

    def of_samples(self, errors: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """The same, sample by sample."""
        ...


def make_task(config: TrainConfig, ranks: Ranks = ALONE) -> Task:
    """The task of the dataset that the settings name, as the rank at this place has it."""
    if holds_sequences(config.data):
        from flare.train.classes import ClassTask

        return ClassTask(config)
    from flare.train.field_task import FieldTask

    return FieldTask(config.data, config.loss, ranks)


def holds_sequences(data: DataConfig) -> bool:
    return held_by(read_about(data_path(data))) == "sequences"


def data_path(data: DataConfig) -> Path:
    if not data.path:
        raise ConfigError("data.path is missing; say which dataset, such as --data.path data/darcy")
    return Path(data.path)


def first_samples(dataset: ArrayFolder, split: str, count: int | None) -> np.ndarray:
    """The first so many samples of a split, or all of them; never none."""
    indices = dataset.split(split)
    if count is not None and count > len(indices):
        raise ConfigError(f"{count} samples of split {split!r} are asked for; {dataset.path} has {len(indices)}")
    if len(indices) == 0:
        raise DataError(
            f"{dataset.path}: split {split!r} is empty; make the dataset with some samples of it, or name other "
            f"splits with --data.train_split, --data.val_split (null for none) and --data.test_split (it has: "
            f"{', '.join(dataset.splits)})"
        )
    return indices[:count]

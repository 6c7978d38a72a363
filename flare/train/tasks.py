"""The interface between the training loop and a task: samples, batches, loss, errors and report."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from flare.data.batching import BatchPlan
from flare.data.dataset import ArrayFolder, held_by, read_about
from flare.inference.surrogate import Learner, find_checkpoint
from flare.train.config import DataConfig, TrainConfig
from flare.train.distributed.ranks import Ranks
from flare.train.run_folder import RunFolder
from flare.utils.errors import CheckpointError, ConfigError, DataError
from flare.utils.registry import Registry

if TYPE_CHECKING:
    from flare.inference.calibration.calibrate import Calibration

TASKS: Registry[Any] = Registry(
    "training task", {"fields": "flare.train.field_task:FieldTask", "sequences": "flare.sequence.task:ClassTask"}
)
"""Content of a dataset -> class of the task that trains on it, with a class method `from_config(config)`."""


class Task(Protocol):
    """A learning task on a dataset, as the training loop sees it."""

    train: np.ndarray
    """Indices of the training samples."""
    ranks: Ranks
    """Place of this rank; the trainer sets it once the ranks are launched."""

    @property
    def dataset(self) -> ArrayFolder: ...

    @property
    def evaluated(self) -> Mapping[str, np.ndarray]:
        """Split -> indices of its samples, for all splits to evaluate. The first one is watched while training."""

    @property
    def lengths(self) -> np.ndarray | None:
        """Length of every sample, if samples of similar length should share a batch."""

    @property
    def description(self) -> str:
        """Inputs and targets in a few words, such as `pressure from points`."""

    @property
    def trivial_loss(self) -> float:
        """Loss of a trivial baseline, below which divergence is not measured; 0 if there is none."""

    def surrogate(self, model: Mapping[str, Any], *, fitted: bool = True) -> Learner:
        """Build an untrained model; every rank must call this. `fitted=False` leaves normalizers to a checkpoint."""

    def batches(self, plan: BatchPlan, epochs: float, *, pin: bool = False) -> Iterable[Any]:
        """Yield the micro-batches of one epoch of a run of `epochs` epochs."""

    def loss(self, predict: Any, batch: Any) -> Tensor:
        """Compute the loss of a micro-batch."""

    def after_step(self, learner: nn.Module, step: int, seed: int) -> None:
        """Update the model after optimizer step `step`, counted from 1."""

    def errors(self, predict: Any, device: torch.device, indices: np.ndarray) -> np.ndarray:
        """Return errors, shape (samples, kinds). Lower is better; the mean decides which weights are the best."""

    def scores(self, errors: np.ndarray) -> dict[str, float]:
        """Return the metrics of a split by name."""

    def result(self, errors: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Return the task's part of `result.json`, trivial baselines included, from the errors of each split."""

    def sample_records(self, errors: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Return the errors of every sample for `test_errors.json`."""

    @staticmethod
    def load(
        run: str | os.PathLike[str], *, checkpoint: str = "last", ema: bool = False, device: str = "cpu"
    ) -> Learner:
        """Load a trained model; see `flare.load`."""

    def calibrate(self, learner: Any, path: Path) -> Calibration | None:
        """Measure error bars of a trained model on held-out samples and write them; None if the task has none."""

    def write_report(self, run: RunFolder, learner: Any, result: Mapping[str, Any]) -> Path:
        """Write `report.html` and `pictures/` into the folder of a finished run with these weights."""

    @staticmethod
    def summary(result: Mapping[str, Any]) -> list[str]:
        """Return the main numbers of a result as lines of text."""

    @staticmethod
    def evaluate_run(
        run: str | os.PathLike[str],
        *,
        data: str | None = None,
        split: str | None = None,
        checkpoint: str = "last",
        ema: bool = False,
        device: str = "auto",
    ) -> tuple[list[str], dict[str, Any]]:
        """Evaluate the model of a run on a split.

        Args:
            run: Run folder.
            data: Another dataset of the same fields or tokens; None for that of the run.
            split: Name of the split; None for the test split of the run.
            checkpoint: `last` or `best`.
            ema: Use the averaged weights.
            device: Device to compute on.

        Returns:
            Lines of text, and a JSON record with the error of every sample.
        """


def make_task(config: TrainConfig) -> Task:
    """Build the task of the dataset at `config.data.path`."""
    task: Task = TASKS.get(held_by(read_about(data_path(config.data)))).from_config(config)
    return task


def task_of_run(run: str | os.PathLike[str], checkpoint: str = "last") -> type[Task]:
    """Return the class of the task on which a run was trained, which its checkpoint records."""
    path = find_checkpoint(Path(run), checkpoint) / "model.json"
    try:
        kind = held_by(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from None
    task: type[Task] = TASKS.get(kind)
    return task


def data_path(data: DataConfig) -> Path:
    """Return the dataset folder of a configuration.

    Raises:
        ConfigError: No folder is given.
    """
    if not data.path:
        raise ConfigError("data is missing; give the folder of a dataset, such as data/darcy")
    return Path(data.path)


def first_samples(dataset: ArrayFolder, split: str, count: int | None) -> np.ndarray:
    """Return the indices of the first `count` samples of a split, or of all if `count` is None.

    Raises:
        ConfigError: The split has fewer samples.
        DataError: The split is empty or does not exist.
    """
    indices = dataset.split(split)
    if count is not None and count > len(indices):
        raise ConfigError(f"{dataset.path}: split {split!r} has {len(indices)} samples, {count} are asked for")
    if len(indices) == 0:
        raise DataError(
            f"{dataset.path}: split {split!r} is empty; set data.train_split, data.val_split and data.test_split to "
            f"splits with samples (there are: {', '.join(dataset.splits)})"
        )
    return indices[:count]

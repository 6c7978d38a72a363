"""The task of learning fields on points: which samples, normalised how, judged by which loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flare.data.batch import Batch, BatchPlan, evaluation_batches, training_loader
from flare.data.normalise import check_wishes, fit
from flare.data.sample import INPUT_ROLES, target_array
from flare.data.statistics import input_statistics, target_statistics
from flare.data.store import Dataset
from flare.errors import ConfigError, DataError
from flare.surrogate import Surrogate
from flare.train.config import DataConfig, LossConfig
from flare.train.losses import gradient_l2, relative_l2

Predict = Callable[[Tensor, Tensor | None], Tensor]
"""Physical inputs and mask -> physical targets; a `Surrogate`, wrapped or not."""


class FieldTask:
    """Everything a training loop must know of a dataset of fields."""

    def __init__(self, data: DataConfig, loss: LossConfig) -> None:
        if not data.path:
            raise ConfigError("data.path is missing; say which dataset, such as --data.path data/darcy")
        self.data, self.settings = data, loss
        self.dataset = Dataset(data.path)
        self.train = self._first(data.train_split, data.train_samples)
        self.test = self._first(data.test_split, data.test_samples)
        if loss.gradient_weight and self.dataset.schema.grid is None:
            raise ConfigError(f"loss.gradient_weight needs data on a grid; {data.path} is unstructured. Set it to 0")
        check_wishes(data.normalise, self.dataset.schema)

    def _first(self, split: str, count: int | None) -> np.ndarray:
        indices = self.dataset.split(split)
        if count is not None and count > len(indices):
            raise ConfigError(
                f"{count} samples of split {split!r} are asked for; {self.dataset.path} has {len(indices)}"
            )
        if len(indices) == 0:
            raise DataError(f"{self.dataset.path}: split {split!r} is empty")
        return indices[:count]

    def surrogate(self, model: Mapping[str, Any]) -> Surrogate:
        """An untrained model with normalisers fitted on the training samples; also refuses damaged samples."""
        schema, wishes = self.dataset.schema, self.data.normalise
        input_statistics(self.dataset, self.test)
        target_statistics(self.dataset, self.test)
        return Surrogate(
            model,
            schema,
            fit(schema, INPUT_ROLES, input_statistics(self.dataset, self.train), wishes),
            fit(schema, ("target",), target_statistics(self.dataset, self.train), wishes),
        )

    def batches(self, plan: BatchPlan, *, pin: bool = False) -> Iterable[Batch]:
        return training_loader(self.dataset, plan, subsample=self.data.subsample, workers=self.data.workers, pin=pin)

    def loss(self, predict: Predict, batch: Batch) -> Tensor:
        """Mean over the batch of each sample's relative error, with the gradient term where asked for."""
        predicted = predict(batch.inputs, batch.mask)
        loss = relative_l2(predicted, batch.targets, batch.mask)
        if self.settings.gradient_weight:
            assert self.dataset.schema.grid is not None
            loss = loss + self.settings.gradient_weight * gradient_l2(
                predicted, batch.targets, self.dataset.schema.grid
            )
        return loss.mean()

    def errors(self, predict: Predict, device: torch.device, indices: np.ndarray | None = None) -> np.ndarray:
        """Relative L2 error of each test sample (or of `indices`), all points, in physical values."""
        return sample_errors(
            predict, self.dataset, self.test if indices is None else indices, self.data.eval_batch_size, device
        )


@torch.no_grad()
def sample_errors(
    predict: Predict, dataset: Dataset, indices: np.ndarray, batch_size: int, device: torch.device
) -> np.ndarray:
    """Relative L2 error of each of the samples, in the order given."""
    errors = [
        relative_l2(predict(batch.inputs, batch.mask), batch.targets, batch.mask).cpu()
        for batch in (b.to(device) for b in evaluation_batches(dataset, indices, batch_size))
    ]
    return torch.cat(errors).numpy() if errors else np.zeros(0, dtype=np.float32)


def mean_field_errors(
    dataset: Dataset, train: np.ndarray, test: np.ndarray, other: Dataset | None = None
) -> tuple[np.ndarray, str]:
    """The errors of predicting the mean of the training targets, and which mean: what any model must beat.

    The mean is taken point by point where all samples have as many points, over all points where they differ. `other`
    is where the test samples are, if not in the training dataset.
    """
    tested = other or dataset
    sizes = np.concatenate([dataset.sizes[train], tested.sizes[test]])
    if (sizes == sizes[0]).all():
        mean, kind = sum(_targets(dataset, i) for i in train) / len(train), "point by point"
    else:
        mean, kind = target_statistics(dataset, train).mean, "one value"
    errors = [np.linalg.norm(mean - u) / np.linalg.norm(u) for u in (_targets(tested, i) for i in test)]
    return np.array(errors), kind


def _targets(dataset: Dataset, index: int) -> np.ndarray:
    return target_array(dataset.schema, dataset[int(index)]).astype(np.float64)

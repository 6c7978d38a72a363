"""The task of learning fields on points: which samples, normalised how, judged by which loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flare.data.batch import WHOLE, Batch, BatchPlan, Share, Subsample, evaluation_batches, training_loader
from flare.data.normalise import check_wishes, fit
from flare.data.sample import INPUT_ROLES, refuse_mirror, target_array
from flare.data.statistics import input_statistics, target_statistics
from flare.data.store import Dataset
from flare.errors import ConfigError, DataError
from flare.mixer.sharded import Group
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
        refuse_mirror(self.dataset.schema, data.mirror)

    def _first(self, split: str, count: int | None) -> np.ndarray:
        indices = self.dataset.split(split)
        if count is not None and count > len(indices):
            raise ConfigError(
                f"{count} samples of split {split!r} are asked for; {self.dataset.path} has {len(indices)}"
            )
        if len(indices) == 0:
            raise DataError(
                f"{self.dataset.path}: split {split!r} is empty; make the dataset with --test-samples, or name other "
                f"splits with --data.train_split and --data.test_split (it has: {', '.join(self.dataset.splits)})"
            )
        return indices[:count]

    def check_grid(self, model: Mapping[str, Any]) -> None:
        """Refuse a model for another grid."""
        grid, wanted = self.dataset.schema.grid, model.get("grid")
        if wanted is not None and not (isinstance(wanted, Sequence) and tuple(wanted) == grid):
            found = "has none" if grid is None else f"is {list(grid)}"
            raise ConfigError(f"model.grid is {wanted}; that of {self.data.path} {found}")

    def surrogate(self, model: Mapping[str, Any]) -> Surrogate:
        """An untrained model with normalisers fitted on the training samples; also refuses damaged samples."""
        schema, wishes = self.dataset.schema, self.data.normalise
        self.check_grid(model)
        input_statistics(self.dataset, self.test)
        target_statistics(self.dataset, self.test)
        return Surrogate(
            model,
            schema,
            fit(schema, INPUT_ROLES, input_statistics(self.dataset, self.train), wishes),
            fit(schema, ("target",), target_statistics(self.dataset, self.train), wishes),
        )

    def batches(self, plan: BatchPlan, epochs: int, *, points: Share = WHOLE, pin: bool = False) -> Iterable[Batch]:
        """Micro-batches of one pass, in a run of so many epochs."""
        data = self.data
        subsample = Subsample(data.subsample, data.subsample_from, data.subsample_growth * epochs)
        return training_loader(
            self.dataset, plan, points=points, subsample=subsample, mirror=data.mirror, workers=data.workers, pin=pin
        )

    def loss(self, predict: Predict, batch: Batch, group: Group | None = None) -> Tensor:
        """Mean over samples and fields of the relative error, with the gradient term where asked for.

        `group` has the ranks with the other points of these samples: the loss is the same on each, its gradient that of
        the rank's own points.
        """
        schema, predicted = self.dataset.schema, predict(batch.inputs, batch.mask)
        widths = schema.widths("target")
        offset = self.settings.offset
        loss = relative_l2(predicted, batch.targets, batch.mask, widths=widths, group=group, offset=offset)
        if self.settings.gradient_weight:
            assert schema.grid is not None
            gradient = gradient_l2(predicted, batch.targets, schema.grid, widths=widths)
            loss = loss + self.settings.gradient_weight * gradient
        return loss.mean()

    def errors(
        self,
        predict: Predict,
        device: torch.device,
        indices: np.ndarray,
        points: Share = WHOLE,
        group: Group | None = None,
    ) -> np.ndarray:
        """Relative L2 errors, (samples, fields), of samples: all points, physical values."""
        size, offset = self.data.eval_batch_size, self.settings.offset
        return sample_errors(predict, self.dataset, indices, size, device, points, group, offset=offset)


@torch.no_grad()
def sample_errors(
    predict: Predict,
    dataset: Dataset,
    indices: np.ndarray,
    batch_size: int,
    device: torch.device,
    points: Share = WHOLE,
    group: Group | None = None,
    *,
    offset: float = 0.0,
) -> np.ndarray:
    """Relative L2 errors, (samples, fields), in the order given; with a group, each of its ranks has some points."""
    widths = dataset.schema.widths("target")
    errors = [torch.zeros(0, len(widths))]
    for batch in (b.to(device) for b in evaluation_batches(dataset, indices, batch_size, points)):
        predicted = predict(batch.inputs, batch.mask)
        error = relative_l2(predicted, batch.targets, batch.mask, widths=widths, group=group, offset=offset)
        errors.append(error.cpu())
    return torch.cat(errors).numpy()


def mean_field_errors(
    dataset: Dataset, train: np.ndarray, test: np.ndarray, other: Dataset | None = None, *, offset: float = 0.0
) -> tuple[np.ndarray, str]:
    """The errors, (samples, fields), of predicting the mean of the training targets, and which mean.

    It is what any model must beat. The mean is taken point by point where all samples have as many points, over all
    points where they differ. `other` is where the test samples are, if not in the training dataset.
    """
    tested = other or dataset
    sizes = np.concatenate([dataset.sizes[train], tested.sizes[test]])
    if (sizes == sizes[0]).all():
        mean = torch.zeros_like(_targets(dataset, train[0]))
        for i in train:
            mean += _targets(dataset, i) / len(train)
    else:
        mean = torch.from_numpy(target_statistics(dataset, train).mean)
    widths = dataset.schema.widths("target")
    errors = [
        relative_l2(mean.expand_as(u), u, widths=widths, offset=offset) for u in (_targets(tested, i) for i in test)
    ]
    return torch.cat(errors).numpy(), "point by point" if mean.ndim > 1 else "one value"


def median(errors: np.ndarray) -> float:
    """The error of the median sample; of an even number of samples, the worse of the two in the middle."""
    return float(np.quantile(errors, 0.5, method="higher"))


def _targets(dataset: Dataset, index: int) -> Tensor:
    """[1, N, out_dim] in float64."""
    return torch.from_numpy(target_array(dataset.schema, dataset[int(index)]).astype(np.float64))[None]

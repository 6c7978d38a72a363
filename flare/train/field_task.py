"""The task of learning fields on points: which samples, normalised how, judged by which loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from flare.data.augmentation import Symmetry
from flare.data.batching import (
    WHOLE,
    Batch,
    BatchPlan,
    Share,
    Subsample,
    check_batch_size,
    evaluation_batches,
    training_loader,
)
from flare.data.dataset import Dataset
from flare.data.normalization import check_wishes, fit, needs_statistics, unknown
from flare.data.sample import INPUT_ROLES, target_array
from flare.data.statistics import ChannelStatistics, merged, sample_moments, target_statistics
from flare.mixer.sharded import Group
from flare.surrogate import Surrogate
from flare.train.config import DataConfig, LossConfig
from flare.train.distributed.ranks import ALONE, Ranks
from flare.train.losses import gradient_l2, relative_l2
from flare.train.tasks import data_path, first_samples
from flare.utils.errors import ConfigError, DataError

Predict = Callable[[Tensor, Tensor | None], Tensor]
"""Physical inputs and mask -> physical targets; a `Surrogate`, wrapped or not."""


class FieldTask:
    """Everything a training loop must know of a dataset of fields.

    Args:
        ranks: with which others this one shares the points of a sample: it then feeds its own points, and losses and
            errors are those of all points.
    """

    lengths = None
    guessing = 0.0

    def __init__(self, data: DataConfig, loss: LossConfig, ranks: Ranks = ALONE) -> None:
        if data.protocol != "own":
            raise ConfigError(f"data.protocol={data.protocol!r} is of sequences; {data.path} holds fields")
        self.data, self.settings, self.ranks = data, loss, ranks
        self.dataset = Dataset(data_path(data))
        self.train = first_samples(self.dataset, data.train_split, data.train_samples)
        self.test = first_samples(self.dataset, data.test_split, data.test_samples)
        watched = (
            {data.val_split: first_samples(self.dataset, data.val_split, data.val_samples)} if data.val_split else {}
        )
        if data.holdout is not None:
            if data.holdout >= len(self.train):
                raise ConfigError(f"data.holdout={data.holdout} leaves none of {len(self.train)} training samples")
            self.train, watched = self.train[: -data.holdout], {"validation": self.train[-data.holdout :]}
        self.judged = {**watched, data.test_split: self.test}
        if loss.gradient_weight and self.dataset.schema.grid is None:
            raise ConfigError(f"loss.gradient_weight needs data on a grid; {data.path} is unstructured. Set it to 0")
        most = int(self.dataset.sizes[self.train].max())
        if data.subsample_from is not None and data.subsample_from > most:
            raise ConfigError(
                f"data.subsample_from={data.subsample_from:,} is more than the {most:,} points of the largest training "
                f"sample of {data.path}: there is nothing to grow to. Begin with fewer, or drop it"
            )
        check_batch_size(len(self.train), data.batch_size)
        check_wishes(data.normalise, self.dataset.schema)
        Symmetry(data.mirror, data.turn).refuse_unknown(self.dataset.schema)

    @property
    def learns(self) -> str:
        schema = self.dataset.schema
        inputs, targets = (", ".join(schema.named(*roles)) for roles in (INPUT_ROLES, ("target",)))
        return f"{targets} from {inputs}"

    def check_grid(self, model: Mapping[str, Any]) -> None:
        """Refuse a model for another grid."""
        grid, wanted = self.dataset.schema.grid, model.get("grid")
        if wanted is not None and not (isinstance(wanted, Sequence) and tuple(wanted) == grid):
            found = "has none" if grid is None else f"is {list(grid)}"
            raise ConfigError(f"model.grid is {wanted}; that of {self.data.path} {found}")

    def surrogate(self, model: Mapping[str, Any], *, fitted: bool = True) -> Surrogate:
        """An untrained model with normalisers fitted on the training samples; refuses damaged samples where it looks.

        Each rank reads its share of the samples, once. None is read where all constants are given, or not `fitted`.
        """
        schema, wishes = self.dataset.schema, self.data.normalise
        self.check_grid(model)
        if fitted and needs_statistics(schema, wishes):
            inputs, targets = self._statistics()
        else:
            inputs, targets = unknown(schema.in_dim), unknown(schema.out_dim)
        return Surrogate(
            model, schema, fit(schema, INPUT_ROLES, inputs, wishes), fit(schema, ("target",), targets, wishes)
        )

    def _statistics(self) -> tuple[ChannelStatistics, ChannelStatistics]:
        """Of the training samples' inputs and targets, to the bit the same for any number of ranks.

        The table of all samples' moments is filled by all ranks and added up: a row is of one rank, zero on the others.
        """
        schema, samples = self.dataset.schema, np.unique(np.concatenate([self.train, *self.judged.values()]))
        table = np.zeros((len(samples), 5, schema.in_dim + schema.out_dim))
        for row in range(len(samples))[self.ranks.all.of(len(samples))]:
            try:
                table[row] = sample_moments(self.dataset, int(samples[row]))
            except DataError:
                table[row] = np.nan  # all ranks are to say the same of it
                break
        table = self.ranks.add_up(table)
        for damaged in samples[np.isnan(table).any((1, 2))]:
            sample_moments(self.dataset, int(damaged))
            raise DataError(f"{self.dataset.path}: sample {damaged} is damaged where another rank reads it")
        train = table[np.searchsorted(samples, self.train)]
        return merged(train[..., : schema.in_dim]), merged(train[..., schema.in_dim :])

    def batches(self, plan: BatchPlan, epochs: float, *, pin: bool = False) -> Iterable[Batch]:
        data = self.data
        subsample = Subsample(data.subsample, data.subsample_from, data.subsample_growth * epochs)
        return training_loader(
            self.dataset,
            plan,
            points=self.ranks.points,
            subsample=subsample,
            symmetry=Symmetry(data.mirror, data.turn),
            workers=data.workers,
            pin=pin,
        )

    def loss(self, predict: Predict, batch: Batch) -> Tensor:
        """Mean over samples and fields of the relative error, with the gradient term where asked for.

        Ranks that share points have the same loss, and each the gradient of its own points.
        """
        schema, predicted = self.dataset.schema, predict(batch.inputs, batch.mask)
        widths = schema.widths("target")
        group, offset = self.ranks.group, self.settings.offset
        loss = relative_l2(predicted, batch.targets, batch.mask, widths=widths, group=group, offset=offset)
        if self.settings.gradient_weight:
            assert schema.grid is not None
            gradient = gradient_l2(predicted, batch.targets, schema.grid, widths=widths)
            loss = loss + self.settings.gradient_weight * gradient
        return loss.mean()

    def errors(self, predict: Predict, device: torch.device, indices: np.ndarray) -> np.ndarray:
        """Relative L2 errors, (samples, fields), of samples: all points, physical values."""
        size, ranks, offset = self.data.eval_batch_size, self.ranks, self.settings.offset
        return sample_errors(predict, self.dataset, indices, size, device, ranks.points, ranks.group, offset=offset)

    def after_step(self, learner: nn.Module, step: int, seed: int) -> None:
        """Nothing: no model of fields asks for it."""

    def scores(self, errors: np.ndarray) -> dict[str, float]:
        return {"rel_l2": float(errors.mean())}

    def words(self, errors: np.ndarray) -> str:
        return f"rel-L2 {errors.mean():.4f}"

    def result(self, errors: Mapping[str, np.ndarray]) -> dict[str, Any]:
        offset, tested = self.settings.offset, errors[self.data.test_split]
        baseline, kind = mean_field_errors(self.dataset, self.train, self.test, offset=offset)
        of_samples, names = tested.mean(1), self.dataset.schema.named("target")
        watched = {f"rel_l2_{split}": float(of.mean()) for split, of in errors.items() if split != self.data.test_split}
        return {
            "rel_l2": float(of_samples.mean()),
            "rel_l2_median": median(of_samples),
            "rel_l2_worst": float(of_samples.max()),
            "rel_l2_mean_field": float(baseline.mean()),
            **watched,
            "fields": {
                name: {"rel_l2": float(ours), "rel_l2_mean_field": float(theirs)}
                for name, ours, theirs in zip(names, tested.mean(0), baseline.mean(0), strict=True)
            },
            "mean_field": kind,
            "offset": offset,
            "split": self.data.test_split,
        }

    def of_samples(self, errors: Mapping[str, np.ndarray]) -> dict[str, Any]:
        return {"samples": self.test.tolist(), "rel_l2": errors[self.data.test_split].mean(1).tolist()}


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

    It is what any model must beat: the mean over all points, or, where all samples have as many, point by point if that
    is better. It is worse where points of the same number have nothing to do with each other, as in clouds that were
    drawn. `other` is where the test samples are, if not in the training dataset.
    """
    tested, widths = other or dataset, dataset.schema.widths("target")
    means = {"one value": torch.from_numpy(target_statistics(dataset, train).mean)}
    sizes = np.concatenate([dataset.sizes[train], tested.sizes[test]])
    if (sizes == sizes[0]).all():
        field = torch.zeros_like(_targets(dataset, train[0]))
        for i in train:
            field += _targets(dataset, i) / len(train)
        means["point by point"] = field
    errors = {kind: np.zeros((len(test), len(widths))) for kind in means}
    for row, index in enumerate(test):
        truth = _targets(tested, index)
        for kind, mean in means.items():
            errors[kind][row] = relative_l2(mean.expand_as(truth), truth, widths=widths, offset=offset)
    best = min(errors, key=lambda kind: errors[kind].mean())
    return errors[best], best


def median(errors: np.ndarray) -> float:
    """The error of the median sample; of an even number of samples, the worse of the two in the middle."""
    return float(np.quantile(errors, 0.5, method="higher"))


def _targets(dataset: Dataset, index: int) -> Tensor:
    """[1, N, out_dim] in float64."""
    return torch.from_numpy(target_array(dataset.schema, dataset[int(index)]).astype(np.float64))[None]

"""The task of learning fields on points."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
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
from flare.data.normalization import check_normalizer_names, fit_normalizer, needs_statistics, unknown_statistics
from flare.data.sample import INPUT_ROLES, target_array
from flare.data.statistics import ChannelStatistics, merge_moments, sample_moments, target_statistics
from flare.inference.calibration.calibrate import Calibration, calibrate, held_out_samples
from flare.inference.surrogate import Surrogate, load
from flare.mixer.sharded import Group
from flare.train.config import LOSSES, DataConfig, LossConfig, TrainConfig
from flare.train.distributed.ranks import ALONE
from flare.train.losses import gradient_l2, relative_l2
from flare.train.run_folder import RunFolder
from flare.train.tasks import data_path, first_samples
from flare.utils.errors import ConfigError, DataError, FlareError
from flare.utils.text import counted

logger = logging.getLogger(__name__)

Predict = Callable[[Tensor, Tensor | None], Tensor]
"""Function of physical inputs and mask that returns physical targets: a `Surrogate`, wrapped or not."""


class FieldTask:
    """Learning the target fields of a dataset from its inputs.

    Args:
        data: Dataset, splits and normalization.
        loss: The loss.
    """

    ranks = ALONE
    """Place of this rank. Ranks that share the points of a sample feed their own points; losses and errors are those of
    all points."""
    lengths = None
    trivial_loss = 0.0

    def __init__(self, data: DataConfig, loss: LossConfig) -> None:
        if data.protocol != "own":
            raise ConfigError(f"data.protocol={data.protocol!r} is for sequences; {data.path} holds fields")
        self.data, self.settings = data, loss
        self.dataset = Dataset(data_path(data))
        self.train = first_samples(self.dataset, data.train_split, data.train_samples)
        self.test = first_samples(self.dataset, data.test_split, data.test_samples)
        watched = {}
        if data.val_split is not None:
            watched = {data.val_split: first_samples(self.dataset, data.val_split, data.val_samples)}
        if data.holdout is not None:
            if data.holdout >= len(self.train):
                raise ConfigError(f"data.holdout={data.holdout} leaves none of the {len(self.train)} training samples")
            self.train, watched = self.train[: -data.holdout], {"validation": self.train[-data.holdout :]}
        self.evaluated = {**watched, data.test_split: self.test}
        if loss.gradient_weight and self.dataset.schema.grid is None:
            raise ConfigError(f"loss.gradient_weight needs data on a grid; {data.path} is unstructured")
        most = int(self.dataset.sizes[self.train].max())
        if data.subsample_from is not None and data.subsample_from > most:
            raise ConfigError(
                f"data.subsample_from={data.subsample_from:,} is more than the {most:,} points of the largest training "
                f"sample of {data.path}; use a smaller number, or drop it"
            )
        check_batch_size(len(self.train), data.batch_size)
        check_normalizer_names(data.normalize, self.dataset.schema)
        Symmetry(data.mirror, data.turn).check(self.dataset.schema)

    @classmethod
    def from_config(cls, config: TrainConfig) -> FieldTask:
        """Build the task of a run."""
        return cls(config.data, config.loss)

    @property
    def description(self) -> str:
        """Targets and inputs, such as `pressure from points, speed`."""
        schema = self.dataset.schema
        inputs, targets = (", ".join(schema.named(*roles)) for roles in (INPUT_ROLES, ("target",)))
        return f"{targets} from {inputs}"

    def check_grid(self, model: Mapping[str, Any]) -> None:
        """Raise a `ConfigError` if a model was built for another grid than the dataset's."""
        grid, wanted = self.dataset.schema.grid, model.get("grid")
        if wanted is not None and (grid is None or list(wanted) != list(grid)):
            raise ConfigError(f"model.grid is {wanted}, but the grid of {self.data.path} is {grid and list(grid)}")

    def surrogate(self, model: Mapping[str, Any], *, fitted: bool = True) -> Surrogate:
        """Build an untrained model with normalizers fitted to the training samples.

        Each rank reads its share of the samples once. None is read if all constants are given, or if not `fitted`.

        Raises:
            DataError: A sample has non-finite values.
        """
        schema, wishes = self.dataset.schema, self.data.normalize
        self.check_grid(model)
        if fitted and needs_statistics(schema, wishes):
            inputs, targets = self._statistics()
        else:
            inputs, targets = unknown_statistics(schema.in_dim), unknown_statistics(schema.out_dim)
        input_norm = fit_normalizer(schema, INPUT_ROLES, inputs, wishes)
        return Surrogate(model, schema, input_norm, fit_normalizer(schema, ("target",), targets, wishes))

    def _statistics(self) -> tuple[ChannelStatistics, ChannelStatistics]:
        """Compute statistics of the inputs and targets of the training samples, bit-identical for any number of ranks.

        Each rank fills its rows of a table of moments of all samples; the tables are then summed.
        """
        schema, samples = self.dataset.schema, np.unique(np.concatenate([self.train, *self.evaluated.values()]))
        table = np.zeros((len(samples), 5, schema.in_dim + schema.out_dim))
        for row in range(len(samples))[self.ranks.all.of(len(samples))]:
            try:
                table[row] = sample_moments(self.dataset, int(samples[row]))
            except DataError:
                table[row] = np.nan  # so that all ranks raise the same error below
                break
        table = self.ranks.add_up(table)
        for damaged in samples[np.isnan(table).any((1, 2))]:
            sample_moments(self.dataset, int(damaged))
            raise DataError(f"{self.dataset.path}: sample {damaged} is damaged on the disk of another rank")
        train = table[np.searchsorted(samples, self.train)]
        return merge_moments(train[..., : schema.in_dim]), merge_moments(train[..., schema.in_dim :])

    def batches(self, plan: BatchPlan, epochs: float, *, pin: bool = False) -> Iterable[Batch]:
        """Return a loader of the micro-batches of one epoch."""
        data = self.data
        subsample = Subsample(data.subsample, data.subsample_from, data.subsample_growth * epochs)
        how: dict[str, Any] = {"symmetry": Symmetry(data.mirror, data.turn), "workers": data.workers, "pin": pin}
        return training_loader(self.dataset, plan, points=self.ranks.points, subsample=subsample, **how)

    def loss(self, predict: Predict, batch: Batch) -> Tensor:
        """Compute the mean loss over samples and fields, with the gradient term if it has a weight.

        Ranks that share points have the same loss, and each has the gradient of its own points.
        """
        schema, settings = self.dataset.schema, self.settings
        predicted, widths = predict(batch.inputs, batch.mask), schema.widths("target")
        if settings.name == "relative_l2":
            how: dict[str, Any] = {"widths": widths, "group": self.ranks.group, "offset": settings.offset}
            loss = relative_l2(predicted, batch.targets, batch.mask, **how)
        else:
            loss = LOSSES.get(settings.name)(predicted, batch.targets, batch.mask).mean()
        if settings.gradient_weight:
            assert schema.grid is not None
            loss = loss + settings.gradient_weight * gradient_l2(predicted, batch.targets, schema.grid, widths=widths)
        return loss.mean()

    def errors(self, predict: Predict, device: torch.device, indices: np.ndarray) -> np.ndarray:
        """Compute the relative L2 errors of samples, shape (samples, fields), over all points in physical values."""
        size, ranks, offset = self.data.eval_batch_size, self.ranks, self.settings.offset
        return sample_errors(predict, self.dataset, indices, size, device, ranks.points, ranks.group, offset=offset)

    def after_step(self, learner: nn.Module, step: int, seed: int) -> None:
        """Do nothing."""

    def scores(self, errors: np.ndarray) -> dict[str, float]:
        """Return the mean relative L2 error."""
        return {"rel_l2": float(errors.mean())}

    def result(self, errors: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Return mean, median and worst error of the test split, beside those of the mean field."""
        offset, tested = self.settings.offset, errors[self.data.test_split]
        baseline, kind = mean_field_errors(self.dataset, self.train, self.test, offset=offset)
        by_sample, names = tested.mean(1), self.dataset.schema.named("target")
        watched = {f"rel_l2_{split}": float(e.mean()) for split, e in errors.items() if split != self.data.test_split}
        return {
            "rel_l2": float(by_sample.mean()),
            "rel_l2_median": median(by_sample),
            "rel_l2_worst": float(by_sample.max()),
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

    def sample_records(self, errors: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Return the errors of the test samples."""
        return {"samples": self.test.tolist(), "rel_l2": errors[self.data.test_split].mean(1).tolist()}

    load = staticmethod(load)

    def calibrate(self, learner: Surrogate, path: Path) -> Calibration:
        """Measure error bars and the OOD score on held-out samples, and write them."""
        held_out, test = held_out_samples(self.dataset, self.test)
        augmented = bool(self.data.mirror or self.data.turn)
        calibration = calibrate(learner, self.dataset, self.train, held_out, test, augmented=augmented)
        calibration.save(path)
        return calibration

    def write_report(self, run: RunFolder, learner: Surrogate, result: Mapping[str, Any]) -> Path:
        """Write the report of a finished run."""
        from flare.report.run import write_field_report  # imports matplotlib

        settings, records = run.config().to_dict(), run.records()
        return write_field_report(run.path, learner, self.dataset, self.test, result, settings, records)

    @staticmethod
    def summary(result: Mapping[str, Any]) -> list[str]:
        """Return the test error beside those of the mean field and of the paper."""
        from flare.data.benchmarks.cards import compare_with_paper

        fields = {name: (of["rel_l2"], of["rel_l2_mean_field"]) for name, of in result["fields"].items()}
        samples = counted(result["test_samples"], "sample")
        lines = [f"test rel-L2           {result['rel_l2']:.4f}   mean of {samples}, last weights"]
        lines += _mean_field_lines(result["rel_l2"], result["rel_l2_mean_field"], result["mean_field"], fields)
        return lines + [f"the paper             {paper}" for paper in filter(None, [compare_with_paper(result)])]

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
        """Evaluate the surrogate of a run; see `flare.train.tasks.Task.evaluate_run`."""
        config = RunFolder(run).config(training=False)
        surrogate = load(run, checkpoint=checkpoint, ema=ema, device=device)
        dataset = Dataset(data or config.data.path)
        surrogate.check_fields(dataset.schema, dataset.path)
        name = split or config.data.test_split
        test = dataset.split(name)[: None if data or split else config.data.test_samples]
        if len(test) == 0:
            raise DataError(f"{dataset.path}: split {name!r} is empty")
        by_field = sample_errors(surrogate, dataset, test, config.data.eval_batch_size, surrogate.device)
        errors, names, files = by_field.mean(1), dataset.schema.named("target"), dataset.files()
        record = {"samples": test.tolist(), "rel_l2": errors.tolist()}
        if any(files):
            record["files"] = [files[i] for i in test]
        weights = f"{checkpoint} weights" + (", averaged" if ema else "")
        worst = dataset.titles()[test[errors.argmax()]]
        lines = [
            f"{dataset.path}, {name}: {len(errors)} samples, {weights}",
            f"rel-L2 mean           {errors.mean():.4f}",
            f"median, worst         {median(errors):.4f}, {errors.max():.4f} (sample {worst})",
        ]
        try:
            task = FieldTask(config.data, config.loss)
        except FlareError as error:
            logger.info(f"no training-mean field to compare with: {error}")
        else:
            baseline, kind = mean_field_errors(task.dataset, task.train, test, dataset)
            fields = dict(zip(names, zip(by_field.mean(0), baseline.mean(0), strict=True), strict=True))
            lines += _mean_field_lines(errors.mean(), baseline.mean(), kind, fields)
            record["rel_l2_mean_field"] = baseline.mean(1).tolist()
        return lines, record


def compare_errors(error: float, baseline: float) -> str:
    """Compare an error with that of the training-mean field."""
    if error >= baseline:
        return f"ours is WORSE, {error / baseline:.1f} times its error"
    return f"ours is {baseline / error:.1f} times better" if error > 0 else "ours is exact"


def _mean_field_lines(error: float, baseline: float, kind: str, fields: Mapping[str, tuple[float, float]]) -> list[str]:
    """Return the error of the mean field beside ours, and a line for each of several fields, name -> both errors."""
    lines = [f"training-mean field   {baseline:.4f}   {kind}; {compare_errors(error, baseline)}"]
    for name, (ours, theirs) in fields.items() if len(fields) > 1 else ():
        lines.append(f"  {name:<20}{ours:.4f}   training-mean field {theirs:.4f}; {compare_errors(ours, theirs)}")
    return lines


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
    """Compute the relative L2 errors of samples of a dataset.

    Args:
        predict: The model.
        dataset: Dataset with the targets.
        indices: Samples to evaluate.
        batch_size: Samples per batch.
        device: Device of the model.
        points: Share of the points that this rank evaluates.
        group: Ranks that evaluate the other points of the same samples.
        offset: See `relative_l2`.

    Returns:
        Errors, shape (samples, fields), in the order of `indices`.
    """
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
    """Compute the errors of the trivial baseline that predicts the mean of the training targets.

    The mean is taken over all points, or point by point if all samples have the same number of points and that is
    better. Point by point is worse if points of the same index do not correspond, as in random point clouds.

    Args:
        dataset: Dataset of the training samples.
        train: Indices of the training samples.
        test: Indices of the samples to evaluate.
        other: Dataset of the samples to evaluate; None: `dataset`.
        offset: See `relative_l2`.

    Returns:
        Errors, shape (samples, fields), and the kind of mean: `one value` or `point by point`.
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
    """Return the median error; for an even number of samples, the larger of the two in the middle."""
    return float(np.quantile(errors, 0.5, method="higher"))


def _targets(dataset: Dataset, index: int) -> Tensor:
    """Return the targets of a sample as float64, shape [1, N, out_dim]."""
    return torch.from_numpy(target_array(dataset.schema, dataset[int(index)]).astype(np.float64))[None]

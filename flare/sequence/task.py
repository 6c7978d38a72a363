"""Training task of classifying sequences: samples, batches, loss, accuracy and report."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from flare.data.batching import BatchPlan
from flare.sequence.baselines import Samples, compare_accuracy, standard_error, trivial_baselines
from flare.sequence.batch import TokenBatch, evaluation_batches, training_batches
from flare.sequence.checks import check_ranges
from flare.sequence.classifier import Classifier, check_model_settings, load_classifier, model_length, predicted_class
from flare.sequence.store import SequenceDataset
from flare.train.config import DataConfig, LossConfig, TrainConfig
from flare.train.distributed.ranks import ALONE
from flare.train.run_folder import RunFolder
from flare.train.tasks import first_samples
from flare.utils.errors import ConfigError, DataError, FlareError

logger = logging.getLogger(__name__)


class ClassTask:
    """Classification of sequences.

    With the protocol `dev-split-no-mask`, all sequences are padded to the model's length, padding counts as tokens, and
    only the validation split is evaluated, even if it is the test split (as for Text).
    """

    ranks = ALONE

    def __init__(self, config: TrainConfig) -> None:
        data = config.data
        check_model_settings(config.model)
        _refuse_field_settings(config)
        self.data, self.dataset = data, SequenceDataset(data.path)
        check_ranges(self.dataset)
        self.as_published = data.protocol == "dev-split-no-mask"
        if self.as_published and data.val_split is None:
            raise ConfigError("data.protocol=dev-split-no-mask evaluates the validation split; set data.val_split")
        length = model_length(config.model, self.dataset.schema)
        self.fixed = length if self.as_published else None
        self.train = first_samples(self.dataset, data.train_split, data.train_samples)
        splits = [(data.val_split, data.val_samples), (data.test_split, data.test_samples)]
        splits = splits[:1] if self.as_published else splits
        self.evaluated = {s: first_samples(self.dataset, s, count) for s, count in splits if s is not None}

    @classmethod
    def from_config(cls, config: TrainConfig) -> ClassTask:
        return cls(config)

    @property
    def lengths(self) -> np.ndarray | None:
        """Length of the longer document of every sample; None if all are padded to the same length."""
        return None if self.as_published else self.dataset.lengths.max(1)

    @property
    def description(self) -> str:
        return f"{len(self.dataset.schema.classes)} classes from tokens"

    @property
    def trivial_loss(self) -> float:
        return math.log(len(self.dataset.schema.classes))

    def surrogate(self, model: Mapping[str, Any], *, fitted: bool = True) -> Classifier:
        return Classifier(model, self.dataset.schema, masks=not self.as_published)

    def batches(self, plan: BatchPlan, epochs: float, *, pin: bool = False) -> Iterable[TokenBatch]:
        return training_batches(self.dataset, plan, fixed=self.fixed, workers=self.data.workers, pin=pin)

    def loss(self, predict: Any, batch: TokenBatch) -> Tensor:
        """Compute the mean cross-entropy; the binary one for two classes, which share one logit."""
        logits = predict(batch.ids, batch.mask).float()
        if logits.shape[1] == 1:
            return binary_cross_entropy_with_logits(logits[:, 0], batch.labels.float())
        return cross_entropy(logits, batch.labels)

    def after_step(self, learner: nn.Module, step: int, seed: int) -> None:
        assert isinstance(learner, Classifier)
        learner.network.redraw(step, seed)

    def errors(self, predict: Any, device: torch.device, indices: np.ndarray) -> np.ndarray:
        """Return 1 for every wrong class and 0 for every right one, shape (samples, 1)."""
        size = self.data.eval_batch_size
        predicted = predict_labels(predict, self.dataset, indices, size, device, fixed=self.fixed)
        return (predicted != self.dataset.labels[indices]).astype(np.float64)[:, None]

    def scores(self, errors: np.ndarray) -> dict[str, float]:
        return {"accuracy": 1 - float(errors.mean())}

    def result(self, errors: Mapping[str, np.ndarray]) -> dict[str, Any]:
        accuracy = {split: 1 - float(values.mean()) for split, values in errors.items()}
        counts = {split: len(values) for split, values in errors.items()}
        baselines = trivial_baselines(self.dataset, (self.dataset, self.train), self.evaluated)
        return _accuracy_record(accuracy, counts, baselines, self.data.protocol) | {"samples": counts}

    def sample_records(self, errors: Mapping[str, np.ndarray]) -> dict[str, Any]:
        wrong = {split: values[:, 0].astype(int).tolist() for split, values in errors.items()}
        return {split: {"samples": self.evaluated[split].tolist(), "wrong": wrong[split]} for split in errors}

    load = staticmethod(load_classifier)

    def calibrate(self, learner: Classifier, path: Path) -> None:
        """Return None: classifiers have no error bars."""

    def write_report(self, run: RunFolder, learner: Classifier, result: Mapping[str, Any]) -> Path:
        from flare.sequence.report import write_class_report  # imports matplotlib

        return write_class_report(run, self, learner, result)

    @staticmethod
    def summary(result: Mapping[str, Any]) -> list[str]:
        """Return one line per split with the accuracy beside those of trivial baselines."""
        lines = []
        for split, accuracy in result["accuracy"].items():
            baselines = ", ".join(f"{name} {100 * shares[split]:.1f}" for name, shares in result["guesses"].items())
            error = f"standard error {100 * result['standard_error'][split]:.1f}"
            lines.append(f"{split + ' accuracy':<22}{100 * accuracy:.1f} %  {error}; {baselines}")
        if "accuracy_ema" in result:
            averaged = ", ".join(f"{split} {100 * share:.1f} %" for split, share in result["accuracy_ema"].items())
            lines.append(f"{'averaged weights':<22}{averaged}")
        lines.append(f"{'on ' + result['split']:<22}{result['reading']}")
        if result["protocol"] != "own":
            lines.append(f"{'protocol':<22}{result['protocol']}, as in the published table: padding counts as tokens")
        return lines

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
        """Evaluate the classifier of a run; see `flare.train.tasks.Task.evaluate_run`."""
        config = RunFolder(run).config(training=False)
        classifier = load_classifier(run, checkpoint=checkpoint, ema=ema, device=device)
        dataset = SequenceDataset(data or config.data.path)
        check_ranges(dataset)
        classifier.check_sequences(dataset.schema, dataset.path)
        name, count = final_split(config.data)
        indices = dataset.split(split or name)[: None if data or split else count]
        split = split or name
        if len(indices) == 0:
            raise DataError(f"{dataset.path}: split {split!r} is empty")
        size, place = config.data.eval_batch_size, next(classifier.parameters()).device
        predicted = predict_labels(classifier, dataset, indices, size, place, fixed=classifier.fixed)
        labels = dataset.labels[indices]
        right = predicted == labels
        baselines = trivial_baselines(dataset, _training_samples(config), {split: indices})
        accuracy, counts = {split: float(right.mean())}, {split: len(indices)}
        weights = f"{checkpoint} weights" + (", averaged" if ema else "")
        lines = [f"{dataset.path}, {split}: {len(indices)} samples, {weights}"]
        lines += ClassTask.summary(_accuracy_record(accuracy, counts, baselines, config.data.protocol))
        for label, class_name in enumerate(dataset.schema.classes):
            members = labels == label
            share = f"{100 * right[members].mean():.1f} % right" if members.any() else "none"
            lines.append(f"  {class_name:<20}{np.count_nonzero(members):>6} samples, {share}")
        return lines, {"samples": indices.tolist(), "predicted": predicted.tolist(), "right": right.tolist()}


def _accuracy_record(
    accuracy: Mapping[str, float],
    counts: Mapping[str, int],
    baselines: Mapping[str, Mapping[str, float]],
    protocol: str,
) -> dict[str, Any]:
    """Return the part of `result.json` about accuracies. Its keys are a file format."""
    last = list(accuracy)[-1]  # the test split, if it is evaluated at all
    on_last = {name: shares[last] for name, shares in baselines.items()}
    return {
        "accuracy": accuracy,
        "standard_error": {split: standard_error(share, counts[split]) for split, share in accuracy.items()},
        "guesses": baselines,
        "reading": compare_accuracy(accuracy[last], counts[last], on_last),
        "protocol": protocol,
        "split": last,
    }


def final_split(data: DataConfig) -> tuple[str, int | None]:
    """Return the split whose accuracy counts, and how many of its samples, None for all."""
    if data.protocol == "dev-split-no-mask" and data.val_split is not None:
        return data.val_split, data.val_samples
    return data.test_split, data.test_samples


def _training_samples(config: TrainConfig) -> Samples | None:
    """Return the training samples of a run for trivial baselines, or None if they are gone."""
    data = config.data
    try:
        own = SequenceDataset(data.path)
        check_ranges(own)
        return own, first_samples(own, data.train_split, data.train_samples)
    except FlareError as error:
        logger.info(f"no trivial baseline but chance: {error}")
        return None


def _refuse_field_settings(config: TrainConfig) -> None:
    data = config.data
    field_settings = {
        "data.subsample": data.subsample,
        "data.subsample_from": data.subsample_from,
        "data.mirror": data.mirror,
        "data.turn": data.turn,
        "data.normalize": data.normalize,
        "loss": config.loss != LossConfig(),
        "ranks_share=points": config.ranks_share == "points",
    }
    given = [name for name, value in field_settings.items() if value]
    if given:
        raise ConfigError(f"{data.path} holds sequences; remove settings that only fields have: {', '.join(given)}")


@torch.no_grad()
def predict_labels(
    predict: Any,
    dataset: SequenceDataset,
    indices: np.ndarray,
    batch_size: int,
    device: torch.device,
    *,
    fixed: int | None = None,
) -> np.ndarray:
    """Return the predicted labels of samples, in the order given; see `flare.sequence.batch.collate` for `fixed`."""
    order = np.argsort(dataset.lengths[indices].max(1), kind="stable")  # batches of similar lengths need little padding
    batches = (batch.to(device) for batch in evaluation_batches(dataset, indices[order], batch_size, fixed=fixed))
    found = [torch.zeros(0, dtype=torch.long), *(predicted_class(predict(b.ids, b.mask)).cpu() for b in batches)]
    labels = np.empty(len(indices), np.int64)
    labels[order] = torch.cat(found).numpy()
    return labels

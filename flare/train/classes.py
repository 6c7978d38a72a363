"""The task of telling classes of sequences apart: which samples, batched how, judged by which loss."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from flare.data.batching import BatchPlan
from flare.sequence.batch import TokenBatch, evaluation_batches, training_batches
from flare.sequence.classifier import Classifier, decide, model_length
from flare.sequence.guesses import guesses, reading, standard_error
from flare.sequence.ranges import refuse_out_of_range
from flare.sequence.store import SequenceDataset
from flare.train.config import DataConfig, LossConfig, TrainConfig
from flare.train.tasks import first_samples
from flare.utils.errors import ConfigError


class ClassTask:
    """Everything a training loop must know of a dataset of sequences.

    With the protocol `dev-split-no-mask` all sequences are padded to the model's length and padding is taken for
    tokens; the validation split is then all that is judged, even where it is the test (of Text it is).
    """

    def __init__(self, config: TrainConfig) -> None:
        data = config.data
        _refuse_what_is_of_fields(config)
        self.data, self.dataset = data, SequenceDataset(data.path)
        refuse_out_of_range(self.dataset)
        self.as_published = data.protocol == "dev-split-no-mask"
        if self.as_published and data.val_split is None:
            raise ConfigError(
                "data.protocol dev-split-no-mask judges by the validation split; name it: --data.val_split"
            )
        length = model_length(config.model, self.dataset.schema, int(self.dataset.lengths.max()))
        self.fixed = length if self.as_published else None
        self.train = first_samples(self.dataset, data.train_split, data.train_samples)
        splits = [(data.val_split, data.val_samples), (data.test_split, data.test_samples)]
        if self.as_published:
            splits = splits[:1]
        elif data.val_split == data.test_split and data.val_samples not in (None, data.test_samples):
            raise ConfigError(
                f"data.val_split and data.test_split are both {data.test_split!r}, which is judged once: say of how "
                f"many samples with --data.test_samples, not --data.val_samples"
            )
        self.judged = {s: first_samples(self.dataset, s, count) for s, count in splits if s is not None}

    @property
    def lengths(self) -> np.ndarray | None:
        """Of the longer document; None where all are padded to the same length anyway."""
        return None if self.as_published else self.dataset.lengths.max(1)

    @property
    def learns(self) -> str:
        return f"{len(self.dataset.schema.classes)} classes from tokens"

    @property
    def guessing(self) -> float:
        return math.log(len(self.dataset.schema.classes))

    def surrogate(self, model: Mapping[str, Any], *, fitted: bool = True) -> Classifier:
        return Classifier(model, self.dataset.schema, masks=not self.as_published)

    def batches(self, plan: BatchPlan, epochs: float, *, pin: bool = False) -> Iterable[TokenBatch]:
        return training_batches(self.dataset, plan, fixed=self.fixed, workers=self.data.workers, pin=pin)

    def loss(self, predict: Any, batch: TokenBatch) -> Tensor:
        """Cross-entropy, the mean over samples; of two classes, which share one logit, its binary form."""
        logits = predict(batch.ids, batch.mask).float()
        if logits.shape[1] == 1:
            return binary_cross_entropy_with_logits(logits[:, 0], batch.labels.float())
        return cross_entropy(logits, batch.labels)

    def after_step(self, learner: nn.Module, step: int, seed: int) -> None:
        assert isinstance(learner, Classifier)
        learner.network.redraw(step, seed)

    def errors(self, predict: Any, device: torch.device, indices: np.ndarray) -> np.ndarray:
        """(samples, 1): 1 where the class is wrong."""
        size = self.data.eval_batch_size
        answers = predicted_labels(predict, self.dataset, indices, size, device, fixed=self.fixed)
        return (answers != self.dataset.labels[indices]).astype(np.float64)[:, None]

    def scores(self, errors: np.ndarray) -> dict[str, float]:
        return {"accuracy": 1 - float(errors.mean())}

    def words(self, errors: np.ndarray) -> str:
        return f"accuracy {100 * (1 - errors.mean()):.1f} %"

    def result(self, errors: Mapping[str, np.ndarray]) -> dict[str, Any]:
        accuracy = {split: 1 - float(of_split.mean()) for split, of_split in errors.items()}
        guessed = guesses(self.dataset, (self.dataset, self.train), self.judged)
        last = list(errors)[-1]  # the test, where it is judged at all
        return {
            "accuracy": accuracy,
            "standard_error": {split: standard_error(accuracy[split], len(of)) for split, of in errors.items()},
            "guesses": guessed,
            "reading": reading(accuracy[last], len(errors[last]), {kind: of[last] for kind, of in guessed.items()}),
            "protocol": self.data.protocol,
            "split": last,
            "samples": {split: len(of_split) for split, of_split in errors.items()},
        }

    def of_samples(self, errors: Mapping[str, np.ndarray]) -> dict[str, Any]:
        return {
            split: {"samples": self.judged[split].tolist(), "wrong": of_split[:, 0].astype(int).tolist()}
            for split, of_split in errors.items()
        }


def last_judged(data: DataConfig) -> tuple[str, int | None]:
    """The split whose accuracy counts, and how many of its samples, None for all."""
    if data.protocol == "dev-split-no-mask" and data.val_split is not None:
        return data.val_split, data.val_samples
    return data.test_split, data.test_samples


def _refuse_what_is_of_fields(config: TrainConfig) -> None:
    data = config.data
    of_fields = {
        "data.subsample": data.subsample,
        "data.subsample_from": data.subsample_from,
        "data.mirror": data.mirror,
        "data.turn": data.turn,
        "data.normalise": data.normalise,
        "loss": config.loss != LossConfig(),
        "split points": config.split == "points",
    }
    asked = [name for name, given in of_fields.items() if given]
    if asked:
        raise ConfigError(f"{data.path} holds sequences; drop what is for fields only: {', '.join(asked)}")


@torch.no_grad()
def predicted_labels(
    predict: Any,
    dataset: SequenceDataset,
    indices: np.ndarray,
    batch_size: int,
    device: torch.device,
    *,
    fixed: int | None = None,
) -> np.ndarray:
    """(samples,) in the order given; see `flare.sequence.batch.collate` for `fixed`."""
    order = np.argsort(dataset.lengths[indices].max(1), kind="stable")  # so that little is padding
    batches = (batch.to(device) for batch in evaluation_batches(dataset, indices[order], batch_size, fixed=fixed))
    answers = [torch.zeros(0, dtype=torch.long), *(decide(predict(b.ids, b.mask)).cpu() for b in batches)]
    labels = np.empty(len(indices), np.int64)
    labels[order] = torch.cat(answers).numpy()
    return labels

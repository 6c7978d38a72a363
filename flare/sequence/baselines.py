"""Trivial baselines: accuracies without a model, from class frequencies or the first token alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from flare.sequence.store import SequenceDataset

Samples = tuple[SequenceDataset, np.ndarray]
"""A dataset and indices of samples."""
Baseline = Callable[[Samples, Samples], np.ndarray]
"""Training samples, evaluated samples -> whether each of the latter is right."""
SIGNIFICANT = 3.0
"""Standard errors by which an accuracy must exceed a baseline to be clearly above it."""


def majority_class(train: Samples, evaluated: Samples) -> np.ndarray:
    """Predict the most frequent class of the training samples."""
    known, learned = train
    dataset, indices = evaluated
    return dataset.labels[indices] == np.bincount(known.labels[learned]).argmax()


def first_token(train: Samples, evaluated: Samples) -> np.ndarray:
    """Predict the most frequent class of the training samples with the same first token."""
    known, learned = train
    dataset, indices = evaluated
    counts = np.zeros((known.schema.vocabulary, len(known.schema.classes)), np.int64)
    np.add.at(counts, (known.first_tokens[learned], known.labels[learned]), 1)
    return dataset.labels[indices] == counts.argmax(1)[dataset.first_tokens[indices]]


TASK_BASELINES: dict[str, dict[str, Baseline]] = {"listops": {"root operator": first_token}}
"""Task -> baselines that use more than class frequencies."""


def trivial_baselines(
    dataset: SequenceDataset, train: Samples | None, evaluated: Mapping[str, np.ndarray]
) -> dict[str, dict[str, float]]:
    """Return the accuracy of every trivial baseline on every split, the least informed baseline first.

    Args:
        dataset: Dataset of the evaluated samples.
        train: Samples to learn from, perhaps of another dataset. None leaves only chance.
        evaluated: Split -> indices of samples.
    """
    found = {"chance": dict.fromkeys(evaluated, 1 / len(dataset.schema.classes))}
    if train is None:
        return found
    for name, baseline in {"majority class": majority_class, **TASK_BASELINES.get(dataset.schema.name, {})}.items():
        found[name] = {split: float(baseline(train, (dataset, i)).mean()) for split, i in evaluated.items()}
    return found


def standard_error(accuracy: float, count: int) -> float:
    """Return the standard error of an accuracy measured on `count` samples."""
    return float(np.sqrt(accuracy * (1 - accuracy) / count))


def compare_accuracy(accuracy: float, count: int, baselines: Mapping[str, float]) -> str:
    """Compare an accuracy on `count` samples with trivial baselines, such as `not clearly above chance`.

    Clearly above means more than `SIGNIFICANT` times √(s² + b²) above, with the standard errors s and b of both. That
    is conservative, as both are measured on the same samples.
    """
    name, value = "chance", 0.0
    for name, value in sorted(baselines.items(), key=lambda item: item[1]):
        error = np.hypot(standard_error(accuracy, count), standard_error(value, count))
        if accuracy <= value + SIGNIFICANT * error:
            return f"not clearly above {_with_article(name)}"
    return f"{100 * (accuracy - value):.1f} points above {_with_article(name)}"


def _with_article(name: str) -> str:
    return name if name == "chance" else f"the {name}"

"""What an accuracy is worth: the accuracies of those who do not read the sequence, or only its first token."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from flare.sequence.store import SequenceDataset

Guess = Callable[[SequenceDataset, np.ndarray, np.ndarray], np.ndarray]
"""Dataset, samples to learn from, samples to judge -> which of the latter it gets right."""


def majority_class(dataset: SequenceDataset, train: np.ndarray, judged: np.ndarray) -> np.ndarray:
    """Always the most frequent class of the training samples."""
    return dataset.labels[judged] == np.bincount(dataset.labels[train]).argmax()


def first_token(dataset: SequenceDataset, train: np.ndarray, judged: np.ndarray) -> np.ndarray:
    """The most frequent class of the training samples that begin with the same token."""
    counts = np.zeros((dataset.schema.vocabulary, len(dataset.schema.classes)), np.int64)
    np.add.at(counts, (dataset.first_tokens[train], dataset.labels[train]), 1)
    return dataset.labels[judged] == counts.argmax(1)[dataset.first_tokens[judged]]


OF_TASKS: dict[str, dict[str, Guess]] = {"listops": {"root operator": first_token}}
"""Task -> guesses that know more than the classes' frequencies."""


def guesses(
    dataset: SequenceDataset, train: np.ndarray, judged: Mapping[str, np.ndarray]
) -> dict[str, dict[str, float]]:
    """Kind of guess -> split -> accuracy, the least informed first."""
    chance = 1 / len(dataset.schema.classes)
    found = {"chance": dict.fromkeys(judged, chance)}
    for name, guess in {"majority class": majority_class, **OF_TASKS.get(dataset.schema.name, {})}.items():
        found[name] = {split: float(guess(dataset, train, indices).mean()) for split, indices in judged.items()}
    return found


def standard_error(accuracy: float, count: int) -> float:
    """Of an accuracy measured on so many samples."""
    return float(np.sqrt(accuracy * (1 - accuracy) / count))


CLEARLY = 3.0
"""Standard errors above a guess that are no accident."""


def reading(accuracy: float, count: int, of_guesses: Mapping[str, float]) -> str:
    """What an accuracy on `count` samples means beside those of guesses, in words."""
    for name, guessed in sorted(of_guesses.items(), key=lambda item: item[1]):
        # Both are measured on the same samples; where they err alike, their difference is surer than this says.
        error = np.hypot(standard_error(accuracy, count), standard_error(guessed, count))
        if accuracy <= guessed + CLEARLY * error:
            return f"no more than {_spoken(name)}"
    return f"{100 * (accuracy - guessed):.1f} points above {_spoken(name)}"


def _spoken(name: str) -> str:
    return name if name == "chance" else f"the {name}"

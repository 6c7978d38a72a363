"""What an accuracy is worth: the accuracies of those who do not read the sequence, or only its first token."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from flare.sequence.store import SequenceDataset

Samples = tuple[SequenceDataset, np.ndarray]
"""A dataset, and which of its samples."""
Guess = Callable[[Samples, Samples], np.ndarray]
"""Samples to learn from, samples to judge -> which of the latter it gets right."""


def majority_class(train: Samples, judged: Samples) -> np.ndarray:
    """Always the most frequent class of the training samples."""
    known, learnt = train
    dataset, indices = judged
    return dataset.labels[indices] == np.bincount(known.labels[learnt]).argmax()


def first_token(train: Samples, judged: Samples) -> np.ndarray:
    """The most frequent class of the training samples that begin with the same token."""
    known, learnt = train
    dataset, indices = judged
    counts = np.zeros((known.schema.vocabulary, len(known.schema.classes)), np.int64)
    np.add.at(counts, (known.first_tokens[learnt], known.labels[learnt]), 1)
    return dataset.labels[indices] == counts.argmax(1)[dataset.first_tokens[indices]]


OF_TASKS: dict[str, dict[str, Guess]] = {"listops": {"root operator": first_token}}
"""Task -> guesses that know more than the classes' frequencies."""


def guesses(
    dataset: SequenceDataset, train: Samples | None, judged: Mapping[str, np.ndarray]
) -> dict[str, dict[str, float]]:
    """Kind of guess -> split -> accuracy, the least informed first; chance alone where there is nothing to learn from.

    The training samples may be of another dataset than those judged.
    """
    chance = 1 / len(dataset.schema.classes)
    found = {"chance": dict.fromkeys(judged, chance)}
    if train is None:
        return found
    for name, guess in {"majority class": majority_class, **OF_TASKS.get(dataset.schema.name, {})}.items():
        found[name] = {split: float(guess(train, (dataset, of)).mean()) for split, of in judged.items()}
    return found


def standard_error(accuracy: float, count: int) -> float:
    """Of an accuracy measured on so many samples."""
    return float(np.sqrt(accuracy * (1 - accuracy) / count))


CLEARLY = 3.0
"""Standard errors above a guess that are no accident."""


def reading(accuracy: float, count: int, of_guesses: Mapping[str, float]) -> str:
    """What an accuracy on `count` samples means beside those of guesses, in words.

    Clearly above a guess is more than `CLEARLY` times √(s² + g²) above it, s and g being the standard errors of both.
    """
    for name, guessed in sorted(of_guesses.items(), key=lambda item: item[1]):
        # Both are measured on the same samples; where they err alike, their difference is surer than this says.
        error = np.hypot(standard_error(accuracy, count), standard_error(guessed, count))
        if accuracy <= guessed + CLEARLY * error:
            return f"not clearly above {_spoken(name)}"
    return f"{100 * (accuracy - guessed):.1f} points above {_spoken(name)}"


def _spoken(name: str) -> str:
    return name if name == "chance" else f"the {name}"

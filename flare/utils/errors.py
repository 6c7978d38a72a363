"""Exception types and helpers for their messages. The command line prints them without a traceback."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any


class FlareError(ValueError):
    """Invalid input. The message tells a user what to do; the command line exits with code 2."""


class ConfigError(FlareError):
    """A setting that is unknown, invalid, or contradicts another."""


class DataError(FlareError):
    """A dataset, file or array that is missing, damaged or unsuitable."""


class TooLarge(DataError):
    """Valid data with more points or bytes than the reader accepts."""


class NotConverged(DataError):
    """A solver that did not converge. A generator then draws the sample again and counts it."""


class Exhausted(DataError):
    """A generator that has nothing left to draw from."""


class CheckpointError(FlareError):
    """A run folder or checkpoint that is missing, damaged, or of another model."""


class TrainingDiverged(FlareError):
    """A loss or gradient that is not finite or grows without bound."""


class RankFailure(FlareError):
    """Another process of this run failed or did not answer in time."""


def suggest_name(name: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: the closest known one, or all of them."""
    known = sorted(known)
    close = closest_name(name, known)
    everything = f"known: {', '.join(known)}"
    if close is None:
        return everything
    return f"did you mean {close!r}?" + (f" ({everything})" if len(known) <= 8 else "")


def closest_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most similar; None if none is."""
    return next(iter(get_close_matches(name, sorted(known), n=1, cutoff=0.75)), None)


def one_line(message: object) -> str:
    """Return a parser's message, which may span lines and name its own groups, as one line about the user's setting."""
    text = str(message).replace('Parser key "run.', 'setting "').replace("Parser key", "setting")
    return " ".join(re.sub(r"a <class '(\w+)'>", r"\1", text).replace("a typing.Literal", "one of ").split())


def numpy_error_reason(error: Exception) -> str:
    """Return why numpy cannot read a file, without its advice to unpickle it, which could run any code."""
    return "it does not hold plain numbers" if "pickle" in str(error).lower() else str(error)


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return the dotted keys at which two nested records differ, in order, with both values."""
    a, b = _flat(old), _flat(new)
    return [(key, a.get(key), b.get(key)) for key in sorted(a.keys() | b.keys()) if a.get(key) != b.get(key)]


def first_difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
    """Return the first of the `differences`; None if the records agree."""
    return next(iter(differences(old, new)), None)


def _flat(record: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(record, Mapping):
        return {prefix: record}
    return {k: v for key, value in record.items() for k, v in _flat(value, f"{prefix}.{key}".strip(".")).items()}

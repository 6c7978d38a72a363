"""Errors meant for people: what, where, how much, what to do. The command line shows them without a traceback."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any


class FlareError(ValueError):
    """Bad input of some kind; the message is all a user needs. Exit code 2 on the command line."""


class ConfigError(FlareError):
    """A setting that is unknown, impossible, or at odds with another."""


class DataError(FlareError):
    """A dataset, file or array that is missing, damaged or unfit."""


class MissingInputError(DataError):
    """Features or parameters of a model that a file does not have; whoever knows a way out adds it by their names."""

    def __init__(self, message: str, *names: str) -> None:
        super().__init__(message)
        self.names = names


class NoCoordinatesError(DataError):
    """A file of arrays none of which is called as coordinates are; whoever can be told the name adds how."""


class TooLarge(DataError):
    """Something whole, but of more points or bytes than whoever reads it accepts."""


class NotConverged(DataError):
    """A solver that did not reach its answer. A generator's sample is then drawn anew, and that is counted."""


class Exhausted(DataError):
    """A generator that has nothing left to draw from."""


class CheckpointError(FlareError):
    """A run folder or checkpoint that is missing, damaged, or of another model."""


class TrainingDiverged(FlareError):
    """The loss or its gradient is no longer a number worth following."""


class RankLost(FlareError):
    """Another process of this run is gone, or did not answer in time."""


@contextmanager
def way_out(how: str) -> Iterator[None]:
    """Ends the message about missing inputs with `how` each can be given, such as `--set {name}=VALUE`."""
    try:
        yield
    except MissingInputError as error:
        ways = " ".join(how.format(name=name) for name in error.names)
        raise DataError(f"{error}; give {'it' if len(error.names) == 1 else 'them'} with {ways}") from None


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of an error message about an unknown name: the closest known one, or all of them."""
    known = sorted(known)
    close = get_close_matches(name, known, n=1, cutoff=0.5)
    everything = f"known: {', '.join(known)}"
    if not close:
        return everything
    return f"did you mean {close[0]!r}?" + (f" ({everything})" if len(known) <= 8 else "")


def one_line(message: object) -> str:
    """A parser's message, which may span lines and name its own groups, as one line about the user's setting."""
    text = str(message).replace('Parser key "run.', 'setting "').replace("Parser key", "setting")
    return " ".join(re.sub(r"a <class '(\w+)'>", r"\1", text).replace("a typing.Literal", "one of ").split())


def numpys_reason(error: Exception) -> str:
    """Why numpy cannot read a file, without its advice to unpickle it, which may run anything."""
    return "it holds no plain numbers" if "pickle" in str(error).lower() else str(error)


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Dotted keys at which two nested records differ, in order, each with both values."""
    a, b = _flat(old), _flat(new)
    return [(key, a.get(key), b.get(key)) for key in sorted(a.keys() | b.keys()) if a.get(key) != b.get(key)]


def first_difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
    """The first of these; None where the records agree."""
    return next(iter(differences(old, new)), None)


def _flat(record: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(record, Mapping):
        return {prefix: record}
    return {k: v for key, value in record.items() for k, v in _flat(value, f"{prefix}.{key}".strip(".")).items()}

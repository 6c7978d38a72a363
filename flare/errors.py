"""Errors meant for people: what, where, how much, what to do. The command line shows them without a traceback."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class FlareError(ValueError):
    """Bad input of some kind; the message is all a user needs. Exit code 2 on the command line."""


class ConfigError(FlareError):
    """A setting that is unknown, impossible, or at odds with another."""


class DataError(FlareError):
    """A dataset, file or array that is missing, damaged or unfit."""


class CheckpointError(FlareError):
    """A run folder or checkpoint that is missing, damaged, or of another model."""


class TrainingDiverged(FlareError):
    """The loss or its gradient is no longer a number worth following."""


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of an error message about an unknown name: the closest known one, or all of them."""
    known = sorted(known)
    close = get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"

"""Progress of long work. Nothing is shown unless a display is registered; see `flare.utils.terminal`."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

logger = logging.getLogger(__name__)

Update = Callable[..., None]
"""Called as `update(advance=1, text="loss 0.012")`."""
Display = Callable[[str, int, int, str], AbstractContextManager[Update]]
"""Takes label, total, units done before and name of the unit."""
displays: list[Display] = []
"""Registered displays; the last one is used."""


@contextmanager
def progress(label: str, total: int, *, done: int = 0, unit: str = "samples", quiet: bool = False) -> Iterator[Update]:
    """Report the progress of `total` units to the registered display.

    Args:
        label: Name of the work, such as `training`.
        total: Number of units.
        done: Units finished in an earlier session; they count as progress but not for the rate.
        unit: Name of the units.
        quiet: Report nothing, for other ranks and tests.
    """
    if quiet or not displays:
        yield lambda advance=1, text="": None
        return
    with displays[-1](label, total, done, unit) as update:
        yield update


@contextmanager
def log_if_slow(message: str, after: float = 2.0) -> Iterator[None]:
    """Log a message if the block takes longer than `after` seconds."""
    timer = threading.Timer(after, logger.info, [message])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()

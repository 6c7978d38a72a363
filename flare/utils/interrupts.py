"""Deferral of Ctrl-C."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def defer_interrupts() -> Iterator[None]:
    """Defer Ctrl-C until the end of this block, which should be short.

    Use it for two steps that belong together, and for calls of compiled code with a random generator: numba runs some
    Python to access it, and an interrupt raised there ends in an obscure error or a crash.
    """
    usual = signal.getsignal(signal.SIGINT)
    if not callable(usual) or threading.current_thread() is not threading.main_thread():
        yield  # no interrupt is raised here
        return
    received: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: received.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
    if received:
        usual(signal.SIGINT, None)

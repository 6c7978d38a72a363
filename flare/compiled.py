"""Numerical loops compiled by numba, once per machine: the result is kept beside the source or in the user's cache."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from numba import njit

Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """The function as machine code, one thread. A division by zero gives inf or nan, as in numpy.

    Processes that start at once may each compile; they agree, and the file one of them writes appears whole.
    """
    try:
        return njit(function, cache=True, error_model="numpy")
    except RuntimeError:  # no folder can be written, neither the package's nor the user's: compile anew each time
        return njit(function, error_model="numpy")


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C waits for the end of what is done within, which should be short.

    For calls of compiled code with a random generator: to look into it numba runs some Python, and an interrupt that is
    raised just there ends in an error without a name, or in a crash.
    """
    usual = signal.getsignal(signal.SIGINT)
    if not callable(usual) or threading.current_thread() is not threading.main_thread():
        yield  # nothing is raised here
        return
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
    if came:
        usual(signal.SIGINT, None)

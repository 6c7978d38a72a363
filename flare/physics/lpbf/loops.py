"""Loops over boxes or nodes as machine code, split over threads without changing a byte of the result.

A loop is a function (start, end, *arrays) that fills rows start … end − 1 of an output from read-only inputs; rows do
not depend on each other, so how they are split does not matter.

    with threads(2):
        simulate(part)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from itertools import pairwise
from typing import Any, TypeVar

from numba import config, njit

Function = TypeVar("Function", bound=Callable[..., None])

CHEAP = 20_000
"""Rows of a few nanoseconds that a thread must have: fewer take less time than waking it, a tenth of a millisecond."""

_threads: ContextVar[int] = ContextVar("lpbf_threads", default=config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]


@contextmanager
def threads(count: int) -> Iterator[None]:
    """How many threads loops may use from here on; NUMBA_NUM_THREADS, by default every core, where nothing is said."""
    token = _threads.set(count)
    try:
        yield
    finally:
        _threads.reset(token)


def compiled(function: Function) -> Function:
    """A loop as machine code that lets other threads run; sums may be reordered into vector lanes, always alike."""
    machine_code: Any = njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "reassoc", "nsz"})(
        function
    )
    return machine_code


def over(loop: Callable[..., None], rows: int, *arrays: Any, least: int = CHEAP) -> None:
    """Run a compiled loop over all rows, `least` of them or more on each thread."""
    parts = min(_threads.get(), rows // least)
    if parts < 2:
        loop(0, rows, *arrays)
        return
    ends = [rows * part // parts for part in range(parts + 1)]
    *others, (start, end) = pairwise(ends)
    waiting = [_pool(os.getpid()).submit(loop, *each, *arrays) for each in others]
    loop(start, end, *arrays)
    for part in waiting:
        part.result()


@cache
def _pool(process: int) -> ThreadPoolExecutor:
    """One pool per process: threads do not survive a fork."""
    return ThreadPoolExecutor(thread_name_prefix="lpbf")

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

import numpy as np
from numba import config, njit

Function = TypeVar("Function", bound=Callable[..., None])

WORTHWHILE = 2000  # rows per thread; fewer take less time than waking a thread

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


def over(loop: Callable[..., None], rows: int, *arrays: Any) -> None:
    """Run a compiled loop over all rows."""
    parts = min(_threads.get(), rows // WORTHWHILE)
    if parts < 2:
        loop(0, rows, *arrays)
        return
    ends = np.linspace(0, rows, parts + 1).astype(int).tolist()
    waiting = [_pool(os.getpid()).submit(loop, start, end, *arrays) for start, end in pairwise(ends)]
    for part in waiting:
        part.result()


@cache
def _pool(process: int) -> ThreadPoolExecutor:
    """One pool per process: threads do not survive a fork."""
    return ThreadPoolExecutor(thread_name_prefix="lpbf")

"""Compiled loops over boxes or nodes, split over threads without changing a byte of the result.

A loop is a function (start, end, *arrays) that fills rows start … end − 1 of an output from read-only inputs. Rows do
not depend on each other, so the result does not depend on how they are split.

    with numba_threads(2):
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

Loop = TypeVar("Loop", bound=Callable[..., None])

MIN_ROWS = 20_000
"""Smallest number of cheap rows (a few ns each) per thread; waking a thread costs a tenth of a millisecond."""

_threads: ContextVar[int] = ContextVar("lpbf_threads", default=config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]


@contextmanager
def numba_threads(count: int) -> Iterator[None]:
    """Set the number of threads of loops in this block. The default is NUMBA_NUM_THREADS, which is every core."""
    token = _threads.set(count)
    try:
        yield
    finally:
        _threads.reset(token)


def compiled_loop(function: Loop) -> Loop:
    """Compile a loop that releases the GIL. Sums may be reordered into vector lanes, always in the same way."""
    machine_code: Any = njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "reassoc", "nsz"})(
        function
    )
    return machine_code


def run_loop(loop: Callable[..., None], rows: int, *arrays: Any, min_rows: int = MIN_ROWS) -> None:
    """Run a compiled loop over all rows, with at least `min_rows` of them on each thread."""
    pieces = min(_threads.get(), rows // min_rows)
    if pieces < 2:
        loop(0, rows, *arrays)
        return
    ends = [rows * piece // pieces for piece in range(pieces + 1)]
    *others, (start, end) = pairwise(ends)
    waiting = [_pool(os.getpid()).submit(loop, *each, *arrays) for each in others]
    loop(start, end, *arrays)
    for future in waiting:
        future.result()


@cache
def _pool(process: int) -> ThreadPoolExecutor:
    """Return the thread pool of a process; threads do not survive a fork."""
    return ThreadPoolExecutor(thread_name_prefix="lpbf")

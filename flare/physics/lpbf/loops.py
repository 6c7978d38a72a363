"""Loops over boxes or nodes as machine code, split over threads without changing a byte of the result.

A loop is a function (start, end, *arrays) that fills rows start … end − 1 of an output from read-only inputs; rows do
not depend on each other, so how they are split does not matter. Threads are numba's: NUMBA_NUM_THREADS, or
`numba.set_num_threads`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numba import get_num_threads, njit

Function = TypeVar("Function", bound=Callable[..., None])

WORTHWHILE = 2000  # rows per thread; fewer take less time than waking a thread


def compiled(function: Function) -> Function:
    """A loop as machine code that lets other threads run; sums may be reordered into vector lanes, always alike."""
    machine_code: Any = njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "reassoc", "nsz"})(
        function
    )
    return machine_code


def over(loop: Callable[..., None], rows: int, *arrays: Any) -> None:
    """Run a compiled loop over all rows, on every thread numba may use."""
    threads = min(get_num_threads(), rows // WORTHWHILE)
    if threads < 2:
        loop(0, rows, *arrays)
        return
    ends = np.linspace(0, rows, threads + 1).astype(int)
    waiting = [_pool(os.getpid()).submit(loop, int(a), int(b), *arrays) for a, b in pairwise(ends)]
    for part in waiting:
        part.result()


@cache
def _pool(process: int) -> ThreadPoolExecutor:
    """One pool per process: threads do not survive a fork."""
    return ThreadPoolExecutor(thread_name_prefix="lpbf")

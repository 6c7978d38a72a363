"""Time and memory of a piece of work, in a process of its own or in turns with others."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import active_children
from typing import Any

import torch

from flare.data.generation.parallel import inheriting_no_interrupts, worker_pool
from flare.utils.environment import forget_peak_memory, peak_memory_mb


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def no_collection() -> Iterator[None]:
    """Collect garbage now rather than inside somebody's turn."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def clock() -> Callable[[], float]:
    """CPU time where one thread works, which a busy neighbour hardly touches; the wall's for several, or a GPU."""
    alone = torch.get_num_threads() == 1 and not torch.cuda.is_available()
    return time.process_time if alone else time.perf_counter


def median_seconds(call: Callable[[], Any], repeats: int) -> float:
    """Of so many calls; they are warm already."""
    now, taken = clock(), []
    with no_collection():
        for _ in range(repeats):
            begin = now()
            call()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            taken.append(now() - begin)
    return statistics.median(taken)


def alone(function: Callable[..., Any], *arguments: Any) -> Any:
    """What the function returns in a process of its own, whose peak of memory is then its own.

    Ctrl-C reaches every process of a terminal. That one leaves it to this one, which then ends it by SIGTERM: a
    function that handles it, as training does to save, may take its time.
    """
    others = set(active_children())
    with worker_pool(1) as pool:
        try:
            with inheriting_no_interrupts():
                result = pool.submit(function, *arguments)
            return result.result()
        except KeyboardInterrupt:
            for process in set(active_children()) - others:
                process.terminate()
            raise


def peak_above(call: Callable[[], Any]) -> float:
    """MiB that the call needs at its peak beyond what the process held before. For a fresh process."""
    gc.collect()
    forget_peak_memory()  # starting up may have needed more than is held now
    before = peak_memory_mb()
    call()
    return peak_memory_mb() - before


def exponent(sizes: list[float], values: list[float]) -> float:
    """p of values ~ sizes^p, fitted in logarithms."""
    import numpy as np

    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])

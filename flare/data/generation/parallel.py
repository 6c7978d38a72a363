"""Work on one core, many, or a dask cluster, with the results in order."""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context, parent_process
from typing import Any, TypeVar

from flare.utils.errors import DataError, one_line
from flare.utils.terminal import attach, is_attached

Task = TypeVar("Task")
Result = TypeVar("Result")


def in_order(
    executor: Executor | None, work: Callable[[Task], Result], tasks: Iterable[Task], ahead: int
) -> Iterator[Result]:
    """Results in order, computed up to `ahead` in advance: enough to keep workers busy, little to lose or hold.

    Ctrl-C, which reaches every process of a terminal, ends a worker of ours at its work and at nothing else: one that
    ended while it sends a result would leave this process waiting for the rest of it for ever.
    """
    if executor is None:
        yield from map(work, tasks)
        return
    own = isinstance(executor, ProcessPoolExecutor) and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
    working = partial(_until_interrupted, work) if own else work
    waiting: deque[Future[Result]] = deque()
    for task in tasks:
        with inheriting_no_interrupts():  # a pool starts its processes when it is given work
            waiting.append(executor.submit(working, task))
        if len(waiting) >= ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def _until_interrupted(work: Callable[[Task], Result], task: Task) -> Result:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _hear_interrupts()
    try:
        return work(task)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def inheriting_no_interrupts() -> Iterator[None]:
    """A process that is started now never hears of Ctrl-C, from its first instruction on; this one does, afterwards."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _hear_interrupts() -> None:
    """What `inheriting_no_interrupts` has withheld from a process."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])


@contextmanager
def workers_of(workers: int, scheduler: str | None) -> Iterator[tuple[Executor | None, int]]:
    """Who works, None for this process itself, and how many tasks may be asked for in advance."""
    if scheduler is not None:
        with _dask_client(scheduler) as client:
            threads = sum(client.nthreads().values())
            try:
                yield client.get_executor(pure=False), 4 * max(threads, 1)
            except Exception as error:
                if type(error).__module__.startswith("distributed") and not isinstance(error, CancelledError):
                    raise DataError(f"the dask cluster failed: {one_line(error)}") from None
                raise
    elif workers == 1:
        yield None, 1
    else:
        pool = worker_pool(workers)
        try:
            yield pool, 4 * workers
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _dask_client(address: str) -> Any:
    try:
        from distributed import Client
    except ImportError:
        raise DataError("a dask scheduler needs the extra:  pip install 'flare-engine[dask]'") from None
    try:
        return Client(address, timeout=10)
    except (OSError, ValueError) as error:
        raise DataError(f"no dask scheduler answers at {address}: {error}") from None


def worker_pool(workers: int) -> ProcessPoolExecutor:
    """Return a pool of new processes that print what this one would, and end when this one is killed."""
    shows = (is_attached(),)
    return ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_start_worker, initargs=shows)


def _start_worker(shows: bool) -> None:
    """Prepare a worker process: it ends when its parent is killed, which cannot tell it to stop.

    Args:
        shows: Whether its log messages and progress are printed, as those of its parent are.
    """
    if shows:
        attach()

    def watch() -> None:
        parent = parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()

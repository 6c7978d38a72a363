"""Parallel work in this process, in worker processes or on a dask cluster, with results in order."""

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
SCHEDULER_TIMEOUT = 10
"""Seconds to wait for a dask scheduler to answer."""


def in_order(
    executor: Executor | None, work: Callable[[Task], Result], tasks: Iterable[Task], ahead: int
) -> Iterator[Result]:
    """Yield the results of `work` in the order of the tasks.

    Ctrl-C reaches every process of a terminal. It ends a worker process only while it works on a task: a worker that
    ended while it sends a result would leave this process waiting forever.

    Args:
        executor: Executor of the tasks; None to work in this process.
        work: Function of one task.
        tasks: Tasks in order.
        ahead: Number of tasks that may be submitted before their result is needed.
    """
    if executor is None:
        yield from map(work, tasks)
        return
    own = isinstance(executor, ProcessPoolExecutor) and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
    working = partial(_interruptible, work) if own else work
    waiting: deque[Future[Result]] = deque()
    for task in tasks:
        with inheriting_no_interrupts():  # a pool starts its processes when it is given work
            waiting.append(executor.submit(working, task))
        if len(waiting) >= ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def _interruptible(work: Callable[[Task], Result], task: Task) -> Result:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    try:
        return work(task)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def inheriting_no_interrupts() -> Iterator[None]:
    """Block SIGINT within this block: processes started in it ignore Ctrl-C, this one receives it afterwards."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def workers_of(workers: int, scheduler: str | None) -> Iterator[tuple[Executor | None, int]]:
    """Provide an executor and the number of tasks to submit ahead.

    Args:
        workers: Worker processes; with 1, the executor is None and this process works itself.
        scheduler: Address of a dask scheduler to use instead.

    Raises:
        DataError: The scheduler does not answer, or the cluster fails.
    """
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
        raise DataError("a dask scheduler needs an extra; install it with:  pip install 'flare-engine[dask]'") from None
    try:
        return Client(address, timeout=SCHEDULER_TIMEOUT)
    except (OSError, ValueError) as error:
        raise DataError(f"no dask scheduler answers at {address}: {error}") from None


def worker_pool(workers: int) -> ProcessPoolExecutor:
    """Return a pool of new processes that log as this one does, and end if this one is killed."""
    shows = (is_attached(),)
    return ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_start_worker, initargs=shows)


def _start_worker(shows: bool) -> None:
    """Prepare a worker process to log and to end with its parent.

    Args:
        shows: Whether log messages and progress are printed, as in the parent process.
    """
    if shows:
        attach()

    def watch() -> None:
        parent = parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()

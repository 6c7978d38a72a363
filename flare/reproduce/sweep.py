"""Do the jobs that have no record: in this process, in worker processes, or on a dask cluster.

The outcome of a job depends on its definition alone: any number of workers writes the same records except for `made`.
A failed job gets a record with its error, and the other jobs continue. A stopped job keeps its run folder and is
resumed by the next call. Problems of the machine, such as a full disk, are not recorded: they end the sweep.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import active_children, current_process, parent_process
from pathlib import Path
from types import FrameType
from typing import Any

from flare.data.generation.parallel import workers_of
from flare.reproduce.jobs import Job, Training, Workspace, needed_data
from flare.reproduce.ledger import Ledger, Record, address, check_writable, is_finite
from flare.train.signals import Interrupted
from flare.utils.environment import describe_environment, peak_memory_mb, reset_peak_memory
from flare.utils.errors import DataError, FlareError, TrainingDiverged, one_line
from flare.utils.files import lock
from flare.utils.text import counted

logger = logging.getLogger(__name__)

ABSOLUTE = re.compile(r"(?<![\w./:])/(?:[^\s/:'\"]+/)+")
"""Absolute folders in messages, but not the slashes of URLs and units."""
LOGGED = {"rel_l2": "rel-L2", "accuracy": "accuracy"}
"""Key of a result -> its name in log messages."""
NOT_RECORDED = (FlareError, OSError, ImportError)
"""Errors of settings, data, disk or installation. They end the sweep and leave no record."""
_alone = threading.Lock()
"""Held by the running job: a dask worker may have several threads, but a training owns the global random state."""
_stopped: list[Interrupted] = []
"""The signal that stopped this worker process. Jobs that the pool has queued in advance must not start."""


def sweep(
    jobs: Iterable[Job],
    ledger: Ledger,
    workspace: Workspace,
    *,
    workers: int = 1,
    generators: int | None = None,
    threads: int = 1,
    scheduler: str | None = None,
    retry: bool = False,
    names: Mapping[str, str] | None = None,
) -> int:
    """Do all jobs without a record: datasets first, then trainings, then analyses of trained models.

    Args:
        jobs: Jobs to do. Equal jobs are done once.
        ledger: Where records are looked up and written.
        workspace: Folder of datasets and run folders.
        workers: Processes on this machine. On a machine with GPUs each process sees one.
        generators: Processes that generate datasets. None: as many as workers.
        threads: Threads of each job.
        scheduler: Address of a dask scheduler to use instead. Its workers must see the same folders.
        retry: Do failed jobs again.
        names: Address of a job -> its name in log messages. The default is its label.

    Returns:
        Number of jobs that were done.
    """
    # A worker may have another working directory.
    ledger, workspace = Ledger(ledger.folder.absolute()), replace(workspace, root=workspace.root.absolute())
    wanted = list({ledger.path(job): job for job in jobs}.values())
    missing = [job for job in wanted if _is_missing(ledger.find(job), retry=retry)]
    logger.info("%s, %d already recorded", counted(len(wanted), "job"), len(wanted) - len(missing))
    if missing:
        check_writable(ledger.folder, "records")
    first = [job for job in missing if job.training is None]
    second = [job for job in missing if job.training is not None]
    # A training may have a record but no run folder, as in a fresh clone. Then its model is trained again.
    models = {ledger.path(job.training): job.training for job in second if job.training is not None}
    planned = {ledger.path(job) for job in first}
    first += [job for path, job in models.items() if path not in planned and not job.finished(workspace)]
    begun = sum(workspace.run(job).exists() for job in first)
    if begun:
        logger.info("resuming %s", counted(begun, "job"))
    for data in needed_data([*first, *second]):
        workspace.make(data, workers=generators or workers, scheduler=scheduler)
    done, total = 0, len(first) + len(second)
    for stage in (first, second):
        for job, outcome in _performed(stage, ledger, workspace, workers, threads, scheduler):
            done += 1
            logger.info("%d/%d  %s: %s", done, total, (names or {}).get(address(job), job.label), outcome)
    return total


def _performed(
    jobs: Sequence[Job], ledger: Ledger, workspace: Workspace, workers: int, threads: int, scheduler: str | None
) -> Iterator[tuple[Job, str]]:
    """Yield each job and its outcome when it ends."""
    if not jobs:
        return
    _locks(workspace).mkdir(parents=True, exist_ok=True)
    with workers_of(workers, scheduler) as (pool, _):
        if pool is None:
            yield from ((job, perform(job, ledger.folder, workspace, threads)) for job in jobs)
            return
        shared = [] if scheduler is not None else gpus()  # a dask worker is started with its GPU
        futures = {pool.submit(perform, job, ledger.folder, workspace, threads, shared): job for job in jobs}
        try:
            with _signals_reach_workers():
                yield from ((futures[future], future.result()) for future in as_completed(futures))
        except BrokenProcessPool:
            raise DataError("a worker process died (out of memory?); repeat the command with fewer workers") from None
        except CancelledError:
            raise DataError("the dask scheduler has stopped; start one and repeat the command to resume") from None


@contextmanager
def _signals_reach_workers() -> Iterator[None]:
    """Forward Ctrl-C and SIGTERM to the worker processes, which save their state, and end the sweep."""

    def pass_on(number: int, frame: FrameType | None) -> None:
        for worker in active_children():
            worker.terminate()
        raise Interrupted(number)

    main = threading.current_thread() is threading.main_thread()
    before = {n: signal.signal(n, pass_on) for n in (signal.SIGINT, signal.SIGTERM)} if main else {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_missing(record: Record | None, *, retry: bool) -> bool:
    return record is None or record.outcome == "unfinished" or (record.outcome == "failed" and retry)


def gpus() -> list[str]:
    """List the GPUs of this machine as CUDA_VISIBLE_DEVICES names them."""
    import torch

    if not torch.cuda.is_available():
        return []
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",") if named else [str(number) for number in range(torch.cuda.device_count())]


def default_workers() -> int:
    """Return the number of GPUs, or of cores without any."""
    return len(gpus()) or os.cpu_count() or 1


def perform(job: Job, records: Path, workspace: Workspace, threads: int, shared: Sequence[str] = ()) -> str:
    """Do one job and write its record, also if it fails.

    Args:
        job: Job to do.
        records: Folder of the ledger.
        workspace: Folder of datasets and run folders.
        threads: Threads of torch.
        shared: GPUs of which this process of a pool uses one. Empty: it sees all.

    Returns:
        The measured value or the error, for the log.
    """
    import torch

    if shared:
        # CUDA reads this once, on first use. Processes of a pool are numbered consecutively.
        number = int(re.findall(r"\d+", current_process().name)[-1])
        os.environ["CUDA_VISIBLE_DEVICES"] = shared[number % len(shared)]
    ledger = Ledger(records)
    _check_folders(job, records, workspace)
    busy = f"another process is working on {job.label} in {workspace.root}; wait for it, or use another workspace"
    if _stopped:
        raise _stopped[0]
    with _alone, lock(_locks(workspace) / ledger.path(job).stem, busy):
        usual, start, cpu = torch.get_num_threads(), time.monotonic(), _cpu_seconds()
        begun = workspace.run(job).exists()
        torch.set_num_threads(threads)
        reset_peak_memory()

        def measured() -> dict[str, float | None]:
            # If an earlier process has started the job, the time of this one is only a part.
            seconds = {"seconds": time.monotonic() - start, "cpu_seconds": _cpu_seconds() - cpu}
            known = {key: None if begun else round(value, 1) for key, value in seconds.items()}
            return known | {"peak_memory_mb": round(peak_memory_mb())}

        try:
            result, arrays = job.perform(workspace)
            if wrong := [name for name in job.numbers if not is_finite(result[name])]:
                raise TrainingDiverged(f"{wrong[0]} is {result[wrong[0]]} at the end")
            made: dict[str, Any] = measured()
            # A training may have been done by an earlier process, whose measurements are in its result.
            made |= {key: result.pop(key) for key in (*made, "environment", "cpu_curve") if key in result}
            made = (made.pop("environment", None) or describe_environment()) | made
            before = ledger.find(job)
            if before is None or before.outcome != "done":  # otherwise trained again for an analysis of the model
                ledger.write(job, Record("done", result, made=made), arrays)
        except Interrupted as stop:
            if parent_process() is not None:
                _stopped.append(stop)
            if isinstance(job, Training):
                _keep_unfinished(job, ledger, workspace)
            raise
        except Exception as error:
            if isinstance(error, NOT_RECORDED) and not isinstance(error, TrainingDiverged):
                raise
            failure = ABSOLUTE.sub("", f"{type(error).__name__}: {one_line(error)}")
            ledger.write(job, Record("failed", failure=failure, made=describe_environment() | measured()))
            return failure
        finally:
            torch.set_num_threads(usual)
    return next((f"{name} {result[key]:.4g}" for key, name in LOGGED.items() if key in result), "done")


def _locks(workspace: Workspace) -> Path:
    return workspace.root / "locks"


def _check_folders(job: Job, records: Path, workspace: Workspace) -> None:
    """Raise a DataError if a worker does not see the folders that the sweep has made."""
    folders = [_locks(workspace), records, *([workspace.data(job.data)] if job.data is not None else [])]
    for folder in folders:
        if not folder.is_dir():
            raise DataError(f"the worker on {socket.gethostname()} does not see {folder}; use a shared folder")


def _cpu_seconds() -> float:
    """Return the CPU seconds of this process and of its finished child processes."""
    return sum(os.times()[:4])


def _keep_unfinished(job: Training, ledger: Ledger, workspace: Workspace) -> None:
    """Record the progress of a stopped training. The next call resumes it."""
    curve = job.curves(workspace)["curve"]
    if curve:
        result = {"curve": curve, "epochs": job.epochs(workspace)}
        ledger.write(job, Record("unfinished", result, made=describe_environment()))

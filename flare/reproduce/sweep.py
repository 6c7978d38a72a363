"""Doing the jobs that have no record yet: here, in processes beside this one, or on a dask cluster.

The outcome of a job depends on its definition alone, so one worker and several leave the same records but for `made`.
A job that fails leaves a record that says so, and the others go on; one that is stopped leaves its run folder, and goes
on from there with the next call. What is wrong with this machine or its folders is no outcome: it ends the sweep, and
its message is for whoever gave the command.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import active_children, current_process, parent_process
from pathlib import Path
from types import FrameType
from typing import Any

from flare.data.generation.parallel import workers_of
from flare.reproduce.jobs import Job, Place, Training, needed_data
from flare.reproduce.ledger import Ledger, Record, address, is_finite
from flare.train.signals import Interrupted
from flare.utils.environment import describe_environment, forget_peak_memory, peak_memory_mb
from flare.utils.errors import DataError, FlareError, TrainingDiverged, one_line
from flare.utils.files import lock

ABSOLUTE = re.compile(r"(?<![\w./:])/(?:[^\s/:'\"]+/)+")
"""Folders before the name of a file; the slashes of addresses and units are none."""
TOLD = {"rel_l2": "rel-L2", "accuracy": "accuracy"}
"""Result of a job -> what a line on it calls it."""
NO_OUTCOME = (FlareError, OSError, ImportError)
"""Other settings, damaged data, a full disk, a package that is missing: nothing that the job has done."""
_alone = threading.Lock()
"""A dask worker may have several threads, but a training owns the random state of its process."""
_stopped: list[Interrupted] = []
"""What a signal has stopped in this worker process. The pool hands it jobs in advance, which it must not begin."""


def sweep(
    jobs: Iterable[Job],
    ledger: Ledger,
    place: Place,
    *,
    workers: int = 1,
    makers: int | None = None,
    threads: int = 1,
    scheduler: str | None = None,
    retry: bool = False,
    names: Mapping[str, str] | None = None,
    tell: Callable[[str], None] = print,
) -> int:
    """Do what has no record; datasets first, then trainings, then what is made of trained models.

    Args:
        workers: processes on this machine; where it has GPUs, each of them sees one.
        makers: processes that make datasets, which no GPU does; None: as many as workers.
        threads: of each job. More are faster for one large job; several workers of one thread for many.
        scheduler: address of a dask scheduler, whose workers see the same folders.
        retry: do failed jobs again.
        names: address of a job -> what to call it; by default its label.

    Returns:
        How many jobs were done.
    """
    # A worker may have another working directory.
    ledger, place = Ledger(ledger.folder.absolute()), replace(place, root=place.root.absolute())
    wanted = list({ledger.path(job): job for job in jobs}.values())
    missing = [job for job in wanted if _is_missing(ledger.find(job), retry=retry)]
    tell(f"{len(wanted)} job{'s' * (len(wanted) != 1)}, {len(wanted) - len(missing)} of them done already")
    if missing:
        ledger.refuse_unwritable()
    first = [job for job in missing if job.training is None]
    second = [job for job in missing if job.training is not None]
    # A trained model may have a record but no folder here, as in a fresh clone: then it is trained again.
    models = {ledger.path(job.training): job.training for job in second if job.training is not None}
    planned = {ledger.path(job) for job in first}
    first += [job for path, job in models.items() if path not in planned and not job.finished(place)]
    begun = sum(place.run(job).exists() for job in first)
    if begun:
        tell(f"{begun} of the others go{'es' * (begun == 1)} on where an earlier call was stopped")
    for data in needed_data([*first, *second]):
        place.make(data, workers=makers or workers, scheduler=scheduler)
    done, total = 0, len(first) + len(second)
    for stage in (first, second):
        for job, words in _performed(stage, ledger, place, workers=workers, threads=threads, scheduler=scheduler):
            done += 1
            tell(f"{done}/{total}  {(names or {}).get(address(job), job.label)}: {words}")
    return total


def _performed(
    jobs: Sequence[Job], ledger: Ledger, place: Place, *, workers: int, threads: int, scheduler: str | None
) -> Iterator[tuple[Job, str]]:
    """Each job and what came of it, as they come to their end."""
    if not jobs:
        return
    _locks(place).mkdir(parents=True, exist_ok=True)
    with workers_of(workers, scheduler) as (pool, _):
        if pool is None:
            yield from ((job, perform(job, ledger.folder, place, threads)) for job in jobs)
            return
        shared = [] if scheduler is not None else gpus()  # whoever starts a dask worker gives it its GPU
        futures = {pool.submit(perform, job, ledger.folder, place, threads, shared): job for job in jobs}
        try:
            with _signals_reach_workers():
                yield from ((futures[future], future.result()) for future in as_completed(futures))
        except BrokenProcessPool:
            raise DataError(
                "a worker process died (out of memory?). What is done is kept; give the same command again to go on, "
                "perhaps with fewer workers"
            ) from None
        except CancelledError:
            raise DataError("the dask scheduler is gone; start one and give the same command again to go on") from None


@contextmanager
def _signals_reach_workers() -> Iterator[None]:
    """Ctrl-C or SIGTERM goes on to the worker processes, which save what they are at, and ends the sweep."""

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
    """Of this machine, as CUDA_VISIBLE_DEVICES names them."""
    import torch

    if not torch.cuda.is_available():
        return []
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",") if named else [str(number) for number in range(torch.cuda.device_count())]


def perform(job: Job, records: Path, place: Place, threads: int, shared: Sequence[str] = ()) -> str:
    """Do one job and write its record, whatever comes of it.

    Args:
        shared: GPUs of which this process, one of a pool, takes one; none: it sees all there are.

    Returns:
        What came of it, in words.
    """
    import torch

    if shared:
        # CUDA looks at this once, when it is first asked for. Processes of a pool are numbered one after another.
        number = int(re.findall(r"\d+", current_process().name)[-1])
        os.environ["CUDA_VISIBLE_DEVICES"] = shared[number % len(shared)]
    ledger = Ledger(records)
    _refuse_other_folders(job, records, place)
    busy = f"another process is at work on {job.label} in {place.root}; wait for it, or use another --work"
    if _stopped:
        raise _stopped[0]
    with _alone, lock(_locks(place) / ledger.path(job).stem, busy):
        usual, start, cpu = torch.get_num_threads(), time.monotonic(), _cpu_seconds()
        begun = place.run(job).exists()
        torch.set_num_threads(threads)
        forget_peak_memory()

        def measured() -> dict[str, float | None]:
            # Of what an earlier process has begun, the time of this one is but a part.
            seconds = {"seconds": time.monotonic() - start, "cpu_seconds": _cpu_seconds() - cpu}
            known = {key: None if begun else round(value, 1) for key, value in seconds.items()}
            return known | {"peak_memory_mb": round(peak_memory_mb())}

        try:
            result, arrays = job.perform(place)
            if wrong := [name for name in job.numbers if not is_finite(result[name])]:
                raise TrainingDiverged(f"{wrong[0]} is {result[wrong[0]]} at the end")
            made: dict[str, Any] = measured()
            # A training may have been done by an earlier process, and knows better.
            made |= {key: result.pop(key) for key in (*made, "environment", "cpu_curve") if key in result}
            made = (made.pop("environment", None) or describe_environment()) | made
            before = ledger.find(job)
            if before is None or before.outcome != "done":  # else a model was trained again for what is made of it
                ledger.write(job, Record("done", result, made=made), arrays)
        except Interrupted as stop:
            if parent_process() is not None:
                _stopped.append(stop)
            if isinstance(job, Training):
                _keep_unfinished(job, ledger, place)
            raise
        except Exception as error:
            if isinstance(error, NO_OUTCOME) and not isinstance(error, TrainingDiverged):
                raise
            failure = _without_place(f"{type(error).__name__}: {one_line(error)}", place)
            ledger.write(job, Record("failed", failure=failure, made=describe_environment() | measured()))
            return failure
        finally:
            torch.set_num_threads(usual)
    told = (f"{words} {result[key]:.4g}" for key, words in TOLD.items() if key in result)
    return next(told, "done")


def _locks(place: Place) -> Path:
    return place.root / "locks"


def _refuse_other_folders(job: Job, records: Path, place: Place) -> None:
    """The sweep has made these; a worker that does not see them is on a machine that does not share them."""
    folders = {_locks(place): "--work", records: "--records"}
    if job.data is not None:
        folders[place.data(job.data)] = "--work"
    for folder, option in folders.items():
        if not folder.is_dir():
            raise DataError(
                f"the worker on {socket.gethostname()} does not see {folder}. Workers need the same folders at the "
                f"same paths: share it with that machine, or name one that all of them see with {option}"
            )


def _cpu_seconds() -> float:
    """Of this process so far, and of those it has started and seen end: unlike wall time, whatever else runs here."""
    return sum(os.times()[:4])


def _keep_unfinished(job: Training, ledger: Ledger, place: Place) -> None:
    """How far a training has come, for those who wait for it; the next call goes on with it."""
    curve = job.curve(place)
    if curve:
        result = {"curve": curve, "epochs": job.epochs(place)}
        ledger.write(job, Record("unfinished", result, made=describe_environment()))


def _without_place(text: str, place: Place) -> str:
    """A record goes around the world; the folders of this machine stay here."""
    text = text.replace(f"{place.root.resolve()}/", "").replace(f"{place.root}/", "")
    return ABSOLUTE.sub("", text)

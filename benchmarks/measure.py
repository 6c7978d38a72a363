"""How the benchmarks measure: in turns in one process, or alone in a fresh one; and how they keep what they found."""

from __future__ import annotations

import gc
import json
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import psutil
import torch

from flare.environment import describe_environment, peak_memory_mb
from flare.files import write_json

RESULTS = Path(__file__).parent / "results"
CLOCKS: dict[int, Callable[[], float]] = {1: time.process_time, 2: time.perf_counter}
"""Threads -> clock: CPU time of one thread, which a busy neighbour hardly touches, and the wall time of two."""


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


def interleaved(calls: Mapping[str, Callable[[], Any]], rounds: int, clock: Callable[[], float]) -> dict[str, float]:
    """Median seconds of each call, taken in turns, so that a change of speed meets all alike. They are warm already."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    with no_collection():
        for _ in range(rounds):
            for name, call in calls.items():
                begin = clock()
                call()
                taken[name].append(clock() - begin)
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


def alone(function: Callable[..., Any], *arguments: Any) -> Any:
    """What the function returns in a process of its own, whose peak of memory is then its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def peak_above(call: Callable[[], Any]) -> float:
    """MiB that the call needs at its peak beyond what the process held before. For a fresh process."""
    gc.collect()
    with suppress(OSError):  # starting up may have needed more than is held now: forget that peak, where one can
        Path("/proc/self/clear_refs").write_text("5")
    before = peak_memory_mb()
    call()
    return peak_memory_mb() - before


def others_percent() -> float:
    """Of the processors' time, taken by others now. Threads that wait for each other suffer more than their share."""
    percent = psutil.cpu_percent(1.0)
    if percent > 10:
        print(f"This machine is busy with other things ({percent:.0f} %): do not believe the times of two threads")
    return percent


def gigabytes(mebibytes: float) -> float:
    return mebibytes * 2**20 / 1e9


def save(name: str, record: Mapping[str, Any], folder: Path) -> None:
    path = folder / f"{name}.json"
    facts = describe_environment()
    if not _code_differs():
        facts["commit"] = facts["commit"].rstrip("+")
    write_json(path, {"environment": facts, **record})
    print(f"Kept in {path}")


def _code_differs() -> bool:
    """From the commit, beyond the records: one run writes several, and the first must not make the next look dirty."""
    git = ["git", "-C", str(RESULTS.parent), "diff", "--quiet", "HEAD", "--", ":/", ":(exclude,top)benchmarks/results"]
    try:
        return subprocess.run(git, capture_output=True, check=False).returncode != 0
    except OSError:
        return True


def load(name: str, folder: Path = RESULTS) -> dict[str, Any] | None:
    """A record, or None where there is none."""
    path = folder / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

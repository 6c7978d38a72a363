"""How the benchmarks measure: in turns in one process, or alone in a fresh one; and how they keep what they found."""

from __future__ import annotations

import json
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil

from flare.train.profiling import gc_paused as gc_paused
from flare.train.profiling import peak_above as peak_above
from flare.train.profiling import run_isolated as run_isolated
from flare.train.profiling import threads as threads
from flare.utils.environment import describe_environment
from flare.utils.files import write_json

RESULTS = Path(__file__).parent / "results"
DOCS = Path(__file__).parents[1] / "docs"
PERFORMANCE, VALIDATION = (DOCS / "benchmarks" / f"{name}.md" for name in ("performance", "validation"))
"""Pages with the tables of these scripts."""
IMAGES = DOCS / "images"
CLOCKS: dict[int, Callable[[], float]] = {1: time.process_time, 2: time.perf_counter}
"""Threads -> clock: CPU time of one thread, which a busy neighbour hardly touches, and the wall time of two."""


def interleaved(calls: Mapping[str, Callable[[], Any]], rounds: int, clock: Callable[[], float]) -> dict[str, float]:
    """Median seconds of each call, taken in turns, so that a change of speed meets all alike. They are warm already."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    with gc_paused():
        for _ in range(rounds):
            for name, call in calls.items():
                begin = clock()
                call()
                taken[name].append(clock() - begin)
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


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

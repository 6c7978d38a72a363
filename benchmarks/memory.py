"""Memory of a training step, native against eager; and how its time and memory grow up to a million points.

    .venv/bin/python benchmarks/memory.py              about 5 minutes; wants 16 GB
    .venv/bin/python benchmarks/memory.py --quick      small sizes, to try out

Every number comes from a fresh process: the peak during forward and backward, above what it held before. The mixer is
also shown as `reference`, which writes its scores out: what the others avoid.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from contenders import SIZES, Size, make
from flare.mixer import native
from flare.train.profiling import power_law_exponent
from flare.utils.environment import peak_memory_mb
from measure import RESULTS, gc_paused, gigabytes, others_percent, peak_above, run_isolated, save, threads

CONTENDERS = {"mixer": ("reference", "eager", "native"), "model": ("eager", "native")}
POINTS = (10_000, 31_600, 100_000, 316_000, 1_000_000)
LIMIT_GB = 16
Row = dict[str, Any]


def peak_of_step(level: str, size: Size, contender: str) -> float:
    """MiB of one training step, after a small one has loaded all that is loaded once."""
    with threads(2):
        make(level, replace(size, batch=1, points=64), contender, training=True)()
        return peak_above(make(level, size, contender, training=True))


def time_steps(size: Size, steps: int) -> Row:
    """Median wall time of some training steps of the native model, with the peaks of the step and of the process."""
    with threads(2):
        make("model", replace(size, points=1000), "native", training=True)()
        step, seconds = make("model", size, "native", training=True), []

        def timed() -> None:
            for _ in range(steps):
                begin = time.perf_counter()
                step()
                seconds.append(time.perf_counter() - begin)

        with gc_paused():
            peak = peak_above(timed)
    return {"seconds": statistics.median(seconds), "steps": steps, "peak_mb": peak, "process_mb": peak_memory_mb()}


def compare(names: Sequence[str]) -> list[Row]:
    print("Peak memory of one training step ...")
    print(f"{'':<18} {'variant':<10} {'MiB':>9} {'of eager':>9}")
    rows: list[Row] = []
    for level, contenders in CONTENDERS.items():
        # A reference mixer of 100k points would take tens of GB.
        for name in [name for name in names if level == "model" or name != "100k"]:
            peaks = {contender: run_isolated(peak_of_step, level, SIZES[name], contender) for contender in contenders}
            for contender, peak in peaks.items():
                share = peak / peaks["eager"]
                print(f"{level:<6} {name:<11} {contender:<10} {peak:9.1f} {share:8.2f}x", flush=True)
                what = {"level": level, "size": name, "points": SIZES[name].points, "contender": contender}
                rows.append(what | {"peak_mb": peak, "of_eager": share})
    return rows


def scale(points: Sequence[int]) -> Row:
    """The native model's training step at growing N."""
    print("\nOne training step of the native model, 8 blocks, C = 64, M = 128, 2 threads ...")
    print(f"{'points':>9} {'seconds':>9} {'µs/point':>9} {'step MiB':>9} {'process MiB':>12}")
    rows = []
    for n in points:
        row = {"points": n} | run_isolated(time_steps, replace(SIZES["100k"], points=n), max(1, min(7, 300_000 // n)))
        each = 1e6 * row["seconds"] / n
        print(f"{n:9,} {row['seconds']:9.3f} {each:9.2f} {row['peak_mb']:9.0f} {row['process_mb']:12.0f}", flush=True)
        rows.append(row)
    exponent = power_law_exponent([r["points"] for r in rows], [r["seconds"] for r in rows])
    print(f"Time grows as N to the power {exponent:.3f}")
    largest = rows[-1]
    fits = gigabytes(largest["process_mb"]) < LIMIT_GB
    print(f"{largest['points']:,} points stayed {'below' if fits else 'ABOVE'} {LIMIT_GB} GB")
    return {"scaling": rows, "exponent": exponent, "limit_gb": LIMIT_GB, "largest_fits": fits}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the first size and two small N, to try out")
    parser.add_argument("--out", type=Path, help="folder of the record; by default only a whole run is kept")
    chosen = parser.parse_args(arguments)
    native.require()
    record: Row = {"others_percent": others_percent()}
    record |= {"steps": compare(list(SIZES)[:1] if chosen.quick else list(SIZES))}
    record |= scale(POINTS[:2] if chosen.quick else POINTS)
    out = chosen.out or (None if chosen.quick else RESULTS)
    if out:
        save("memory", record, out)


if __name__ == "__main__":
    main()

"""Native kernels against eager PyTorch and torch.compile: residual MLP, mixer, block, model; inference and training.

    .venv/bin/python benchmarks/native.py                        everything, about 20 minutes on two cores
    .venv/bin/python benchmarks/native.py --only model Darcy     a part of it
    .venv/bin/python benchmarks/native.py --quick                Elasticity, a few rounds, nothing compiled

All variants take turns in one process and have the same weights; times are medians: CPU time with one thread, wall
time with two. A training step is forward and backward. `operations.py` defines GFLOP/s. `of peak` is the time
that work would take at the machine's peak, which is measured first (`peak.py`), over the time it took.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import peak
from contenders import LEVELS, SIZES, Call, difference, make, work_of
from flare.mixer import native
from measure import CLOCKS, RESULTS, interleaved, others_percent, save, threads
from operations import Work

MODES = ("inference", "training step")
Row = dict[str, Any]


def compare(level: str, name: str, mode: str, rounds: int | None, compiled: bool, peaks: list[Row]) -> list[Row]:
    """Return one row per number of threads and variant."""
    size, training = SIZES[name], mode == MODES[1]
    compiled = compiled and size.compiled and level in ("block", "model")  # the parts are compiled within these
    contenders = ("eager", "compiled", "native") if compiled else ("eager", "native")
    if compiled:
        torch._dynamo.reset()  # what was compiled for another size would count as a reason to compile no more
    calls = {contender: make(level, size, contender, training=training) for contender in contenders}
    work = work_of(level, size, training=training)
    rounds = rounds or size.rounds * (1 if level == "model" else 2)
    rows = []
    for machine in peaks:
        count = machine["threads"]
        what = {"level": level, "size": name, "mode": mode, "threads": count, "rounds": rounds}
        with threads(count):
            off, failed = warm_up(calls)
            able = {contender: call for contender, call in calls.items() if contender in off}
            seconds = interleaved(able, rounds, CLOCKS[count])
        for contender, taken in seconds.items():
            ratio = {"seconds": taken, "ratio": seconds["eager"] / taken, "difference": off[contender]}
            rows.append(what | {"contender": contender} | ratio | achieved(work, taken, machine))
        rows += [what | {"contender": contender, "failed": reason} for contender, reason in failed.items()]
    return rows


def warm_up(calls: dict[str, Call]) -> tuple[dict[str, float], dict[str, str]]:
    """Call each once: how far its answer is from eager's, and why a compiled one does not run here."""
    off, failed = {}, {}
    answer: Sequence[Tensor] | None = None
    for contender, call in calls.items():  # eager is the first
        try:
            mine = call()
        except Exception as error:
            if contender != "compiled":
                raise
            failed[contender] = f"{type(error).__name__}: {error}"
            continue
        answer = answer or mine
        off[contender] = difference(mine, answer)
    return off, failed


def achieved(work: Work, seconds: float, machine: Row) -> Row:
    gflops, gexps = work.flops / seconds / 1e9, work.exps / seconds / 1e9
    shares = {"gflops_share": gflops / machine["gflops"], "gexps_share": gexps / machine["gexps"]}
    # Both kinds of work want the same vector units, so their shares of the time add up.
    return {"gflops": gflops, "gexps": gexps} | shares | {"of_peak": sum(shares.values())}


def show(row: Row) -> None:
    head = f"{row['level']:<13} {row['size']:<11} {row['mode']:<14} {row['contender']:<9} {row['threads']}"
    if "failed" in row:
        print(f"{head}  failed: {row['failed'].splitlines()[0]}", flush=True)
        return
    times = f"{1e3 * row['seconds']:10.2f} {row['ratio']:9.2f}x"
    print(f"{head} {times} {row['gflops']:9.1f} {row['gexps']:7.2f} {row['of_peak']:8.0%}", flush=True)


def options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [*LEVELS, *SIZES]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--rounds", type=int, help="of every comparison; by default fewer where a step takes long")
    parser.add_argument("--quick", action="store_true", help="the first size, 3 rounds, nothing compiled, to try out")
    parser.add_argument("--out", type=Path, help="folder of the records; by default only a whole run is kept")
    chosen = parser.parse_args(arguments)
    chosen.levels = [name for name in LEVELS if name in chosen.only] or list(LEVELS)
    chosen.sizes = [name for name in SIZES if name in chosen.only] or list(SIZES)
    if chosen.quick:
        chosen.sizes, chosen.rounds = chosen.sizes[:1], chosen.rounds or 3
    elif chosen.only == names:
        chosen.out = chosen.out or RESULTS
    return chosen


def main(arguments: list[str] | None = None) -> None:
    chosen = options(arguments)
    native.require()
    busy = others_percent()
    peaks = peak.report()
    print("\nNative kernels against eager PyTorch, in turns ...")
    print(f"{'':<42} threads {'ms':>10} {'vs eager':>10} {'GFLOP/s':>9} {'Gexp/s':>7} {'of peak':>8}")
    rows = []
    for name in chosen.sizes:
        for level in chosen.levels:
            for mode in MODES:
                new = compare(level, name, mode, chosen.rounds, not chosen.quick, peaks)
                for row in new:
                    show(row)
                rows += new
                gc.collect()  # the next one finds all memory free
    if chosen.out:
        save("peak", {"rows": peaks}, chosen.out)
        sizes = {name: asdict(SIZES[name]) for name in chosen.sizes}
        save("native", {"others_percent": busy, "sizes": sizes, "rows": rows}, chosen.out)


if __name__ == "__main__":
    main()

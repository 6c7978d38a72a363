"""The planner against the truth: what it foretells of settings it was not calibrated on, and what they then need.

    .venv/bin/python benchmarks/plan.py                some 15 minutes
    .venv/bin/python benchmarks/plan.py --quick        small sizes, to try out

Every truth is measured in a process of its own, with one thread.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from flare import plan
from flare.plan import Calibration, Setting, calibrate
from measure import RESULTS, save

MODEL = {"name": "flare", "channels": 64, "heads": 8, "blocks": 8, "latents": 128}
BASES = {
    "training": Setting(model=MODEL, points=1),
    "training, blocks computed anew": Setting(model=MODEL, points=1, recompute=True),
    "prediction": Setting(model=MODEL, points=1, training=False),
}
CASES = [
    ("training", 100_000, 1, 8, 128),
    ("training", 200_000, 1, 4, 64),
    ("training", 30_000, 4, 6, 256),
    ("training", 8_000, 2, 12, 32),
    ("training", 300_000, 1, 2, 512),
    ("training, blocks computed anew", 200_000, 1, 8, 128),
    ("prediction", 500_000, 1, 8, 128),
    ("prediction", 100_000, 2, 4, 1024),
]
"""Kind, points, batch, blocks, latents."""
MEMORY, TIME = 0.15, 0.30
"""How far the planner may be off."""


def run(shrink: int) -> dict[str, Any]:
    calibrations: dict[str, Calibration] = {}
    rows = []
    print(
        f"{'planned / measured':<32} {'points':>9} {'batch':>6} {'blocks':>6} {'latents':>8} {'memory':>8} {'time':>8}"
    )
    for kind, points, batch, blocks, latents in CASES:
        base = BASES[kind]
        if kind not in calibrations:
            calibrations[kind] = calibrate(base, print)
        model = MODEL | {"blocks": blocks, "latents": latents}
        setting = replace(base, model=model, points=max(1, points // shrink), batch=batch)
        planned, truth = calibrations[kind].predict(setting), plan.measure(setting)
        ratios = {"memory": planned.memory_mb / truth.memory_mb, "time": planned.seconds / truth.seconds}
        sizes = f"{setting.points:9,} {batch:6} {blocks:6} {latents:8}"
        print(f"{kind:<32} {sizes} {ratios['memory']:8.2f} {ratios['time']:8.2f}", flush=True)
        row = {"kind": kind, "points": setting.points, "batch": batch, "blocks": blocks, "latents": latents}
        row |= {"memory_mb": truth.memory_mb, "seconds": truth.seconds, **ratios}
        rows.append(row)
    holds = all(abs(r["memory"] - 1) < MEMORY and abs(r["time"] - 1) < TIME for r in rows)
    print(f"{'All' if holds else 'NOT all'} within {MEMORY:.0%} of the memory and {TIME:.0%} of the time")
    return {"rows": rows, "holds": holds}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a hundredth of the points, to try out")
    parser.add_argument("--out", type=Path, help="folder of the record; by default only a whole run is kept")
    chosen = parser.parse_args(arguments)
    if chosen.quick:
        plan.SMALL, plan.LARGE = 256, 1024
    os.environ["OMP_NUM_THREADS"] = "1"  # of the processes that are measured
    record = run(100 if chosen.quick else 1)
    out = chosen.out or (None if chosen.quick else RESULTS)
    if out:
        save("plan", record, out)


if __name__ == "__main__":
    main()

"""Compare predictions of the planner with measurements of workloads on which it was not calibrated.

    .venv/bin/python benchmarks/plan.py                about 13 minutes; the table goes into `PAGE`
    .venv/bin/python benchmarks/plan.py --quick        small sizes, to try it out
    .venv/bin/python benchmarks/plan.py --only ranks   rows of one kind, to try it out

Training steps and evaluations are measured by `flare train` on a small dataset for a few steps: the peak memory in
result.json, the seconds in metrics.jsonl. Predictions are measured in a process of their own. Every process has one
thread. The exit code is 1 if a prediction is too far off.
On processors whose AMX instructions fault, bf16 needs ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16.
"""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import yaml

from flare.models.streaming import CHUNK
from flare.train import planning
from flare.train.profiling import Usage, measure, profiling_run, usage_of_run
from flare.train.run_folder import RunFolder
from flare.train.workload import Workload, prediction_workload
from flare.utils.files import replace_between_marks
from measure import PERFORMANCE, RESULTS, gigabytes, load, save
from table import origin, table, three_digits

PAGE = PERFORMANCE
BEGIN, END = "<!-- plan table -->", "<!-- end of plan -->"

MODEL = {"name": "flare", "channels": 64, "heads": 8, "blocks": 8, "latents": 128}
RANKS = 2
BASE = Workload(model=MODEL, points=1)
KINDS = {
    "training": BASE,
    "training, blocks recomputed": replace(BASE, recompute=True),
    "training in bf16": replace(BASE, precision="bf16"),
    f"training on {RANKS} ranks, per rank": replace(BASE, shared="points"),
    "evaluation": replace(BASE, kind="evaluation"),
    "prediction in chunks": replace(BASE, kind="stream"),
}
TRAINING, RECOMPUTED, BF16, SPLIT, EVALUATION, CHUNKS = KINDS
CASES = [
    (TRAINING, 100_000, 1, 8, 128),
    (TRAINING, 200_000, 1, 4, 64),
    (TRAINING, 60_000, 1, 2, 64),
    (TRAINING, 30_000, 2, 6, 256),
    (TRAINING, 8_000, 2, 12, 32),
    (TRAINING, 1_000, 2, 8, 64),
    (TRAINING, 160_000, 1, 2, 512),
    (TRAINING, 2_000, 1, 4, 32_768),
    (RECOMPUTED, 60_000, 1, 8, 128),
    (BF16, 40_000, 1, 4, 64),
    (SPLIT, 50_000, 1, 4, 128),
    (EVALUATION, 200_000, 1, 8, 128),
    (EVALUATION, 100_000, 2, 4, 512),
    (CHUNKS, 300_000, 1, 4, 256),
]
"""Kind, points per rank, batch, blocks, latents."""
MEMORY, TIME = 0.15, 0.30
"""Largest relative error that is accepted."""


def run(shrink: int, only: str) -> dict[str, Any]:
    planner = planning.Planner()
    rows = []
    head = f"{'points':>9} {'batch':>6} {'blocks':>6} {'latents':>8} {'memory':>8} {'time':>8}"
    print(f"{'planned / measured':<32} {head}")
    for kind, points, batch, blocks, latents in CASES:
        if only not in kind:
            continue
        base = replace(KINDS[kind], points=max(1, points // shrink), batch=batch)
        if base.is_streamed:  # in memory or in a file, depending on its points
            base = prediction_workload(base, max(CHUNK + 1, base.points))
        planner.predict(base)  # calibrates with the blocks and latents of the base, not those of the row
        workload = replace(base, model=MODEL | {"blocks": blocks, "latents": latents})
        planned, truth = planner.predict(workload), measured(workload)
        ratios = {"memory": planned.memory_mb / truth.memory_mb, "time": planned.seconds / truth.seconds}
        sizes = f"{workload.points:9,} {batch:6} {blocks:6} {latents:8,}"
        print(f"{kind:<32} {sizes} {ratios['memory']:8.2f} {ratios['time']:8.2f}", flush=True)
        row = {"kind": kind, "points": workload.points, "batch": batch, "blocks": blocks, "latents": latents}
        row |= {"memory_mb": truth.memory_mb, "seconds": truth.seconds, **ratios}
        rows.append(row)
    holds = all(abs(r["memory"] - 1) < MEMORY and abs(r["time"] - 1) < TIME for r in rows)
    print(f"{'All' if holds else 'NOT all'} within {MEMORY:.0%} of the memory and {TIME:.0%} of the time")
    return {"rows": rows, "holds": holds}


def measured(workload: Workload) -> Usage:
    """Measure a workload by `flare train`, on real ranks if they share something, or a prediction directly."""
    if not workload.is_in_run:
        return measure(workload)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = profiling_run(workload, folder / "data", ranks=RANKS if workload.shared else 1, batches=2)
        (folder / "settings.yaml").write_text(yaml.safe_dump(config.to_dict()), encoding="utf-8")
        launch = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS), "-m"]
        words = ["train", "--preset", str(folder / "settings.yaml"), "--out", str(folder / "run"), "--no-report"]
        command = [sys.executable, "-m", *(launch if workload.shared else []), "flare", *words, "--no-memory-check"]
        threads = {"OMP_NUM_THREADS": str(torch.get_num_threads())}
        done = subprocess.run(command, env=os.environ | threads, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
        return usage_of_run(RunFolder(folder / "run"), workload)


def tables(record: dict[str, Any]) -> str:
    head = ["planned for", "points", "batch", "blocks", "latents", "GB", "seconds", "planned / measured memory", "time"]
    rows = []
    for row in record["rows"]:
        sizes = [f"{row[key]:,}" for key in ("points", "batch", "blocks", "latents")]
        truth = [three_digits(gigabytes(row["memory_mb"])), three_digits(row["seconds"])]
        rows.append([row["kind"], *sizes, *truth, f"{row['memory']:.2f}", f"{row['time']:.2f}"])
    worst = {key: max(abs(row[key] - 1) for row in record["rows"]) for key in ("memory", "time")}
    verdict = f"Off by at most {worst['memory']:.0%} of the memory and {worst['time']:.0%} of the time."
    return "\n\n".join([table(head, rows), verdict, origin(record)])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a hundredth of the points, to try it out")
    parser.add_argument("--only", default="", help="only rows whose kind contains this word")
    parser.add_argument("--out", type=Path, help="folder for the record; by default only a complete run is kept")
    chosen = parser.parse_args(arguments)
    if chosen.quick:
        planning.SMALL = (2**18, 2**18)
    torch.set_num_threads(1)  # also in the processes that are measured
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    record = run(100 if chosen.quick else 1, chosen.only)
    out = chosen.out or (None if chosen.quick or chosen.only else RESULTS)
    if out:
        save("plan", record, out)
    if out == RESULTS:
        replace_between_marks(PAGE, BEGIN, END, tables(load("plan", RESULTS) or {}))
    return 0 if record["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())

"""The planner against the truth: what it foretells of settings it was not calibrated on, and what they then need.

    .venv/bin/python benchmarks/plan.py                some 13 minutes; the table goes into docs/million.md
    .venv/bin/python benchmarks/plan.py --quick        small sizes, to try out
    .venv/bin/python benchmarks/plan.py --only ranks   rows of one kind, to try out

The truth of trainings and evaluations is that of `flare train` with a small dataset and few steps: the peak of its
result.json, the seconds of its metrics.jsonl. Predictions are tried in a process of their own. One thread each; exit
code 1 where the planner is too far off.
bf16 on processors whose AMX faults needs ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import yaml

from flare import plan
from flare.train.rehearsal import need_of, rehearsal
from flare.train.run_folder import RunFolder
from flare.trial import CHUNK, Need, Setting, prediction
from flare.utils.files import put_between
from measure import RESULTS, gigabytes, load, save
from table import origin, table, three_digits

PAGE = Path(__file__).parents[1] / "docs" / "million.md"
BEGIN, END = "<!-- plan table -->", "<!-- end of plan -->"

MODEL = {"name": "flare", "channels": 64, "heads": 8, "blocks": 8, "latents": 128}
RANKS = 2
BASE = Setting(model=MODEL, points=1)
KINDS = {
    "training": BASE,
    "training, blocks computed anew": replace(BASE, recompute=True),
    "training in bf16": replace(BASE, precision="bf16"),
    f"training on {RANKS} ranks, of each": replace(BASE, shared="points"),
    "evaluation": replace(BASE, kind="evaluation"),
    "prediction in chunks": replace(BASE, kind="stream"),
}
TRAINING, ANEW, BF16, SPLIT, EVALUATION, CHUNKS = KINDS
CASES = [
    (TRAINING, 100_000, 1, 8, 128),
    (TRAINING, 200_000, 1, 4, 64),
    (TRAINING, 60_000, 1, 2, 64),
    (TRAINING, 30_000, 2, 6, 256),
    (TRAINING, 8_000, 2, 12, 32),
    (TRAINING, 1_000, 2, 8, 64),
    (TRAINING, 160_000, 1, 2, 512),
    (TRAINING, 2_000, 1, 4, 32_768),
    (ANEW, 60_000, 1, 8, 128),
    (BF16, 40_000, 1, 4, 64),
    (SPLIT, 50_000, 1, 4, 128),
    (EVALUATION, 200_000, 1, 8, 128),
    (EVALUATION, 100_000, 2, 4, 512),
    (CHUNKS, 300_000, 1, 4, 256),
]
"""Kind, points (of a rank), batch, blocks, latents."""
MEMORY, TIME = 0.15, 0.30
"""How far the planner may be off."""


def run(shrink: int, only: str) -> dict[str, Any]:
    planner = plan.Planner(tell=print)
    rows = []
    head = f"{'points':>9} {'batch':>6} {'blocks':>6} {'latents':>8} {'memory':>8} {'time':>8}"
    print(f"{'planned / measured':<32} {head}")
    for kind, points, batch, blocks, latents in CASES:
        if only not in kind:
            continue
        base = replace(KINDS[kind], points=max(1, points // shrink), batch=batch)
        if base.streams:  # in memory or in a file, as its points ask for
            base = prediction(base, max(CHUNK + 1, base.points))
        planner.need(base)  # calibrated with the blocks and latents of the base, not those of the row
        setting = replace(base, model=MODEL | {"blocks": blocks, "latents": latents})
        planned, truth = planner.need(setting), measured(setting)
        ratios = {"memory": planned.memory_mb / truth.memory_mb, "time": planned.seconds / truth.seconds}
        sizes = f"{setting.points:9,} {batch:6} {blocks:6} {latents:8,}"
        print(f"{kind:<32} {sizes} {ratios['memory']:8.2f} {ratios['time']:8.2f}", flush=True)
        row = {"kind": kind, "points": setting.points, "batch": batch, "blocks": blocks, "latents": latents}
        row |= {"memory_mb": truth.memory_mb, "seconds": truth.seconds, **ratios}
        rows.append(row)
    holds = all(abs(r["memory"] - 1) < MEMORY and abs(r["time"] - 1) < TIME for r in rows)
    print(f"{'All' if holds else 'NOT all'} within {MEMORY:.0%} of the memory and {TIME:.0%} of the time")
    return {"rows": rows, "holds": holds}


def measured(setting: Setting) -> Need:
    """By `flare train` where it is part of a training, on real ranks where these share something."""
    if not setting.in_a_run:
        return plan.measure(setting)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = rehearsal(setting, folder / "data", ranks=RANKS if setting.shared else 1, batches=2)
        (folder / "settings.yaml").write_text(yaml.safe_dump(config.to_dict()), encoding="utf-8")
        launch = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS), "-m"]
        words = ["train", "--preset", str(folder / "settings.yaml"), "--out", str(folder / "run"), "--report", "false"]
        command = [sys.executable, "-m", *(launch if setting.shared else []), "flare", *words, "--fit", "ignore"]
        threads = {"OMP_NUM_THREADS": str(torch.get_num_threads())}
        done = subprocess.run(command, env=os.environ | threads, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
        return need_of(RunFolder(folder / "run"), setting)


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
    parser.add_argument("--quick", action="store_true", help="a hundredth of the points, to try out")
    parser.add_argument("--only", default="", help="rows whose kind has this word in it")
    parser.add_argument("--out", type=Path, help="folder of the record; by default only a whole run is kept")
    chosen = parser.parse_args(arguments)
    if chosen.quick:
        plan.SMALL = (2**18, 2**18)
    torch.set_num_threads(1)  # of the processes that are measured, too
    record = run(100 if chosen.quick else 1, chosen.only)
    out = chosen.out or (None if chosen.quick or chosen.only else RESULTS)
    if out:
        save("plan", record, out)
    if out == RESULTS:
        put_between(PAGE, BEGIN, END, tables(load("plan", RESULTS) or {}))
    return 0 if record["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())

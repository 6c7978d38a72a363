"""Every solver in the forms people use: processor time per sample on one core, and the statistics of what it makes.

.venv/bin/python benchmarks/solvers.py            all, about ten minutes; the tables go into docs/benchmarks
.venv/bin/python benchmarks/solvers.py pipe       of one dataset, printed only
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from flare.data.benchmarks.cards import card
from flare.data.benchmarks.landmarks import landmarks
from flare.data.generation.generate import generate
from flare.physics import generator_class
from flare.utils.files import replace_between_marks
from measure import PERFORMANCE, RESULTS, VALIDATION, load, save
from table import origin, table, three_digits

COST = "<!-- solvers cost table -->", "<!-- end of solvers cost -->"
STATISTICS = "<!-- solvers statistics table -->", "<!-- end of solvers statistics -->"
FORMS: list[tuple[str, dict[str, Any], int]] = [
    ("darcy", {}, 50),
    ("darcy", {"grid": "node"}, 5),
    ("elasticity", {}, 200),
    ("elasticity", {"material": "rubber"}, 10),
    ("elasticity", {"fine": True}, 10),
    ("airfoil", {}, 50),
    ("airfoil", {"resolution": "half"}, 10),
    ("pipe", {}, 50),
    ("pipe", {"nodes": 65}, 10),
]
"""Dataset, options, samples. The benchmark's own form has no options and enough samples for statistics."""
BUDGET = {"darcy": 1.0, "elasticity": 0.2, "airfoil": 90.0, "pipe": 12.0}
"""Seconds that a sample of the benchmark's form may take."""


def measure(name: str, options: dict[str, Any], samples: int) -> dict[str, Any]:
    generator = generator_class(name)(**options)
    generator.sample(np.random.default_rng(0))  # compiled code and matrix patterns are made once
    with tempfile.TemporaryDirectory() as folder:
        dataset = generate(generator, Path(folder) / name, samples=samples, test_samples=0, seed=0)
        lines = (dataset.path / "making.jsonl").read_text(encoding="utf-8").splitlines()
        notes = (dataset.path / "samples.jsonl").read_text(encoding="utf-8").splitlines()
        taken = [json.loads(line)["seconds"] for line in lines]
        return {
            "dataset": name,
            "options": options,
            "samples": samples,
            "redrawn": sum("redrawn" in json.loads(line)["notes"] for line in notes),
            "median": statistics.median(taken),
            "most": max(taken),
            "landmarks": {} if options else landmarks(dataset),
        }


def tables(record: dict[str, Any]) -> tuple[str, str]:
    """Return the cost of a sample, and our statistics beside the published ones."""
    cost, known = [], []
    for row in record["rows"]:
        name, whole = row["dataset"], not row["options"]
        form = ", ".join(f"{key} {value}" for key, value in row["options"].items()) or "**as published**"
        budget = f"{BUDGET[name]:g}" if whole else "–"
        times = [three_digits(row["median"]), three_digits(row["most"])]
        cost.append([f"{name}, {form}", *times, budget, str(row["samples"]), str(row["redrawn"])])
        published = card(name).published
        for key, value in row["landmarks"].items():
            theirs = [f"{published[key].value:.4g}", published[key].source] if key in published else ["–", "–"]
            known.append([f"{name}: {key}".replace("|", "\\|"), f"{value:.4g}", *theirs])
    head = ["Seconds per sample, one core", "median", "most", "limit", "samples", "redrawn"]
    beside = ["Statistic", "ours", "published", "source"]
    return f"{table(head, cost)}\n\n{origin(record)}", f"{table(beside, known)}\n\n{origin(record)}"


def main(names: list[str]) -> None:
    rows = []
    for name, options, samples in FORMS:
        if names and name not in names:
            continue
        rows.append(measure(name, options, samples))
        form = ", ".join(f"{key}={value}" for key, value in options.items()) or "as published"
        print(f"{name:<12} {form:<20} {rows[-1]['median']:8.3f} s a sample, at most {rows[-1]['most']:.3f}", flush=True)
        for key, value in rows[-1]["landmarks"].items():
            print(f"{'':<12} {key}: {value:.4g}", flush=True)
    if not names:
        save("solvers", {"rows": rows}, RESULTS)
        cost, known = tables(load("solvers") or {})
        replace_between_marks(PERFORMANCE, *COST, cost)
        replace_between_marks(VALIDATION, *STATISTICS, known)


if __name__ == "__main__":
    main(sys.argv[1:])

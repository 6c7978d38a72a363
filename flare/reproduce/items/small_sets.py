"""FLARE on a small dataset of each benchmark, generated and trained in minutes, beside the training-mean field.

Datasets and models are smaller than the paper's, so that two cores are enough. Finished datasets and runs are reused.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flare.data.generation.generate import departures, generate, seconds_of_making
from flare.physics import generator_class
from flare.reproduce.tables import Table, facts_table
from flare.train.presets import build_config, merged, preset_path, read_yaml
from flare.train.run import start_or_resume
from flare.utils.files import write_json
from flare.utils.text import duration

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SmallSet:
    """A small dataset of a benchmark and the settings of its training."""

    samples: int
    test: int
    epochs: int
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the generator."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the training in place of the preset's."""


SETS = {
    # In few steps FLARE learns several times as much from points between -1.7 and 1.7 as from points between 0 and 1.
    "elasticity": SmallSet(1100, 100, 20, settings={"data.normalise.points": "gaussian", "data.batch_size": 4}),
    "darcy": SmallSet(600, 100, 12, {"resolution": 43}),
    # The error falls only after thousands of steps. Some of the points are enough.
    "airfoil": SmallSet(300, 50, 160, {"resolution": "half"}, {"data.subsample": 1000}),
    "pipe": SmallSet(300, 50, 25, {"nodes": 65}),
}
SETTINGS = [
    ("model.blocks", 4),
    ("model.heads", 8),
    ("model.latents", 32),
    ("model.kv_depth", 1),
    ("model.ffn_depth", 1),
    ("optim.lr", 2e-3),
]
"""Settings of every training in place of the preset's."""
BEGIN, END = "<!-- small sets table -->", "<!-- end of small sets -->"


def run(out: Path, *, names: Iterable[str] | None = None, workers: int = 2) -> str:
    """Generate datasets, train, and store the rows in `table.json`, with those of earlier calls.

    Args:
        out: Folder of data, runs and table.
        names: Names in `SETS`. None: all.
        workers: Processes that generate data.

    Returns:
        The table as Markdown.
    """
    for name in names or SETS:
        small = SETS[name]
        logger.info("%s: %d samples, %d epochs", name, small.samples, small.epochs)
        generator = generator_class(name)(**small.options)
        data = generate(
            generator, out / "data" / name, samples=small.samples, test_samples=small.test, seed=0, workers=workers
        )
        overrides = [*SETTINGS, *small.settings.items(), ("data.path", str(data.path)), ("epochs", small.epochs)]
        config = build_config(merged(read_yaml(preset_path(name)), overrides), f"the small set of {name}")
        result = start_or_resume(config, out / "runs" / name)
        row = {
            "dataset": data.schema.name,
            "options": departures(generator),
            "points": int(data.sizes[0]),
            "train": result["train_samples"],
            "test": result["test_samples"],
            "epochs": result["epochs"],
            "making": seconds_of_making(data),
            "training": result["seconds"],
            "rel_l2": result["rel_l2"],
            "mean_field": result["rel_l2_mean_field"],
            "environment": dict(result["environment"]),
        }
        keep(out / "table.json", row)
    return table(json.loads((out / "table.json").read_text(encoding="utf-8")))


def keep(path: Path, row: Mapping[str, Any]) -> None:
    """Store a row, replacing an earlier one of its dataset, in the order of `SETS`."""
    rows = {row["dataset"]: row}
    if path.exists():
        rows = {r["dataset"]: r for r in json.loads(path.read_text(encoding="utf-8"))["rows"]} | rows
    write_json(path, {"rows": [rows[name] for name in SETS if name in rows]})


def table(record: Mapping[str, Any]) -> str:
    """Return the table of errors and the machine as Markdown."""
    head = (
        *("dataset", "options", "points", "train, test", "epochs", "generation, one core", "training"),
        *("rel-L2", "mean field", "mean field / ours"),
    )
    rows = [
        (
            *(row["dataset"], ", ".join(f"{key} {value}" for key, value in row["options"].items()) or "as published"),
            *(f"{row['points']:,}", f"{row['train']}, {row['test']}", f"{row['epochs']}"),
            *(duration(row["making"]), duration(row["training"])),
            *(f"{row['rel_l2']:.4f}", f"{row['mean_field']:.4f}", f"{row['mean_field'] / row['rel_l2']:.1f}"),
        )
        for row in record["rows"]
    ]
    made = record["rows"][-1]["environment"]
    facts = {key: made[key] for key in ("processor", "memory", "torch", "commit")} | {"seed": 0}
    return f"{Table(head, rows, text=2).markdown()}\n{facts_table(facts).markdown()}"

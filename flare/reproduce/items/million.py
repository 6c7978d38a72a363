"""Blocks × latents at a million points (Figure 5): time and memory of a step, and the error after a number of steps.

The data are Darcy flows on a grid of a million points unless a dataset is given. Every run has a process and a folder
of its own, and every row is stored in `million.json`. A stopped study resumes from this file.

With `subsample`, training steps use fewer points, drawn again in each step, because a CPU has no time for many steps
with all. The error is still that of all points, and time and memory are those of one step with all points.
"""

from __future__ import annotations

import json
import logging
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isqrt
from pathlib import Path
from typing import Any

from flare.data.dataset import Dataset
from flare.data.generation.generate import generate
from flare.report.page import png
from flare.reproduce.analyses import Experiment
from flare.reproduce.budgets import Budget
from flare.reproduce.figures import million_figure
from flare.reproduce.study import READ_OFF, Block, Cell, Item, Outcome, Picture
from flare.reproduce.tables import Table
from flare.train.config import TrainConfig
from flare.train.presets import build_config, merged, preset_path, read_yaml
from flare.train.profiling import measure, run_isolated
from flare.train.run import start_or_resume
from flare.train.run_folder import RunFolder
from flare.train.workload import Workload
from flare.utils.environment import gigabytes
from flare.utils.files import write_json

logger = logging.getLogger(__name__)

POINTS = 1_000_000
BLOCKS, LATENTS = (1, 2, 4, 8), (128, 512, 1024, 2048)
TRAIN, TEST = 8, 2
"""Number of generated samples."""
STEPS = 64
Row = dict[str, Any]


def run(
    folder: Path,
    *,
    data: Path | None = None,
    points: int = POINTS,
    blocks: Sequence[int] = BLOCKS,
    latents: Sequence[int] = LATENTS,
    steps: int = STEPS,
    subsample: int | None = None,
    precision: str = "32",
    constants: bool = False,
    limit_seconds: float = 3600.0,
) -> dict[str, Any]:
    """Train all models, or resume.

    Args:
        folder: Folder of data, runs and rows.
        data: Dataset folder. None: Darcy flows are generated.
        points: Points of the generated flows.
        blocks: Numbers of blocks.
        latents: Numbers of latents.
        steps: Training steps of each model.
        subsample: Points of a training step. None: all.
        precision: Precision of training.
        constants: Normalize by the published constants of DrivAerML instead of the training samples.
        limit_seconds: Runs that are predicted to take longer are skipped.

    Returns:
        The settings, one row per model, and the models that were skipped.
    """
    path = folder / "million.json"
    rows: list[Row] = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
    skipped = []
    dataset = Dataset(data) if data else _darcy(folder / "data", points)
    about = {
        "data": dataset.schema.name,
        "points": int(dataset.sizes.max()),
        "fingerprint": dataset.fingerprint,
        "samples": [len(dataset.split(name)) for name in ("train", "test")],
        "steps": steps,
        "subsample": subsample,
        "precision": precision,
        "constants": constants,
    }
    done = {(row["blocks"], row["latents"]) for row in rows}
    for b, m in ((b, m) for b in sorted(blocks) for m in sorted(latents) if (b, m) not in done):
        expected = _seconds_of(b, m, rows) * steps * min(1.0, (subsample or math.inf) / about["points"])
        if expected > limit_seconds:
            logger.info("%d blocks, %d latents: skipped, predicted %.0f s exceed limit_seconds", b, m, expected)
            skipped.append({"blocks": b, "latents": m, "seconds": expected})
            continue
        logger.info("%d blocks, %d latents", b, m)
        run_folder = folder / "runs" / f"blocks-{b}-latents-{m}"
        config = _config(dataset, b, m, about)
        result = run_isolated(start_or_resume, config, run_folder, {"data.path"})  # data and run may have been moved
        cost = _cost_of_training(result, run_folder) if subsample is None else _cost_of_a_step(dataset, config)
        errors = {"rel_l2": result["rel_l2"], "mean_field": result["rel_l2_mean_field"]}
        rows.append({"blocks": b, "latents": m, "parameters": result["parameters"], **cost, **errors})
        write_json(path, {"rows": rows})
    rows.sort(key=lambda row: (row["blocks"], row["latents"]))
    return about | {"rows": rows, "left_out": skipped, "limit_seconds": limit_seconds}


def _darcy(path: Path, points: int) -> Dataset:
    from flare.physics.darcy import Darcy

    generator = Darcy(resolution=isqrt(points - 1) + 1, stride=1, grid="node")
    return generate(generator, path, samples=TRAIN + TEST, test_samples=TEST)


def _config(dataset: Dataset, blocks: int, latents: int, about: Mapping[str, Any]) -> TrainConfig:
    """Return the settings of a run: the recipe of the preset with this model."""
    train, steps = len(dataset.split("train")), about["steps"]
    overrides = [
        ("data.path", str(dataset.path)),
        *([] if about["constants"] else [("data.normalize", {})]),
        ("data.subsample", about["subsample"]),
        ("model.blocks", blocks),
        ("model.latents", latents),
        ("precision", about["precision"]),
        ("epochs", steps // train),
        ("evaluate_every", steps // train),
        ("log_every", 1),
    ]
    return build_config(merged(read_yaml(preset_path("drivaer-1m")), overrides), "the study at a million points")


def _cost_of_training(result: Mapping[str, Any], folder: Path) -> Row:
    steps = [1 / r["samples_per_second"] for r in RunFolder(folder).records() if r["kind"] == "train"]
    return {"seconds": statistics.median(steps), "peak_mb": result["peak_memory_mb"]}


def _cost_of_a_step(dataset: Dataset, config: TrainConfig) -> Row:
    """Measure one step on all points."""
    schema, points = dataset.schema, int(dataset.sizes.max())
    need = measure(Workload(model=config.model, in_dim=schema.in_dim, out_dim=schema.out_dim, points=points))
    return {"seconds": need.seconds, "peak_mb": need.memory_mb}


def _seconds_of(blocks: int, latents: int, rows: Sequence[Row]) -> float:
    """Bound the seconds of a step by those of smaller models: time grows at most linearly in blocks and latents."""
    known = [row for row in rows if row["blocks"] <= blocks and row["latents"] <= latents]
    return min((row["seconds"] * blocks / row["blocks"] * latents / row["latents"] for row in known), default=0.0)


def million_table(record: Mapping[str, Any], *, paper: bool = False) -> Table:
    """Build a table with one row per model.

    Args:
        record: Record of the study.
        paper: Add the time and memory of the paper's GPU, and its error for a study in its setting.
    """
    head = ["blocks", "latents", "parameters", "seconds per step", "GB", "rel-L2", "mean field"]
    errors = paper and not [row for row in _setting_rows(record) if row[1] != row[2]]
    head += ["paper, H100: seconds per step (read off the figure)", "paper, H100: GB (read off the figure)"] * paper
    head += [READ_OFF] * errors
    rows = []
    for row in record["rows"]:
        cells = [f"{row['blocks']}", f"{row['latents']}", f"{row['parameters']:,}", f"{row['seconds']:.2f}"]
        cells += [f"{gigabytes(row['peak_mb']):.2f}", f"{row['rel_l2']:.4f}", f"{row['mean_field']:.4f}"]
        if paper:
            place = BLOCKS.index(row["blocks"])
            cells += [f"{PAPERS_EPOCH[row['latents']][place] / STEPS_OF_AN_EPOCH:.2f}", f"{PAPERS_GB[place]}"]
        if errors:
            cells.append(f"{1e-3 * PAPER[row['latents']][place]:.4f}")
        rows.append(cells)
    return Table(head, rows, text=0)


def _skipped(record: Mapping[str, Any]) -> list[Table]:
    """Build a table of the models that were predicted to exceed the time limit; nothing if there are none."""
    rows = [(f"{r['blocks']}", f"{r['latents']}", f"{r['seconds']:,.0f}") for r in record["left_out"]]
    head = ("skipped: blocks", "latents", f"predicted seconds, limit {record['limit_seconds']:g}")
    return [Table(head, rows, text=0)] if rows else []


def _setting_rows(record: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return (setting, here, paper)."""
    samples = record.get("samples", [TRAIN, TEST])  # an older record of generated flows does not name them
    return [
        ("data", record["data"], "drivaerml"),
        ("samples (train + test)", "{} + {}".format(*samples), "{} + {}".format(*CARS_OF_THE_PAPER)),
        ("training steps", f"{record['steps']:,}", f"{STEPS_OF_THE_PAPER:,}"),
        ("points per training step", f"{record['subsample'] or record['points']:,}", f"{POINTS:,}"),
        ("precision", record["precision"], "16"),
        ("normalization", "published constants" if record["constants"] else "training samples", "published constants"),
    ]


CPU: dict[str, Any] = {"latents": (128, 512, 2048), "steps": 160, "subsample": 20_000}
SMOKE: dict[str, Any] = {"points": 144, "blocks": (1, 2), "latents": (4,), "steps": 8}
CARS_OF_THE_PAPER = 387, 97
"""Number of training and test samples."""
STEPS_OF_AN_EPOCH = CARS_OF_THE_PAPER[0]
STEPS_OF_THE_PAPER = 500 * STEPS_OF_AN_EPOCH
SECONDS = {"smoke": 30.0, "cpu": 15_000.0, "paper": STEPS_OF_THE_PAPER * 600.0}
"""Budget -> estimated core seconds."""
PAPER = {
    128: (212, 14.6, 8.1, 6.5),
    512: (39.8, 14.2, 8.5, 6.0),
    1024: (44.0, 13.9, 9.7, 8.1),
    2048: (39.5, 15.0, 7.5, 6.1),
}
"""Latents -> errors in thousandths of 1, 2, 4 and 8 blocks on DrivAerML, read off the paper's figure."""
PAPERS_EPOCH = {
    128: (34, 55, 100, 186),
    512: (36, 63, 113, 216),
    1024: (41, 71, 131, 251),
    2048: (52, 95, 177, 343),
}
"""Latents -> seconds of an epoch of 387 steps on one H100, read off the figure."""
PAPERS_GB = (5.9, 9.8, 17.8, 33.7)
"""Memory there, for any number of latents."""


def cells(budget: Budget) -> list[Cell]:
    """List one study: 500 epochs of 387 cars in budget `paper`, Darcy flows in the others, which are quickly made."""
    if budget.name == "paper":
        published = budget.scales["cars"].data.published
        options = {"size": "1m"} if published else {"points": POINTS}
        cars = replace(budget.scales["cars"].data, options=options)
        long = {"steps": 500 * (cars.samples - cars.test), "limit_seconds": 1e9, "precision": "16"}
        # The published constants fit the published cars only.
        long |= {"constants": True} if published else {}
        return [Cell(("blocks-latents",), Experiment("million", long, SECONDS["paper"], cars))]
    short = {"smoke": SMOKE, "cpu": CPU}[budget.name]
    return [Cell(("blocks-latents",), Experiment("million", short, SECONDS[budget.name]))]


def report(found: Sequence[Outcome], budget: Budget) -> list[Block]:
    record = found[0].result
    if not record:
        return []
    models = million_table(record, paper=record["points"] == POINTS)
    settings = Table(("setting", "here", "paper"), _setting_rows(record), text=3)
    caption = "Error, time and memory over blocks, by latents."
    figure = Picture("blocks-latents", caption, png(million_figure(record)))
    return ["One row per model:", models, *_skipped(record), "Settings:", settings, figure]


ITEM = Item("million", "Blocks × latents at a million points", cells, report, "Figure 5")

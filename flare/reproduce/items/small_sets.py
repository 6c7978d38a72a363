"""FLARE on a small set of each benchmark: made by our solvers, trained in minutes, beside the training-mean field.

Sets and models are smaller than the paper's, so that two cores are enough; what is finished is not done again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from flare.data.dataset import Dataset
from flare.data.generation.generate import departures, generate, seconds_of_making
from flare.physics import generator_class
from flare.train.presets import build_config, merged, preset_path, read_yaml
from flare.train.run import start_or_resume
from flare.utils.files import write_json
from flare.utils.text import duration


@dataclass(frozen=True)
class Case:
    """A small set of a benchmark, and how to learn it."""

    samples: int
    test: int
    epochs: int
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of the generator."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of the training, in place of the preset's."""


CASES = {
    # Points from -1.7 to 1.7 rather than 0 to 1: a short training learns several times as much of it.
    "elasticity": Case(1100, 100, 20, settings={"data.normalise.points": "gaussian", "data.batch_size": 4}),
    "darcy": Case(600, 100, 12, {"resolution": 43}),
    # Slow to begin: it takes thousands of steps before the shape of the section matters. Some of the points are enough.
    "airfoil": Case(300, 50, 160, {"resolution": "half"}, {"data.subsample": 1000}),
    "pipe": Case(300, 50, 25, {"nodes": 65}),
}
SETTINGS = [
    ("model.blocks", 4),
    ("model.heads", 8),
    ("model.latents", 32),
    ("model.kv_depth", 1),
    ("model.ffn_depth", 1),
    ("optim.lr", 2e-3),
]
"""Of every training, in place of the preset's."""


@dataclass(frozen=True)
class Row:
    dataset: str
    options: Mapping[str, Any]
    """Of the generator."""
    points: int
    train: int
    test: int
    epochs: int
    making: float
    """Processor seconds of the solver, for all samples."""
    training: float
    """Seconds."""
    rel_l2: float
    mean_field: float


HEAD = [
    *("dataset", "options", "points", "train, test", "epochs", "making, one core", "training"),
    *("rel-L2", "mean field", "better by"),
]
ENOUGH = 4.0
"""Times better than the mean field that each should be."""
BEGIN, END = "<!-- small sets table -->", "<!-- end of small sets -->"


def run(out: Path, *, names: Iterable[str] = CASES, workers: int = 2, tell: Callable[[str], None] = print) -> str:
    """Make, train and judge; `table.json` keeps the rows, of earlier calls too. Returns the table as Markdown."""
    for name in names:
        case = CASES[name]
        tell(f"{name}: {case.samples} samples, {case.epochs} epochs")
        generator = generator_class(name)(**case.options)
        data = generate(
            generator, out / "data" / name, samples=case.samples, test_samples=case.test, seed=0, workers=workers
        )
        result = _train(name, case, data, out / "runs" / name)
        keep(out / "table.json", _row(data, departures(generator), result), result["environment"])
    return table(json.loads((out / "table.json").read_text(encoding="utf-8")))


def keep(path: Path, row: Row, environment: Mapping[str, Any]) -> None:
    """Put a row in the place of an earlier one of its dataset, in the order of the cases."""
    rows = {row.dataset: asdict(row) | {"environment": dict(environment)}}
    if path.exists():
        rows = {r["dataset"]: r for r in json.loads(path.read_text(encoding="utf-8"))["rows"]} | rows
    write_json(path, {"rows": [rows[name] for name in CASES if name in rows]})


def _train(name: str, case: Case, data: Dataset, folder: Path) -> dict[str, Any]:
    overrides = [*SETTINGS, *case.settings.items(), ("data.path", str(data.path)), ("epochs", case.epochs)]
    config = build_config(merged(read_yaml(preset_path(name)), overrides), f"the small set of {name}")
    return start_or_resume(config, folder)


def _row(data: Dataset, options: Mapping[str, Any], result: Mapping[str, Any]) -> Row:
    return Row(
        dataset=data.schema.name,
        options=options,
        points=int(data.sizes[0]),
        train=result["train_samples"],
        test=result["test_samples"],
        epochs=result["epochs"],
        making=seconds_of_making(data),
        training=result["seconds"],
        rel_l2=result["rel_l2"],
        mean_field=result["rel_l2_mean_field"],
    )


def table(record: Mapping[str, Any]) -> str:
    """The rows, whether each is good enough, and where they come from; Markdown."""
    lines = [
        f"| {' | '.join(HEAD)} |",
        f"|---|---{'|---:' * (len(HEAD) - 2)}|",
    ]
    for row in record["rows"]:
        options = ", ".join(f"{key} {value}" for key, value in row["options"].items()) or "as published"
        sizes = f"{row['points']:,} | {row['train']}, {row['test']} | {row['epochs']}"
        times = f"{duration(row['making'])} | {duration(row['training'])}"
        errors = f"{row['rel_l2']:.4f} | {row['mean_field']:.4f} | {row['mean_field'] / row['rel_l2']:.1f}×"
        lines.append(f"| {row['dataset']} | {options} | {sizes} | {times} | {errors} |")
    poor = [row["dataset"] for row in record["rows"] if row["mean_field"] < ENOUGH * row["rel_l2"]]
    verdict = f"All at least {ENOUGH:g} times better."
    if poor:
        verdict = f"**Not {ENOUGH:g} times better: {', '.join(poor)}.**"
    facts = record["rows"][-1]["environment"]
    origin = f"*{facts['processor']}, {facts['memory']}, torch {facts['torch']}, commit {facts['commit']}, seed 0.*"
    return "\n".join([*lines, "", verdict, "", origin]) + "\n"

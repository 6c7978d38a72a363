"""FLARE on a small set of each benchmark: made by our solvers, trained in minutes, beside the training-mean field.

Sets and models are smaller than the paper's, so that two cores are enough; what is finished is not done again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flare.data.generate import generate
from flare.data.store import Dataset
from flare.files import replacing, write_json
from flare.physics import generator_class
from flare.terminal import duration
from flare.train.presets import build_config, merged, preset_path, read_yaml
from flare.train.run import RunFolder
from flare.train.start import resume, start


@dataclass(frozen=True)
class Case:
    """A small set of a benchmark, and how to learn it."""

    samples: int
    test: int
    epochs: int
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of the generator."""


CASES = {
    "elasticity": Case(1000, 100, 20),
    "darcy": Case(600, 100, 12, {"resolution": 43}),
    "airfoil": Case(300, 50, 25, {"resolution": "half"}),
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
"""Of the model and its training, in place of the preset's."""


@dataclass(frozen=True)
class Row:
    dataset: str
    points: int
    train: int
    test: int
    making: float
    """Processor seconds of the solver, for all samples."""
    training: float
    """Seconds."""
    rel_l2: float
    mean_field: float


def run(out: Path, *, names: Iterable[str] = CASES, workers: int = 2, tell: Callable[[str], None] = print) -> list[Row]:
    """Make, train and judge; write `table.md` and `table.json` into `out`."""
    rows = []
    for name in names:
        case = CASES[name]
        tell(f"{name}: {case.samples} samples, {case.epochs} epochs")
        generator = generator_class(name)(**case.options)
        data = generate(
            generator, out / "data" / name, samples=case.samples, test_samples=case.test, seed=0, workers=workers
        )
        rows.append(_row(data, _train(name, case, data, out / "runs" / name)))
    write_json(out / "table.json", {"rows": [row.__dict__ for row in rows]})
    with replacing(out / "table.md") as temporary:
        temporary.write_text(table(rows), encoding="utf-8")
    return rows


def _train(name: str, case: Case, data: Dataset, folder: Path) -> dict[str, Any]:
    overrides = [*SETTINGS, ("data.path", str(data.path)), ("epochs", case.epochs)]
    config = build_config(merged(read_yaml(preset_path(name)), overrides), f"the small set of {name}")
    return resume(folder, expected=config) if RunFolder(folder).exists else start(config, folder)


def _row(data: Dataset, result: Mapping[str, Any]) -> Row:
    lines = (data.path / "making.jsonl").read_text(encoding="utf-8").splitlines()
    return Row(
        dataset=data.schema.name,
        points=int(data.sizes[0]),
        train=result["train_samples"],
        test=result["test_samples"],
        making=sum(json.loads(line)["seconds"] for line in lines),
        training=result["seconds"],
        rel_l2=result["rel_l2"],
        mean_field=result["rel_l2_mean_field"],
    )


def table(rows: Sequence[Row]) -> str:
    """Markdown."""
    lines = [
        "| dataset | points | train, test | making, one core | training, two cores | rel-L2 | mean field | better by |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        times = f"{duration(row.making)} | {duration(row.training)}"
        errors = f"{row.rel_l2:.4f} | {row.mean_field:.4f} | {row.mean_field / row.rel_l2:.1f}×"
        lines.append(f"| {row.dataset} | {row.points:,} | {row.train}, {row.test} | {times} | {errors} |")
    return "\n".join(lines) + "\n"

"""FLARE on a small set of printed parts, beside two things it must beat: the training-mean field, and the linear
function of the coordinates that fits each part's own truth best, which no model can know."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from flare.data.generate import generate
from flare.data.store import Dataset
from flare.files import write_json
from flare.physics.lpbf.dataset import LPBF
from flare.report.dataset import write_dataset_page
from flare.terminal import duration
from flare.train.presets import build_config, merged, preset_path, read_yaml
from flare.train.run import RunFolder
from flare.train.start import resume, start

PARTS, TEST = 200, 40
SETTINGS = [
    ("model.blocks", 4),
    ("model.latents", 64),
    ("model.kv_depth", 1),
    ("model.ffn_depth", 1),
    ("data.subsample", 4096),
    ("data.normalise.displacement", "gaussian"),
    ("optim.lr", 2e-3),
    ("optim.weight_decay", 1e-5),
    ("evaluate_every", 10),
    ("epochs", 80),
]
"""Of the training, in place of the preset's: smaller, so that two cores are enough."""
BEGIN, END = "<!-- printed parts table -->", "<!-- end of printed parts -->"


def run(
    out: Path, *, parts: int = PARTS, test: int = TEST, workers: int = 2, tell: Callable[[str], None] = print
) -> str:
    """Make, train and judge; `table.json` in `out` keeps what came out. Returns the table as Markdown."""
    tell(f"{parts} parts, {test} of them for testing")
    data = generate(LPBF(), out / "data", samples=parts, test_samples=test, workers=workers)
    if not (data.path / "statistics.html").exists():
        write_dataset_page(data)
    overrides = [*SETTINGS, ("data.path", str(data.path))]
    config = build_config(merged(read_yaml(preset_path("lpbf")), overrides), "the small set of printed parts")
    folder = out / "run"
    result = resume(folder, expected=config) if RunFolder(folder).exists else start(config, folder)
    linear = float(np.mean([linear_fit_error(data, int(i)) for i in data.split("test")]))
    write_json(out / "table.json", {"result": result, "linear_fit": linear, "making": _seconds(data)})
    return table(json.loads((out / "table.json").read_text(encoding="utf-8")))


def linear_fit_error(dataset: Dataset, index: int) -> float:
    """Relative L2 of a + b·x + c·y + d·z fitted to the sample's own displacement."""
    values = dataset[index].values
    points, truth = (values[name].astype(np.float64) for name in ("points", "displacement"))
    basis = np.concatenate([np.ones((len(points), 1)), points], axis=1)
    fitted = basis @ np.linalg.lstsq(basis, truth, rcond=None)[0]
    return float(np.linalg.norm(fitted - truth) / np.linalg.norm(truth))


def table(record: dict[str, Any]) -> str:
    """Markdown."""
    result = record["result"]
    ours = result["rel_l2"]
    rows = {
        "training-mean field": result["rel_l2_mean_field"],
        "linear in the coordinates, fitted to each test part's own truth": record["linear_fit"],
    }
    lines = ["| rel-L2 of vertical displacement, mean of the test parts | | FLARE is better by |", "|---|---:|---:|"]
    lines += [f"| {name} | {error:.3f} | {error / ours:.1f}× |" for name, error in rows.items()]
    lines += [f"| FLARE, {result['parameters']:,} parameters, {result['epochs']} epochs | {ours:.3f} | |"]
    facts = result["environment"]
    effort = f"{result['train_samples']} parts to train, {result['test_samples']} to test"
    times = f"making {duration(record['making'])} on one core, training {duration(result['seconds'])}"
    origin = f"*{facts['processor']}, {facts['memory']}, torch {facts['torch']}, commit {facts['commit']}, seed 0.*"
    return "\n".join([*lines, "", f"{effort}; {times}.", "", origin]) + "\n"


def _seconds(data: Dataset) -> float:
    lines = (data.path / "making.jsonl").read_text(encoding="utf-8").splitlines()
    return sum(json.loads(line)["seconds"] for line in lines)

"""FLARE on cars of the stand-in, beside two things it must beat: the training-mean field, and what the training cars
have in the mean at the same place of their boxes. A stand-in: its numbers say nothing of DrivAerML."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.spatial import cKDTree

from flare.data.dataset import Dataset
from flare.data.generation.generate import generate, seconds_of_making
from flare.physics.cars.dataset import CarPotential
from flare.report.dataset import write_dataset_page
from flare.train.presets import build_config, merged, preset_path, read_yaml
from flare.train.run import start_or_resume
from flare.utils.files import write_json
from flare.utils.text import duration

CARS, TEST, POINTS, EPOCHS = 240, 40, 40_000, 50
SETTINGS = [
    ("model.blocks", 4),
    ("model.latents", 64),
    ("model.kv_depth", 1),
    ("model.ffn_depth", 1),
    # A tenth of the points a step, others every time: ten times the steps teach more than ten times the points.
    ("data.subsample", 4096),
    ("data.normalise.points", "gaussian"),
    ("optim.lr", 2e-3),
    ("optim.weight_decay", 1e-5),
    ("evaluate_every", 10),
]
"""Of the training, in place of the preset's: smaller, so that two cores are enough."""
ENOUGH = 4.0
"""Times better than the training-mean field that it should be."""
SHARE, NEAREST = 4000, 64
"""Points of a car that are looked up, and that are looked at around each of them."""
BEGIN, END = "<!-- cars table -->", "<!-- end of cars -->"


def run(
    out: Path,
    *,
    cars: int = CARS,
    test: int = TEST,
    points: int = POINTS,
    epochs: int = EPOCHS,
    refinement: float = 1.0,
    workers: int = 2,
    tell: Callable[[str], None] = print,
) -> str:
    """Make, train and judge; `table.json` in `out` keeps what came out. Returns the table as Markdown."""
    tell(f"{cars} cars of {points:,} points, {test} of them for testing")
    generator = CarPotential(points=points, refinement=refinement)
    data = generate(generator, out / "data", samples=cars, test_samples=test, workers=workers)
    if not (data.path / "statistics.html").exists():
        write_dataset_page(data)
    overrides = [*SETTINGS, ("epochs", epochs), ("data.path", str(data.path))]
    config = build_config(merged(read_yaml(preset_path("car-potential")), overrides), "the cars")
    folder = out / "run"
    result = start_or_resume(config, folder)
    nearby = nearby_mean_error(data, data.split("train"), data.split("test"))
    drags = [abs(note["drag"]) for note in data.notes()]
    record = {"result": result, "nearby_mean": nearby, "points": points, "making": seconds_of_making(data)}
    write_json(out / "table.json", record | {"median_drag": float(np.median(drags)), "most_drag": max(drags)})
    return table(json.loads((out / "table.json").read_text(encoding="utf-8")))


def nearby_mean_error(data: Dataset, train: Sequence[int] | np.ndarray, test: Sequence[int] | np.ndarray) -> float:
    """Relative L2 of predicting the mean of the 64 nearest points of all training cars, boxes scaled alike."""

    def known(index: int) -> tuple[np.ndarray, np.ndarray]:
        values = data[int(index)].values
        points, pressure = values["points"].astype(np.float64), values["pressure"][:, 0].astype(np.float64)
        low, high = points.min(axis=0), points.max(axis=0)
        some = slice(None, SHARE)  # points are in random order
        return ((points - low) / (high - low))[some], pressure[some]

    places, pressures = zip(*(known(index) for index in train), strict=True)
    pool, found = cKDTree(np.concatenate(places)), np.concatenate(pressures)
    errors = []
    for index in test:
        place, truth = known(int(index))
        guess = found[pool.query(place, k=np.arange(1, min(NEAREST, len(found)) + 1))[1]].mean(axis=1)
        errors.append(np.linalg.norm(guess - truth) / np.linalg.norm(truth))
    return float(np.mean(errors))


def table(record: dict[str, Any]) -> str:
    """Markdown."""
    result = record["result"]
    ours, mean = result["rel_l2"], result["rel_l2_mean_field"]
    rows = {
        "training-mean field": mean,
        "mean of the training cars at the same place of their boxes": record["nearby_mean"],
    }
    lines = ["| rel-L2 of pressure, mean of the test cars | | FLARE is better by |", "|---|---:|---:|"]
    lines += [f"| {name} | {error:.4f} | {error / ours:.1f}× |" for name, error in rows.items()]
    lines += [f"| FLARE, {result['parameters']:,} parameters, {result['epochs']} epochs | {ours:.4f} | |"]
    verdict = "At least" if mean >= ENOUGH * ours else "**Not**"
    facts = result["environment"]
    effort = (
        f"{result['train_samples']} cars to train, {result['test_samples']} to test, {record['points']:,} points each"
    )
    times = f"making {duration(record['making'])} on one core, training {duration(result['seconds'])}"
    drag = f"drag coefficient, exactly zero: median {record['median_drag']:.4f}, at most {record['most_drag']:.4f}"
    origin = f"*{facts['processor']}, {facts['memory']}, torch {facts['torch']}, commit {facts['commit']}, seed 0.*"
    told = f"{verdict} {ENOUGH:g} times better than the training-mean field. {effort}; {times}; {drag}."
    return "\n".join([*lines, "", told, "", origin]) + "\n"

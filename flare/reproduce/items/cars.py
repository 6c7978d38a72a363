"""FLARE on cars of the stand-in dataset `car-potential`, beside two trivial baselines.

The baselines are the training-mean field, and the mean of the training cars at the same place of their bounding boxes.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.spatial import cKDTree

from flare.data.dataset import Dataset
from flare.data.generation.generate import generate, seconds_of_making
from flare.physics.cars import CarPotential
from flare.report.dataset import write_dataset_page
from flare.reproduce.tables import Table, facts_table
from flare.train.presets import build_config, merged, preset_path, read_yaml
from flare.train.run import start_or_resume
from flare.utils.files import write_json
from flare.utils.text import duration

logger = logging.getLogger(__name__)

CARS, TEST, POINTS, EPOCHS = 240, 40, 40_000, 50
SETTINGS = [
    ("model.blocks", 4),
    ("model.latents", 64),
    ("model.kv_depth", 1),
    ("model.ffn_depth", 1),
    # A tenth of the points per step, drawn again each time: more steps lower the error more than more points.
    ("data.subsample", 4096),
    ("data.normalise.points", "gaussian"),
    ("optim.lr", 2e-3),
    ("optim.weight_decay", 1e-5),
    ("evaluate_every", 10),
]
"""Settings of the training in place of the preset's: a smaller model, so that two cores are enough."""
SHARE, NEAREST = 4000, 64
"""Points of a car to compare, and nearest points to average over."""
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
) -> str:
    """Generate cars, train, and write `table.json` into `out`.

    Args:
        out: Folder of data, run and table.
        cars: Number of cars.
        test: Number of test cars, the last ones.
        points: Points of each car.
        epochs: Epochs of the training.
        refinement: Refinement of the panels of the solver.
        workers: Processes that generate data.

    Returns:
        The table as Markdown.
    """
    logger.info("%d cars of %s points, %d of them for testing", cars, f"{points:,}", test)
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
    """Return the relative L2 error of the mean of the 64 nearest points of all training cars in scaled boxes."""

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
    """Return the table of errors and the settings as Markdown."""
    result = record["result"]
    ours = result["rel_l2"]
    errors = {
        "training-mean field": result["rel_l2_mean_field"],
        "mean of the training cars at the same place of their bounding boxes": record["nearby_mean"],
        "FLARE": ours,
    }
    rows = [(name, f"{error:.4f}", f"{error / ours:.1f}") for name, error in errors.items()]
    table = Table(("predictor", "rel-L2 of pressure, mean of the test cars", "relative to FLARE"), rows)
    made = result["environment"]
    facts = {
        "cars (train + test)": f"{result['train_samples']} + {result['test_samples']}",
        "points per car": record["points"],
        "parameters of FLARE": result["parameters"],
        "epochs": result["epochs"],
        "generation, one core": duration(record["making"]),
        "training": duration(result["seconds"]),
        "drag coefficient (exact: 0), median and largest": f"{record['median_drag']:.4f}, {record['most_drag']:.4f}",
        **{key: made[key] for key in ("processor", "memory", "torch", "commit")},
        "seed": 0,
    }
    return f"{table.markdown()}\n{facts_table(facts).markdown()}"

"""FLARE on a small dataset of printed parts, beside trivial baselines.

The baselines are the mean of the training parts, as one number and per box of the build volume, and a linear function
of the coordinates that is fitted to each test part. There are three networks: `coordinates` has the positions of nodes
as inputs, as in the benchmark; `surroundings` also has the neighborhood of each node; `drafts` predicts all fields and
is also trained on parts with wider voxels.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from flare.data.augmentation import transform_sample
from flare.data.benchmarks.landmarks import landmarks
from flare.data.dataset import Dataset
from flare.data.enrich import add_surroundings, join_datasets
from flare.data.generation.generate import generate, seconds_of_making
from flare.inference.surrogate import Surrogate, load
from flare.physics.lpbf.dataset import LPBF
from flare.report.dataset import write_dataset_page
from flare.reproduce.items.lpbf_statistics import statistics_table
from flare.reproduce.tables import Table, facts_table
from flare.train.presets import build_config, merged, preset_path, read_yaml
from flare.train.run import start_or_resume
from flare.utils.files import write_json
from flare.utils.text import duration

logger = logging.getLogger(__name__)

DRAFT_LAYERS, DRAFT_TOLERANCE = 30, 1e-4
"""Powder layers per voxel of drafts, twice as many as usual, and tolerance of their solution."""
INPUTS = {
    "coordinates": "positions of nodes, as in the paper",
    "surroundings": "also the neighborhood of each node (`flare data enrich`)",
    "drafts": "the same; trained on all fields and on drafts too (`flare data join`)",
}
"""Network -> its inputs."""
OTHERS = ("lateral_displacement", "von_mises")
"""Further fields that the network `drafts` predicts."""
MIRRORS = ("x", "y", "x=y")
"""Mirror images that augment the few parts. Shrinkage is symmetric in x and y."""
SETTINGS = [
    ("model.latents", 64),
    ("model.kv_depth", 1),
    ("model.ffn_depth", 1),
    # Few points per step, drawn again each time: more steps lower the error more than more points.
    ("data.subsample", 1024),
    ("data.mirror", list(MIRRORS)),
    ("data.normalise.displacement", "gaussian"),
    ("optim.weight_decay", 1e-5),
    ("evaluate_every", 10),
]
"""Settings of the training in place of the preset's: a smaller model, so that two cores are enough."""
EPOCHS = {"coordinates": 80, "surroundings": 80, "drafts": 38}
"""Network -> epochs. `drafts` has fewer, because it has four times as many parts."""
BEGIN, END = "<!-- printed parts table -->", "<!-- end of printed parts -->"


def run(
    out: Path,
    *,
    parts: int,
    test: int,
    drafts: int,
    workers: int = 2,
) -> str:
    """Generate parts, train all networks, and write `table.json` into `out`.

    Args:
        out: Folder of data, runs and table.
        parts: Number of parts in the form of the benchmark.
        test: Number of test parts, the last ones.
        drafts: Number of further training parts with wider voxels.
        workers: Processes that generate data.

    Returns:
        The tables as Markdown.
    """
    logger.info("%d parts, %d of them for testing", parts, test)
    data = generate(LPBF(), out / "data", samples=parts, test_samples=test, workers=workers)
    if not (data.path / "statistics.html").exists():
        write_dataset_page(data)
    networks = {}
    coarse = LPBF(layers=DRAFT_LAYERS, tolerance=DRAFT_TOLERANCE)
    logger.info("%d drafts with wider voxels, for training only", drafts)
    # Another seed, so that no test part is among them.
    rough = generate(coarse, out / "draft-data", samples=drafts, test_samples=0, seed=1, workers=workers)
    for name, dataset in _datasets(out, data, rough).items():
        logger.info("network %s: %s", name, INPUTS[name])
        networks[name] = _train_and_evaluate(dataset, out / name, EPOCHS[name])
    test_parts = [int(i) for i in data.split("test")]
    facts = {
        "networks": networks,
        "linear_fit": float(np.mean([linear_fit_error(data, i) for i in test_parts])),
        "mean_by_place": float(np.mean(mean_by_place_errors(data, map(int, data.split("train")), test_parts))),
        "making": seconds_of_making(data),
        "making_drafts": seconds_of_making(rough),
        "landmarks": landmarks(data),
        "filtered": sum(len(note.get("redrawn", [])) for note in data.notes()),
    }
    write_json(out / "table.json", facts)
    return table(json.loads((out / "table.json").read_text(encoding="utf-8")))


def _datasets(out: Path, data: Dataset, drafts: Dataset) -> dict[str, Dataset]:
    """Return the dataset of each network."""
    more = [add_surroundings(of, out / f"{of.path.name}-all", targets=OTHERS) for of in (data, drafts)]
    return {
        "coordinates": data,
        "surroundings": add_surroundings(data, out / "enriched"),
        "drafts": join_datasets(more, out / "joined"),
    }


def _train_and_evaluate(data: Dataset, folder: Path, epochs: int) -> dict[str, Any]:
    overrides = [*SETTINGS, ("epochs", epochs), ("data.path", str(data.path))]
    config = build_config(merged(read_yaml(preset_path("lpbf")), overrides), "the small set of printed parts")
    result = start_or_resume(config, folder)
    surrogate = load(folder)
    errors = [eight_images_error(surrogate, data, int(i)) for i in data.split("test")]
    return {"result": result, "eight_images": float(np.mean(errors))}


def linear_fit_error(dataset: Dataset, index: int) -> float:
    """Return the relative L2 error of a + b·x + c·y + d·z fitted to the displacement of a sample."""
    values = dataset[index].values
    points, truth = (values[name].astype(np.float64) for name in ("points", "displacement"))
    basis = np.concatenate([np.ones((len(points), 1)), points], axis=1)
    fitted = basis @ np.linalg.lstsq(basis, truth, rcond=None)[0]
    return float(np.linalg.norm(fitted - truth) / np.linalg.norm(truth))


def eight_images_error(surrogate: Surrogate, dataset: Dataset, index: int) -> float:
    """Return the relative L2 error of the mean vertical displacement over a part and its mirror images."""
    sample = dataset[index]
    truth = sample.values["displacement"][:, 0].astype(np.float64)
    total = np.zeros_like(truth)
    for chosen in np.ndindex((2,) * len(MIRRORS)):
        image = transform_sample(
            dataset.schema, sample, [mirror for mirror, seen in zip(MIRRORS, chosen, strict=True) if seen]
        )
        total += surrogate.predict_sample(image)["displacement"].astype(np.float64)
    return float(np.linalg.norm(total / 2 ** len(MIRRORS) - truth) / np.linalg.norm(truth))


def mean_by_place_errors(dataset: Dataset, train: Iterable[int], test: Iterable[int], boxes: int = 12) -> list[float]:
    """Return the relative L2 errors of the mean of all training nodes in the same box of the build volume.

    An empty box has the mean of all nodes.
    """
    total, count = np.zeros(boxes**3), np.zeros(boxes**3)
    for index in train:
        values = dataset[index].values
        place = _box(values["points"], boxes)
        total += np.bincount(place, values["displacement"][:, 0], boxes**3)
        count += np.bincount(place, minlength=boxes**3)
    mean = np.where(count > 0, total / np.maximum(count, 1), total.sum() / count.sum())
    errors = []
    for index in test:
        values = dataset[index].values
        truth = values["displacement"][:, 0].astype(np.float64)
        errors.append(float(np.linalg.norm(mean[_box(values["points"], boxes)] - truth) / np.linalg.norm(truth)))
    return errors


def _box(points: np.ndarray, boxes: int) -> np.ndarray:
    """Return the index of the box of the build volume, [−30, 30]² × [0, 60] mm, of each point."""
    along = ((points.astype(np.float64) - np.array([-30, -30, 0])) / 60 * boxes).astype(int).clip(0, boxes - 1)
    return along @ np.array([boxes**2, boxes, 1])


def table(record: dict[str, Any]) -> str:
    """Return the tables of errors, trainings and landmarks as Markdown."""
    networks = record["networks"]
    results = {name: network["result"] for name, network in networks.items()}
    best = networks["drafts"]["eight_images"]
    errors = {
        "training mean: one number, since meshes differ": _rise(results["coordinates"])["rel_l2_mean_field"],
        "training mean in each of 12 × 12 × 12 boxes of the build volume": record["mean_by_place"],
        "linear in the coordinates, fitted to each test part": record["linear_fit"],
    }
    for name, result in results.items():
        errors[f"FLARE ({name}), one prediction per part"] = _rise(result)["rel_l2"]
        errors[f"FLARE ({name}), mean over a part and its seven mirror images"] = networks[name]["eight_images"]
    rows = [(name, f"{error:.3f}", f"{error / best:.2f}") for name, error in errors.items()]
    head = ("predictor", "rel-L2 of vertical displacement, mean of the test parts", "relative to the last row")
    trainings = [
        (
            *(name, INPUTS[name], f"{result['train_samples']}", f"{result['epochs']}"),
            *(f"{result['parameters']:,}", duration(result["seconds"])),
        )
        for name, result in results.items()
    ]
    trained = ("network", "inputs", "training parts", "epochs", "parameters", "training")
    made = results["drafts"]["environment"]
    facts = {
        "test parts": results["drafts"]["test_samples"],
        "generation of parts, one core": duration(record["making"]),
        "generation of drafts, one core": duration(record["making_drafts"]),
        "draws that were filtered out": record["filtered"],
        **{key: made[key] for key in ("processor", "memory", "torch", "commit")},
        "seed": 0,
    }
    tables = [Table(head, rows), Table(trained, trainings, text=2), statistics_table(record["landmarks"])]
    return "\n".join(each.markdown() for each in (*tables, facts_table(facts)))


def _rise(result: dict[str, Any]) -> dict[str, float]:
    """Return the errors of the vertical displacement, which all networks predict."""
    errors: dict[str, float] = result["fields"]["displacement"]
    return errors

"""FLARE on a small set of printed parts, beside what it must beat: the mean of the training parts, as one number and
place by place, and the linear function of the coordinates that fits each part's own truth, which no model can know.

Three networks: one is told where the nodes are, as in the benchmark; one also what each node has around it; one
predicts all fields and learns from more parts, made of wider voxels, which is faster.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from flare.data.augmentation import moved
from flare.data.benchmarks.landmarks import landmarks
from flare.data.dataset import Dataset
from flare.data.enrich import joined, with_surroundings
from flare.data.generation.generate import generate, seconds_of_making
from flare.physics.lpbf.dataset import LPBF
from flare.report.dataset import write_dataset_page
from flare.reproduce.items.lpbf_statistics import statistics_table
from flare.surrogate import Surrogate, load
from flare.train.presets import build_config, merged, preset_path, read_yaml
from flare.train.run import start_or_resume
from flare.utils.files import write_json
from flare.utils.text import duration

DRAFT_LAYERS, DRAFT_TOLERANCE = 30, 1e-4
"""Powder layers in a voxel of those: twice as many as usual; and how exactly they are solved."""
TOLD = {
    "coordinates": "where the nodes are, as in the paper",
    "surroundings": "also what each node has around it (ours: `flare data enrich`)",
    "drafts": "all that, in training also the other fields and more parts in wider voxels (ours: `flare data join`)",
}
"""Network -> its inputs."""
OTHERS = ("lateral_displacement", "von_mises")
"""Fields that the last network predicts, too: so it learns more from every part."""
MIRRORS = ("x", "y", "x=y")
"""The parts are few; shrinkage does not know left from right, nor x from y."""
SETTINGS = [
    ("model.latents", 64),
    ("model.kv_depth", 1),
    ("model.ffn_depth", 1),
    # Few points a step, others every time: more steps teach more than more points.
    ("data.subsample", 1024),
    ("data.mirror", list(MIRRORS)),
    ("data.normalise.displacement", "gaussian"),
    ("optim.weight_decay", 1e-5),
    ("evaluate_every", 10),
]
"""Of the training, in place of the preset's: smaller, so that two cores are enough."""
EPOCHS = {"coordinates": 80, "surroundings": 80, "drafts": 38}
"""Fewer for the last: each has four times the parts."""
BEGIN, END = "<!-- printed parts table -->", "<!-- end of printed parts -->"


def run(
    out: Path,
    *,
    parts: int,
    test: int,
    drafts: int,
    workers: int = 2,
    tell: Callable[[str], None] = print,
) -> str:
    """Make, train and judge; `table.json` in `out` keeps what came out. Returns the table as Markdown.

    Args:
        parts: of the benchmark's form.
        test: the last of them, for testing.
        drafts: more in wider voxels, to learn from only.
    """
    tell(f"{parts} parts, {test} of them for testing")
    data = generate(LPBF(), out / "data", samples=parts, test_samples=test, workers=workers)
    if not (data.path / "statistics.html").exists():
        write_dataset_page(data)
    networks = {}
    coarse = LPBF(layers=DRAFT_LAYERS, tolerance=DRAFT_TOLERANCE)
    tell(f"{drafts} more in wider voxels, to train with only")
    # Another seed: none of the parts for testing is among them.
    rough = generate(coarse, out / "draft-data", samples=drafts, test_samples=0, seed=1, workers=workers)
    for name, dataset in _datasets(out, data, rough).items():
        tell(f"FLARE that is told {TOLD[name]}")
        networks[name] = _train_and_judge(dataset, out / name, EPOCHS[name])
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
    """What each network learns from."""
    more = [with_surroundings(of, out / f"{of.path.name}-all", targets=OTHERS) for of in (data, drafts)]
    return {
        "coordinates": data,
        "surroundings": with_surroundings(data, out / "enriched"),
        "drafts": joined(more, out / "joined"),
    }


def _train_and_judge(data: Dataset, folder: Path, epochs: int) -> dict[str, Any]:
    overrides = [*SETTINGS, ("epochs", epochs), ("data.path", str(data.path))]
    config = build_config(merged(read_yaml(preset_path("lpbf")), overrides), "the small set of printed parts")
    result = start_or_resume(config, folder)
    surrogate = load(folder)
    errors = [eight_images_error(surrogate, data, int(i)) for i in data.split("test")]
    return {"result": result, "eight_images": float(np.mean(errors))}


def linear_fit_error(dataset: Dataset, index: int) -> float:
    """Relative L2 of a + b·x + c·y + d·z fitted to the sample's own displacement."""
    values = dataset[index].values
    points, truth = (values[name].astype(np.float64) for name in ("points", "displacement"))
    basis = np.concatenate([np.ones((len(points), 1)), points], axis=1)
    fitted = basis @ np.linalg.lstsq(basis, truth, rcond=None)[0]
    return float(np.linalg.norm(fitted - truth) / np.linalg.norm(truth))


def eight_images_error(surrogate: Surrogate, dataset: Dataset, index: int) -> float:
    """Relative L2 of the mean prediction for a part and its mirror images: what is up in one is up in all."""
    sample = dataset[index]
    truth = sample.values["displacement"][:, 0].astype(np.float64)
    total = np.zeros_like(truth)
    for chosen in np.ndindex((2,) * len(MIRRORS)):
        image = moved(dataset.schema, sample, [mirror for mirror, seen in zip(MIRRORS, chosen, strict=True) if seen])
        total += surrogate.predict_sample(image)["displacement"].astype(np.float64)
    return float(np.linalg.norm(total / 2 ** len(MIRRORS) - truth) / np.linalg.norm(truth))


def mean_by_place_errors(dataset: Dataset, train: Iterable[int], test: Iterable[int], boxes: int = 12) -> list[float]:
    """Relative L2 of the mean over all training nodes in the same box of the build volume; of all where it is empty."""
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
    """(N,) number of the box of the build volume, [−30, 30]² × [0, 60] mm, that a point is in."""
    along = ((points.astype(np.float64) - np.array([-30, -30, 0])) / 60 * boxes).astype(int).clip(0, boxes - 1)
    return along @ np.array([boxes**2, boxes, 1])


def table(record: dict[str, Any]) -> str:
    """Markdown."""
    networks = record["networks"]
    results = {name: network["result"] for name, network in networks.items()}
    best = networks["drafts"]["eight_images"]
    rows = {
        "training-mean field: one number, since meshes differ": _of_rise(results["coordinates"])["rel_l2_mean_field"],
        "training-mean field, place by place in 12 × 12 × 12 boxes of the build volume": record["mean_by_place"],
        "linear in the coordinates, fitted to each test part's own truth": record["linear_fit"],
    }
    for name, result in results.items():
        rows[f"FLARE told {TOLD[name]}: one prediction a part"] = _of_rise(result)["rel_l2"]
        rows[f"the same ({name}), mean over a part and its seven mirror images"] = networks[name]["eight_images"]
    lines = [
        "| rel-L2 of vertical displacement, mean of the test parts | | the last line is better by |",
        "|---|---:|---:|",
        *(f"| {name} | {error:.3f} | {error / best:.2f}× |" for name, error in rows.items()),
    ]
    efforts = [
        f"{name}: {result['train_samples']} parts, {result['epochs']} epochs, {result['parameters']:,} parameters, "
        f"{duration(result['seconds'])}"
        for name, result in results.items()
    ]
    last = results["drafts"]
    making = f"{duration(record['making'])} for the parts, {duration(record['making_drafts'])} for the drafts"
    effort = (
        f"Training ({'; '.join(efforts)}), judged on the same {last['test_samples']} parts, which no training saw. "
        f"Making took {making}, on one core."
    )
    kept = results["surroundings"]["train_samples"] + last["test_samples"]
    dropped = f"{record['filtered']} draws were filtered out, {kept} are kept."
    facts = last["environment"]
    origin = f"*{facts['processor']}, {facts['memory']}, torch {facts['torch']}, commit {facts['commit']}, seed 0.*"
    statistics = statistics_table(record["landmarks"]).markdown()
    return "\n".join([*lines, "", effort, "", statistics, dropped, "", origin]) + "\n"


def _of_rise(result: dict[str, Any]) -> dict[str, float]:
    """Errors of the field that all networks predict."""
    errors: dict[str, float] = result["fields"]["displacement"]
    return errors

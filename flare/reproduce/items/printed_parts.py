"""FLARE on a small dataset of printed parts in the form of the benchmark, beside trivial baselines. Not in the paper.

There are three networks: `coordinates` has the positions of nodes as inputs, as in the benchmark; `surroundings` also
has the neighborhood of each node; `drafts` predicts all fields and is also trained on parts with wider voxels. Each is
evaluated with one prediction per part, and with the mean over a part and its seven mirror images. The baselines are the
mean of the training parts per box of the build volume, and a linear function of the coordinates that is fitted to each
test part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from flare.data.augmentation import transform_sample
from flare.data.benchmarks.landmarks import landmarks
from flare.data.dataset import Dataset
from flare.data.enrich import add_surroundings, join_datasets
from flare.data.generation.generate import generate
from flare.inference.surrogate import Surrogate, load
from flare.physics.lpbf.dataset import LPBF
from flare.reproduce.analyses import DataAnalysis, ModelAnalysis
from flare.reproduce.budgets import Budget
from flare.reproduce.items.lpbf_statistics import statistics_table
from flare.reproduce.jobs import Data, Overrides, Training, Workspace
from flare.reproduce.ledger import Arrays
from flare.reproduce.study import Block, Cell, Item, Outcome, thousandths
from flare.reproduce.tables import Table

PARTS = Data("lpbf", 200, 40)
DRAFTS = {"smoke": 2, "cpu": 500}
"""Budget -> further training parts with wider voxels."""
COARSER, TOLERANCE = 2, 1e-4
"""Edge of a voxel of drafts relative to those of the parts, and tolerance of the solution of drafts."""
OTHERS = ("lateral_displacement", "von_mises")
"""Further fields that the network `drafts` predicts."""
MIRRORS = ("x", "y", "x=y")
"""Mirror images that augment the few parts. Shrinkage is symmetric in x and y."""
SETTINGS: Overrides = (
    ("model.latents", 64),
    ("model.kv_depth", 1),
    ("model.ffn_depth", 1),
    # Few points per step, drawn again each time: more steps lower the error more than more points.
    ("data.subsample", 1024),
    ("data.mirror", list(MIRRORS)),
    ("data.normalize.displacement", "gaussian"),
    ("optim.weight_decay", 1e-5),
    ("evaluate_every", 10),
)
"""Settings of the training in place of the preset's: a smaller model, so that two cores are enough."""
EPOCHS = {"coordinates": 80, "surroundings": 80, "drafts": 38}
"""Network -> epochs. `drafts` has fewer, because it has four times as many parts."""
RISE = "displacement"
"""Field that all networks predict."""


@dataclass(frozen=True)
class EnrichedParts(Data):
    """Parts with the neighborhoods of their nodes; with drafts, also these for training and all fields as targets."""

    drafts: int = 0

    def definition(self) -> dict[str, Any]:
        return super().definition() | {"surroundings": True, "drafts": self.drafts}

    def make(self, folder: Path, files: Path, *, workers: int = 1, scheduler: str | None = None) -> None:
        how: dict[str, Any] = {"workers": workers, "scheduler": scheduler}
        parts = Data(self.name, self.samples, self.test, self.options)
        fine = folder.parent / parts.folder
        parts.make(fine, files, **how)
        if not self.drafts:
            add_surroundings(Dataset(fine), folder)
            return
        # Another seed, so that no test part is among them.
        rough, layers = folder.with_name(f"{folder.name}-drafts"), COARSER * LPBF(**self.options).layers
        generate(LPBF(layers=layers, tolerance=TOLERANCE), rough, samples=self.drafts, test_samples=0, seed=1, **how)
        both = [add_surroundings(Dataset(of), Path(f"{of}-all"), targets=OTHERS) for of in (fine, rough)]
        join_datasets(both, folder)


@dataclass(frozen=True)
class EightImages(ModelAnalysis):
    """Errors of the vertical displacement: of one prediction per part, and of the mean over its eight mirror images."""

    kind: ClassVar[str] = "eight images"

    def perform(self, workspace: Workspace) -> tuple[dict[str, Any], Arrays]:
        result = self.of.train(workspace)
        data, surrogate = Dataset(workspace.data(self.data)), load(workspace.run(self.of), device="cpu")
        errors = [eight_images_error(surrogate, data, int(i)) for i in data.split("test")]
        found = {"rel_l2": float(np.mean(errors)), "one_image": result["fields"][RISE]["rel_l2"]}
        return found | {key: result[key] for key in ("parameters", "train_samples", "data_fingerprint")}, {}


@dataclass(frozen=True)
class PartBaselines(DataAnalysis):
    """Errors of trivial baselines, and landmarks of the parts."""

    kind: ClassVar[str] = "baselines"
    numbers = ("linear_fit", "mean_by_place")

    def perform(self, workspace: Workspace) -> tuple[dict[str, Any], Arrays]:
        data = Dataset(workspace.data(self.of))
        test = [int(i) for i in data.split("test")]
        return {
            "linear_fit": float(np.mean([linear_fit_error(data, i) for i in test])),
            "mean_by_place": float(np.mean(mean_by_place_errors(data, data.split("train"), test))),
            "landmarks": landmarks(data),
            "data_fingerprint": data.fingerprint,
        }, {}


def linear_fit_error(dataset: Dataset, index: int) -> float:
    """Return the relative L2 error of a + b·x + c·y + d·z fitted to the displacement of a sample."""
    values = dataset[index].values
    points, truth = (values[name].astype(np.float64) for name in ("points", RISE))
    basis = np.concatenate([np.ones((len(points), 1)), points], axis=1)
    return _relative_error(basis @ np.linalg.lstsq(basis, truth, rcond=None)[0], truth)


def eight_images_error(surrogate: Surrogate, dataset: Dataset, index: int) -> float:
    """Return the relative L2 error of the mean vertical displacement over a part and its mirror images."""
    sample = dataset[index]
    images = [
        transform_sample(dataset.schema, sample, [mirror for mirror, seen in zip(MIRRORS, chosen, strict=True) if seen])
        for chosen in np.ndindex((2,) * len(MIRRORS))
    ]
    mean = np.mean([surrogate.predict_sample(image)[RISE].astype(np.float64) for image in images], axis=0)
    return _relative_error(mean, sample.values[RISE][:, 0].astype(np.float64))


def mean_by_place_errors(
    dataset: Dataset, train: Sequence[int] | np.ndarray, test: Sequence[int], boxes: int = 12
) -> list[float]:
    """Return the relative L2 errors of the mean of all training nodes in the same box of the build volume.

    An empty box has the mean of all nodes.
    """

    def known(index: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the box of the build volume, [−30, 30]² × [0, 60] mm, of each node, and its displacement."""
        points, rise = (dataset[int(index)].values[name].astype(np.float64) for name in ("points", RISE))
        along = ((points - np.array([-30, -30, 0])) / 60 * boxes).astype(int).clip(0, boxes - 1)
        return along @ np.array([boxes**2, boxes, 1]), rise[:, 0]

    places, rises = map(np.concatenate, zip(*map(known, train), strict=True))
    total, count = np.bincount(places, rises, boxes**3), np.bincount(places, minlength=boxes**3)
    mean = np.where(count > 0, total / np.maximum(count, 1), rises.mean())
    return [_relative_error(mean[place], rise) for place, rise in map(known, test)]


def _relative_error(predicted: np.ndarray, truth: np.ndarray) -> float:
    return float(np.linalg.norm(predicted - truth) / np.linalg.norm(truth))


def cells(budget: Budget) -> list[Cell]:
    if budget.name == "paper":
        return []
    usual = budget.training("lpbf")
    if budget.name == "cpu":
        usual = Training(PARTS, "flare", SETTINGS)
    parts = usual.on
    inputs = {"coordinates": parts, "surroundings": EnrichedParts(**asdict(parts))}
    inputs["drafts"] = EnrichedParts(**asdict(parts), drafts=DRAFTS[budget.name])
    found = [Cell(("baselines",), PartBaselines(parts))]
    for name, data in inputs.items():
        training = replace(usual, on=data)
        if budget.name == "cpu":
            training = training.with_settings(("epochs", EPOCHS[name]))
        found += [Cell((name,), training), Cell((name, "eight-images"), EightImages(training))]
    return found


def report(found: Sequence[Outcome], budget: Budget) -> list[Block]:
    results = {outcome.cell.parts: outcome.result for outcome in found}
    rows = []
    if baselines := results.get(("baselines",)):
        by_place, linear = "mean of the training parts in each of 12 × 12 × 12 boxes", "linear in the coordinates"
        rows.append((by_place, "", "", thousandths(baselines["mean_by_place"])))
        rows.append((f"{linear}, fitted to each test part", "", "", thousandths(baselines["linear_fit"])))
    for name in EPOCHS:
        if images := results.get((name, "eight-images")):
            about = f"{images['train_samples']:,}", f"{images['parameters']:,}"
            rows.append((f"FLARE ({name}), one prediction per part", *about, thousandths(images["one_image"])))
            rows.append((f"FLARE ({name}), mean of eight mirror images", *about, thousandths(images["rel_l2"])))
    head = ("predictor", "training parts", "parameters", "rel-L2 of vertical displacement × 1e-3")
    blocks: list[Block] = ["Errors of the test parts:", Table(head, rows)] if rows else []
    if baselines:
        blocks += ["Statistics of the parts, ours (published):", statistics_table(baselines["landmarks"])]
    return blocks


ITEM = Item("printed-parts", "FLARE on 200 printed parts, not in the paper", cells, report)

"""FLARE on more cars of the stand-in dataset `car-potential` than Table 1 has, with all their points. Not in the paper.

Beside it are two trivial baselines: the training-mean field, and the mean of the training cars at the same place of
their bounding boxes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.spatial import cKDTree

from flare.data.dataset import Dataset
from flare.reproduce.analyses import DataAnalysis
from flare.reproduce.budgets import Budget
from flare.reproduce.jobs import Data, Overrides, Workspace
from flare.reproduce.ledger import Arrays
from flare.reproduce.study import Block, Cell, Item, Outcome, error_table

CARS = Data("car-potential", 240, 40)
SETTINGS: Overrides = (
    ("model.blocks", 4),
    ("model.latents", 64),
    ("model.kv_depth", 1),
    ("model.ffn_depth", 1),
    # A tenth of the points per step, drawn again each time: more steps lower the error more than more points.
    ("data.subsample", 4096),
    ("data.normalize.points", "gaussian"),
    ("optim.lr", 2e-3),
    ("optim.weight_decay", 1e-5),
    ("evaluate_every", 10),
    ("epochs", 50),
)
"""Settings of the training in place of the preset's: a smaller model, so that two cores are enough."""
SHARE, NEAREST = 4000, 64
"""Points of a car to compare, and nearest points to average over."""


@dataclass(frozen=True)
class NearbyMean(DataAnalysis):
    """Error of the mean of the nearest points of all training cars in scaled bounding boxes."""

    kind: ClassVar[str] = "nearby mean"
    numbers = ("rel_l2",)

    def perform(self, workspace: Workspace) -> tuple[dict[str, Any], Arrays]:
        data = Dataset(workspace.data(self.of))
        return {"rel_l2": nearby_mean_error(data), "data_fingerprint": data.fingerprint}, {}


def nearby_mean_error(data: Dataset) -> float:
    """Return the relative L2 error of the mean of the 64 nearest points of all training cars in scaled boxes."""

    def known(index: int) -> tuple[np.ndarray, np.ndarray]:
        values = data[int(index)].values
        points, pressure = values["points"].astype(np.float64), values["pressure"][:, 0].astype(np.float64)
        low, high = points.min(axis=0), points.max(axis=0)
        return ((points - low) / (high - low))[:SHARE], pressure[:SHARE]  # points are in random order

    places, pressures = zip(*map(known, data.split("train")), strict=True)
    pool, found = cKDTree(np.concatenate(places)), np.concatenate(pressures)
    errors = []
    for place, truth in map(known, data.split("test")):
        mean = found[pool.query(place, k=np.arange(1, min(NEAREST, len(found)) + 1))[1]].mean(axis=1)
        errors.append(np.linalg.norm(mean - truth) / np.linalg.norm(truth))
    return float(np.mean(errors))


def cells(budget: Budget) -> list[Cell]:
    if budget.name == "paper":
        return []
    training = budget.training("cars")
    if budget.name == "cpu":
        training = type(training)(CARS, "flare", SETTINGS)
    return [Cell(("flare",), training), Cell(("nearby-mean",), NearbyMean(training.on))]


def report(found: Sequence[Outcome], budget: Budget) -> list[Block]:
    return ["Errors of the test cars:", error_table(("predictor",), found)]


ITEM = Item("cars", "FLARE on 240 cars of the stand-in, not in the paper", cells, report)

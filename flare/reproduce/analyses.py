"""Jobs other than trainings: analyses of trained models and datasets, counts, and whole experiments."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

import numpy as np

from flare.data.benchmarks.landmarks import landmarks
from flare.data.dataset import Dataset
from flare.data.sample import target_array
from flare.report.dataset import COLORS, gallery, sample_numbers
from flare.report.page import png
from flare.report.run import target_units
from flare.reproduce.jobs import Data, Job, Training, Workspace
from flare.reproduce.ledger import Arrays


@dataclass(frozen=True)
class DataAnalysis(Job):
    """An analysis of a dataset."""

    of: Data

    @property
    def label(self) -> str:
        return f"{self.of.name}-{self.kind.replace(' ', '-')}"

    @property
    def data(self) -> Data:
        return self.of

    def definition(self) -> dict[str, Any]:
        return {"kind": self.kind, "data": self.of.definition()}


@dataclass(frozen=True)
class ModelAnalysis(Job):
    """An analysis of a trained model."""

    of: Training

    @property
    def label(self) -> str:
        return f"{self.of.label}-{self.kind.split()[0]}"

    @property
    def numbers(self) -> Sequence[str]:
        return ("rel_l2",)

    @property
    def data(self) -> Data:
        return self.of.data

    @property
    def training(self) -> Training:
        return self.of

    def definition(self) -> dict[str, Any]:
        return {"kind": self.kind, "of": self.of.definition()}


@dataclass(frozen=True)
class TrainedSpectra(ModelAnalysis):
    """Eigenvalues of the mixing matrix of every head of a trained FLARE, averaged over test samples."""

    samples: int

    kind: ClassVar[str] = "spectra"

    def definition(self) -> dict[str, Any]:
        return super().definition() | {"samples": self.samples}

    def perform(self, workspace: Workspace) -> tuple[dict[str, Any], Arrays]:
        from flare.inference.spectra import surrogate_spectra
        from flare.inference.surrogate import load

        result = self.of.train(workspace)
        dataset = Dataset(workspace.data(self.data))
        test = [int(i) for i in dataset.split("test")[: self.samples]]
        found = surrogate_spectra(load(workspace.run(self.of), device="cpu"), dataset, test)
        arrays = {"eigenvalues": found.eigenvalues.numpy(), "spread": found.spread.numpy()}
        kept = {key: result[key] for key in ("rel_l2", "data_fingerprint")}
        return {"samples": found.samples, "effective_rank": found.effective_rank.tolist(), **kept}, arrays


@dataclass(frozen=True)
class MedianSample(ModelAnalysis):
    """Truth and prediction of the test sample with the median error."""

    kind: ClassVar[str] = "median sample"

    def perform(self, workspace: Workspace) -> tuple[dict[str, Any], Arrays]:
        from flare.inference.surrogate import load

        result = self.of.train(workspace)
        tested = json.loads((workspace.run(self.of) / "test_errors.json").read_text(encoding="utf-8"))
        median = int(np.argsort(tested["rel_l2"])[len(tested["rel_l2"]) // 2])
        index = tested["samples"][median]
        dataset = Dataset(workspace.data(self.data))
        schema, sample = dataset.schema, dataset[index]
        predicted = load(workspace.run(self.of), device="cpu").predict_sample(sample)
        arrays = {
            "points": sample.values[schema.points].astype(np.float32),
            "truth": target_array(schema, sample).astype(np.float32),
            "prediction": np.concatenate([v.reshape(len(v), -1) for v in predicted.values()], 1).astype(np.float32),
        }
        if sample.cells is not None:
            arrays["cells"] = np.asarray(sample.cells, dtype=np.int32)
        return {
            "index": index,
            "of_samples": len(tested["samples"]),
            "rel_l2": tested["rel_l2"][median],
            "fields": schema.channels("target"),
            "units": target_units(schema),
            "grid": schema.grid and list(schema.grid),
            "data_fingerprint": result["data_fingerprint"],
        }, arrays


@dataclass(frozen=True)
class DatasetStatistics(DataAnalysis):
    """Landmarks of a dataset, numbers of its samples for histograms, and a gallery."""

    kind: ClassVar[str] = "statistics"

    def perform(self, workspace: Workspace) -> tuple[dict[str, Any], Arrays]:
        dataset = Dataset(workspace.data(self.of))
        numbers = sample_numbers(dataset, dataset.notes(), list(range(len(dataset))))
        arrays = {title: np.asarray(values, dtype=np.float32) for title, (_, values) in numbers.items()}
        # The gallery is stored as a picture, because the cells of its meshes would take megabytes.
        arrays["gallery.png"] = np.frombuffer(png(gallery(dataset)), dtype=np.uint8)
        return {
            "landmarks": landmarks(dataset),
            "units": {title: unit for title, (unit, _) in numbers.items()},
            "samples": len(dataset),
            "gallery": COLORS,
            "data_fingerprint": dataset.fingerprint,
        }, arrays


@dataclass(frozen=True)
class CostAnalysis(Job):
    """Parameters, operations and memory of a model, counted on tensors without data."""

    model: str
    """One of `recipe_names`."""
    sizes: Mapping[str, Any]
    """Name and options of the model."""
    in_dim: int
    points: int

    kind: ClassVar[str] = "cost"

    @property
    def label(self) -> str:
        return f"cost-{self.model}-{self.points}"

    @property
    def numbers(self) -> Sequence[str]:
        return "parameters", "flops", "activations"

    def definition(self) -> dict[str, Any]:
        return {"kind": self.kind, "model": dict(self.sizes), "in_dim": self.in_dim, "points": self.points}

    def perform(self, workspace: Workspace) -> tuple[dict[str, Any], Arrays]:
        from flare.models.cost import cost_of

        cost = cost_of(self.sizes, self.in_dim, 1, self.points)
        return {"parameters": cost.parameters, "flops": cost.flops, "activations": cost.activations}, {}


@dataclass(frozen=True)
class Experiment(Job):
    """An experiment that is done as a whole. It keeps finished rows in its run folder and resumes from them."""

    name: str
    """Module in `flare.reproduce.items` whose `run` returns the result."""
    settings: Mapping[str, Any]
    """Keyword arguments of `run`."""
    seconds: float
    """Estimated core seconds."""
    on: Data | None = None
    """Dataset for the argument `data` of `run`. None: the experiment makes its own."""

    kind: ClassVar[str] = "experiment"

    @property
    def label(self) -> str:
        return f"experiment-{self.name}"

    @property
    def data(self) -> Data | None:
        return self.on

    def definition(self) -> dict[str, Any]:
        data = {"data": self.on.definition()} if self.on else {}
        return {"kind": self.kind, "experiment": self.name, "settings": dict(self.settings), **data}

    def perform(self, workspace: Workspace) -> tuple[dict[str, Any], Arrays]:
        folder = workspace.run(self)
        folder.mkdir(parents=True, exist_ok=True)
        data = {"data": workspace.data(self.on)} if self.on else {}
        record = import_module(f"flare.reproduce.items.{self.name}").run(folder, **self.settings, **data)
        # Peak memory of the measured processes, not of this one, which waited for them.
        return record | {"peak_memory_mb": round(max((row["peak_mb"] for row in record["rows"]), default=0.0))}, {}

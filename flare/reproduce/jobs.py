"""Jobs of the reproduction, as plain data: a dataset to make, a model to train on it."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from flare.data.benchmarks.cards import card, card_names
from flare.data.generation.generate import generate
from flare.physics import generator_class
from flare.reproduce.ledger import Arrays, address
from flare.train.config import TrainConfig
from flare.train.presets import build_config, merged, preset_path, read_yaml
from flare.train.recipes import with_grid, with_model
from flare.train.run_folder import RunFolder
from flare.utils.errors import DataError
from flare.utils.files import is_occupied

Overrides = tuple[tuple[str, Any], ...]
"""Dotted settings and their values, such as (("model.latents", 32), ("epochs", 20))."""
INERT = {
    "data": {"path", "workers", "eval_batch_size"},
    "": {"device", "evaluate_every", "checkpoint_every", "checkpoint_minutes", "log_every"},
}
"""Group -> settings that do not change a result and are not part of the definition of a training."""
FORMER = {"normalize": "normalise"}
"""Settings of a group that have been renamed -> their former names, by which records are addressed."""

KEPT = (
    *("parameters", "steps", "train_samples", "test_samples", "provenance", "data_fingerprint"),
    *("seconds", "peak_memory_mb", "environment"),
)
"""Keys of `result.json` that every record of a training keeps."""


@dataclass(frozen=True)
class Data:
    """A dataset of a benchmark, made by a solver of this package or read from its published files."""

    name: str
    samples: int
    test: int
    """Number of test samples, the last ones of `samples`."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the generator that differ from the published form, or of the reader of published files."""
    published: bool = False
    """True for all samples of the published files."""

    def definition(self) -> dict[str, Any]:
        """Return everything that the samples depend on, as JSON."""
        if self.published:
            return {"published": self.name} | ({"options": dict(self.options)} if self.options else {})
        return {"name": self.name, "samples": self.samples, "test": self.test, "options": dict(self.options)}

    @property
    def folder(self) -> str:
        """Name of the dataset folder."""
        digest = hashlib.sha256(json.dumps(self.definition(), sort_keys=True).encode()).hexdigest()[:8]
        return f"{self.name}-{'published' if self.published and not self.options else digest}"

    def make(self, folder: Path, files: Path, *, workers: int = 1, scheduler: str | None = None) -> None:
        """Make the dataset unless it exists.

        Args:
            folder: Dataset folder.
            files: Folder into which published files are downloaded.
            workers: Processes that generate samples.
            scheduler: Address of a dask scheduler to use instead.
        """
        if self.published:
            if not is_occupied(folder):
                self._fetch(folder, files)
            return
        how: dict[str, Any] = {"workers": workers, "scheduler": scheduler}
        generator = generator_class(self.name)(**self.options)
        generate(generator, folder, samples=self.samples, test_samples=self.test, **how)

    def _fetch(self, folder: Path, files: Path) -> None:
        from flare.data.benchmarks.download import download
        from flare.data.benchmarks.published import read_published, reader_class

        reader = reader_class(self.name)
        read_published(reader(folder=str(download(reader.archive(self.options), files)), **self.options), folder)


@dataclass(frozen=True)
class Workspace:
    """Folder of datasets and run folders. It is not needed once the records exist."""

    root: Path
    runs: str = "runs"

    def data(self, data: Data) -> Path:
        """Return the folder of a dataset."""
        return self.root / "data" / data.folder

    def run(self, job: Job) -> Path:
        """Return the run folder of a job."""
        return self.root / self.runs / f"{job.label}-{address(job)}"

    def make(self, data: Data, *, workers: int = 1, scheduler: str | None = None) -> None:
        """Make or download a dataset unless it exists."""
        data.make(self.data(data), self.root / "published", workers=workers, scheduler=scheduler)


@cache
def recipe(preset: str, model: str) -> dict[str, Any]:
    """Return the settings of a model on a preset. The result is cached and must not be changed."""
    return with_model(read_yaml(preset_path(preset)), preset, model)


class Job(ABC):
    """A unit of work whose outcome is one record. See `ledger.Defined` for label and definition."""

    kind: ClassVar[str]

    @property
    @abstractmethod
    def label(self) -> str:
        """First part of the name of the record, such as `elasticity-flare-seed0`."""

    @property
    def numbers(self) -> Sequence[str]:
        """Keys of the result that must be finite numbers when the job is done."""
        return ()

    @abstractmethod
    def definition(self) -> dict[str, Any]:
        """Return everything that the outcome depends on, as JSON."""

    @property
    def data(self) -> Data | None:
        """Dataset that the job needs."""
        return None

    @property
    def training(self) -> Training | None:
        """Training whose model the job needs."""
        return None

    @abstractmethod
    def perform(self, workspace: Workspace) -> tuple[dict[str, Any], Arrays]:
        """Do the job or resume it.

        Returns:
            The result as JSON, and arrays to store beside it.
        """


@dataclass(frozen=True)
class Training(Job):
    """One model on one dataset with one seed: preset of the dataset, recipe of the model, and overrides."""

    on: Data
    model: str = "flare"
    """One of `recipe_names`."""
    overrides: Overrides = ()
    seed: int = 0

    kind: ClassVar[str] = "training"
    measure: ClassVar[str] = "rel_l2"
    """Key of the measured value in results and evaluations."""
    unit: ClassVar[float] = 1e-3
    """Unit in which tables print the measured value."""

    @property
    def label(self) -> str:
        return f"{self.on.name}-{self.model}-seed{self.seed}"

    @property
    def numbers(self) -> Sequence[str]:
        return (self.measure,)

    @property
    def data(self) -> Data:
        return self.on

    def settings(self) -> dict[str, Any]:
        """Return the settings that preset, recipe and overrides name; a new default does not change the address."""
        return merged(recipe(self.on.name, self.model), self.overrides) | {"seed": self.seed}

    def relevant_settings(self) -> dict[str, Any]:
        """Return the settings that a result depends on."""
        return {
            key: {k: v for k, v in value.items() if k not in INERT.get(key, ())} if isinstance(value, dict) else value
            for key, value in self.settings().items()
            if key not in INERT[""]
        }

    def definition(self) -> dict[str, Any]:
        settings = {
            key: {FORMER.get(k, k): v for k, v in value.items()} if isinstance(value, dict) else value
            for key, value in self.relevant_settings().items()
        }
        return {"kind": self.kind, "data": self.on.definition(), "settings": settings}

    def config(self, workspace: Workspace) -> TrainConfig:
        """Return the configuration of the run."""
        settings = merged(self.settings(), [("data.path", str(workspace.data(self.on)))])
        return build_config(with_grid(settings), self.label)

    def with_seed(self, seed: int) -> Training:
        """Return the same training with another seed."""
        return replace(self, seed=seed)

    def with_settings(self, *more: tuple[str, Any]) -> Training:
        """Return the same training with further overrides."""
        return replace(self, overrides=(*self.overrides, *more))

    def perform(self, workspace: Workspace) -> tuple[dict[str, Any], Arrays]:
        result = self.train(workspace)
        kept = ("rel_l2", "rel_l2_median", "rel_l2_worst", "rel_l2_mean_field", "offset", "epochs", *KEPT)
        measured = {key: result[key] for key in kept} | self.curves(workspace)
        measured |= {key: result[key] for key in ("rel_l2_validation",) if key in result}
        offset = card(self.on.name).paper_offset if self.on.name in card_names() else 0.0
        if offset and not result["offset"]:
            measured["rel_l2_offset"] = self._offset_error(workspace, offset)
        return measured, {}

    def train(self, workspace: Workspace) -> dict[str, Any]:
        """Train, resume, or read a finished run, and return its `result.json`."""
        from flare.train.run import start_or_resume

        # Data and run folder may have been moved since the run was started.
        free = {f"{group}.{name}".lstrip(".") for group, names in INERT.items() for name in names}
        return start_or_resume(self.config(workspace), workspace.run(self), free)

    def epochs(self, workspace: Workspace) -> float:
        """Return the length of the whole training in epochs."""
        return self.config(workspace).epochs

    def finished(self, workspace: Workspace) -> bool:
        """Return whether the run folder has a result."""
        return (workspace.run(self) / "result.json").exists()

    def curves(self, workspace: Workspace) -> dict[str, list[tuple[float, float]]]:
        """Return (epoch, measured value) of all evaluations so far, and `cpu_curve` with CPU seconds for epochs."""
        records = [r for r in RunFolder(workspace.run(self)).records() if r["kind"] == "evaluate"]
        timed = [(round(r["cpu_seconds"], 2), r[self.measure]) for r in records if "cpu_seconds" in r]
        return {"curve": [(r["epoch"], r[self.measure]) for r in records], "cpu_curve": timed}

    def _offset_error(self, workspace: Workspace, offset: float) -> float:
        """Return the error of the authors' code, which adds a constant: see docs/paper/discrepancies.md, number 12."""
        import torch

        from flare.inference.surrogate import load
        from flare.train.field_task import FieldTask, sample_errors

        config = self.config(workspace)
        task = FieldTask(config.data, config.loss)
        surrogate, batch = load(workspace.run(self), device="cpu"), config.data.eval_batch_size
        errors = sample_errors(surrogate, task.dataset, task.test, batch, torch.device("cpu"), offset=offset)
        return float(errors.mean())


def needed_data(jobs: Sequence[Job]) -> list[Data]:
    """Return each dataset of some jobs once.

    Raises:
        DataError: A dataset has no training samples or no test samples.
    """
    found = {job.data.folder: job.data for job in jobs if job.data is not None}
    for data in found.values():
        if not data.published and not 0 < data.test < data.samples:
            raise DataError(f"{data.name}: test={data.test} must be between 1 and samples - 1, with {data.samples=}")
    return list(found.values())

"""What the reproduction of the paper is made of: a dataset to make, a model to train on it. Each is plain data."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from flare.data.benchmarks.cards import card
from flare.data.generation.generate import generate
from flare.physics import generator_class
from flare.reproduce.ledger import Arrays, address
from flare.train.config import TrainConfig
from flare.train.presets import build_config, merged, preset_path, read_yaml
from flare.train.recipes import with_grid, with_model
from flare.train.run_folder import RunFolder
from flare.utils.errors import DataError
from flare.utils.files import taken

Overrides = tuple[tuple[str, Any], ...]
"""Dotted settings and their values, such as (("model.latents", 32), ("epochs", 20))."""
INERT = {
    "data": {"path", "workers", "eval_batch_size"},
    "": {"device", "evaluate_every", "checkpoint_every", "checkpoint_minutes", "log_every"},
}
"""Settings that change no result, by group: a run with others is the same run."""

KEPT = (
    *("parameters", "steps", "train_samples", "test_samples", "provenance", "data_fingerprint"),
    *("seconds", "peak_memory_mb", "environment"),
)
"""Of the result of every run."""


@dataclass(frozen=True)
class Data:
    """A dataset of a benchmark: made by our solver, or of its published files."""

    name: str
    samples: int
    test: int
    """The last ones of `samples`."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of the generator, in place of the benchmark's published form; or of the reader of published files."""
    published: bool = False
    """Read the published files, all of them, instead."""

    def definition(self) -> dict[str, Any]:
        if self.published:
            return {"published": self.name} | ({"options": dict(self.options)} if self.options else {})
        return {"name": self.name, "samples": self.samples, "test": self.test, "options": dict(self.options)}

    @property
    def folder(self) -> str:
        digest = hashlib.sha256(json.dumps(self.definition(), sort_keys=True).encode()).hexdigest()[:8]
        return f"{self.name}-{'published' if self.published and not self.options else digest}"

    def make(self, folder: Path, files: Path, *, workers: int = 1, scheduler: str | None = None) -> None:
        """Have it in `folder`, unless it is there; published files are fetched into `files`."""
        if self.published:
            if not taken(folder):
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
class Place:
    """Where the work is done: datasets and run folders. None of it is needed once the records are there."""

    root: Path
    runs: str = "runs"

    def data(self, data: Data) -> Path:
        return self.root / "data" / data.folder

    def run(self, job: Job) -> Path:
        return self.root / self.runs / f"{job.label}-{address(job)}"

    def make(self, data: Data, *, workers: int = 1, scheduler: str | None = None) -> None:
        """Have a dataset made or fetched unless it is there."""
        data.make(self.data(data), self.root / "published", workers=workers, scheduler=scheduler)


@cache
def recipe(preset: str, model: str) -> dict[str, Any]:
    """The settings of a model on a preset; not to be changed. Read once: a sweep asks for it thousands of times."""
    return with_model(read_yaml(preset_path(preset)), preset, model)


class Job(ABC):
    """Something to be done once, whose outcome is a record; see `ledger.Defined` for its label and definition."""

    kind: ClassVar[str]

    @property
    @abstractmethod
    def label(self) -> str: ...

    @property
    def numbers(self) -> Sequence[str]:
        """What its result must have, when it is done, as a finite number each."""
        return ()

    @abstractmethod
    def definition(self) -> dict[str, Any]: ...

    @property
    def data(self) -> Data | None:
        """The dataset that must be there before."""
        return None

    @property
    def training(self) -> Training | None:
        """The trained model that must be there before."""
        return None

    @abstractmethod
    def perform(self, place: Place) -> tuple[dict[str, Any], Arrays]:
        """Do it, or go on with it. Returns the result as JSON, and arrays to keep beside it."""


@dataclass(frozen=True)
class Training(Job):
    """One model on one dataset with one seed: the preset of the dataset, the recipe of the model, and overrides."""

    on: Data
    model: str = "flare"
    """One of `recipe_names`."""
    overrides: Overrides = ()
    seed: int = 0

    kind: ClassVar[str] = "training"
    measure: ClassVar[str] = "rel_l2"
    """Its result, and what evaluations on the way there tell."""
    unit: ClassVar[float] = 1e-3
    """In which tables print it."""

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
        """As written in preset, recipe and overrides: a setting that is added to flare later leaves addresses alone."""
        return merged(recipe(self.on.name, self.model), self.overrides) | {"seed": self.seed}

    def definition(self) -> dict[str, Any]:
        settings = {
            key: {k: v for k, v in value.items() if k not in INERT.get(key, ())} if isinstance(value, dict) else value
            for key, value in self.settings().items()
            if key not in INERT[""]
        }
        return {"kind": self.kind, "data": self.on.definition(), "settings": settings}

    def config(self, place: Place) -> TrainConfig:
        settings = merged(self.settings(), [("data.path", str(place.data(self.on)))])
        return build_config(with_grid(settings), self.label)

    def with_seed(self, seed: int) -> Training:
        return replace(self, seed=seed)

    def with_settings(self, *more: tuple[str, Any]) -> Training:
        return replace(self, overrides=(*self.overrides, *more))

    def perform(self, place: Place) -> tuple[dict[str, Any], Arrays]:
        result = self.trained(place)
        kept = ("rel_l2", "rel_l2_median", "rel_l2_worst", "rel_l2_mean_field", "offset", "epochs", *KEPT)
        measured = {key: result[key] for key in kept} | self.curves(place)
        if "rel_l2_validation" in result:
            measured["rel_l2_validation"] = result["rel_l2_validation"]
        if card(self.on.name).paper_offset and not result["offset"]:
            measured["rel_l2_offset"] = self._offset_error(place)
        return measured, {}

    def trained(self, place: Place) -> dict[str, Any]:
        """Train, go on, or read: the result record of the run folder."""
        from flare.train.run import start_or_resume

        # A folder may have been moved with its data, which are still those of the definition.
        free = {f"{group}.{name}".lstrip(".") for group, names in INERT.items() for name in names}
        return start_or_resume(self.config(place), place.run(self), free)

    def epochs(self, place: Place) -> float:
        """In all."""
        return self.config(place).epochs

    def finished(self, place: Place) -> bool:
        return (place.run(self) / "result.json").exists()

    def curve(self, place: Place) -> list[tuple[int, float]]:
        """(epoch, `measure` on the split that is watched) of all evaluations so far."""
        records = RunFolder(place.run(self)).records()
        return [(r["epoch"], r[self.measure]) for r in records if r["kind"] == "evaluate"]

    def curves(self, place: Place) -> dict[str, Any]:
        """Return what every training keeps of its evaluations.

        `curve` is that of the method of the same name, and `cpu_curve` has CPU seconds in place of epochs.
        """
        records = [r for r in RunFolder(place.run(self)).records() if r["kind"] == "evaluate"]
        timed = [(round(r["cpu_seconds"], 2), r[self.measure]) for r in records if "cpu_seconds" in r]
        return {"curve": self.curve(place), "cpu_curve": timed}

    def _offset_error(self, place: Place) -> float:
        """The measure of the paper's authors, who add a constant to truth and prediction: see docs/discrepancies.md."""
        import torch

        from flare.surrogate import load
        from flare.train.field_task import FieldTask, sample_errors

        config = self.config(place)
        task = FieldTask(config.data, config.loss)
        offset, surrogate = card(self.on.name).paper_offset, load(place.run(self), device="cpu")
        errors = sample_errors(
            surrogate, task.dataset, task.test, config.data.eval_batch_size, torch.device("cpu"), offset=offset
        )
        return float(errors.mean())


def needed_data(jobs: Sequence[Job]) -> list[Data]:
    """Each dataset of some jobs once."""
    found = {job.data.folder: job.data for job in jobs if job.data is not None}
    for data in found.values():
        if not data.published and not 0 < data.test < data.samples:
            raise DataError(
                f"{data.name}: {data.test} of {data.samples} samples for testing; some, but not all, please"
            )
    return list(found.values())

"""Jobs of Table 2: a task of the Long Range Arena, and a classifier trained on it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from flare import sequence
from flare.reproduce.items.lra import settings_of
from flare.reproduce.jobs import KEPT, Data, Place, Training
from flare.reproduce.ledger import Arrays
from flare.sequence.store import SequenceDataset, generate_sequences
from flare.train.config import TrainConfig
from flare.train.presets import build_config, merged
from flare.utils.files import taken
from flare.utils.registry import class_named


@dataclass(frozen=True)
class Sequences(Data):
    """The samples of a task: made by our generator, or of its published files."""

    val: int = 0
    """Those before the last `test`."""

    def definition(self) -> dict[str, Any]:
        return super().definition() | ({} if self.published else {"val": self.val})

    def make(self, folder: Path, files: Path, *, workers: int = 1, scheduler: str | None = None) -> None:
        from flare.sequence.files import read_sequences
        from flare.sequence.sources import SOURCES, fetch

        if not self.published:
            generator = class_named(self.name, sequence.GENERATORS, "generator")(**self.options)
            how: dict[str, Any] = {"workers": workers, "scheduler": scheduler}
            samples, val, test = self.samples, self.val, self.test
            generate_sequences(generator, folder, samples=samples, val_samples=val, test_samples=test, **how)
        elif not taken(folder):
            reader = class_named(self.name, sequence.READERS, "reader of published files of")
            found = fetch(next(iter(SOURCES[self.name].values())), files)
            read_sequences(reader(folder=str(found), **self.options), folder)


@dataclass(frozen=True)
class Classification(Training):
    """One attention on one task with one seed: the preset of the task, what the attention has of its own, overrides."""

    task: str = ""
    """One of the presets `lra/…`."""

    kind: ClassVar[str] = "classification"
    measure: ClassVar[str] = "accuracy"
    unit: ClassVar[float] = 1e-2

    @property
    def label(self) -> str:
        return f"{self.task}-{self.model}-seed{self.seed}"

    def settings(self) -> dict[str, Any]:
        return settings_of(self.task, self.model, self.overrides) | {"seed": self.seed}

    def config(self, place: Place) -> TrainConfig:
        return build_config(merged(self.settings(), [("data.path", str(place.data(self.on)))]), self.label)

    def epochs(self, place: Place) -> float:
        config = self.config(place)
        if not config.steps:
            return config.epochs
        return config.steps * config.data.batch_size / len(SequenceDataset(place.data(self.on)).split("train"))

    def perform(self, place: Place) -> tuple[dict[str, Any], Arrays]:
        result = self.trained(place)
        accuracy, last = result["accuracy"], result["split"]
        kept = ("guesses", "reading", "protocol", "split", "samples", *KEPT)
        measured = {key: result[key] for key in kept} | self.curves(place)
        return measured | {"accuracy": accuracy[last], "accuracies": accuracy}, {}

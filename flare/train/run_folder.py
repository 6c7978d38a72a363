"""The run folder: resolved configuration, metrics, TensorBoard events, checkpoints, report."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from flare.train.config import TrainConfig
from flare.train.presets import load_config
from flare.utils.errors import CheckpointError, ConfigError
from flare.utils.files import lock, replacing, wait_for_lock


class RunFolder:
    """`runs/<name>/`. A new one must not exist yet; nothing of an old run is overwritten."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._events: Any = None

    def create(self, config: TrainConfig) -> None:
        """Begin the folder with the resolved configuration."""
        self.refuse_if_taken()
        self.path.mkdir(parents=True, exist_ok=True)
        self.write_config(config)

    def write_config(self, config: TrainConfig) -> None:
        with replacing(self.path / "config.yaml") as temporary:
            temporary.write_text(yaml.safe_dump(config.to_dict(), sort_keys=False), encoding="utf-8")

    def refuse_if_taken(self) -> None:
        if self.exists:
            raise ConfigError(
                f"{self.path} holds a run already. Go on with it:  flare train --resume {self.path}   "
                f"or choose another folder with --out"
            )

    @property
    def exists(self) -> bool:
        return (self.path / "config.yaml").exists()

    def has_checkpoint(self, name: str) -> bool:
        return any((self.checkpoints / folder).exists() for folder in (name, f"{name}.previous"))

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @contextmanager
    def saving(self) -> Iterator[None]:
        """One process at a time writes checkpoints: when a rank is lost, any of the others may want to."""
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        with wait_for_lock(self.checkpoints / ".lock"):
            yield

    def config(self) -> TrainConfig:
        if not self.exists:
            raise CheckpointError(f"{self.path} is not a run folder (no config.yaml)")
        return load_config(self.path / "config.yaml")

    def log(self, record: dict[str, Any]) -> None:
        """Add a line to metrics.jsonl and its numbers to the TensorBoard events."""
        with (self.path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(record) + "\n")
        if self._events is None:
            self._events = self._open_events(record["step"])
        for key, value in record.items():
            if isinstance(value, float):
                self._events.add_scalar(f"{record['kind']}/{key}", value, record["step"])

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._whole_lines()]

    def forget_after(self, step: int, *, evaluated: bool) -> None:
        """Drop what was logged after the checkpoint a resumed run goes on from: it will be logged again.

        Args:
            evaluated: whether an evaluation after that step is among what was done.
        """
        records = [(line, json.loads(line)) for line in self._whole_lines()]
        kept = [
            line
            for line, record in records
            if record["step"] < step or (record["step"] == step and (evaluated or record["kind"] != "evaluate"))
        ]
        with replacing(self.path / "metrics.jsonl") as temporary:
            temporary.write_text("".join(kept), encoding="utf-8")

    def _whole_lines(self) -> list[str]:
        """Of metrics.jsonl; a kill may have cut the last one short."""
        path = self.path / "metrics.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
        return [line for line in lines if line.endswith("\n")]

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Held while training: a second process that wants this folder is refused instead of mixing into it."""
        self.path.mkdir(parents=True, exist_ok=True)
        with lock(
            self.path / ".lock", f"another process is training in {self.path}; wait for it, or choose another --out"
        ):
            yield

    def close(self) -> None:
        if self._events is not None:
            self._events.close()
            self._events = None

    def _open_events(self, step: int) -> Any:
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter(str(self.path / "tensorboard"), purge_step=step)

"""The run folder: resolved configuration, metrics, TensorBoard events, checkpoints, report."""

from __future__ import annotations

import json
import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import yaml

from flare.train.config import TrainConfig
from flare.train.presets import build_config, read_yaml
from flare.utils.errors import CheckpointError, ConfigError
from flare.utils.files import lock, replace_atomically


class RunFolder:
    """The folder of one run.

    Args:
        path: The folder; it need not exist yet.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._events: Any = None

    def create(self, config: TrainConfig) -> None:
        """Make the folder with the resolved configuration; an existing run is refused."""
        self.refuse_if_taken()
        self.path.mkdir(parents=True, exist_ok=True)
        self.write_config(config)

    def write_config(self, config: TrainConfig) -> None:
        """Write `config.yaml`."""
        with replace_atomically(self.path / "config.yaml") as temporary:
            temporary.write_text(yaml.safe_dump(config.to_dict(), sort_keys=False), encoding="utf-8")

    def refuse_if_taken(self) -> None:
        """Raise a `ConfigError` if the folder holds a run."""
        if self.exists:
            raise ConfigError(
                f"{self.path} holds a run already; use another `out`, or resume it with resume={str(self.path)!r}"
            )

    @property
    def exists(self) -> bool:
        """Whether the folder holds a run."""
        return (self.path / "config.yaml").exists()

    def has_checkpoint(self, name: str) -> bool:
        """Return whether the checkpoint `last`, `best` or `stable` exists."""
        return any((self.checkpoints / folder).exists() for folder in (name, f"{name}.previous"))

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.path / "checkpoints"

    def saving(self) -> AbstractContextManager[None]:
        """Hold the lock for writing checkpoints; after a rank failure several ranks may try."""
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        return lock(self.checkpoints / ".lock")

    def config(self, *, training: bool = True) -> TrainConfig:
        """Read the configuration of the run.

        Args:
            training: Read how it was trained, too. False: optimizer and loss are the defaults, and those of the run
                need not be registered.
        """
        if not self.exists:
            raise CheckpointError(f"{self.path} is not a run folder (no config.yaml)")
        path = self.path / "config.yaml"
        settings = read_yaml(path)
        return build_config(settings if training else settings | {"optim": {}, "loss": {}}, str(path))

    def log(self, record: dict[str, Any]) -> None:
        """Add a line to metrics.jsonl and its numbers to the TensorBoard events."""
        with (self.path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(record) + "\n")
        if self._events is None:
            from torch.utils.tensorboard import SummaryWriter

            self._events = SummaryWriter(str(self.path / "tensorboard"), purge_step=record["step"])
        for key, value in record.items():
            if isinstance(value, float):
                self._events.add_scalar(f"{record['kind']}/{key}", value, record["step"])

    def records(self) -> list[dict[str, Any]]:
        """Read all complete lines of metrics.jsonl."""
        return [json.loads(line) for line in self._whole_lines()]

    def forget_after(self, step: int, *, evaluated: bool) -> None:
        """Drop the lines of metrics.jsonl that a resumed run will log again.

        Args:
            step: Step of the checkpoint from which the run resumes.
            evaluated: Whether the evaluation after that step is done.
        """
        records = [(line, json.loads(line)) for line in self._whole_lines()]
        kept = [
            line
            for line, record in records
            if record["step"] < step or (record["step"] == step and (evaluated or record["kind"] != "evaluate"))
        ]
        with replace_atomically(self.path / "metrics.jsonl") as temporary:
            temporary.write_text("".join(kept), encoding="utf-8")

    def _whole_lines(self) -> list[str]:
        """Return the lines of metrics.jsonl without the last one if a kill cut it short."""
        path = self.path / "metrics.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
        return [line for line in lines if line.endswith("\n")]

    def locked(self) -> AbstractContextManager[None]:
        """Hold the lock of the folder; a second process that trains in it is refused with a `DataError`."""
        self.path.mkdir(parents=True, exist_ok=True)
        message = f"another process is training in {self.path}; wait for it, or choose another folder"
        return lock(self.path / ".lock", message)

    def close(self) -> None:
        """Close the TensorBoard file."""
        if self._events is not None:
            self._events.close()
            self._events = None

"""Checkpoints: the complete state of a run as safetensors and JSON, replaced atomically.

checkpoints/last/   model.safetensors  model.json      the surrogate, all that prediction needs
                    ema.safetensors                    averaged weights, if the run has them
                    trainer.safetensors  trainer.json  optimizer, random states, position
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from flare.inference.surrogate import Learner, find_checkpoint, load_weights, previous, read_tensors, save_model
from flare.train.distributed.shards import fill, like, whole
from flare.train.ema import WeightAverage
from flare.train.run_folder import RunFolder
from flare.utils.errors import CheckpointError


@dataclass
class Position:
    """Position of a run: the numbers that change while it trains."""

    data_fingerprint: str
    """Fingerprint of the dataset; a run cannot resume with another one."""
    step: int = 0
    """Optimizer steps done."""
    epoch: int = 0
    """Epoch of the next step."""
    step_in_epoch: int = 0
    """Steps done in that epoch."""
    seconds: float = 0.0
    """Training time so far, over all sessions."""
    cpu_seconds: float = 0.0
    """CPU time of this rank so far."""
    best_error: float | None = None
    """Lowest evaluation error so far."""
    smooth_loss: float | None = None
    """Exponential moving average of the loss."""
    lowest_loss: float | None = None
    """Lowest smoothed loss, the reference for divergence."""
    loss_scaler: dict[str, Any] | None = None
    """State of the loss scaler of float16."""
    finished: bool = False


@dataclass(frozen=True)
class RunState:
    """All tensors of a run, gathered from the ranks."""

    model: dict[str, Tensor]
    ema: dict[str, Tensor] | None
    optimizer: dict[str, Tensor]


def collect(surrogate: Learner, optimizer: Optimizer, ema: WeightAverage | None = None) -> RunState:
    """Gather the tensors to save. If weights are sharded over ranks, every rank must call this."""
    averaged = None
    if ema is not None:
        with ema.swapped_in(surrogate):
            averaged = {n: t.clone() for n, t in _whole(surrogate.state_dict()).items()}  # it is swapped out again
    return RunState(_whole(surrogate.state_dict()), averaged, _whole(_optimizer_tensors(surrogate, optimizer)))


def save_checkpoint(
    folder: Path, surrogate: Learner, state: RunState, random_states: dict[str, Tensor], position: Position
) -> None:
    """Write a checkpoint folder completely, or keep the existing one."""

    def write(new: Path) -> None:
        save_model(state.model, surrogate.about, new)
        if state.ema is not None:
            save_file(state.ema, new / "ema.safetensors")
        save_file(state.optimizer | random_states, new / "trainer.safetensors")
        (new / "trainer.json").write_text(json.dumps(asdict(position), indent=1) + "\n", encoding="utf-8")

    replace_folder(folder, write)


def _whole(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: whole(tensor).contiguous() for name, tensor in tensors.items()}


def load_checkpoint(
    folder: Path, surrogate: Learner, optimizer: Optimizer, ema: WeightAverage | None = None
) -> tuple[Position, dict[str, Tensor]]:
    """Restore model, optimizer and average; return the position and the random states."""
    load_weights(surrogate, folder / "model.safetensors", fill)
    if ema is not None:
        with ema.swapped_in(surrogate):
            load_weights(surrogate, folder / "ema.safetensors", fill)
    position, tensors = read_position(folder), read_tensors(folder / "trainer.safetensors")
    _fill_optimizer(surrogate, optimizer, tensors, folder)
    return position, {name: t for name, t in tensors.items() if name.startswith("random/")}


def read_position(folder: Path) -> Position:
    """Read the position of a checkpoint."""
    try:
        return Position(**json.loads((folder / "trainer.json").read_text(encoding="utf-8")))
    except (OSError, json.JSONDecodeError, TypeError) as error:
        raise CheckpointError(f"{folder / 'trainer.json'} is missing or damaged: {error}") from None


def saved_step(run: RunFolder) -> int | None:
    """Return the step of the last checkpoint; None if there is none."""
    return read_position(find_checkpoint(run.path)).step if run.has_checkpoint("last") else None


def copy_checkpoint(run: RunFolder, source: str, target: str) -> None:
    """Replace the checkpoint `target` of a run by a copy of `source`."""

    def write(new: Path) -> None:
        shutil.copytree(find_checkpoint(run.path, source), new, dirs_exist_ok=True)

    with run.saving():
        replace_folder(run.checkpoints / target, write)


def replace_folder(folder: Path, write: Callable[[Path], None]) -> None:
    """Write a new folder and swap it with the old one, so that a complete one exists at any time."""
    new = folder.with_name(folder.name + ".new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    write(new)
    for path in new.iterdir():  # a power cut must not leave files without content
        with path.open("rb") as file:
            os.fsync(file.fileno())
    if folder.exists():
        shutil.rmtree(previous(folder), ignore_errors=True)
        folder.rename(previous(folder))
    new.rename(folder)
    shutil.rmtree(previous(folder), ignore_errors=True)


def _optimizer_tensors(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """Return the optimizer state by parameter name, independent of the order of parameters."""
    return {
        f"optimizer/{key}/{name}": value
        for name, p in model.named_parameters()
        for key, value in optimizer.state.get(p, {}).items()
    }


def _fill_optimizer(model: nn.Module, optimizer: Optimizer, tensors: dict[str, Tensor], folder: Path) -> None:
    fused = {p for group in optimizer.param_groups if group.get("fused") for p in group["params"]}
    for name, p in model.named_parameters():
        keys = [key for key in tensors if key.startswith("optimizer/") and key.split("/", 2)[2] == name]
        if not keys:
            raise CheckpointError(f"{folder / 'trainer.safetensors'} has no optimizer state for {name}")
        for key in keys:
            # The step counter of AdamW is on the device of the parameter if fused, and on the CPU otherwise.
            device = p.device if tensors[key].ndim or p in fused else "cpu"
            optimizer.state[p][key.split("/")[1]] = like(tensors[key].to(device), p)

"""Checkpoints: all that a run needs to go on bit for bit, as safetensors and JSON, replaced in one step.

checkpoints/last/   model.safetensors  model.json      the surrogate, all that prediction needs
                    ema.safetensors                    averaged weights, where kept
                    trainer.safetensors  trainer.json  optimiser, random states, position
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

from flare.surrogate import find_checkpoint, load_weights, previous, read_tensors, save_model
from flare.train.distributed.shards import fill, like, whole
from flare.train.ema import WeightAverage
from flare.train.run_folder import RunFolder
from flare.train.tasks import Learner
from flare.utils.errors import CheckpointError


@dataclass
class Position:
    """Where a run stands: the numbers that change while it trains."""

    data_fingerprint: str
    """Of the dataset trained on; a run does not go on with another."""
    step: int = 0
    """Optimiser steps done."""
    epoch: int = 0
    """Epoch the next step belongs to."""
    step_in_epoch: int = 0
    """Steps done of that epoch."""
    seconds: float = 0.0
    """Time trained so far, over all sessions."""
    cpu_seconds: float = 0.0
    """Processor time of this rank, likewise."""
    best_error: float | None = None
    """Lowest evaluation error so far."""
    smooth_loss: float | None = None
    lowest_loss: float | None = None
    """Of the smoothed loss; what divergence is measured against."""
    loss_scaler: dict[str, Any] | None = None
    """State of float16's loss scaler."""
    finished: bool = False


@dataclass(frozen=True)
class State:
    """The tensors of a run, whole."""

    model: dict[str, Tensor]
    ema: dict[str, Tensor] | None
    optimizer: dict[str, Tensor]


def collect(surrogate: Learner, optimizer: Optimizer, ema: WeightAverage | None = None) -> State:
    """What there is to save. Where the weights are split over ranks, every rank must ask."""
    averaged = None
    if ema is not None:
        with ema.swapped_in(surrogate):
            # A copy: the average leaves the model's own memory again.
            averaged = {name: tensor.clone() for name, tensor in _whole(surrogate.state_dict()).items()}
    return State(_whole(surrogate.state_dict()), averaged, _whole(_optimizer_tensors(surrogate, optimizer)))


def save_checkpoint(
    folder: Path, surrogate: Learner, state: State, random_states: dict[str, Tensor], position: Position
) -> None:
    """Write a checkpoint folder whole, or leave the one that is there."""

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
    """Fill model, optimiser and average; return the position and the random states."""
    load_weights(surrogate, folder / "model.safetensors", fill)
    if ema is not None:
        with ema.swapped_in(surrogate):
            load_weights(surrogate, folder / "ema.safetensors", fill)
    position, tensors = read_position(folder), read_tensors(folder / "trainer.safetensors")
    _fill_optimizer(surrogate, optimizer, tensors, folder)
    return position, {name: t for name, t in tensors.items() if name.startswith("random/")}


def read_position(folder: Path) -> Position:
    try:
        return Position(**json.loads((folder / "trainer.json").read_text(encoding="utf-8")))
    except (OSError, json.JSONDecodeError, TypeError) as error:
        raise CheckpointError(f"{folder / 'trainer.json'} is missing or damaged: {error}") from None


def saved_step(run: RunFolder) -> int | None:
    """Where a resumed run would go on; None: at the beginning."""
    return read_position(find_checkpoint(run.path)).step if run.has_checkpoint("last") else None


def copy_checkpoint(run: RunFolder, source: str, target: str) -> None:
    """Put a copy of one checkpoint of a run in the place of another."""

    def write(new: Path) -> None:
        shutil.copytree(find_checkpoint(run.path, source), new, dirs_exist_ok=True)

    with run.saving():
        replace_folder(run.checkpoints / target, write)


def replace_folder(folder: Path, write: Callable[[Path], None]) -> None:
    """Fill a new folder, then let it take the place of the old one: at any instant one of the two is whole."""
    new = folder.with_name(folder.name + ".new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    write(new)
    for path in new.iterdir():  # on the disk before it counts: a power cut must not leave names without content
        with path.open("rb") as file:
            os.fsync(file.fileno())
    if folder.exists():
        shutil.rmtree(previous(folder), ignore_errors=True)
        folder.rename(previous(folder))
    new.rename(folder)
    shutil.rmtree(previous(folder), ignore_errors=True)


def _optimizer_tensors(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """AdamW's state by parameter name, so that it does not depend on the order of parameters."""
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
            raise CheckpointError(f"{folder / 'trainer.safetensors'} holds no optimiser state of {name}")
        for key in keys:
            # AdamW keeps its step counter (the scalar) with the parameter when fused, on the CPU otherwise.
            device = p.device if tensors[key].ndim or p in fused else "cpu"
            optimizer.state[p][key.split("/")[1]] = like(tensors[key].to(device), p)

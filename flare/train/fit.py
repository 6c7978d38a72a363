"""Whether a run fits into the memory of this machine, asked before it begins."""

from __future__ import annotations

import logging
import math
import os
from typing import Any

from flare import plan
from flare.train.config import TrainConfig
from flare.train.field_task import FieldTask
from flare.train.recipes import model_name
from flare.train.tasks import holds_sequences
from flare.trial import Setting
from flare.utils.environment import memory_of
from flare.utils.errors import ConfigError

logger = logging.getLogger(__name__)


ADVICE = {
    "training": "--recompute true, --optim.accumulate, --data.subsample",
    "evaluation": "--data.eval_batch_size 1",
}


def refuse_too_big(config: TrainConfig) -> None:
    """Plan the largest step and evaluation of a FLARE run, where a rough bound does not tell that they fit."""
    here, world, rank = (int(os.environ.get(name, default)) for name, default in PLACE.items())
    if model_name(config.to_dict()) != "flare" or rank != 0 or holds_sequences(config.data):
        return
    task = FieldTask(config.data, config.loss)
    step, evaluation = largest_step(config, task, world), largest_evaluation(config, task, world)
    memory = memory_of(step.device, here)
    # Without gradients as many points need less than a step does.
    asked = [step, evaluation] if evaluation.work > step.work else [step]
    doubtful = [setting for setting in asked if not plan.surely_fits(setting, memory)]
    if doubtful:
        logger.info("this run is large: checking whether it fits, a minute or two (--fit ignore goes without)")
    planner = plan.Planner(tell=logger.info)
    for setting in doubtful:
        _refuse(setting, planner.need(setting).memory_mb, memory)


def _refuse(setting: Setting, need: float, memory: float) -> None:
    if not plan.fits_into(need, memory):
        what = "a step" if setting.training else "an evaluation"
        raise ConfigError(
            f"{what} of {setting.batch} x {setting.points:,} points will need about {need / 1024:.2f} GiB, and "
            f"{plan.MARGIN - 1:.0%} to spare; {memory / 1024:.2f} are free. Try {ADVICE[setting.kind]}, "
            f"or more ranks with --split points; `flare plan` tells what fits. --fit ignore begins nevertheless"
        )


PLACE = {"LOCAL_WORLD_SIZE": "1", "WORLD_SIZE": "1", "RANK": "0"}
"""torchrun's, and what they are without it."""


def largest_step(config: TrainConfig, task: FieldTask, ranks: int) -> Setting:
    """Of one rank: its share of the largest micro-batch."""
    most = int(task.dataset.sizes[task.train].max())
    return Setting(
        points=plan.per_rank(min(config.data.subsample or most, most), _point_ranks(config, ranks)),
        batch=max(1, config.data.batch_size // (_sample_ranks(config, ranks) * config.optim.accumulate)),
        recompute=config.recompute,
        **_alike(config, task, ranks),
    )


def largest_evaluation(config: TrainConfig, task: FieldTask, ranks: int) -> Setting:
    """Of one rank: its share of all points of the largest samples that are judged, a batch of them at once."""
    most = max(int(task.dataset.sizes[judged].max()) for judged in task.judged.values())
    count = max(math.ceil(len(judged) / _sample_ranks(config, ranks)) for judged in task.judged.values())
    return Setting(
        points=plan.per_rank(most, _point_ranks(config, ranks)),
        batch=min(config.data.eval_batch_size, count),
        kind="evaluation",
        **_alike(config, task, ranks),
    )


def _point_ranks(config: TrainConfig, ranks: int) -> int:
    """That share the points of a sample."""
    return (config.point_ranks or ranks) if config.split == "points" else 1


def _sample_ranks(config: TrainConfig, ranks: int) -> int:
    """That share the samples of a batch."""
    return max(1, ranks // _point_ranks(config, ranks))


def _alike(config: TrainConfig, task: FieldTask, ranks: int) -> dict[str, Any]:
    """What a step and an evaluation have in common."""
    import torch

    schema = task.dataset.schema
    cuda = config.device == "cuda" or (config.device == "auto" and torch.cuda.is_available())
    return {
        "model": config.model,
        "in_dim": schema.in_dim,
        "out_dim": schema.out_dim,
        "precision": "32" if config.precision == "16" and not cuda else config.precision,
        "device": "cuda" if cuda else "cpu",
        "shared": config.split if ranks > 1 else "",
    }

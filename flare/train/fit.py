"""Whether a run fits into the memory of this machine, asked before it begins."""

from __future__ import annotations

import os

from flare import plan
from flare.errors import ConfigError
from flare.terminal import say
from flare.train.config import TrainConfig
from flare.train.fields import FieldTask
from flare.train.recipes import model_name


def refuse_too_big(config: TrainConfig) -> None:
    """Plan the largest step of a FLARE run, where a rough bound does not tell at once that it fits."""
    here, world, rank = (int(os.environ.get(name, default)) for name, default in PLACE.items())
    if model_name(config.to_dict()) != "flare" or rank != 0:
        return
    setting = largest_step(config, world)
    memory = plan.memory_of(setting.device) / (1 if setting.device != "cpu" else here)
    if plan.surely_fits(setting, memory):
        return
    say("this run is large: checking whether it fits, a minute or two (--fit ignore goes without)")
    need = plan.calibrate(setting, say).predict(setting)
    if plan.MARGIN * need.memory_mb > memory:
        raise ConfigError(
            f"a step of {setting.batch} x {setting.points:,} points will need about {need.memory_mb / 1024:.2f} GiB; "
            f"{memory / 1024:.2f} are free. Try --recompute true, --optim.accumulate, --data.subsample, or more ranks "
            f"with --split points; `flare plan` tells what fits. --fit ignore begins nevertheless"
        )


PLACE = {"LOCAL_WORLD_SIZE": "1", "WORLD_SIZE": "1", "RANK": "0"}
"""torchrun's, and what they are without it."""


def largest_step(config: TrainConfig, ranks: int) -> plan.Setting:
    """Of one rank: its share of the largest micro-batch."""
    import torch

    task = FieldTask(config.data, config.loss)
    schema, most = task.dataset.schema, int(task.dataset.sizes[task.train].max())
    points = min(config.data.subsample or most, most)
    sharing = (config.point_ranks or ranks) if config.split == "points" else 1
    cuda = config.device == "cuda" or (config.device == "auto" and torch.cuda.is_available())
    return plan.Setting(
        model=config.model,
        in_dim=schema.in_dim,
        out_dim=schema.out_dim,
        points=plan.per_rank(points, sharing),
        batch=max(1, config.data.batch_size * sharing // (ranks * config.optim.accumulate)),
        precision="bf16" if config.precision == "16" and not cuda else config.precision,
        recompute=config.recompute,
        device="cuda" if cuda else "cpu",
    )

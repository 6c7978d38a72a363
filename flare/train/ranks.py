"""Who has what: ranks share the samples of a batch, the points of a sample, or both."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from lightning_fabric import Fabric
from torch import distributed as dist

from flare.data.batch import Share
from flare.errors import ConfigError, RankLost, one_line
from flare.train.config import TrainConfig


@dataclass(frozen=True)
class Ranks:
    """This rank's place in the mesh of (samples, points)."""

    samples: Share
    """Its share of a batch."""
    points: Share
    """Its share of the points of every sample."""
    group: dist.ProcessGroup | None
    """The ranks that have the other points of the same samples; None where it has them all."""


def timeout(config: TrainConfig) -> timedelta:
    return timedelta(seconds=config.rank_timeout)


def is_lost(error: RuntimeError) -> bool:
    """Whether an error says that another rank is gone or silent: torch has a class for it on GPUs, not with gloo."""
    return isinstance(error, dist.DistError) or "/gloo/" in str(error)


def lost(error: RuntimeError, ranks: int, when: str, run: Path) -> RankLost:
    words = one_line(error).split("] ", 1)[-1].split(". ")[0]  # without the library's file name and good wishes
    return RankLost(
        f"another of the {ranks} ranks is gone or silent, {when} ({words}); if it could, it said why. "
        f"Go on with any number of ranks:  flare train --resume {run}"
    )


def place(config: TrainConfig, fabric: Fabric) -> Ranks:
    """Neighbouring ranks share points: within a machine they talk fastest."""
    world, rank = fabric.world_size, fabric.global_rank
    if config.split == "samples" or world == 1:
        return Ranks(Share(rank, world), Share(), None)
    together = config.point_ranks or world
    if world % together:
        raise ConfigError(f"point_ranks={together} does not divide the {world} ranks")
    group = None
    for first in range(0, world, together):  # every rank must make every group
        made = dist.new_group(list(range(first, first + together)), timeout=timeout(config))
        if first <= rank < first + together:
            group = made
    return Ranks(Share(rank // together, world // together), Share(rank % together, together), group)

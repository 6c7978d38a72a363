"""Who has what: ranks share the samples of a batch, the points of a sample, or both."""

from __future__ import annotations

from dataclasses import dataclass

from lightning_fabric import Fabric
from torch import distributed as dist

from flare.data.batch import Share
from flare.errors import ConfigError
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
        made = dist.new_group(list(range(first, first + together)))
        if first <= rank < first + together:
            group = made
    return Ranks(Share(rank // together, world // together), Share(rank % together, together), group)

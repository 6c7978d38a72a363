"""Who has what: ranks share the samples of a batch, the points of a sample, or both."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import distributed as dist

from flare.data.batching import WHOLE, Share
from flare.train.config import TrainConfig
from flare.utils.errors import ConfigError


@dataclass(frozen=True)
class Ranks:
    """This rank's place in the mesh of (samples, points)."""

    samples: Share = WHOLE
    """Its share of a batch."""
    points: Share = WHOLE
    """Its share of the points of every sample."""
    group: dist.ProcessGroup | None = None
    """The ranks that have the other points of the same samples; None where it has them all."""
    device: torch.device | str = "cpu"
    """From which they talk."""

    @property
    def all(self) -> Share:
        """Its place among all ranks."""
        return Share(self.samples.index * self.points.count + self.points.index, self.samples.count * self.points.count)

    def add_up(self, numbers: np.ndarray) -> np.ndarray:
        """The sum over all ranks, the same on each."""
        if self.all.count == 1:
            return numbers
        total = torch.from_numpy(numbers).to(self.device)
        dist.all_reduce(total)
        return total.cpu().numpy()


ALONE = Ranks()


def timeout(config: TrainConfig) -> timedelta:
    return timedelta(seconds=config.rank_timeout)


def place(config: TrainConfig, fabric: Fabric) -> Ranks:
    """Neighbouring ranks share points: within a machine they talk fastest."""
    world, rank = fabric.world_size, fabric.global_rank
    if config.split == "samples" or world == 1:
        return Ranks(Share(rank, world), device=fabric.device)
    together = config.point_ranks or world
    if world % together:
        raise ConfigError(f"point_ranks={together} does not divide the {world} ranks")
    group = None
    for first in range(0, world, together):  # every rank must make every group
        made = dist.new_group(list(range(first, first + together)), timeout=timeout(config))
        if first <= rank < first + together:
            group = made
    samples, points = Share(rank // together, world // together), Share(rank % together, together)
    return Ranks(samples, points, group, fabric.device)

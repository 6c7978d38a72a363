"""Ranks that share the samples of a batch, the points of a sample, or both."""

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
    """Place of this rank in the grid of (samples, points)."""

    samples: Share = WHOLE
    """Share of the samples of a batch."""
    points: Share = WHOLE
    """Share of the points of every sample."""
    group: dist.ProcessGroup | None = None
    """Ranks that have the other points of the same samples; None if this rank has all points."""
    device: torch.device | str = "cpu"
    """Device of the tensors that ranks exchange."""

    @property
    def all(self) -> Share:
        """Place among all ranks."""
        return Share(self.samples.index * self.points.count + self.points.index, self.samples.count * self.points.count)

    def add_up(self, numbers: np.ndarray) -> np.ndarray:
        """Sum an array over all ranks; every rank must call this."""
        if self.all.count == 1:
            return numbers
        total = torch.from_numpy(numbers).to(self.device)
        dist.all_reduce(total)
        return total.cpu().numpy()


ALONE = Ranks()


def timeout(config: TrainConfig) -> timedelta:
    """Return how long a rank waits for the others."""
    return timedelta(seconds=config.rank_timeout)


def place(config: TrainConfig, fabric: Fabric) -> Ranks:
    """Return the place of this rank. Neighboring ranks share points, since a machine communicates fastest within."""
    world, rank = fabric.world_size, fabric.global_rank
    if config.ranks_share == "samples" or world == 1:
        return Ranks(Share(rank, world), device=fabric.device)
    together = config.point_ranks or world
    if world % together:
        raise ConfigError(f"point_ranks={together} does not divide the {world} ranks")
    limit = timeout(config)
    groups = [dist.new_group([*range(first, first + together)], timeout=limit) for first in range(0, world, together)]
    samples, points = Share(rank // together, world // together), Share(rank % together, together)
    return Ranks(samples, points, groups[samples.index], fabric.device)  # every rank must create every group

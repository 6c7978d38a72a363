"""Weights split over ranks (FSDP): each keeps a shard, and blocks are put together when they are computed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from flare.train.tasks import Learner


def shard(surrogate: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """In place: names and shapes of the weights stay as they are, and between steps each is a shard."""
    assert isinstance(surrogate, Learner)
    blocks: Any = getattr(surrogate.network, "blocks", [])
    for block in blocks:
        fully_shard(block, mesh=mesh["data_parallel"], reshard_after_forward=True)
    fully_shard(surrogate, mesh=mesh["data_parallel"], reshard_after_forward=True)
    return surrogate


def whole(tensor: Tensor) -> Tensor:
    """Of a shard, all of it; every rank must ask. Of anything else, itself."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def like(tensor: Tensor, other: Tensor) -> Tensor:
    """This rank's shard of a whole tensor, split as `other` is; the tensor itself where that is not split."""
    if not isinstance(other, DTensor) or tensor.ndim == 0:
        return tensor
    return distribute_tensor(tensor.to(other.device), other.device_mesh, other.placements)


@torch.no_grad()
def fill(module: nn.Module, state: dict[str, Tensor]) -> None:
    """`load_state_dict` for a module that may be split; the state is whole, and known to fit."""
    for name, own in module.state_dict().items():
        own.copy_(like(state[name], own))

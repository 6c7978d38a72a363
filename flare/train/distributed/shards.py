"""Weights sharded over ranks (FSDP): blocks are gathered when they are computed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from flare.inference.surrogate import Learner


def shard(surrogate: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Shard a model in place; names and shapes of the weights stay the same."""
    assert isinstance(surrogate, Learner)
    blocks: Any = getattr(surrogate.network, "blocks", [])
    for block in blocks:
        fully_shard(block, mesh=mesh["data_parallel"], reshard_after_forward=True)
    fully_shard(surrogate, mesh=mesh["data_parallel"], reshard_after_forward=True)
    return surrogate


def whole(tensor: Tensor) -> Tensor:
    """Gather a sharded tensor, for which every rank must call this; return any other tensor unchanged."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def like(tensor: Tensor, other: Tensor) -> Tensor:
    """Return this rank's shard of a whole tensor, sharded like `other`; the tensor itself if that is not sharded."""
    if not isinstance(other, DTensor) or tensor.ndim == 0:
        return tensor
    return distribute_tensor(tensor.to(other.device), other.device_mesh, other.placements)


@torch.no_grad()
def fill(module: nn.Module, state: dict[str, Tensor]) -> None:
    """Load a whole state, known to fit, into a module that may be sharded."""
    for name, own in module.state_dict().items():
        own.copy_(like(state[name], own))

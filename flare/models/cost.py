"""The cost of a model for N points: parameters, operations of a forward pass, memory kept for the backward pass.

Counts use tensors without data, so they are immediate for any number of points. The memory is that of PyTorch's own
operators; the native kernels of FLARE keep about an eighth of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from flare.models import build_model, count_parameters

# PyTorch counts the operations of its attention kernels on every device except the CPU.
_ATTENTION = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **__: sdpa_flop_count(q, k, v)
}


@dataclass(frozen=True)
class ModelCost:
    """Cost of one sample."""

    parameters: int
    """Number of parameters."""
    flops: int
    """Operations of a forward pass in matrix products and convolutions; a multiply-add counts as two."""
    activations: int
    """Bytes that a forward pass keeps for the backward pass, without parameters and input."""


def cost_of(model: Mapping[str, object], in_dim: int, out_dim: int, points: int) -> ModelCost:
    """Count the cost of a model for one sample.

    Args:
        model: `name` and options of the model.
        in_dim: Number of input features per point.
        out_dim: Number of fields to predict per point.
        points: Number of points N.
    """
    options = {key: value for key, value in model.items() if key != "name"}
    with FakeTensorMode():
        network = build_model(str(model["name"]), in_dim, out_dim, **options).train()
        x = torch.empty(1, points, in_dim)
        with FlopCounterMode(display=False, custom_mapping=_ATTENTION) as counter:
            kept = _bytes_kept(network, x)
        return ModelCost(count_parameters(network), counter.get_total_flops(), kept)


def _bytes_kept(network: nn.Module, x: Tensor) -> int:
    """Return the size of all storages that autograd saves, each counted once."""
    own = {tensor.untyped_storage()._cdata for tensor in (*network.parameters(), *network.buffers(), x)}
    kept: dict[int, torch.UntypedStorage] = {}  # keeps them alive, so that addresses stay unique

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            kept[storage._cdata] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        network(x)
    return sum(storage.nbytes() for storage in kept.values())

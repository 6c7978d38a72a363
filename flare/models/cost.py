"""What a model costs for N points: parameters, operations of a forward, memory that a training step keeps.

Counted on tensors without data, so a million points cost nothing. Memory is what PyTorch's own operators save for the
backward; FLARE's native kernels keep about an eighth of that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from flare.models import build_model, count_parameters

# PyTorch counts its attention kernels on every device but this one.
_ATTENTION = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **__: sdpa_flop_count(q, k, v)
}


@dataclass(frozen=True)
class Cost:
    parameters: int
    flops: int
    """Of one forward, a multiplication and an addition being two; matrix products and convolutions alone."""
    activations: int
    """Bytes that a forward keeps for its backward, beside parameters and input."""


def cost_of(model: Mapping[str, object], in_dim: int, out_dim: int, points: int) -> Cost:
    """Of a model by its settings: `name` and sizes, for one sample."""
    sizes = {key: value for key, value in model.items() if key != "name"}
    with FakeTensorMode():
        network = build_model(str(model["name"]), in_dim, out_dim, **sizes).train()
        x = torch.empty(1, points, in_dim)
        with FlopCounterMode(display=False, custom_mapping=_ATTENTION) as counter:
            kept = _bytes_kept(network, x)
        return Cost(count_parameters(network), counter.get_total_flops(), kept)


def _bytes_kept(network: nn.Module, x: Tensor) -> int:
    """Memory of the tensors that autograd saves, each block of it counted once."""
    own = {tensor.untyped_storage()._cdata for tensor in (*network.parameters(), *network.buffers(), x)}
    kept: dict[int, torch.UntypedStorage] = {}  # keeps them alive, so that no two have one address

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            kept[storage._cdata] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        network(x)
    return sum(storage.nbytes() for storage in kept.values())

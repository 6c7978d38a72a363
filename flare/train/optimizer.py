"""AdamW as the paper uses it."""

from __future__ import annotations

from torch import nn
from torch.optim import AdamW

from flare.train.config import OptimConfig


def make_optimizer(model: nn.Module, optim: OptimConfig, *, fused: bool = True) -> AdamW:
    """AdamW that lets biases, norms (all one-dimensional), embeddings and latents go without decay."""
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    decayed: list[nn.Parameter] = []
    free: list[nn.Parameter] = []
    for name, p in model.named_parameters():
        (free if p.ndim < 2 or id(p) in tables or name.endswith("latents") else decayed).append(p)
    groups = [{"params": decayed, "weight_decay": optim.weight_decay}, {"params": free, "weight_decay": 0.0}]
    return AdamW(groups, lr=optim.lr, betas=optim.betas, eps=optim.eps, fused=fused)

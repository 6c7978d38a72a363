"""AdamW as the paper uses it."""

from __future__ import annotations

from torch import nn
from torch.optim import AdamW

from flare.train.config import OptimConfig


def make_optimizer(model: nn.Module, optim: OptimConfig, *, fused: bool = True) -> AdamW:
    """AdamW that lets what `optim.undecayed` names go without decay."""
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    decayed: list[nn.Parameter] = []
    free: list[nn.Parameter] = []
    for name, p in model.named_parameters():
        kind = "embeddings" if id(p) in tables else _kind(name, p)
        (free if kind in optim.undecayed else decayed).append(p)
    groups = [{"params": decayed, "weight_decay": optim.weight_decay}, {"params": free, "weight_decay": 0.0}]
    return AdamW(groups, lr=optim.lr, betas=optim.betas, eps=optim.eps, fused=fused)


def _kind(name: str, parameter: nn.Parameter) -> str:
    """`biases`, `latents`, `norms` (all else that is one-dimensional), or `weights`."""
    if name.endswith("latents"):
        return "latents"
    if name.endswith("bias"):
        return "biases"
    return "norms" if parameter.ndim < 2 else "weights"

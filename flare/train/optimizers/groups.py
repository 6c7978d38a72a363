"""Parameter groups: which parameters decay, and which are matrices that Muon and SOAP treat as such."""

from __future__ import annotations

from typing import Any

from torch import nn

from flare.train.config import OptimConfig

SMALLEST_SIDE = 16
"""Rows and columns that a matrix has at least. Maps from coordinates and to a few fields are left to AdamW."""


def parameter_groups(model: nn.Module, optim: OptimConfig, *, matrices: bool = False) -> list[dict[str, Any]]:
    """Sort the parameters of a model into groups with their own weight decay and peak learning rate.

    Args:
        model: The model.
        optim: Optimizer settings; `optim.undecayed` names the kinds of parameters without weight decay.
        matrices: Put weight matrices into groups of their own, with `optim.lr` as their peak learning rate; all other
            parameters then have `optim.rest_lr`. If false, all parameters have `optim.lr`.

    Returns:
        Groups with `params`, `weight_decay`, `lr`, `peak_lr`, `betas` and `matrices`.
    """
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    groups: dict[tuple[bool, bool], list[nn.Parameter]] = {
        (is_matrix, decays): [] for is_matrix in ((True, False) if matrices else (False,)) for decays in (True, False)
    }
    for name, p in model.named_parameters():
        kind = "embeddings" if id(p) in tables else parameter_kind(name, p)
        is_matrix = matrices and kind == "weights" and p.ndim == 2 and min(p.shape) >= SMALLEST_SIDE
        groups[is_matrix, kind not in optim.undecayed].append(p)
    return [
        {
            "params": params,
            "weight_decay": optim.weight_decay if decays else 0.0,
            "lr": (peak := optim.lr if is_matrix or not matrices else optim.rest_lr),
            "peak_lr": peak,
            "betas": optim.betas,
            "matrices": is_matrix,
        }
        for (is_matrix, decays), params in groups.items()
    ]


def parameter_kind(name: str, parameter: nn.Parameter) -> str:
    """Return `biases`, `latents`, `norms` (every other vector) or `weights`."""
    if name.endswith("latents"):
        return "latents"
    if name.endswith("bias"):
        return "biases"
    return "norms" if parameter.ndim < 2 else "weights"

"""How weights start."""

from __future__ import annotations

from torch import nn


def small_normal(module: nn.Module) -> None:
    """For `apply`: every Linear and Embedding from N(0, 0.02²), every bias zero.

    Transolver and GNOT cut that normal at ±2, a hundred deviations: it is the same.
    """
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)

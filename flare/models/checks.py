"""Refusals that models share: one message each, before torch has a chance to say something else."""

from __future__ import annotations

import torch
from torch import Tensor

from flare.utils.errors import ConfigError


def at_least(least: int, **sizes: int) -> None:
    for name, value in sizes.items():
        if type(value) is not int or value < least:
            raise ConfigError(f"{name}={value!r}; it should be a whole number, at least {least}")


def check_mask(x: Tensor, mask: Tensor | None) -> None:
    """A mask is [B, N], bool, for x [B, N, ...] or [B, N]."""
    if mask is not None and (mask.dtype is not torch.bool or mask.shape != x.shape[:2]):
        raise ConfigError(
            f"the mask is {list(mask.shape)} of {mask.dtype}; it should be {list(x.shape[:2])} of torch.bool, True at "
            "what is real"
        )

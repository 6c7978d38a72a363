"""Fourier features of the inputs, from which a network learns fine detail in fewer steps."""

# K octaves

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from flare.utils.errors import ConfigError


class FourierFeatures(nn.Module):
    """Every input, and its sine and cosine at K frequencies: x, sin(2ᵏ π/2 x), cos(2ᵏ π/2 x) for k = 0 … K − 1.

    The longest wave spans four units, four standard deviations of a normalised input.

    Args:
        octaves: Number of frequencies K; each is twice the one before.
    """

    def __init__(self, octaves: int) -> None:
        super().__init__()
        if octaves < 1:
            raise ConfigError(f"fourier={octaves}; it is a number of octaves, or 0 for no Fourier features")
        self.octaves = octaves

    def forward(self, x: Tensor) -> Tensor:
        """[..., in_dim] -> [..., in_dim (1 + 2 K)]."""
        angles = torch.cat([x * (math.pi / 2 * 2**k) for k in range(self.octaves)], dim=-1)
        return torch.cat([x, angles.sin(), angles.cos()], dim=-1)

    def width(self, in_dim: int) -> int:
        """Return the number of output channels."""
        return in_dim * (1 + 2 * self.octaves)

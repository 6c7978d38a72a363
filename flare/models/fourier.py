"""Fourier features of the inputs, from which a network learns fine detail in fewer steps."""

# K octaves

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from flare.errors import ConfigError


class FourierFeatures(nn.Module):
    """Every input, and its sine and cosine at K frequencies: x, sin(2ᵏ π/2 x), cos(2ᵏ π/2 x) for k = 0 … K − 1.

    The longest wave is four units: twice the spread of normalised inputs to either side.

    Args:
        octaves: K.
    """

    def __init__(self, octaves: int) -> None:
        super().__init__()
        if octaves < 1:
            raise ConfigError(f"fourier={octaves}; Fourier features have at least 1 octave, 0 is none of them")
        self.octaves = octaves

    def forward(self, x: Tensor) -> Tensor:
        """[..., in_dim] -> [..., in_dim (1 + 2 K)]."""
        angles = torch.cat([x * (math.pi / 2 * 2**k) for k in range(self.octaves)], dim=-1)
        return torch.cat([x, angles.sin(), angles.cos()], dim=-1)

    def width(self, in_dim: int) -> int:
        return in_dim * (1 + 2 * self.octaves)

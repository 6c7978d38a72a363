"""Where a token stands: a learned table, a sinusoid, or a rotation of queries and keys."""

# L longest sequence, N tokens, C channels, H heads, D head width

from __future__ import annotations

import torch
from torch import Tensor, nn

from flare.utils.errors import ConfigError

BASE = 10_000.0


class LearnedPositions(nn.Module):
    """A vector for every place."""

    def __init__(self, length: int, channels: int) -> None:
        super().__init__()
        self.table = nn.Embedding(length, channels)

    def forward(self, count: int) -> Tensor:
        return self.table.weight[:count]


class SinusoidalPositions(nn.Module):
    """sin on even and cos on odd channels, in geometric frequencies, times a learned number that starts at 1/√C."""

    waves: Tensor

    def __init__(self, length: int, channels: int) -> None:
        super().__init__()
        self.size = nn.Parameter(torch.tensor(channels**-0.5))
        angles = _angles(length, channels + channels % 2)
        waves = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)[:, :channels]
        self.register_buffer("waves", waves.float(), persistent=False)

    def forward(self, count: int) -> Tensor:
        return self.size * self.waves[:count]


class Rotation(nn.Module):
    """Rotary positions: channels d and d + D/2 of every head turn together by an angle that grows with the place.

    Scores then depend on the distance between tokens alone, and lengths stay as they were.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        if width % 2:
            raise ConfigError(f"rotary positions turn pairs of channels; the head width {width} is odd")
        angles = _angles(length, width)
        self.register_buffer("cos", angles.cos().float(), persistent=False)
        self.register_buffer("sin", angles.sin().float(), persistent=False)

    def forward(self, x_BHND: Tensor) -> Tensor:
        """Turn what stands at places 0, 1, 2, …"""
        count = x_BHND.shape[-2]
        return _turn(x_BHND, self.cos[:count], self.sin[:count])

    def spread(self, x_HMD: Tensor) -> Tensor:
        """Turn M vectors that stand evenly over the whole length, each in the middle of its part."""
        length, count = len(self.cos), x_HMD.shape[-2]
        places = ((torch.arange(count, device=self.cos.device) + 0.5) * length / count).long()
        return _turn(x_HMD, self.cos[places], self.sin[places])


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    wide = torch.promote_types(x.dtype, torch.float32)  # or it would not quite be a rotation
    cos, sin = cos.to(wide), sin.to(wide)
    a, b = x.to(wide).chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1).to(x.dtype)


def _angles(length: int, width: int) -> Tensor:
    """[L, width / 2]: place times frequency, in float64, as the angles of far places are large."""
    frequencies = BASE ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    return torch.arange(length)[:, None] * frequencies

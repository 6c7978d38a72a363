"""A model, a loss and a dataset that `flare` finds once this package is installed.

flare data make waves --samples 60 --out data/waves
flare train data/waves --model deep-sets --model.channels 32 --loss.name huber
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

import flare


@flare.register_model("deep-sets")
class DeepSets(nn.Module):
    """A pointwise network that also sees the mean of all points.

    Args:
        in_dim: Input channels.
        out_dim: Output channels.
        channels: Width of the hidden layers.
    """

    def __init__(self, in_dim: int, out_dim: int, *, channels: int = 64) -> None:
        super().__init__()
        self.lift = nn.Sequential(nn.Linear(in_dim, channels), nn.GELU())
        self.head = nn.Sequential(nn.Linear(2 * channels, channels), nn.GELU(), nn.Linear(channels, out_dim))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map [B, N, in_dim] to [B, N, out_dim]; `mask` [B, N] is True at real points."""
        h = self.lift(x)
        weight = torch.ones_like(h[..., :1]) if mask is None else mask[..., None].to(h.dtype)
        mean = (weight * h).sum(1, keepdim=True) / weight.sum(1, keepdim=True)
        return self.head(torch.cat([h, mean.expand_as(h)], dim=-1))


@flare.register_loss("huber")
def huber(prediction: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
    """Compute the Huber loss at every real point, in physical units."""
    loss = nn.functional.huber_loss(prediction, target, reduction="none")
    return loss if mask is None else loss[mask]


@flare.register_dataset("waves")
@dataclass(frozen=True)
class Waves:
    """Superposed waves on random points of the unit square."""

    points: int = 128
    """Points per sample."""
    waves: int = 2
    """Number of waves."""

    def schema(self) -> flare.Schema:
        """Return the fields of a sample."""
        fields = {
            "position": flare.Field(role="points", components=("x", "y"), unit="m"),
            "amplitude": flare.Field(role="parameter", components=("amplitude",), unit="m"),
            "height": flare.Field(role="target", components=("height",), unit="m"),
        }
        return flare.Schema(name="waves", fields=fields)

    def sample(self, rng: np.random.Generator) -> flare.Sample:
        """Draw one sample."""
        points, amplitude = rng.random((self.points, 2)), rng.uniform(0.5, 1.5, 1)
        phases = 2 * np.pi * np.arange(1, self.waves + 1) * points.sum(1, keepdims=True)
        return flare.Sample(
            {
                "position": points,
                "amplitude": amplitude,
                "height": 2 + amplitude * np.sin(phases).mean(1, keepdims=True),
            }
        )

    def provenance(self) -> dict[str, str]:
        """Return the origin of the data."""
        return {"kind": "user"}

"""Transolver++: Transolver with a temperature for every point and Gumbel noise on the slice weights."""

# B batch, N points, G slices, C channels, H heads, D = C / H head width

from __future__ import annotations

import torch
from torch import Tensor, nn

from flare.models.baselines.transolver import SliceModel, SliceTokens, exchange
from flare.models.layers import at_least, check_heads, merge_heads, small_normal, split_heads
from flare.utils.errors import ConfigError

NOISE = ("training", "always", "never")


class AdaptiveAttention(nn.Module):
    """Slice attention with w = softmax((P W + g) / τ(P)), τ(P) = max(0.01, b_h + GELU(map(P))), Gumbel noise g."""

    def __init__(self, channels: int, heads: int, slices: int, noise: str) -> None:
        super().__init__()
        check_heads(channels, heads)
        width = channels // heads
        self.heads, self.noise = heads, noise
        self.position = nn.Linear(channels, channels)
        self.slice = nn.Linear(width, slices)
        self.temperature = nn.Parameter(torch.full((heads,), 0.5))
        self.own_temperature = nn.Sequential(nn.Linear(width, slices), nn.GELU(), nn.Linear(slices, 1), nn.GELU())
        self.tokens = SliceTokens(width)
        self.out = nn.Linear(channels, channels)

    def forward(self, x_BNC: Tensor, mask: Tensor | None = None) -> Tensor:
        p_BHND = split_heads(self.position(x_BNC), self.heads)
        temperature = (self.temperature[:, None, None] + self.own_temperature(p_BHND)).clamp_min(0.01)
        scores = self.slice(p_BHND)
        if self.noise == "always" or (self.noise == "training" and self.training):
            scores = scores + gumbel_like(scores)
        w_BHNG = (scores / temperature).softmax(-1)
        return self.out(merge_heads(exchange(w_BHNG, p_BHND, self.tokens, mask)))


def gumbel_like(scores: Tensor) -> Tensor:
    """Draw Gumbel noise in float32 or wider: half precision has too few values near 0 and 1."""
    wide = torch.promote_types(scores.dtype, torch.float32)
    return -torch.log(-torch.log(torch.rand_like(scores, dtype=wide) + 1e-8) + 1e-8).to(scores.dtype)


class TransolverPP(SliceModel):
    """Transolver++: lift, blocks of adaptive physics attention, head.

    Args:
        in_dim: Number of input features per point.
        out_dim: Number of fields to predict per point.
        channels: Feature width C of every point.
        blocks: Number of blocks.
        heads: Number of heads; must divide C.
        slices: Number of slices G per head.
        mlp_ratio: Hidden width of the pointwise MLP divided by C.
        noise: When to add noise to the slice weights: in `training`, `always` as published (two evaluations then
            differ), or `never`.
    """

    def __init__(
        self,
        in_dim: int,
        out_dim: int,
        *,
        channels: int = 128,
        blocks: int = 8,
        heads: int = 8,
        slices: int = 64,
        mlp_ratio: int = 1,
        noise: str = "training",
    ) -> None:
        at_least(1, channels=channels, blocks=blocks, heads=heads, slices=slices, mlp_ratio=mlp_ratio)
        if noise not in NOISE:
            raise ConfigError(f"unknown noise {noise!r}; use one of {', '.join(NOISE)}")
        attentions = (AdaptiveAttention(channels, heads, slices, noise) for _ in range(blocks))
        super().__init__(in_dim, out_dim, channels, mlp_ratio, attentions)
        # The published code has this unused map and counts its parameters.
        self.unused = nn.Linear(3, channels).requires_grad_(False)
        self.apply(small_normal)

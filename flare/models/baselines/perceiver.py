"""PerceiverIO: M latents ask the points, think among themselves or ask again, and the points ask them."""

# B batch, N points, M latents, C channels

from __future__ import annotations

import torch
from torch import Tensor, nn

from flare.models.attention import CrossAttention, TransformerBlock, transformer_mlp
from flare.models.checks import at_least, check_mask
from flare.models.flare import ResMLP
from flare.models.initialise import small_normal
from flare.utils.errors import ConfigError


class CrossBlock(nn.Module):
    """Z ← Z + attention of norm(Z) to norm(X), then Z ← Z + MLP(norm(Z)). X is never updated."""

    def __init__(self, channels: int, heads: int, *, mlp_ratio: int, gelu: str) -> None:
        super().__init__()
        self.query_norm, self.point_norm = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.attention = CrossAttention(channels, heads)
        self.mlp_norm = nn.LayerNorm(channels)
        self.mlp = transformer_mlp(channels, mlp_ratio, gelu)

    def forward(self, z_BMC: Tensor, x_BNC: Tensor, mask: Tensor | None) -> Tensor:
        z_BMC = z_BMC + self.attention(self.query_norm(z_BMC), self.point_norm(x_BNC), mask)
        return z_BMC + self.mlp(self.mlp_norm(z_BMC))


class PerceiverIO(nn.Module):
    """Z = attention of A to X;  Z through the latent blocks;  Y = attention of X to Z. No skip around the latents.

    Args:
        channels: C, feature width of every point and latent.
        blocks: latent blocks.
        heads: must divide C.
        latents: M; A is learned.
        flavour: `cross`: every block asks the points again (the paper's 1.87m); `self`: blocks among the latents.
        mlp_ratio: hidden width of their MLPs, in C.
        io_depth: inner layers of the lift and the head.
        gelu: `tanh` or `none` (exact).
    """

    def __init__(
        self,
        in_dim: int,
        out_dim: int,
        *,
        channels: int = 128,
        blocks: int = 8,
        heads: int = 8,
        latents: int = 512,
        flavour: str = "cross",
        mlp_ratio: int = 4,
        io_depth: int = 2,
        gelu: str = "tanh",
    ) -> None:
        super().__init__()
        at_least(1, channels=channels, blocks=blocks, heads=heads, latents=latents, mlp_ratio=mlp_ratio)
        if flavour not in ("cross", "self"):
            raise ConfigError(f"unknown flavour {flavour!r}; use 'cross' or 'self'")
        self.flavour = flavour
        self.lift = ResMLP(in_dim, channels, channels, io_depth, skip_in=False)
        self.latents = nn.Parameter(torch.randn(latents, channels))
        self.encoder_norm = nn.LayerNorm(channels)
        self.encoder = CrossAttention(channels, heads, bias=True, query=False, fused=False)
        block = CrossBlock if flavour == "cross" else TransformerBlock
        self.blocks = nn.ModuleList(block(channels, heads, mlp_ratio=mlp_ratio, gelu=gelu) for _ in range(blocks))
        self.decoder_point_norm, self.decoder_latent_norm = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.decoder = CrossAttention(channels, heads, bias=True, fused=False)
        self.head_norm = nn.LayerNorm(channels)
        self.head = ResMLP(channels, channels, out_dim, io_depth, skip_out=False)
        self.apply(small_normal)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """[B, N, in_dim] -> [B, N, out_dim]; `mask` is [B, N], True at real points."""
        check_mask(x, mask)
        x_BNC = self.lift(x)
        z_BMC = self.encoder(self.latents.expand(x.shape[0], -1, -1), self.encoder_norm(x_BNC), mask)
        for block in self.blocks:
            z_BMC = block(z_BMC, x_BNC, mask) if self.flavour == "cross" else block(z_BMC)
        y_BNC = self.decoder(self.decoder_point_norm(x_BNC), self.decoder_latent_norm(z_BMC))
        return self.head(self.head_norm(y_BNC))

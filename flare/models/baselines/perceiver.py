"""PerceiverIO: M latents attend to the points, go through latent blocks, and the points attend to them."""

# B batch, N points, M latents, C channels, H heads

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from flare.mixer import check_mask
from flare.models.flare import ResMLP
from flare.models.layers import (
    at_least,
    check_heads,
    key_mask,
    merge_heads,
    self_attention_block,
    small_normal,
    split_heads,
    transformer_mlp,
)
from flare.utils.errors import ConfigError


class CrossAttention(nn.Module):
    """Attention of the latents to the points, or of the points to the latents, with scale 1/√D.

    Args:
        channels: Feature width C.
        heads: Number of heads; must divide C.
        query: Whether there is a query map. Without one, the targets are the queries.
        joint: Whether one Linear makes keys and values, and no map has a bias; otherwise two Linear with biases.
    """

    def __init__(self, channels: int, heads: int, *, query: bool = True, joint: bool = True) -> None:
        super().__init__()
        check_heads(channels, heads)
        self.heads = heads
        self.query = nn.Linear(channels, channels, bias=not joint) if query else nn.Identity()
        widths = [2 * channels] if joint else [channels, channels]
        self.key_value = nn.ModuleList(nn.Linear(channels, width, bias=not joint) for width in widths)
        self.out = nn.Linear(channels, channels)

    def forward(self, target: Tensor, source: Tensor, mask: Tensor | None = None) -> Tensor:
        """Let [B, M, C] attend to [B, N, C]; the mask is a boolean [B, N] of the sources."""
        channels = source.shape[-1]
        k, v = (t for linear in self.key_value for t in linear(source).split(channels, dim=-1))
        q, k, v = (split_heads(t, self.heads) for t in (self.query(target), k, v))
        return self.out(merge_heads(scaled_dot_product_attention(q, k, v, attn_mask=key_mask(mask))))


class CrossBlock(nn.Module):
    """Block of Z ← Z + attention(norm(Z), norm(X)), Z ← Z + MLP(norm(Z)); X stays the same."""

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
    """PerceiverIO: Z = attention(A, X) with learned A, latent blocks on Z, Y = attention(X, Z).

    Args:
        in_dim: Number of input features per point.
        out_dim: Number of fields to predict per point.
        channels: Feature width C of points and latents.
        blocks: Number of latent blocks.
        heads: Number of heads; must divide C.
        latents: Number of latents M.
        flavour: `cross` for blocks that attend to the points (the 1.87m parameters of the paper), `self` for
            transformer blocks over the latents.
        mlp_ratio: Hidden width of the MLPs divided by C.
        io_depth: Inner layers of the lift and the head.
        gelu: `tanh`, or `none` for the exact GELU.
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
        self.encoder = CrossAttention(channels, heads, query=False, joint=False)
        block = CrossBlock if flavour == "cross" else self_attention_block
        self.blocks = nn.ModuleList(block(channels, heads, mlp_ratio=mlp_ratio, gelu=gelu) for _ in range(blocks))
        self.decoder_point_norm, self.decoder_latent_norm = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.decoder = CrossAttention(channels, heads, joint=False)
        self.head_norm = nn.LayerNorm(channels)
        self.head = ResMLP(channels, channels, out_dim, io_depth, skip_out=False)
        self.apply(small_normal)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map [B, N, in_dim] to [B, N, out_dim]; the mask is a boolean [B, N], True at real points."""
        check_mask(mask, *x.shape[:2])
        x_BNC = self.lift(x)
        z_BMC = self.encoder(self.latents.expand(x.shape[0], -1, -1), self.encoder_norm(x_BNC), mask)
        for block in self.blocks:
            z_BMC = block(z_BMC, x_BNC, mask) if self.flavour == "cross" else block(z_BMC)
        y_BNC = self.decoder(self.decoder_point_norm(x_BNC), self.decoder_latent_norm(z_BMC))
        return self.head(self.head_norm(y_BNC))

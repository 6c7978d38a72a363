"""Vanilla Transformer: softmax attention among all points, N² of them, between FLARE's own lift and head."""

# B batch, N points, C channels

from __future__ import annotations

from torch import Tensor, nn

from flare.models.attention import TransformerBlock
from flare.models.checks import at_least, check_mask
from flare.models.flare import ResMLP
from flare.models.initialise import small_normal


class Transformer(nn.Module):
    """X ← X + MHSA(norm(X)),  X ← X + MLP(norm(X)). Defaults are the paper's 660k parameters.

    Args:
        channels: C, feature width of every point.
        blocks: transformer blocks.
        heads: must divide C.
        mlp_ratio: hidden width of the pointwise MLP, in C.
        io_depth: inner layers of the lift and the head.
        gelu: `tanh` or `none` (exact).
        qkv_bias: as in the authors' later code; the paper's counts are without.
    """

    def __init__(
        self,
        in_dim: int,
        out_dim: int,
        *,
        channels: int = 80,
        blocks: int = 8,
        heads: int = 5,
        mlp_ratio: int = 4,
        io_depth: int = 2,
        gelu: str = "tanh",
        qkv_bias: bool = False,
    ) -> None:
        super().__init__()
        at_least(1, channels=channels, blocks=blocks, heads=heads, mlp_ratio=mlp_ratio)
        self.lift = ResMLP(in_dim, channels, channels, io_depth, skip_in=False)
        self.blocks = nn.ModuleList(
            TransformerBlock(channels, heads, mlp_ratio=mlp_ratio, gelu=gelu, qkv_bias=qkv_bias) for _ in range(blocks)
        )
        self.head_norm = nn.LayerNorm(channels)
        self.head = ResMLP(channels, channels, out_dim, io_depth, skip_out=False)
        self.apply(small_normal)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """[B, N, in_dim] -> [B, N, out_dim]; `mask` is [B, N], True at real points."""
        check_mask(x, mask)
        x_BNC = self.lift(x)
        for block in self.blocks:
            x_BNC = block(x_BNC, mask)
        return self.head(self.head_norm(x_BNC))

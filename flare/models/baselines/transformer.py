"""Transformer: softmax attention between all pairs of points, with the lift and head of FLARE."""

# B batch, N points, C channels

from __future__ import annotations

from torch import nn

from flare.models.flare import ResMLP
from flare.models.layers import PointModel, at_least, self_attention_block, small_normal


class Transformer(PointModel):
    """Transformer of the paper; the defaults have its 660k parameters.

    Args:
        in_dim: Number of input features per point.
        out_dim: Number of fields to predict per point.
        channels: Feature width C of every point.
        blocks: Number of transformer blocks.
        heads: Number of heads; must divide C.
        mlp_ratio: Hidden width of the pointwise MLP divided by C.
        io_depth: Inner layers of the lift and the head.
        gelu: `tanh`, or `none` for the exact GELU.
        qkv_bias: Add a bias to queries, keys and values, as the later code of the authors does.
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
            self_attention_block(channels, heads, mlp_ratio=mlp_ratio, gelu=gelu, bias=qkv_bias) for _ in range(blocks)
        )
        self.head_norm = nn.LayerNorm(channels)
        self.head = ResMLP(channels, channels, out_dim, io_depth, skip_out=False)
        self.apply(small_normal)

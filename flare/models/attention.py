"""Softmax self-attention and the pre-norm transformer block around it."""

# B batch, N tokens, C channels, H heads, D = C / H head width

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention


class SelfAttention(nn.Module):
    """Multi-head self-attention with a fused, bias-free query/key/value map and scale 1/√D."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(channels, 3 * channels, bias=False)
        self.out = nn.Linear(channels, channels)

    def forward(self, x_BNC: Tensor) -> Tensor:
        q, k, v = (split_heads(part, self.heads) for part in self.qkv(x_BNC).chunk(3, dim=-1))
        return self.out(merge_heads(scaled_dot_product_attention(q, k, v)))


class TransformerBlock(nn.Module):
    """x + Attention(LayerNorm(x)), then x + MLP(LayerNorm(x)) with one hidden layer of `mlp_ratio` · C."""

    def __init__(self, channels: int, heads: int, *, mlp_ratio: int = 4, gelu: str = "tanh") -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(channels)
        self.attention = SelfAttention(channels, heads)
        self.mlp_norm = nn.LayerNorm(channels)
        self.mlp = nn.Sequential(
            nn.Linear(channels, mlp_ratio * channels),
            nn.GELU(approximate=gelu),
            nn.Linear(mlp_ratio * channels, channels),
        )

    def forward(self, x_BNC: Tensor) -> Tensor:
        x_BNC = x_BNC + self.attention(self.attention_norm(x_BNC))
        return x_BNC + self.mlp(self.mlp_norm(x_BNC))


def split_heads(x_BNC: Tensor, heads: int) -> Tensor:
    """[B, N, C] -> [B, H, N, D]; head h owns channels hD … (h+1)D − 1."""
    return x_BNC.unflatten(-1, (heads, -1)).transpose(1, 2)


def merge_heads(x_BHND: Tensor) -> Tensor:
    """[B, H, N, D] -> [B, N, C], the inverse of `split_heads`."""
    return x_BHND.transpose(1, 2).flatten(-2)

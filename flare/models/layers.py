"""Building blocks that several models share: attention, heads, initialization, argument checks."""

# B batch, N tokens, C channels, H heads, D = C / H head width

from __future__ import annotations

from itertools import pairwise
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from flare.mixer import check_mask
from flare.utils.errors import ConfigError


class SelfAttention(nn.Module):
    """Multi-head self-attention with one fused query/key/value map and scale 1/√D."""

    def __init__(self, channels: int, heads: int, *, bias: bool = False) -> None:
        super().__init__()
        check_heads(channels, heads)
        self.heads = heads
        self.qkv = nn.Linear(channels, 3 * channels, bias=bias)
        self.out = nn.Linear(channels, channels)

    def forward(self, x_BNC: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (split_heads(t, self.heads) for t in self.qkv(x_BNC).chunk(3, dim=-1))
        return self.out(merge_heads(scaled_dot_product_attention(q, k, v, attn_mask=key_mask(mask))))


class TransformerBlock(nn.Module):
    """Pre-norm transformer block: x + attention(norm(x)), then x + MLP(norm(x)).

    Args:
        channels: Feature width C.
        attention: Takes (x, mask).
        mlp_ratio: Hidden width of the MLP divided by C.
        gelu: `tanh`, or `none` for the exact GELU.
    """

    def __init__(self, channels: int, attention: nn.Module, *, mlp_ratio: int = 4, gelu: str = "tanh") -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(channels)
        self.attention = attention
        self.mlp_norm = nn.LayerNorm(channels)
        self.mlp = transformer_mlp(channels, mlp_ratio, gelu)

    def forward(self, x_BNC: Tensor, mask: Tensor | None = None) -> Tensor:
        x_BNC = x_BNC + self.attention(self.attention_norm(x_BNC), mask)
        return x_BNC + self.mlp(self.mlp_norm(x_BNC))


def self_attention_block(channels: int, heads: int, *, bias: bool = False, **how: Any) -> TransformerBlock:
    """Build a transformer block with self-attention; `bias` is that of queries, keys and values."""
    return TransformerBlock(channels, SelfAttention(channels, heads, bias=bias), **how)


class PointModel(nn.Module):
    """Base of models with a lift, blocks that take (x, mask), and a head after a norm."""

    lift: nn.Module
    blocks: nn.ModuleList
    head_norm: nn.Module
    head: nn.Module

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map [B, N, in_dim] to [B, N, out_dim]; the mask is a boolean [B, N], True at real points."""
        check_mask(mask, *x.shape[:2])
        x_BNC = self.embed(x, mask)
        for block in self.blocks:
            x_BNC = block(x_BNC, mask)
        return self.head(self.head_norm(x_BNC))

    def embed(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Map [B, N, in_dim] to [B, N, C]."""
        return self.lift(x)


def mlp(*widths: int, gelu: str = "none") -> nn.Sequential:
    """Build Linear layers with GELU between them; `gelu` is `none` (exact) or `tanh`."""
    if gelu not in ("tanh", "none"):
        raise ConfigError(f"unknown gelu {gelu!r}; use 'tanh' or 'none' (exact)")
    first, *rest = (nn.Linear(a, b) for a, b in pairwise(widths))
    return nn.Sequential(first, *(module for linear in rest for module in (nn.GELU(approximate=gelu), linear)))


def transformer_mlp(channels: int, ratio: int, gelu: str = "none") -> nn.Sequential:
    """Build an MLP with one hidden layer of `ratio` · C channels."""
    return mlp(channels, ratio * channels, channels, gelu=gelu)


def split_heads(x_BNC: Tensor, heads: int) -> Tensor:
    """Reshape [B, N, C] to [B, H, N, D]; head h owns channels hD … (h+1)D − 1."""
    return x_BNC.unflatten(-1, (heads, -1)).transpose(1, 2)


def merge_heads(x_BHND: Tensor) -> Tensor:
    """Reshape [B, H, N, D] to [B, N, C], the inverse of `split_heads`."""
    return x_BHND.transpose(1, 2).flatten(-2)


def key_mask(mask: Tensor | None) -> Tensor | None:
    """Reshape a [B, N] mask to [B, 1, 1, N], as `scaled_dot_product_attention` expects it."""
    return None if mask is None else mask[:, None, None, :]


def small_normal(module: nn.Module) -> None:
    """Initialize Linear and Embedding weights from N(0, 0.02²) and biases to zero; pass it to `Module.apply`.

    Transolver and GNOT truncate this normal at ±2, a hundred standard deviations, which makes no difference.
    """
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


def at_least(minimum: int, **sizes: int) -> None:
    """Raise ConfigError for the first size that is not an integer or is below `minimum`."""
    for name, value in sizes.items():
        if type(value) is not int or value < minimum:
            raise ConfigError(f"{name}={value!r} must be an integer of at least {minimum}")


def check_heads(channels: int, heads: int) -> None:
    """Raise ConfigError unless `heads` divides `channels`."""
    if heads < 1 or channels % heads:
        raise ConfigError(f"heads={heads} does not divide channels={channels}")

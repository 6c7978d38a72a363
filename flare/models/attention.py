"""Softmax attention over tokens, and the pre-norm transformer block around it."""

# B batch, N tokens, M latents, C channels, H heads, D = C / H head width

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from flare.utils.errors import ConfigError


class SelfAttention(nn.Module):
    """Multi-head self-attention with a fused query/key/value map and scale 1/√D."""

    def __init__(self, channels: int, heads: int, *, bias: bool = False) -> None:
        super().__init__()
        check_heads(channels, heads)
        self.heads = heads
        self.qkv = nn.Linear(channels, 3 * channels, bias=bias)
        self.out = nn.Linear(channels, channels)

    def forward(self, x_BNC: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (split_heads(part, self.heads) for part in self.qkv(x_BNC).chunk(3, dim=-1))
        return self.out(merge_heads(scaled_dot_product_attention(q, k, v, attn_mask=key_mask(mask))))


class CrossAttention(nn.Module):
    """Tokens ask other tokens: a query map, key and value maps in one Linear or in two, scale 1/√D.

    Args:
        query: False leaves the query map out; what asks is then taken as it is.
    """

    def __init__(
        self, channels: int, heads: int, *, bias: bool = False, query: bool = True, fused: bool = True
    ) -> None:
        super().__init__()
        check_heads(channels, heads)
        self.heads = heads
        self.query = nn.Linear(channels, channels, bias=bias) if query else nn.Identity()
        widths = [2 * channels] if fused else [channels, channels]
        self.key_value = nn.ModuleList(nn.Linear(channels, width, bias=bias) for width in widths)
        self.out = nn.Linear(channels, channels)

    def forward(self, asking: Tensor, asked: Tensor, mask: Tensor | None = None) -> Tensor:
        """[B, M, C] and [B, N, C] -> [B, M, C]; `mask` is [B, N], of those asked."""
        channels = asked.shape[-1]
        k, v = (part for linear in self.key_value for part in linear(asked).split(channels, dim=-1))
        q, k, v = (split_heads(part, self.heads) for part in (self.query(asking), k, v))
        return self.out(merge_heads(scaled_dot_product_attention(q, k, v, attn_mask=key_mask(mask))))


class TransformerBlock(nn.Module):
    """x + Attention(LayerNorm(x)), then x + MLP(LayerNorm(x)) with one hidden layer of `mlp_ratio` · C."""

    def __init__(
        self, channels: int, heads: int, *, mlp_ratio: int = 4, gelu: str = "tanh", qkv_bias: bool = False
    ) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(channels)
        self.attention = SelfAttention(channels, heads, bias=qkv_bias)
        self.mlp_norm = nn.LayerNorm(channels)
        self.mlp = transformer_mlp(channels, mlp_ratio, gelu)

    def forward(self, x_BNC: Tensor, mask: Tensor | None = None) -> Tensor:
        x_BNC = x_BNC + self.attention(self.attention_norm(x_BNC), mask)
        return x_BNC + self.mlp(self.mlp_norm(x_BNC))


def transformer_mlp(channels: int, ratio: int, gelu: str = "none") -> nn.Sequential:
    """One hidden layer of `ratio` · C; `gelu` is `none` (exact) or `tanh`."""
    if gelu not in ("tanh", "none"):
        raise ConfigError(f"unknown gelu {gelu!r}; use 'tanh' or 'none' (exact)")
    return nn.Sequential(
        nn.Linear(channels, ratio * channels), nn.GELU(approximate=gelu), nn.Linear(ratio * channels, channels)
    )


def key_mask(mask: Tensor | None) -> Tensor | None:
    """[B, N] -> [B, 1, 1, N], as scaled_dot_product_attention wants it."""
    return None if mask is None else mask[:, None, None, :]


def check_heads(channels: int, heads: int) -> None:
    if heads < 1 or channels % heads:
        fits = [h for h in range(1, channels + 1) if channels % h == 0]
        raise ConfigError(f"heads={heads} does not divide channels={channels}; use one of {fits}")


def split_heads(x_BNC: Tensor, heads: int) -> Tensor:
    """[B, N, C] -> [B, H, N, D]; head h owns channels hD … (h+1)D − 1."""
    return x_BNC.unflatten(-1, (heads, -1)).transpose(1, 2)


def merge_heads(x_BHND: Tensor) -> Tensor:
    """[B, H, N, D] -> [B, N, C], the inverse of `split_heads`."""
    return x_BHND.transpose(1, 2).flatten(-2)

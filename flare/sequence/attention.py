"""Attention among the tokens of a sequence, in the forms that the paper compares.

Every form maps [B, N, C] to [B, N, C] with a mask [B, N], True at real tokens: padding is never attended to.
"""

# B batch, N tokens, L longest sequence, C channels, H heads, D = C / H head width, K projected length

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import elu, normalize, scaled_dot_product_attention

from flare.mixer import mix
from flare.models.attention import check_heads, key_mask, merge_heads, split_heads
from flare.models.checks import at_least
from flare.models.flare import FLARE
from flare.sequence.positions import Rotation
from flare.utils.errors import ConfigError

SMALL = 1e-6


class Attention(nn.Module):
    """What all but FLARE share: heads, one map for queries, keys and values, rotary positions, an output map.

    Args:
        length: of the longest sequence.
        rotate: turns queries and keys by their places; see `flare.sequence.positions`.
        attention_dropout: of attention weights, where a form has them.
        dropout: of the output.
    """

    weighs = False
    """Whether it has a weight for every pair, which dropout can take out."""
    interleaved = False
    """Whether the map's output is [H][q, k, v][D] rather than [q, k, v][H][D]."""
    sums = False
    """Whether it adds up all tokens, which wants float32 where the rest has less."""

    def __init__(
        self,
        channels: int,
        heads: int,
        *,
        length: int,
        rotate: Rotation | None = None,
        attention_dropout: float = 0.0,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_heads(channels, heads)
        if attention_dropout and not self.weighs:
            raise ConfigError(f"{type(self).__name__} has no attention weights to drop; set attention_dropout=0")
        self.heads, self.length = heads, length
        self.rotate = rotate
        self.attention_dropout = attention_dropout
        self.qkv = self.make_map(channels)
        self.out = nn.Linear(channels, channels)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_BNC: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = self.project(x_BNC, mask)
        if self.rotate is not None:
            q, k = self.rotate(q), self.rotate(k)
        y_BHND = self.attend_in_float32(q, k, v, mask) if self.sums else self.attend(q, k, v, mask)
        return self.dropout(self.out(self.merge(y_BHND)))

    def make_map(self, channels: int) -> Any:
        return nn.Linear(channels, 3 * channels)

    def project(self, x_BNC: Tensor, mask: Tensor | None) -> tuple[Tensor, ...]:
        """Queries, keys and values, [B, H, N, D] each; padding has zeros.

        A weight of 0 alone does not hide an infinite value, and what an odd query is answered may overflow: nobody
        hears it, but it would spoil the gradients.
        """
        qkv = without_padding(self.qkv(x_BNC), mask)
        if self.interleaved:
            return split_heads(qkv, self.heads).chunk(3, dim=-1)
        return tuple(split_heads(part, self.heads) for part in qkv.chunk(3, dim=-1))

    def merge(self, y_BHND: Tensor) -> Tensor:
        return merge_heads(y_BHND)

    def attend_in_float32(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """At least."""
        wide = torch.promote_types(v.dtype, torch.float32)
        with torch.autocast(q.device.type, enabled=False):
            return self.attend(q.to(wide), k.to(wide), v.to(wide), mask).to(v.dtype)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """[B, H, N, D] from three of them; keys of padding are zero, which some forms must still leave out."""
        raise NotImplementedError


class VanillaAttention(Attention):
    """softmax(q kᵀ / √D) v, over all pairs of tokens."""

    weighs = True

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        share = self.attention_dropout if self.training else 0.0
        return scaled_dot_product_attention(q, k, v, attn_mask=key_mask(mask), dropout_p=share)


class LinearAttention(Attention):
    """φ(q) (Σ_n φ(k_n)ᵀ v_n) / (φ(q) · Σ_n φ(k_n)): sums over tokens first, so cost and memory grow with N.

    Args:
        kernel: φ; `elu` is elu + 1, which is positive; `identity` is not, and its denominator may vanish.
        normalise: bring φ(q) and φ(k) to unit length.
    """

    interleaved = True
    sums = True

    def __init__(
        self, channels: int, heads: int, *, kernel: str = "elu", normalise: bool = True, **common: Any
    ) -> None:
        super().__init__(channels, heads, **common)
        if kernel not in KERNELS:
            raise ConfigError(f"unknown kernel {kernel!r}; use one of {', '.join(KERNELS)}")
        self.kernel, self.normalise = kernel, normalise

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        q, k = (KERNELS[self.kernel](t) for t in (q, k))
        if self.normalise:
            q, k = (t / (t.norm(dim=-1, keepdim=True) + SMALL) for t in (q, k))
        return sums_first(q, without_padding(k, mask), v)


KERNELS: dict[str, Callable[[Tensor], Tensor]] = {"elu": lambda x: elu(x) + 1, "identity": lambda x: x}


def sums_first(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """q (kᵀ v) / (q · Σ k), which never has a number for every pair of tokens."""
    return q @ (k.transpose(-1, -2) @ v) / (q @ k.sum(-2)[..., None] + SMALL)


def without_padding(x: Tensor, mask: Tensor | None) -> Tensor:
    """[B, N, C] or [B, H, N, D], zero at padding whatever was there: a product with 0 would keep what is infinite."""
    if mask is None:
        return x
    return torch.where(mask[..., None] if x.ndim == 3 else mask[:, None, :, None], x, 0.0)


class LinformerAttention(Attention):
    """softmax(q (E_kᵀ k)ᵀ / √D) (E_vᵀ v): keys and values of all tokens are mixed down to K by learned maps.

    Args:
        projected: K.
    """

    weighs = True
    interleaved = True

    def __init__(self, channels: int, heads: int, *, projected: int = 128, **common: Any) -> None:
        super().__init__(channels, heads, **common)
        at_least(1, projected=projected)
        width = (channels // heads) ** -0.5
        self.mix_keys, self.mix_values = (nn.Parameter(width * torch.randn(self.length, projected)) for _ in range(2))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        count = k.shape[-2]
        if count > self.length:
            raise ConfigError(f"this Linformer is for sequences of at most {self.length} tokens, not {count}")
        k, v = (weight[:count].t() @ t for weight, t in ((self.mix_keys, k), (self.mix_values, v)))
        share = self.attention_dropout if self.training else 0.0
        return scaled_dot_product_attention(q, k, v, dropout_p=share)


class NormAttention(Attention):
    """TransNormer: q (kᵀ v) / N with unit q and k, and a norm over C in place of the denominator."""

    sums = True

    def __init__(self, channels: int, heads: int, **common: Any) -> None:
        super().__init__(channels, heads, **common)
        self.norm = nn.LayerNorm(channels)

    def make_map(self, channels: int) -> Any:
        return nn.ModuleList(nn.Linear(channels, channels) for _ in range(3))

    def project(self, x_BNC: Tensor, mask: Tensor | None) -> tuple[Tensor, ...]:
        return tuple(split_heads(without_padding(x_BNC + linear(x_BNC), mask), self.heads) for linear in self.qkv)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        q, k = normalize(q, dim=-1), normalize(k, dim=-1)
        count = k.shape[-2] if mask is None else mask.sum(-1).clamp_min(1)[:, None, None, None]
        return q @ (k.transpose(-1, -2) @ (v / count))

    def merge(self, y_BHND: Tensor) -> Tensor:
        return self.norm(merge_heads(y_BHND))


class FLAREAttention(nn.Module):
    """The paper's layer. Rotary positions turn the keys alone, unless the latents are given places too.

    Args:
        latents: M per head.
        kv_depth: inner layers of the key and value MLPs.
        scale: factor of the scores; None for 1/√D.
        qk_norm: normalise latents and keys over D. Not in the paper's runs.
        norm: kind of that normalisation, the encoder's.
        rotate_latents: with rotary positions, turn the latents as well, as if they stood evenly over `length`, that of
            the longest sequence: a score then depends on the distance between token and latent, as rotary scores
            should. Not in the paper's.
    """

    def __init__(
        self,
        channels: int,
        heads: int,
        *,
        length: int,
        rotate: Rotation | None = None,
        attention_dropout: float = 0.0,
        dropout: float = 0.0,
        latents: int = 128,
        kv_depth: int = 3,
        scale: float | None = 1.0,
        qk_norm: bool = False,
        norm: str = "layer",
        rotate_latents: bool = False,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        if rotate_latents and rotate is None:
            raise ConfigError("rotate_latents goes with position='rotary'")
        self.rotate, self.rotate_latents = rotate, rotate_latents
        self.attention_dropout = attention_dropout
        self.layer = FLARE(
            channels, heads, latents, kv_depth=kv_depth, scale=scale, qk_norm=qk_norm, norm=norm, backend=backend
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_BNC: Tensor, mask: Tensor | None = None) -> Tensor:
        layer = self.layer
        q_HMD, k_BHND = layer.queries_and_keys(x_BNC)
        if self.rotate is not None:
            k_BHND = self.rotate(k_BHND)
            q_HMD = self.rotate.spread(q_HMD) if self.rotate_latents else q_HMD
        v_BHND = split_heads(layer.value(x_BNC), layer.heads)
        return self.dropout(layer.out(merge_heads(self.mix(q_HMD, k_BHND, v_BHND, mask))))

    def mix(self, q_HMD: Tensor, k_BHND: Tensor, v_BHND: Tensor, mask: Tensor | None) -> Tensor:
        scale = self.layer.scale
        if not (self.training and self.attention_dropout):
            return mix(q_HMD, k_BHND, v_BHND, scale=scale, mask=mask, backend=self.layer.backend)
        attend = partial(scaled_dot_product_attention, dropout_p=self.attention_dropout, scale=scale)
        q_BHMD = q_HMD.expand(len(k_BHND), -1, -1, -1)
        z_BHMD = attend(q_BHMD, k_BHND, v_BHND, attn_mask=key_mask(mask))
        return without_padding(attend(k_BHND, q_BHMD, z_BHMD), mask)

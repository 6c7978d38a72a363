"""Attention among the tokens of a sequence: the forms that the paper compares, and position encodings.

Every attention maps [B, N, C] to [B, N, C] with a mask [B, N], True at real tokens. Padding is never attended to.
"""

# B batch, N tokens, L longest sequence, C channels, H heads, D = C / H head width, K projected length, F features

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import elu, normalize, scaled_dot_product_attention

from flare.mixer import mix, no_autocast
from flare.models.flare import FLARE
from flare.models.layers import at_least, check_heads, key_mask, merge_heads, split_heads
from flare.utils.errors import ConfigError

SMALL = 1e-6
BASE = 10_000.0
"""Base of the frequencies of sinusoidal and rotary positions."""
KERNELS: dict[str, Callable[[Tensor], Tensor]] = {"elu": lambda x: elu(x) + 1, "identity": lambda x: x}
FEATURE_KINDS = ("orthogonal", "simple")


class LearnedPositions(nn.Module):
    """One learned vector per position."""

    def __init__(self, length: int, channels: int) -> None:
        super().__init__()
        self.table = nn.Embedding(length, channels)

    def forward(self, count: int) -> Tensor:
        return self.table.weight[:count]


class SinusoidalPositions(nn.Module):
    """Sines on even and cosines on odd channels in geometric frequencies, times a learned factor, 1/√C at first."""

    waves: Tensor

    def __init__(self, length: int, channels: int) -> None:
        super().__init__()
        self.size = nn.Parameter(torch.tensor(channels**-0.5))
        angles = _angles(length, channels + channels % 2)
        waves = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)[:, :channels]
        self.register_buffer("waves", waves.float(), persistent=False)

    def forward(self, count: int) -> Tensor:
        return self.size * self.waves[:count]


class Rotation(nn.Module):
    """Rotary positions: channels d and d + D/2 of every head rotate together by an angle proportional to the position.

    Scores then depend only on the distance between tokens, and norms do not change.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        if width % 2:
            raise ConfigError(f"rotary positions rotate pairs of channels; the head width {width} is odd")
        angles = _angles(length, width)
        self.register_buffer("cos", angles.cos().float(), persistent=False)
        self.register_buffer("sin", angles.sin().float(), persistent=False)

    def forward(self, x_BHND: Tensor) -> Tensor:
        """Rotate vectors at positions 0, 1, 2, …"""
        count = x_BHND.shape[-2]
        return _rotate(x_BHND, self.cos[:count], self.sin[:count])

    def spread(self, x_HMD: Tensor) -> Tensor:
        """Rotate M vectors that are spaced evenly over the whole length."""
        length, count = len(self.cos), x_HMD.shape[-2]
        positions = ((torch.arange(count, device=self.cos.device) + 0.5) * length / count).long()
        return _rotate(x_HMD, self.cos[positions], self.sin[positions])


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    wide = torch.promote_types(x.dtype, torch.float32)  # in lower precision it would not quite be a rotation
    cos, sin = cos.to(wide), sin.to(wide)
    a, b = x.to(wide).chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1).to(x.dtype)


def _angles(length: int, width: int) -> Tensor:
    """Return [L, width / 2] position times frequency, in float64 because the angles of far positions are large."""
    frequencies = BASE ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    return torch.arange(length)[:, None] * frequencies


class Attention(nn.Module):
    """Base class of all attentions but FLARE: heads, projections, rotary positions and the output map.

    Args:
        channels: C.
        heads: H, which must divide C.
        length: Longest sequence.
        rotate: Rotary positions of queries and keys.
        attention_dropout: Dropout of attention weights; only for attentions that have them.
        dropout: Dropout of the output.
    """

    has_weights = False
    """Whether there is a weight for every pair of tokens, to which dropout can apply."""
    interleaved = False
    """Whether the projection is laid out as [H][q, k, v][D] rather than [q, k, v][H][D]."""
    sums_tokens = False
    """Whether it sums over all tokens, which needs at least float32."""

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
        if attention_dropout and not self.has_weights:
            raise ConfigError(f"{type(self).__name__} has no attention weights to drop; set attention_dropout=0")
        self.heads, self.length, self.rotate, self.attention_dropout = heads, length, rotate, attention_dropout
        self.qkv = self.make_projection(channels)
        self.out = nn.Linear(channels, channels)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_BNC: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = self.project(x_BNC, mask)
        if self.rotate is not None:
            q, k = self.rotate(q), self.rotate(k)
        y_BHND = self.attend_in_float32(q, k, v, mask) if self.sums_tokens else self.attend(q, k, v, mask)
        return self.dropout(self.out(self.merge(y_BHND)))

    def make_projection(self, channels: int) -> Any:
        return nn.Linear(channels, 3 * channels)

    def project(self, x_BNC: Tensor, mask: Tensor | None) -> tuple[Tensor, ...]:
        """Return queries, keys and values, [B, H, N, D] each, zero at padding.

        A weight of 0 does not hide an infinite value, and outputs at padding may overflow, which would spoil gradients.
        """
        qkv = without_padding(self.qkv(x_BNC), mask)
        if self.interleaved:
            return split_heads(qkv, self.heads).chunk(3, dim=-1)
        return tuple(split_heads(part, self.heads) for part in qkv.chunk(3, dim=-1))

    def merge(self, y_BHND: Tensor) -> Tensor:
        return merge_heads(y_BHND)

    def attend_in_float32(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Attend in float32 or higher precision."""
        wide = torch.promote_types(v.dtype, torch.float32)
        with no_autocast(q):
            return self.attend(q.to(wide), k.to(wide), v.to(wide), mask).to(v.dtype)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Return [B, H, N, D] from queries, keys and values of that shape; keys are zero at padding."""
        raise NotImplementedError


class VanillaAttention(Attention):
    """softmax(q kᵀ / √D) v over all pairs of tokens."""

    has_weights = True

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        dropout = self.attention_dropout if self.training else 0.0
        return scaled_dot_product_attention(q, k, v, attn_mask=key_mask(mask), dropout_p=dropout)


class KernelAttention(Attention):
    """φ(q) (Σ_n φ(k_n)ᵀ v_n) / (φ(q) · Σ_n φ(k_n)), with cost and memory linear in N.

    Args:
        kernel: φ. `elu` is elu + 1, which is positive. `identity` is not, and its denominator may vanish.
        normalize: Scale φ(q) and φ(k) to unit length.
    """

    interleaved = True
    sums_tokens = True

    def __init__(
        self, channels: int, heads: int, *, kernel: str = "elu", normalize: bool = True, **common: Any
    ) -> None:
        super().__init__(channels, heads, **common)
        if kernel not in KERNELS:
            raise ConfigError(f"kernel={kernel!r}; use one of {', '.join(KERNELS)}")
        self.kernel, self.normalize = kernel, normalize

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        q, k = (KERNELS[self.kernel](t) for t in (q, k))
        if self.normalize:
            q, k = (t / (t.norm(dim=-1, keepdim=True) + SMALL) for t in (q, k))
        return linear_attention(q, without_padding(k, mask), v)


def linear_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return q (kᵀ v) / (q · Σ k) without ever holding a number for every pair of tokens."""
    return q @ (k.transpose(-1, -2) @ v) / (q @ k.sum(-2)[..., None] + SMALL)


def without_padding(x: Tensor, mask: Tensor | None) -> Tensor:
    """Set [B, N, C] or [B, H, N, D] to zero at padding, even where it is infinite."""
    if mask is None:
        return x
    return torch.where(mask[..., None] if x.ndim == 3 else mask[:, None, :, None], x, 0.0)


class LinformerAttention(Attention):
    """softmax(q (E_kᵀ k)ᵀ / √D) (E_vᵀ v): learned maps project the keys and values of all tokens to K of them.

    Args:
        projected: K.
    """

    has_weights = True
    interleaved = True

    def __init__(self, channels: int, heads: int, *, projected: int = 128, **common: Any) -> None:
        super().__init__(channels, heads, **common)
        at_least(1, projected=projected)
        width = (channels // heads) ** -0.5
        self.mix_keys, self.mix_values = (nn.Parameter(width * torch.randn(self.length, projected)) for _ in range(2))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        count = k.shape[-2]
        if count > self.length:
            raise ConfigError(f"this Linformer takes at most {self.length} tokens, not {count}")
        k, v = (weight[:count].t() @ t for weight, t in ((self.mix_keys, k), (self.mix_values, v)))
        dropout = self.attention_dropout if self.training else 0.0
        return scaled_dot_product_attention(q, k, v, dropout_p=dropout)


class NormAttention(Attention):
    """TransNormer: q (kᵀ v) / N with unit q and k, and a norm over C in place of the denominator."""

    sums_tokens = True

    def __init__(self, channels: int, heads: int, **common: Any) -> None:
        super().__init__(channels, heads, **common)
        self.norm = nn.LayerNorm(channels)

    def make_projection(self, channels: int) -> Any:
        return nn.ModuleList(nn.Linear(channels, channels) for _ in range(3))

    def project(self, x_BNC: Tensor, mask: Tensor | None) -> tuple[Tensor, ...]:
        return tuple(split_heads(without_padding(x_BNC + linear(x_BNC), mask), self.heads) for linear in self.qkv)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        q, k = normalize(q, dim=-1), normalize(k, dim=-1)
        count = k.shape[-2] if mask is None else mask.sum(-1).clamp_min(1)[:, None, None, None]
        return q @ (k.transpose(-1, -2) @ (v / count))

    def merge(self, y_BHND: Tensor) -> Tensor:
        return self.norm(merge_heads(y_BHND))


class PerformerAttention(Attention):
    """Softmax attention by positive random features (FAVOR+), linear in N.

    exp(q·k / √D) ≈ f(q)·f(k) with f(x) = exp(Ω x − |x|² / 2) / √F: an unbiased estimate whose error falls as 1/√F.

    Args:
        features: F.
        kind: `orthogonal`, as by Performer's authors: rows of Ω are orthogonal in blocks of D, have the lengths of
            Gaussian vectors and are redrawn during training. `simple`, as by FLARE's authors: unit rows, drawn once.
        redraw_every: Steps between new draws, 0 for never. None means 1000 for `orthogonal` features; see `redraw`.
    """

    sums_tokens = True
    omega: Tensor

    def __init__(
        self,
        channels: int,
        heads: int,
        *,
        features: int = 256,
        kind: str = "orthogonal",
        redraw_every: int | None = None,
        **common: Any,
    ) -> None:
        super().__init__(channels, heads, **common)
        if kind not in FEATURE_KINDS:
            raise ConfigError(f"kind={kind!r}; use one of {', '.join(FEATURE_KINDS)}")
        if kind == "simple" and redraw_every:
            raise ConfigError(f"redraw_every={redraw_every}: features of kind='simple' are drawn once; leave it out")
        at_least(1, features=features)
        self.kind = kind
        self.redraw_every = (1000 if kind == "orthogonal" else 0) if redraw_every is None else redraw_every
        width = channels // heads
        draw = orthogonal_rows if kind == "orthogonal" else lambda *shape: normalize(torch.randn(shape), dim=-1)
        # Saved with the weights: predictions use the features of the training.
        self.register_buffer("omega", torch.stack([draw(features, width) for _ in range(heads)]))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        k = without_padding(self.random_features(k, False, mask), mask)
        return linear_attention(self.random_features(q, True), k, v)

    def random_features(self, x: Tensor, is_query: bool, mask: Tensor | None = None) -> Tensor:
        """Return f(x), up to factors common to all keys or to one query, which cancel in the quotient."""
        x = x * x.shape[-1] ** -0.25
        scores = x @ self.omega.to(x.dtype).transpose(-1, -2)
        scores = scores - x.square().sum(-1, keepdim=True) / 2
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None, :, None], torch.finfo(scores.dtype).min)
        # A shift that cancels needs no gradient. This is how Performer's authors do it.
        if is_query:
            shift = scores.detach().amax(-1, keepdim=True)
        elif self.kind == "orthogonal":
            shift = scores.detach().amax((-2, -1), keepdim=True)  # one for all keys, so that it cancels
        else:
            shift = scores.amax(-1, keepdim=True)  # one per key, which does not cancel
        return ((scores - shift).exp() + SMALL) / self.omega.shape[1] ** 0.5

    def redraw(self, step: int, generator: torch.Generator | None = None) -> None:
        """Draw new features every `redraw_every` steps. To be called after every training step, counted from 1.

        The forward pass does not redraw: it may run twice in a step, and both runs need the same features.
        """
        if self.redraw_every and step % self.redraw_every == 0:
            count, width = self.omega.shape[1:]
            drawn = [orthogonal_rows(count, width, generator) for _ in self.omega]
            self.omega = torch.stack(drawn).to(self.omega)


def orthogonal_rows(count: int, width: int, generator: torch.Generator | None = None) -> Tensor:
    """Draw Gaussian vectors of which every `width` are orthogonal: a better estimate from as many."""
    blocks = [_random_rotation(width, generator) for _ in range(-(-count // width))]
    return torch.cat(blocks)[:count] * torch.randn(count, width, generator=generator).norm(dim=-1, keepdim=True)


def _random_rotation(width: int, generator: torch.Generator | None) -> Tensor:
    """Draw a uniformly distributed orthogonal matrix. QR alone favors some signs, which would bias the features."""
    q, r = torch.linalg.qr(torch.randn(width, width, generator=generator))
    return (q * r.diagonal().sign()).t()


class FLAREAttention(nn.Module):
    """The paper's layer. Rotary positions rotate only the keys, unless the latents have positions too.

    Args:
        channels: C.
        heads: H, which must divide C.
        length: Longest sequence.
        rotate: Rotary positions.
        attention_dropout: Dropout of attention weights.
        dropout: Dropout of the output.
        latents: M per head.
        kv_depth: Inner layers of the key and value MLPs.
        scale: Factor of the scores; None for 1/√D.
        qk_norm: Normalize latents and keys over D. Not in the paper's runs.
        norm: Kind of that norm, as in the encoder.
        rotate_latents: With rotary positions, also rotate the latents as if they were spaced evenly over `length`. A
            score then depends on the distance between token and latent. Not in the paper's runs.
        backend: Mixer backend.
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
            raise ConfigError("rotate_latents=True needs position='rotary'")
        self.rotate, self.rotate_latents, self.attention_dropout = rotate, rotate_latents, attention_dropout
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


ATTENTIONS: dict[str, Callable[..., nn.Module]] = {
    "vanilla": VanillaAttention,
    "linear": KernelAttention,
    "linformer": LinformerAttention,
    "norm": NormAttention,
    "performer": PerformerAttention,
    "flare": FLAREAttention,
}

"""The paper in one file: residual MLP, FLARE layer, block and model.

    X ← X + FLARE(norm(X)),   X ← X + ResMLP(norm(X)),   between a lift of the inputs and a head for the outputs.

Every Linear starts from N(0, 0.02²) with zero bias, the latents from N(0, 0.1²).
"""

# B batch, N points, M latents per head, H heads, D head width, C = H * D channels

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from flare.mixer import check_backend, decode, encode, mix, sharded
from flare.mixer.chunked import Part, encode_part
from flare.models import fused
from flare.models.attention import TransformerBlock, check_heads, merge_heads, split_heads, transformer_mlp
from flare.models.checks import at_least
from flare.models.fourier import FourierFeatures
from flare.models.initialise import small_normal
from flare.utils.errors import ConfigError, nearest

NORMS: dict[str, Callable[[int], nn.Module]] = {
    "layer": lambda width: nn.LayerNorm(width, eps=1e-5),
    "rms": lambda width: nn.RMSNorm(width, eps=1e-5),
}
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "gelu": lambda: nn.GELU(approximate="tanh"),
    "exact-gelu": nn.GELU,
    "silu": nn.SiLU,
}


class ResMLP(nn.Module):
    """Residual MLP: in -> hidden, `depth` residual layers of the hidden width, hidden -> out.

    Args:
        depth: inner layers, so depth + 2 Linear maps in all. 0 leaves the first and the last.
            -1 is a single Linear in -> out, with a skip when both skips are on.
        skip_in: add the input to the first layer where the widths allow it.
        skip_out: add the hidden features to the last layer where the widths allow it.
        backend: `auto` and `native` run all layers as one fused kernel where it applies, others layer by layer.
    """

    def __init__(
        self,
        in_dim: int,
        hidden: int,
        out_dim: int,
        depth: int,
        *,
        skip_in: bool = True,
        skip_out: bool = True,
        activation: str = "gelu",
        backend: str = "auto",
    ) -> None:
        super().__init__()
        if depth < -1:
            raise ConfigError(f"ResMLP depth is {depth}; use -1 (one Linear), 0, 1, 2, ...")
        check_backend(backend)
        self.depth = depth
        self.backend = backend
        self.activation = _pick(ACTIVATIONS, activation, "activation")()
        if depth == -1:
            self.skip_in = self.skip_out = skip_in and skip_out and in_dim == out_dim
            self.layers = nn.ModuleList([nn.Linear(in_dim, out_dim)])
            return
        self.skip_in = skip_in and in_dim == hidden
        self.skip_out = skip_out and hidden == out_dim
        widths = [in_dim, *[hidden] * (depth + 1), out_dim]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))

    def forward(self, x: Tensor) -> Tensor:
        fast = fused.resmlp(self, x)
        if fast is not None:
            return fast
        first, *inner = self.layers
        if self.depth == -1:
            return x + first(x) if self.skip_in else first(x)
        a = self.activation(first(x))
        h = x + a if self.skip_in else a
        for layer in inner[:-1]:
            h = h + self.activation(layer(h))
        o = inner[-1](h)
        return h + o if self.skip_out else o


class FLARE(nn.Module):
    """Token mixer of linear cost: M learned queries per head gather the points and scatter them back.

    Usable in any network in place of self-attention. Defaults are the paper's.

    Args:
        channels: C, feature width of every point.
        heads: H; must divide C. The paper finds head widths D = C/H of 4 to 8 best.
        latents: M per head, the rank of each head's mixing.
        kv_depth: inner layers of the residual MLPs that make keys and values.
        scale: factor of the scores; None means 1/√D.
        qk_norm: normalise queries and keys over D.
        norm: kind of that normalisation, `layer` or `rms`.
        shared_latents: one set of M queries for all heads (an ablation; worse).
        latent_blocks: transformer blocks over the M latents between encode and decode (an ablation).
        latent_gelu: `tanh` or `none` (exact), of those blocks.
        backend: how to compute it, see `flare.mixer`.
    """

    def __init__(
        self,
        channels: int = 64,
        heads: int = 8,
        latents: int = 64,
        *,
        kv_depth: int = 3,
        scale: float | None = 1.0,
        qk_norm: bool = False,
        norm: str = "layer",
        activation: str = "gelu",
        shared_latents: bool = False,
        latent_blocks: int = 0,
        latent_gelu: str = "tanh",
        backend: str = "auto",
    ) -> None:
        super().__init__()
        check_heads(channels, heads)
        if latents < 1 or latent_blocks < 0:
            raise ConfigError(f"latents={latents}, latent_blocks={latent_blocks}: at least 1 and 0")
        if latent_gelu not in ("tanh", "none"):
            raise ConfigError(f"unknown latent_gelu {latent_gelu!r}; use 'tanh' or 'none' (exact)")
        if shared_latents and latent_blocks:
            raise ConfigError("shared_latents and latent_blocks are separate ablations; choose one")
        check_backend(backend)
        width = channels // heads
        self.group: sharded.Group | None = None  # ranks among which the points are split; see `split_points`
        self.heads = heads
        self.scale = width**-0.5 if scale is None else scale
        self.backend = backend
        self.latents = nn.Parameter(0.1 * torch.randn(1 if shared_latents else heads, latents, width))
        self.key = ResMLP(channels, channels, channels, kv_depth, activation=activation, backend=backend)
        self.value = ResMLP(channels, channels, channels, kv_depth, activation=activation, backend=backend)
        make_norm = _pick(NORMS, norm, "norm") if qk_norm else lambda width: nn.Identity()
        self.query_norm, self.key_norm = make_norm(width), make_norm(width)
        self.latent_blocks = nn.Sequential(
            *[TransformerBlock(channels, heads, gelu=latent_gelu) for _ in range(latent_blocks)]
        )
        self.out = nn.Linear(channels, channels)

    def forward(self, x_BNC: Tensor, mask: Tensor | None = None) -> Tensor:
        """[B, N, C] -> [B, N, C]; `mask` is [B, N], True at real points."""
        if x_BNC.ndim != 3 or x_BNC.shape[2] != self.out.in_features:
            raise ConfigError(f"x is {list(x_BNC.shape)}; this layer takes [B, N, {self.out.in_features}]")
        q_HMD, k_BHND = self.queries_and_keys(x_BNC)
        v_BHND = split_heads(self.value(x_BNC), self.heads)
        how: Any = {"scale": self.scale, "mask": mask, "backend": self.backend}
        if len(self.latent_blocks) == 0 and self.group is None:
            y_BHND = mix(q_HMD, k_BHND, v_BHND, **how)
        else:
            gather = encode if self.group is None else partial(sharded.encode, group=self.group)
            y_BHND = decode(q_HMD, k_BHND, self.between(gather(q_HMD, k_BHND, v_BHND, **how)), **how)
        return self.out(merge_heads(y_BHND))

    def gather(self, x_BNC: Tensor, mask: Tensor | None = None) -> Part:
        """First half of the layer, of some of the points: parts of all points merge into the latents."""
        q_HMD, k_BHND = self.queries_and_keys(x_BNC)
        v_BHND = split_heads(self.value(x_BNC), self.heads)
        return encode_part(q_HMD, k_BHND, v_BHND, scale=self.scale, mask=mask, backend=self.backend)

    def between(self, z_BHMD: Tensor) -> Tensor:
        """What the latents do among themselves before they are scattered: nothing, but for the ablation."""
        if len(self.latent_blocks) == 0:
            return z_BHMD
        return split_heads(self.latent_blocks(merge_heads(z_BHMD)), self.heads)

    def scatter(self, x_BNC: Tensor, z_BHMD: Tensor, mask: Tensor | None = None) -> Tensor:
        """Second half of the layer, at any points: [B, N, C] -> [B, N, C]."""
        q_HMD, k_BHND = self.queries_and_keys(x_BNC)
        y_BHND = decode(q_HMD, k_BHND, z_BHMD, scale=self.scale, mask=mask, backend=self.backend)
        return self.out(merge_heads(y_BHND))

    def queries_and_keys(self, x_BNC: Tensor) -> tuple[Tensor, Tensor]:
        """The two factors of the scores, [H, M, D] and [B, H, N, D]: all that the spectrum of the layer needs."""
        k_BHND = self.key_norm(split_heads(self.key(x_BNC), self.heads))
        return self.query_norm(self.latents), k_BHND


def split_points(model: nn.Module, group: sharded.Group | None) -> None:
    """From now on every rank of the group gives the model a share of each sample's points; None: all of them."""
    layers = [module for module in model.modules() if isinstance(module, FLARE)]
    if not layers:
        raise ConfigError(f"{type(model).__name__} cannot split the points of a sample over ranks; a FLARE model can")
    for layer in layers:
        layer.group = group


class FLAREBlock(nn.Module):
    """Mix the points, then transform each: two pre-norm residual steps. Arguments beyond the FFN's go to `FLARE`.

    Args:
        ffn_depth: inner layers of the pointwise residual MLP.
        ffn_ratio: its hidden width, in channels; None is 1. Any other leaves its outer skips out, as the widths differ.
        ffn: `residual`, or `standard` for a transformer's MLP with one hidden layer, whose ratio is 4 (an ablation).
    """

    def __init__(
        self,
        channels: int = 64,
        heads: int = 8,
        latents: int = 64,
        *,
        ffn_depth: int = 3,
        ffn_ratio: int | None = None,
        ffn: str = "residual",
        norm: str = "layer",
        activation: str = "gelu",
        backend: str = "auto",
        **mixer: object,
    ) -> None:
        super().__init__()
        if ffn not in ("residual", "standard"):
            raise ConfigError(f"unknown ffn {ffn!r}; use 'residual' or 'standard'")
        make_norm = _pick(NORMS, norm, "norm")
        self.mixer_norm = make_norm(channels)
        self.mixer = FLARE(
            channels,
            heads,
            latents,
            norm=norm,
            activation=activation,
            backend=backend,
            **mixer,  # type: ignore[arg-type]
        )
        self.ffn_norm = make_norm(channels)
        ratio = ffn_ratio if ffn_ratio is not None else 1 if ffn == "residual" else 4
        at_least(1, ffn_ratio=ratio)
        self.ffn: nn.Module
        if ffn == "residual":
            self.ffn = ResMLP(channels, ratio * channels, channels, ffn_depth, activation=activation, backend=backend)
        else:
            first, _, last = transformer_mlp(channels, ratio)
            self.ffn = nn.Sequential(first, _pick(ACTIVATIONS, activation, "activation")(), last)

    def forward(self, x_BNC: Tensor, mask: Tensor | None = None) -> Tensor:
        fast = fused.flare_block(self, x_BNC, mask)
        if fast is not None:
            return fast
        x_BNC = x_BNC + self.mixer(self.mixer_norm(x_BNC), mask)
        return x_BNC + self.ffn(self.ffn_norm(x_BNC))

    def gather(self, x_BNC: Tensor, mask: Tensor | None = None) -> Part:
        """What some of the points tell the latents."""
        return self.mixer.gather(self.mixer_norm(x_BNC), mask)

    def scatter(self, x_BNC: Tensor, z_BHMD: Tensor, mask: Tensor | None = None) -> Tensor:
        """The block at any points, given its latents: `forward` where they are those of all points."""
        x_BNC = x_BNC + self.mixer.scatter(self.mixer_norm(x_BNC), z_BHMD, mask)
        return x_BNC + self.ffn(self.ffn_norm(x_BNC))


class FLAREModel(nn.Module):
    """The paper's surrogate: lift, FLARE blocks, head. Defaults are its Elasticity row (592,641 parameters).

    Args:
        in_dim: features per point: coordinates first, then whatever else is known there.
        out_dim: fields predicted per point.
        channels: C, feature width of every point.
        blocks: FLARE blocks.
        heads: H, must divide C.
        latents: M, latents per head and block.
        kv_depth: inner layers of the key and value MLPs.
        ffn_depth: inner layers of each block's pointwise residual MLP.
        ffn_ratio: hidden width of the pointwise MLP, in channels; None is 1, or 4 for `standard` (ablation).
        ffn: `residual`, or `standard` for a transformer's MLP in its place (ablation).
        io_depth: inner layers of the lift and the head.
        fourier: octaves of Fourier features of the inputs; 0, as in the paper, for none.
        scale: factor of the scores; None means 1/√D.
        norm: `layer` or `rms`, everywhere.
        qk_norm: normalise queries and keys over the head width.
        activation: `gelu` (tanh form), `silu`, or `exact-gelu`, for which there is no fused kernel.
        shared_latents: one set of queries for all heads (ablation).
        latent_blocks: transformer blocks over the latents of each FLARE block (ablation).
        latent_gelu: `tanh` or `none` (exact), of those.
        backend: how to compute it, see `flare.mixer`. Weights are the same for every backend.
    """

    def __init__(
        self,
        in_dim: int,
        out_dim: int,
        *,
        channels: int = 64,
        blocks: int = 8,
        heads: int = 8,
        latents: int = 64,
        kv_depth: int = 3,
        ffn_depth: int = 3,
        ffn_ratio: int | None = None,
        ffn: str = "residual",
        io_depth: int = 2,
        fourier: int = 0,
        scale: float | None = 1.0,
        norm: str = "layer",
        qk_norm: bool = False,
        activation: str = "gelu",
        shared_latents: bool = False,
        latent_blocks: int = 0,
        latent_gelu: str = "tanh",
        backend: str = "auto",
    ) -> None:
        super().__init__()
        if blocks < 1:
            raise ConfigError(f"blocks={blocks}; a model needs at least 1")
        features = FourierFeatures(fourier) if fourier else None
        width = features.width(in_dim) if features else in_dim
        lift = ResMLP(width, channels, channels, io_depth, skip_in=False, activation=activation, backend=backend)
        self.lift = nn.Sequential(features, lift) if features else lift
        self.blocks = nn.ModuleList(
            FLAREBlock(
                channels,
                heads,
                latents,
                kv_depth=kv_depth,
                ffn_depth=ffn_depth,
                ffn_ratio=ffn_ratio,
                ffn=ffn,
                scale=scale,
                norm=norm,
                qk_norm=qk_norm,
                activation=activation,
                shared_latents=shared_latents,
                latent_blocks=latent_blocks,
                latent_gelu=latent_gelu,
                backend=backend,
            )
            for _ in range(blocks)
        )
        self.head_norm = _pick(NORMS, norm, "norm")(channels)
        self.head = ResMLP(
            channels, channels, out_dim, io_depth, skip_out=False, activation=activation, backend=backend
        )
        self.recompute = False  # see `recompute_blocks`
        self.apply(small_normal)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """[B, N, in_dim] -> [B, N, out_dim]; `mask` is [B, N], True at real points."""
        x_BNC = self.lift(x)
        for block in self.blocks:
            if self.recompute and torch.is_grad_enabled():
                x_BNC = checkpoint(block, x_BNC, mask, use_reentrant=False, preserve_rng_state=False)
            else:
                x_BNC = block(x_BNC, mask)
        return self.head(self.head_norm(x_BNC))


def recompute_blocks(model: nn.Module) -> None:
    """From now on a backward computes each block anew from its input: less memory, a third more time."""
    if not isinstance(model, FLAREModel):
        raise ConfigError(f"{type(model).__name__} cannot compute its blocks anew; a FLARE model can")
    model.recompute = True


def _pick(table: dict[str, Callable[..., nn.Module]], name: str, what: str) -> Callable[..., nn.Module]:
    if name not in table:
        raise ConfigError(f"unknown {what} {name!r}; {nearest(name, table)}")
    return table[name]

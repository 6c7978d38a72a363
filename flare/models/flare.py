"""The paper in one file: residual MLP, FLARE layer, block and model.

    X ← X + FLARE(norm(X)),   X ← X + ResMLP(norm(X)),   between a lift of the inputs and a head for the outputs.

Every Linear starts from N(0, 0.02²) with zero bias, the latents from N(0, 0.1²). Each `forward` is the definition. The
decorator `fused.use_kernel` replaces it by a C++ kernel on the CPU, where that computes the same.
"""

# B batch, N points, M latents per head, H heads, D head width, C = H * D channels

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from flare.mixer import check_backend, decode, encode, mix, sharded
from flare.mixer.chunked import PartialLatents, encode_partial
from flare.models import fused
from flare.models.layers import (
    at_least,
    check_heads,
    merge_heads,
    self_attention_block,
    small_normal,
    split_heads,
    transformer_mlp,
)
from flare.utils.errors import ConfigError, suggest_name

NORMS: dict[str, Callable[[int], nn.Module]] = {
    "layer": lambda width: nn.LayerNorm(width, eps=1e-5),
    "rms": lambda width: nn.RMSNorm(width, eps=1e-5),
}
"""Normalization layers by name."""
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "gelu": lambda: nn.GELU(approximate="tanh"),
    "exact-gelu": nn.GELU,
    "silu": nn.SiLU,
}
"""Activation functions by name."""


class ResMLP(nn.Module):
    """Residual MLP: in → hidden, `depth` residual layers of the hidden width, hidden → out.

    Args:
        in_dim: Input width.
        hidden: Hidden width.
        out_dim: Output width.
        depth: Number of inner layers, so that there are depth + 2 Linear layers. 0 leaves the first and the last one;
            -1 is a single Linear in → out, with a skip if both skips are on.
        skip_in: Add the input to the output of the first layer, if the widths are equal.
        skip_out: Add the hidden features to the output of the last layer, if the widths are equal.
        activation: `gelu` (tanh form), `silu`, or `exact-gelu`, which has no fused kernel.
        backend: `auto` and `native` compute all layers in one kernel where possible, others layer by layer.

    Raises:
        ConfigError: `depth` is below -1, or the activation is unknown.

    Example:
        >>> import torch
        >>> from flare import ResMLP
        >>> mlp = ResMLP(3, 64, 1, depth=2)
        >>> mlp(torch.randn(2, 100, 3)).shape
        torch.Size([2, 100, 1])
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
            raise ConfigError(f"depth={depth} of a ResMLP must be -1 (one Linear), 0, 1, 2, ...")
        check_backend(backend)
        self.depth = depth
        self.backend = backend
        self.activation = _lookup(ACTIVATIONS, activation, "activation")()
        if depth == -1:
            self.skip_in = self.skip_out = skip_in and skip_out and in_dim == out_dim
            self.layers = nn.ModuleList([nn.Linear(in_dim, out_dim)])
            return
        self.skip_in = skip_in and in_dim == hidden
        self.skip_out = skip_out and hidden == out_dim
        widths = [in_dim, *[hidden] * (depth + 1), out_dim]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))

    @fused.use_kernel(fused.resmlp)
    def forward(self, x: Tensor) -> Tensor:
        """Map [..., in_dim] to [..., out_dim]."""
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
    """Token mixer with linear cost: M learned queries per head gather the points and distribute the result.

    It can replace self-attention in any network. The defaults are those of the paper.

    Args:
        channels: Feature width C of every point.
        heads: Number of heads H; must divide C. The paper finds head widths D = C/H of 4 to 8 best.
        latents: Number of latents M per head, the rank of its mixing matrix.
        kv_depth: Inner layers of the residual MLPs that make keys and values.
        scale: Factor of the scores; None means 1/√D.
        qk_norm: Normalize queries and keys over D.
        norm: Kind of that normalization, `layer` or `rms`.
        activation: Activation of the key and value MLPs; see `ResMLP`.
        shared_latents: Use one set of M queries for all heads (an ablation, less accurate).
        latent_blocks: Number of transformer blocks over the latents, between encode and decode (an ablation).
        latent_gelu: GELU of these blocks, `tanh` or `none` (exact).
        backend: Implementation of the mixer; see `flare.mixer.mix`.

    Raises:
        ConfigError: An option has an unknown value, the sizes do not fit together, or two ablations exclude each other.

    Example:
        >>> import torch
        >>> from flare import FLARE
        >>> layer = FLARE(channels=64, heads=8, latents=32)
        >>> x, mask = torch.randn(2, 1000, 64), torch.arange(1000).expand(2, -1) < 900
        >>> layer(x, mask).shape
        torch.Size([2, 1000, 64])
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
        at_least(1, latents=latents)
        at_least(0, latent_blocks=latent_blocks)
        if latent_gelu not in ("tanh", "none"):
            raise ConfigError(f"unknown latent_gelu {latent_gelu!r}; use 'tanh' or 'none' (exact)")
        if shared_latents and latent_blocks:
            raise ConfigError("shared_latents and latent_blocks are separate ablations; use only one of them")
        check_backend(backend)
        width = channels // heads
        self.group: sharded.Group | None = None  # ranks that share the points of a sample; see `split_points`
        self.channels = channels
        self.heads = heads
        self.scale = width**-0.5 if scale is None else scale
        self.backend = backend
        self.latents = nn.Parameter(0.1 * torch.randn(1 if shared_latents else heads, latents, width))
        self.key = ResMLP(channels, channels, channels, kv_depth, activation=activation, backend=backend)
        self.value = ResMLP(channels, channels, channels, kv_depth, activation=activation, backend=backend)
        make_norm = _lookup(NORMS, norm, "norm") if qk_norm else lambda width: nn.Identity()
        self.query_norm, self.key_norm = make_norm(width), make_norm(width)
        self.latent_blocks = nn.Sequential(
            *[self_attention_block(channels, heads, gelu=latent_gelu) for _ in range(latent_blocks)]
        )
        self.out = nn.Linear(channels, channels)

    def forward(self, x_BNC: Tensor, mask: Tensor | None = None) -> Tensor:
        """Mix the points, [B, N, C] to [B, N, C].

        Args:
            x_BNC: Features of the points.
            mask: Boolean, [B, N], True at real points; None means that all are real.
        """
        if x_BNC.ndim != 3 or x_BNC.shape[2] != self.channels:
            raise ConfigError(f"x is {list(x_BNC.shape)}; this layer takes [B, N, {self.channels}]")
        q_HMD, k_BHND = self.queries_and_keys(x_BNC)
        v_BHND = split_heads(self.value(x_BNC), self.heads)
        options: Any = {"scale": self.scale, "mask": mask, "backend": self.backend}
        if self.group is None and len(self.latent_blocks) == 0:
            y_BHND = mix(q_HMD, k_BHND, v_BHND, **options)
        else:
            if self.group is None:
                z_BHMD = encode(q_HMD, k_BHND, v_BHND, **options)
            else:
                z_BHMD = sharded.encode(q_HMD, k_BHND, v_BHND, group=self.group, **options)
            y_BHND = decode(q_HMD, k_BHND, self.process_latents(z_BHMD), **options)
        return self.out(merge_heads(y_BHND))

    def queries_and_keys(self, x_BNC: Tensor) -> tuple[Tensor, Tensor]:
        """Return the two factors of the scores, q_HMD and k_BHND."""
        k_BHND = self.key_norm(split_heads(self.key(x_BNC), self.heads))
        return self.query_norm(self.latents), k_BHND

    def process_latents(self, z_BHMD: Tensor) -> Tensor:
        """Apply the latent blocks between encode and decode; without any, return the latents unchanged."""
        if len(self.latent_blocks) == 0:
            return z_BHMD
        return split_heads(self.latent_blocks(merge_heads(z_BHMD)), self.heads)

    def encode_points(self, x_BNC: Tensor, mask: Tensor | None = None) -> PartialLatents:
        """Compute the first half of the layer for some of the points; see `flare.mixer.chunked`."""
        q_HMD, k_BHND = self.queries_and_keys(x_BNC)
        v_BHND = split_heads(self.value(x_BNC), self.heads)
        return encode_partial(q_HMD, k_BHND, v_BHND, scale=self.scale, mask=mask, backend=self.backend)

    def decode_points(self, x_BNC: Tensor, z_BHMD: Tensor, mask: Tensor | None = None) -> Tensor:
        """Compute the second half of the layer at any points, given the latents: [B, N, C] to [B, N, C]."""
        q_HMD, k_BHND = self.queries_and_keys(x_BNC)
        y_BHND = decode(q_HMD, k_BHND, z_BHMD, scale=self.scale, mask=mask, backend=self.backend)
        return self.out(merge_heads(y_BHND))


class FLAREBlock(nn.Module):
    """Pre-norm residual block: mix the points with FLARE, then transform each point with an MLP.

    `mixer`, `ffn`, `mixer_norm` and `ffn_norm` may be replaced by other modules, which the block then calls. A mixer
    takes (x, mask).

    Args:
        channels: Feature width C of every point.
        heads: Number of heads H; must divide C.
        latents: Number of latents M per head.
        ffn_depth: Inner layers of the pointwise residual MLP.
        ffn_ratio: Hidden width of the MLP divided by C. None means 1, or 4 for a `standard` MLP. A residual MLP whose
            ratio is not 1 has no outer skips, because the widths differ.
        ffn: `residual`, or `standard` for the MLP of a transformer with one hidden layer (an ablation).
        norm: `layer` or `rms`.
        activation: Activation of all MLPs; see `ResMLP`.
        backend: Implementation; see `flare.mixer.mix`.
        **mixer: Further arguments of `FLARE`.

    Raises:
        ConfigError: `ffn` or an option of `FLARE` has an unknown value, or the sizes do not fit together.

    Example:
        >>> import torch
        >>> from flare import FLAREBlock
        >>> block = FLAREBlock(channels=64, heads=8, latents=32, kv_depth=1, ffn_depth=1)
        >>> block(torch.randn(2, 1000, 64)).shape
        torch.Size([2, 1000, 64])
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
        **mixer: Any,
    ) -> None:
        super().__init__()
        if ffn not in ("residual", "standard"):
            raise ConfigError(f"unknown ffn {ffn!r}; use 'residual' or 'standard'")
        make_norm = _lookup(NORMS, norm, "norm")
        self.mixer_norm = make_norm(channels)
        self.mixer = FLARE(channels, heads, latents, norm=norm, activation=activation, backend=backend, **mixer)
        self.ffn_norm = make_norm(channels)
        ratio = ffn_ratio if ffn_ratio is not None else 1 if ffn == "residual" else 4
        at_least(1, ffn_ratio=ratio)
        self.ffn: nn.Module
        if ffn == "residual":
            self.ffn = ResMLP(channels, ratio * channels, channels, ffn_depth, activation=activation, backend=backend)
        else:
            first, _, last = transformer_mlp(channels, ratio)
            self.ffn = nn.Sequential(first, _lookup(ACTIVATIONS, activation, "activation")(), last)

    @fused.use_kernel(fused.flare_block)
    def forward(self, x_BNC: Tensor, mask: Tensor | None = None) -> Tensor:
        """Apply the block, [B, N, C] to [B, N, C].

        Args:
            x_BNC: Features of the points.
            mask: Boolean, [B, N], True at real points; None means that all are real.
        """
        x_BNC = x_BNC + self.mixer(self.mixer_norm(x_BNC), mask)
        return x_BNC + self.ffn(self.ffn_norm(x_BNC))

    def encode_points(self, x_BNC: Tensor, mask: Tensor | None = None) -> PartialLatents:
        """Compute the latents of some of the points; see `flare.mixer.chunked`."""
        return self.mixer.encode_points(self.mixer_norm(x_BNC), mask)

    def decode_points(self, x_BNC: Tensor, z_BHMD: Tensor, mask: Tensor | None = None) -> Tensor:
        """Apply the block at any points, given its latents; with the latents of all points, it equals `forward`."""
        x_BNC = x_BNC + self.mixer.decode_points(self.mixer_norm(x_BNC), z_BHMD, mask)
        return x_BNC + self.ffn(self.ffn_norm(x_BNC))


class FourierFeatures(nn.Module):
    """The inputs x together with sin(2ᵏ π/2 x) and cos(2ᵏ π/2 x) for k = 0 … octaves − 1.

    With them a network learns fine detail in fewer steps. The longest wave spans four units, which is four standard
    deviations of a normalized input.

    Args:
        octaves: Number of frequencies; each is twice the one before.
    """

    def __init__(self, octaves: int) -> None:
        super().__init__()
        at_least(1, fourier=octaves)
        self.octaves = octaves

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., in_dim] to [..., in_dim · (1 + 2 · octaves)]."""
        angles = torch.cat([x * (math.pi / 2 * 2**k) for k in range(self.octaves)], dim=-1)
        return torch.cat([x, angles.sin(), angles.cos()], dim=-1)

    def width(self, in_dim: int) -> int:
        """Return the number of output channels."""
        return in_dim * (1 + 2 * self.octaves)


class FLAREModel(nn.Module):
    """The surrogate of the paper: lift, FLARE blocks, head. Defaults are its Elasticity model (592,641 parameters).

    Args:
        in_dim: Number of input features per point: coordinates first, then everything else known there.
        out_dim: Number of fields to predict per point.
        channels: Feature width C of every point.
        blocks: Number of FLARE blocks.
        heads: Number of heads H; must divide C.
        latents: Number of latents M per head and block.
        kv_depth: Inner layers of the key and value MLPs.
        ffn_depth: Inner layers of the pointwise residual MLP of each block.
        ffn_ratio: Hidden width of the pointwise MLP divided by C; None means 1, or 4 for `standard` (ablation).
        ffn: `residual`, or `standard` for the MLP of a transformer (ablation).
        io_depth: Inner layers of the lift and the head.
        fourier: Octaves of Fourier features of the inputs; 0, as in the paper, for none.
        scale: Factor of the scores; None means 1/√D.
        norm: `layer` or `rms`, for all normalization layers.
        qk_norm: Normalize queries and keys over the head width.
        activation: `gelu` (tanh form), `silu`, or `exact-gelu`, which has no fused kernel.
        shared_latents: Use one set of queries for all heads (ablation).
        latent_blocks: Number of transformer blocks over the latents of each FLARE block (ablation).
        latent_gelu: GELU of these blocks, `tanh` or `none` (exact).
        backend: Implementation; see `flare.mixer.mix`. The weights are the same for every backend.

    Raises:
        ConfigError: An option has an unknown value, or the sizes do not fit together.

    Example:
        >>> import torch
        >>> from flare import FLAREModel
        >>> model = FLAREModel(3, 1, channels=64, blocks=2, heads=16, latents=128)
        >>> model(torch.randn(2, 1000, 3)).shape
        torch.Size([2, 1000, 1])
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
        at_least(1, blocks=blocks)
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
        self.head_norm = _lookup(NORMS, norm, "norm")(channels)
        self.head = ResMLP(
            channels, channels, out_dim, io_depth, skip_out=False, activation=activation, backend=backend
        )
        self.recompute = False  # see `recompute_blocks`
        self.apply(small_normal)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map [B, N, in_dim] to [B, N, out_dim].

        Args:
            x: Inputs of the points, coordinates first.
            mask: Boolean, [B, N], True at real points; None means that all are real.
        """
        x_BNC = self.lift(x)
        for block in self.blocks:
            if self.recompute and torch.is_grad_enabled():
                x_BNC = checkpoint(block, x_BNC, mask, use_reentrant=False, preserve_rng_state=False)
            else:
                x_BNC = block(x_BNC, mask)
        return self.head(self.head_norm(x_BNC))


def recompute_blocks(model: nn.Module) -> None:
    """Make the backward pass recompute each block from its input: less memory, a third more time.

    Raises:
        ConfigError: The model is not a `FLAREModel`.
    """
    if not isinstance(model, FLAREModel):
        raise ConfigError(f"{type(model).__name__} cannot recompute its blocks; only a FLAREModel can")
    model.recompute = True


def split_points(model: nn.Module, group: sharded.Group | None) -> None:
    """Let the ranks of a group share the points of each sample.

    From then on each rank passes its own points to the model. None returns to one rank with all points.

    Raises:
        ConfigError: The model has no FLARE layer.
    """
    layers = [module for module in model.modules() if isinstance(module, FLARE)]
    if not layers:
        raise ConfigError(f"{type(model).__name__} has no FLARE layer, so ranks cannot share the points of a sample")
    for layer in layers:
        layer.group = group


def _lookup(table: dict[str, Callable[..., nn.Module]], name: str, kind: str) -> Callable[..., nn.Module]:
    if name not in table:
        raise ConfigError(f"unknown {kind} {name!r}; {suggest_name(name, table)}")
    return table[name]

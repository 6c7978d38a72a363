"""Transolver: soft slices average the points into G tokens, which attend to each other."""

# B batch, N points, G slices, C channels, H heads, D = C / H head width

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from flare.models.baselines.grid import REFERENCE, check_grid, check_unified, distances, require_grid
from flare.models.layers import (
    PointModel,
    TransformerBlock,
    at_least,
    check_heads,
    merge_heads,
    mlp,
    small_normal,
    split_heads,
)


class SliceTokens(nn.Module):
    """Self-attention of the slice tokens, with bias-free maps D → D shared by all heads."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))

    def forward(self, t_BHGD: Tensor) -> Tensor:
        return scaled_dot_product_attention(self.query(t_BHGD), self.key(t_BHGD), self.value(t_BHGD))


def exchange(w_BHNG: Tensor, f_BHND: Tensor, tokens: nn.Module, mask: Tensor | None) -> Tensor:
    """Average points into slices, apply `tokens`, and return slices to points by the same weights w: [B, H, N, D]."""
    w_in = w_BHNG if mask is None else w_BHNG * mask[:, None, :, None]
    t_BHGD = w_in.transpose(-1, -2) @ f_BHND / (w_in.sum(-2)[..., None] + 1e-5)
    return w_BHNG @ tokens(t_BHGD)


def slice_scores(p_BHND: Tensor, linear: nn.Linear, temperature_H: Tensor) -> Tensor:
    """Compute (P W + b) / τ, [B, H, N, G], with τ of each head folded into the map to save a second such array."""
    batch, heads = p_BHND.shape[:2]
    weight_HDG = (linear.weight / temperature_H[:, None, None]).transpose(1, 2)
    bias_H1G = (linear.bias / temperature_H[:, None])[:, None]
    scores = torch.baddbmm(bias_H1G.repeat(batch, 1, 1), p_BHND.flatten(0, 1), weight_HDG.repeat(batch, 1, 1))
    return scores.unflatten(0, (batch, heads))


class PhysicsAttention(nn.Module):
    """Physics attention: T_g = Σ_n w_ng F_n / Σ_n w_ng with w = softmax(P W / τ over G), Y_n = Σ_g w_ng attention(T)_g.

    On a grid, 3 × 3 convolutions replace the Linear maps F and P, and τ is clamped to [0.1, 5].

    Args:
        channels: Feature width C.
        heads: Number of heads; must divide C unless `width` is given.
        slices: Number of slices G per head.
        grid: (rows, columns), or None for unstructured points.
        width: Head width; None means C/H, as in Transolver.
    """

    def __init__(
        self, channels: int, heads: int, slices: int, grid: tuple[int, int] | None, width: int | None = None
    ) -> None:
        super().__init__()
        if width is None:
            check_heads(channels, heads)
            width = channels // heads
        self.heads, self.grid = heads, grid
        inner = heads * width
        self.value, self.position = (
            nn.Conv2d(channels, inner, 3, padding=1) if grid else nn.Linear(channels, inner) for _ in range(2)
        )
        self.slice = nn.Linear(width, slices)
        self.temperature = nn.Parameter(torch.full((heads,), 0.5))
        self.tokens = SliceTokens(width)
        self.out = nn.Linear(inner, channels)

    def forward(self, x_BNC: Tensor, mask: Tensor | None = None) -> Tensor:
        f_BHND, p_BHND = (split_heads(t, self.heads) for t in self._maps(x_BNC))
        temperature = self.temperature.clamp(0.1, 5) if self.grid else self.temperature
        w_BHNG = slice_scores(p_BHND, self.slice, temperature).softmax(-1)
        return self.out(merge_heads(exchange(w_BHNG, f_BHND, self.tokens, mask)))

    def _maps(self, x_BNC: Tensor) -> list[Tensor]:
        maps = self.value, self.position
        if self.grid is None:
            return [linear(x_BNC) for linear in maps]
        image = x_BNC.transpose(1, 2).unflatten(2, self.grid)
        return [convolution(image).flatten(2).transpose(1, 2) for convolution in maps]


class Placeholder(nn.Module):
    """Learned vector, added at every point, that stands for a missing input function."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.rand(channels) / channels)

    def forward(self, x_BNC: Tensor) -> Tensor:
        return x_BNC + self.vector


class SliceModel(PointModel):
    """Base of both Transolvers: lift, placeholder, blocks of the given attentions, head."""

    def __init__(
        self, in_dim: int, out_dim: int, channels: int, mlp_ratio: int, attentions: Iterable[nn.Module]
    ) -> None:
        super().__init__()
        self.lift = mlp(in_dim, 2 * channels, channels)
        self.placeholder = Placeholder(channels)
        self.blocks = nn.ModuleList(TransformerBlock(channels, a, mlp_ratio=mlp_ratio, gelu="none") for a in attentions)
        self.head_norm = nn.LayerNorm(channels)
        self.head = nn.Linear(channels, out_dim)

    def embed(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Map [B, N, in_dim] to [B, N, C]."""
        return self.placeholder(self.lift(x))


class Transolver(SliceModel):
    """Transolver: lift, blocks of physics attention, head; the defaults have the paper's 713k parameters.

    Args:
        in_dim: Number of input features per point.
        out_dim: Number of fields to predict per point.
        channels: Feature width C of every point.
        blocks: Number of blocks.
        heads: Number of heads; must divide C.
        slices: Number of slices G per head.
        mlp_ratio: Hidden width of the pointwise MLP divided by C.
        grid: (rows, columns) of structured data, for which convolutions replace Linear maps; None for any mesh.
        unified_pos: Replace the two coordinates by 64 distances to a reference grid; requires `grid`.
    """

    distances: Tensor

    def __init__(
        self,
        in_dim: int,
        out_dim: int,
        *,
        channels: int = 128,
        blocks: int = 8,
        heads: int = 8,
        slices: int = 64,
        mlp_ratio: int = 1,
        grid: Sequence[int] | None = None,
        unified_pos: bool = False,
    ) -> None:
        at_least(1, channels=channels, blocks=blocks, heads=heads, slices=slices, mlp_ratio=mlp_ratio)
        shape = check_grid(grid)
        if unified_pos:
            check_unified(shape, in_dim, 3)
            in_dim += REFERENCE**2 - 2
        attentions = (PhysicsAttention(channels, heads, slices, shape) for _ in range(blocks))
        super().__init__(in_dim, out_dim, channels, mlp_ratio, attentions)
        self.grid, self.unified_pos = shape, unified_pos
        if unified_pos:
            self.register_buffer("distances", distances(shape), persistent=False)  # type: ignore[arg-type]
        # The published code always has this vector and counts it. Unused, it is frozen for distributed training.
        self.placeholder.requires_grad_(not unified_pos)
        self.apply(small_normal)

    def embed(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Map [B, N, in_dim] to [B, N, C]."""
        if self.grid is not None:
            require_grid(x, mask, self.grid)
        if not self.unified_pos:
            return super().embed(x, mask)
        return self.lift(torch.cat([self.distances.to(x.dtype).expand(x.shape[0], -1, -1), x[..., 2:]], dim=-1))

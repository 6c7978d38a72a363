"""Transolver: points are softly sliced into G tokens, which attend to each other and are spread back."""

# B batch, N points, G slices, C channels, H heads, D = C / H head width

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from flare.models.attention import check_heads, merge_heads, split_heads, transformer_mlp
from flare.models.baselines.grid import REFERENCE, check_grid, check_unified, distances, require_grid
from flare.models.checks import at_least, check_mask
from flare.models.initialise import small_normal
from flare.utils.errors import ConfigError


class SliceTokens(nn.Module):
    """Attention among the slices: bias-free maps D -> D for queries, keys and values, shared by all heads."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))

    def forward(self, t_BHGD: Tensor) -> Tensor:
        return scaled_dot_product_attention(self.query(t_BHGD), self.key(t_BHGD), self.value(t_BHGD))


def exchange(w_BHNG: Tensor, f_BHND: Tensor, tokens: nn.Module, mask: Tensor | None) -> Tensor:
    """Slice by weights w, let the tokens attend, spread back by the same weights. [B, H, N, D]"""
    w_in = w_BHNG if mask is None else w_BHNG * mask[:, None, :, None]
    t_BHGD = w_in.transpose(-1, -2) @ f_BHND / (w_in.sum(-2)[..., None] + 1e-5)
    return w_BHNG @ tokens(t_BHGD)


def slice_scores(p_BHND: Tensor, linear: nn.Linear, temperature_H: Tensor) -> Tensor:
    """(P W + b) / τ with the head's τ folded into the map, which spares a second array of this size. [B, H, N, G]"""
    batch, heads = p_BHND.shape[:2]
    weight_HDG = (linear.weight / temperature_H[:, None, None]).transpose(1, 2)
    bias_H1G = (linear.bias / temperature_H[:, None])[:, None]
    scores = torch.baddbmm(bias_H1G.repeat(batch, 1, 1), p_BHND.flatten(0, 1), weight_HDG.repeat(batch, 1, 1))
    return scores.unflatten(0, (batch, heads))


class PhysicsAttention(nn.Module):
    """T_g = Σ_n w_ng F_n / Σ_n w_ng with w = softmax over G of (P W / τ);  Y_n = Σ_g w_ng attention(T)_g.

    On a grid, F and P are 3×3 convolutions in place of Linear maps, and τ is clamped to [0.1, 5].
    Heads are `width` channels wide; None makes them C/H, as all of Transolver's are.
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
        f_BHND, p_BHND = (split_heads(part, self.heads) for part in self._maps(x_BNC))
        temperature = self.temperature.clamp(0.1, 5) if self.grid else self.temperature
        w_BHNG = slice_scores(p_BHND, self.slice, temperature).softmax(-1)
        return self.out(merge_heads(exchange(w_BHNG, f_BHND, self.tokens, mask)))

    def _maps(self, x_BNC: Tensor) -> list[Tensor]:
        maps = self.value, self.position
        if self.grid is None:
            return [linear(x_BNC) for linear in maps]
        image = x_BNC.transpose(1, 2).unflatten(2, self.grid)
        return [convolution(image).flatten(2).transpose(1, 2) for convolution in maps]


class TransolverBlock(nn.Module):
    """X ← X + attention(norm(X)),  X ← X + MLP(norm(X))."""

    def __init__(self, channels: int, attention: nn.Module, mlp_ratio: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(channels)
        self.attention = attention
        self.mlp_norm = nn.LayerNorm(channels)
        self.mlp = transformer_mlp(channels, mlp_ratio)

    def forward(self, x_BNC: Tensor, mask: Tensor | None = None) -> Tensor:
        x_BNC = x_BNC + self.attention(self.attention_norm(x_BNC), mask)
        return x_BNC + self.mlp(self.mlp_norm(x_BNC))


class Placeholder(nn.Module):
    """A learned vector, the same at every point, where there is no function to read."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.rand(channels) / channels)

    def forward(self, x_BNC: Tensor) -> Tensor:
        return x_BNC + self.vector


class Transolver(nn.Module):
    """Lift, blocks of physics attention, head. Defaults are the paper's 713k parameters.

    Args:
        channels: C, feature width of every point.
        blocks: how many.
        heads: must divide C.
        slices: G per head.
        mlp_ratio: hidden width of the pointwise MLP, in C.
        grid: (rows, columns) of structured data, whose maps are then convolutions; None for any mesh.
        unified_pos: read 64 distances to a reference grid instead of the two coordinates; other features stay. Wants
            `grid`.
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
        super().__init__()
        at_least(1, channels=channels, blocks=blocks, heads=heads, slices=slices, mlp_ratio=mlp_ratio)
        self.grid = check_grid(grid)
        self.unified_pos = unified_pos
        if unified_pos:
            check_unified(self.grid, in_dim)
            if in_dim == 2:
                raise ConfigError("unified_pos replaces the two coordinates, and there is nothing else to read")
            self.register_buffer("distances", distances(self.grid), persistent=False)  # type: ignore[arg-type]
            in_dim += REFERENCE**2 - 2
        self.lift = nn.Sequential(nn.Linear(in_dim, 2 * channels), nn.GELU(), nn.Linear(2 * channels, channels))
        self.has_function = unified_pos and in_dim > REFERENCE**2
        # The original has the vector always, and counts it; frozen, it does not trouble distributed training.
        self.placeholder = Placeholder(channels).requires_grad_(not self.has_function)
        self.blocks = nn.ModuleList(
            TransolverBlock(channels, PhysicsAttention(channels, heads, slices, self.grid), mlp_ratio)
            for _ in range(blocks)
        )
        self.head_norm = nn.LayerNorm(channels)
        self.head = nn.Linear(channels, out_dim)
        self.apply(small_normal)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """[B, N, in_dim] -> [B, N, out_dim]; `mask` is [B, N], True at real points."""
        check_mask(x, mask)
        if self.grid is not None:
            require_grid(x, mask, self.grid)
        if self.unified_pos:
            x = torch.cat([self.distances.to(x.dtype).expand(x.shape[0], -1, -1), x[..., 2:]], dim=-1)
        x_BNC = self.lift(x)
        if not self.has_function:
            x_BNC = self.placeholder(x_BNC)
        for block in self.blocks:
            x_BNC = block(x_BNC, mask)
        return self.head(self.head_norm(x_BNC))

"""GNOT, the General Neural Operator Transformer: linear attention and MLPs mixed by a gate on the position."""

# B batch, N points, C channels, H heads, D = C / H head width, E experts

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from flare.mixer import check_mask, no_autocast
from flare.models.baselines.grid import REFERENCE, check_grid, check_unified, distances, require_grid
from flare.models.baselines.transolver import Placeholder
from flare.models.layers import at_least, check_heads, merge_heads, mlp, small_normal, split_heads, transformer_mlp
from flare.utils.errors import ConfigError


class GNOTAttention(nn.Module):
    """Linear attention q (Σ_n k_nᵀ v_n) / (q · Σ_n k_n) + q, with softmax over D of queries and keys."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        check_heads(channels, heads)
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(channels, channels) for _ in range(4))

    def forward(self, target: Tensor, source: Tensor, mask: Tensor | None) -> Tensor:
        q, k = (split_heads(t, self.heads).softmax(-1) for t in (self.query(target), self.key(source)))
        v = split_heads(self.value(source), self.heads)
        if mask is not None:
            k = k * mask[:, None, :, None]
        with no_autocast(q):  # sums over all points need float32
            wide = torch.promote_types(v.dtype, torch.float32)
            q, k, v = (t.to(wide) for t in (q, k, v))
            sums = q @ k.sum(-2)[..., None]  # positive, unless all points are padding
            y_BHND = q @ (k.transpose(-1, -2) @ v) / sums.clamp_min(torch.finfo(wide).tiny) + q
        return self.out(merge_heads(y_BHND).to(target.dtype))


class Experts(nn.Module):
    """Mixture of experts: Σ_e g_e MLP_e(x), then a norm."""

    def __init__(self, channels: int, mlp_ratio: int, count: int) -> None:
        super().__init__()
        self.experts = nn.ModuleList(transformer_mlp(channels, mlp_ratio) for _ in range(count))
        self.norm = nn.LayerNorm(channels)

    def forward(self, x_BNC: Tensor, gate_BNE: Tensor) -> Tensor:
        mixed = sum(expert(x_BNC) * gate_BNE[..., i : i + 1] for i, expert in enumerate(self.experts))
        return self.norm(mixed)


class GNOTBlock(nn.Module):
    """Cross-attention from the geometry to the field, then self-attention; experts follow each."""

    def __init__(self, channels: int, heads: int, mlp_ratio: int, experts: int, gate_dim: int) -> None:
        super().__init__()
        wide = 2 * channels
        self.gate = mlp(gate_dim, wide, wide, experts)
        self.geometry_norm, self.field_norm, self.self_norm = (nn.LayerNorm(channels) for _ in range(3))
        self.cross, self.self = (GNOTAttention(channels, heads) for _ in range(2))
        self.first, self.second = (Experts(channels, mlp_ratio, experts) for _ in range(2))

    def forward(self, geometry: Tensor, field: Tensor, position: Tensor, mask: Tensor | None) -> Tensor:
        gate = self.gate(position).softmax(-1)
        x = geometry + self.cross(self.geometry_norm(geometry), self.field_norm(field), mask)
        x = x + self.first(x, gate)
        h = self.self_norm(x)
        x = x + self.self(h, h, mask)
        return x + self.second(x, gate)


class GNOT(nn.Module):
    """GNOT: geometry and field have separate lifts; every block updates the field from both; a head reads the field.

    Args:
        in_dim: Number of input features per point.
        out_dim: Number of fields to predict per point.
        channels: Feature width C of every point.
        blocks: Number of blocks.
        heads: Number of heads; must divide C.
        mlp_ratio: Hidden width of the experts divided by C.
        experts: Number of MLPs that a gate mixes at every point.
        grid: (rows, columns) of structured data; only for `unified_pos`.
        unified_pos: Describe the geometry by 64 distances to a reference grid. The field then starts from the features
            beside the coordinates or, without any, from the coordinates.
        published: With `unified_pos`, do as the authors of FLARE: the field starts from the distances alone, and the
            inputs reach the network only through the gates.
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
        mlp_ratio: int = 2,
        experts: int = 3,
        grid: Sequence[int] | None = None,
        unified_pos: bool = False,
        published: bool = False,
    ) -> None:
        super().__init__()
        at_least(1, channels=channels, blocks=blocks, heads=heads, mlp_ratio=mlp_ratio, experts=experts)
        self.grid = check_grid(grid)
        if not unified_pos and (published or grid is not None):
            raise ConfigError("grid and published require unified_pos=True")
        if unified_pos:
            check_unified(self.grid, in_dim)
        self.unified_pos, self.published = unified_pos, published
        geometry_dim, function_dim, gate_dim = in_dim, 0, in_dim
        if unified_pos:
            self.register_buffer("distances", distances(self.grid), persistent=False)  # type: ignore[arg-type]
            geometry_dim = REFERENCE**2
            if not published:
                function_dim, gate_dim = (in_dim - 2 or 2), 2
        wide = 2 * channels
        self.lift_geometry = mlp(geometry_dim, wide, channels)
        self.lift_field = mlp(geometry_dim + function_dim, wide, channels)
        self.placeholder = Placeholder(channels)
        self.blocks = nn.ModuleList(GNOTBlock(channels, heads, mlp_ratio, experts, gate_dim) for _ in range(blocks))
        self.head = mlp(channels, wide, out_dim)
        self.apply(small_normal)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map [B, N, in_dim] to [B, N, out_dim]; the mask is a boolean [B, N], True at real points."""
        check_mask(mask, *x.shape[:2])
        geometry, function, position = self._inputs(x, mask)
        geometry_BNC = self.lift_geometry(geometry)
        field_BNC = self.placeholder(self.lift_field(torch.cat([geometry, *function], dim=-1)))
        for block in self.blocks:
            field_BNC = block(geometry_BNC, field_BNC, position, mask)
        return self.head(field_BNC)

    def _inputs(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, list[Tensor], Tensor]:
        """Return the geometry, the function values and the input of the gates."""
        if not self.unified_pos:
            return x, [], x
        require_grid(x, mask, self.grid)  # type: ignore[arg-type]
        geometry = self.distances.to(x.dtype).expand(x.shape[0], -1, -1)
        if self.published:
            return geometry, [], x
        coordinates, values = x[..., :2], x[..., 2:]
        return geometry, [values if values.shape[-1] else coordinates], coordinates

"""GNOT, the General Neural Operator Transformer: linear attention, and MLPs that a gate on the position mixes."""

# B batch, N points, C channels, H heads, D = C / H head width, E experts

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from flare.models.attention import check_heads, merge_heads, split_heads, transformer_mlp
from flare.models.baselines.grid import REFERENCE, check_grid, check_unified, distances, require_grid
from flare.models.baselines.transolver import Placeholder
from flare.models.checks import at_least, check_mask
from flare.models.initialise import small_normal
from flare.utils.errors import ConfigError


class LinearAttention(nn.Module):
    """q (Σ_n k_nᵀ v_n) / (q · Σ_n k_n) + q, with softmax over D of queries and keys."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        check_heads(channels, heads)
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(channels, channels) for _ in range(4))

    def forward(self, asking: Tensor, asked: Tensor, mask: Tensor | None) -> Tensor:
        q, k = (split_heads(part, self.heads).softmax(-1) for part in (self.query(asking), self.key(asked)))
        v = split_heads(self.value(asked), self.heads)
        if mask is not None:
            k = k * mask[:, None, :, None]
        with torch.autocast(q.device.type, enabled=False):  # sums over all points want float32
            wide = torch.promote_types(v.dtype, torch.float32)
            q, k, v = (t.to(wide) for t in (q, k, v))
            sums = q @ k.sum(-2)[..., None]  # positive, unless all is padding
            y_BHND = q @ (k.transpose(-1, -2) @ v) / sums.clamp_min(torch.finfo(wide).tiny) + q
        return self.out(merge_heads(y_BHND).to(asking.dtype))


class Experts(nn.Module):
    """Σ_e g_e MLP_e(x), then a norm."""

    def __init__(self, channels: int, mlp_ratio: int, count: int) -> None:
        super().__init__()
        self.experts = nn.ModuleList(transformer_mlp(channels, mlp_ratio) for _ in range(count))
        self.norm = nn.LayerNorm(channels)

    def forward(self, x_BNC: Tensor, gate_BNE: Tensor) -> Tensor:
        mixed = sum(expert(x_BNC) * gate_BNE[..., i : i + 1] for i, expert in enumerate(self.experts))
        return self.norm(mixed)


class GNOTBlock(nn.Module):
    """The geometry asks the field, then the field asks itself; each step is followed by experts."""

    def __init__(self, channels: int, heads: int, mlp_ratio: int, experts: int, gate_dim: int) -> None:
        super().__init__()
        wide = 2 * channels
        self.gate = nn.Sequential(
            nn.Linear(gate_dim, wide), nn.GELU(), nn.Linear(wide, wide), nn.GELU(), nn.Linear(wide, experts)
        )
        self.geometry_norm, self.field_norm, self.self_norm = (nn.LayerNorm(channels) for _ in range(3))
        self.cross, self.self = (LinearAttention(channels, heads) for _ in range(2))
        self.first, self.second = (Experts(channels, mlp_ratio, experts) for _ in range(2))

    def forward(self, geometry: Tensor, field: Tensor, position: Tensor, mask: Tensor | None) -> Tensor:
        gate = self.gate(position).softmax(-1)
        x = geometry + self.cross(self.geometry_norm(geometry), self.field_norm(field), mask)
        x = x + self.first(x, gate)
        h = self.self_norm(x)
        x = x + self.self(h, h, mask)
        return x + self.second(x, gate)


class GNOT(nn.Module):
    """Geometry X and field Y are lifted apart; every block makes a new Y of both, X stays. Then a head on Y.

    Args:
        channels: C, feature width of every point.
        blocks: how many.
        heads: must divide C.
        mlp_ratio: hidden width of the experts, in C.
        experts: MLPs that a gate mixes at every point.
        grid: (rows, columns) of structured data; only for `unified_pos`.
        unified_pos: the geometry is 64 distances to a reference grid; what these cannot tell (the features beside the
            coordinates, or else the coordinates) is the function that the field starts from.
        published: with `unified_pos`, as the authors of FLARE ran it: no function, so true inputs reach the network
            through the gates alone.
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
            raise ConfigError("grid and published are settings of unified_pos; switch it on, or leave them out")
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
        self.lift_geometry, self.lift_field = (
            nn.Sequential(nn.Linear(width, wide), nn.GELU(), nn.Linear(wide, channels))
            for width in (geometry_dim, geometry_dim + function_dim)
        )
        self.placeholder = Placeholder(channels)
        self.blocks = nn.ModuleList(GNOTBlock(channels, heads, mlp_ratio, experts, gate_dim) for _ in range(blocks))
        self.head = nn.Sequential(nn.Linear(channels, wide), nn.GELU(), nn.Linear(wide, out_dim))
        self.apply(small_normal)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """[B, N, in_dim] -> [B, N, out_dim]; `mask` is [B, N], True at real points."""
        check_mask(x, mask)
        geometry, function, position = self._inputs(x, mask)
        geometry_BNC = self.lift_geometry(geometry)
        field_BNC = self.placeholder(self.lift_field(torch.cat([geometry, *function], dim=-1)))
        for block in self.blocks:
            field_BNC = block(geometry_BNC, field_BNC, position, mask)
        return self.head(field_BNC)

    def _inputs(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, list[Tensor], Tensor]:
        """Geometry, function and what the gates read."""
        if not self.unified_pos:
            return x, [], x
        require_grid(x, mask, self.grid)  # type: ignore[arg-type]
        geometry = self.distances.to(x.dtype).expand(x.shape[0], -1, -1)
        if self.published:
            return geometry, [], x
        coordinates, values = x[..., :2], x[..., 2:]
        return geometry, [values if values.shape[-1] else coordinates], coordinates

"""LNO, the Latent Neural Operator: learned scores map the points to M modes, transformer blocks act on the modes."""

# B batch, N points, M modes, C channels, H heads

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from flare.mixer import check_mask
from flare.models.layers import at_least, check_heads, merge_heads, split_heads, transformer_mlp
from flare.utils.errors import ConfigError


class LayeredMLP(nn.Module):
    """MLP of Linear and GELU, then `depth` layers h ← h + GELU(Linear h), then Linear."""

    def __init__(self, in_dim: int, hidden: int, out_dim: int, depth: int) -> None:
        super().__init__()
        self.first = nn.Linear(in_dim, hidden)
        self.inner = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(depth))
        self.last = nn.Linear(hidden, out_dim)
        self.activation = nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        h = self.activation(self.first(x))
        for layer in self.inner:
            h = h + self.activation(layer(h))
        return self.last(h)


class ModeBlock(nn.Module):
    """Transformer block over the modes, with separate query, key and value maps that have a bias."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        check_heads(channels, heads)
        self.heads = heads
        self.attention_norm = nn.LayerNorm(channels)
        self.query, self.key, self.value, self.out = (nn.Linear(channels, channels) for _ in range(4))
        self.mlp_norm = nn.LayerNorm(channels)
        self.mlp = transformer_mlp(channels, 2)

    def forward(self, z_BMC: Tensor) -> Tensor:
        h = self.attention_norm(z_BMC)
        q, k, v = (split_heads(linear(h), self.heads) for linear in (self.query, self.key, self.value))
        z_BMC = z_BMC + self.out(merge_heads(scaled_dot_product_attention(q, k, v)))
        return z_BMC + self.mlp(self.mlp_norm(z_BMC))


class LNO(nn.Module):
    """LNO: Z = softmax(Eᵀ over N) branch(x), blocks on Z, Y = softmax(E over M) Z, with E = scores(trunk(x)), [N, M].

    Args:
        in_dim: Number of input features per point.
        out_dim: Number of fields to predict per point.
        channels: Feature width C; the paper uses 192 for Elasticity.
        blocks: Number of transformer blocks over the modes.
        heads: Number of heads; must divide C.
        modes: Number of modes M.
        mlp_depth: Residual layers of every MLP; the paper uses 3 for Elasticity.
        trunk_dim: Number of leading features that the trunk reads. None means all, as the authors of FLARE do; the
            authors of LNO use the coordinates alone.
    """

    def __init__(
        self,
        in_dim: int,
        out_dim: int,
        *,
        channels: int = 128,
        blocks: int = 4,
        heads: int = 8,
        modes: int = 256,
        mlp_depth: int = 2,
        trunk_dim: int | None = None,
    ) -> None:
        super().__init__()
        self.trunk_dim = in_dim if trunk_dim is None else trunk_dim
        at_least(1, channels=channels, blocks=blocks, heads=heads, modes=modes, trunk_dim=self.trunk_dim)
        at_least(0, mlp_depth=mlp_depth)
        if self.trunk_dim > in_dim:
            raise ConfigError(f"trunk_dim={trunk_dim} exceeds in_dim={in_dim}")
        self.trunk = LayeredMLP(self.trunk_dim, channels, channels, mlp_depth)
        self.branch = LayeredMLP(in_dim, channels, channels, mlp_depth)
        self.scores = LayeredMLP(channels, channels, modes, mlp_depth)
        self.blocks = nn.ModuleList(ModeBlock(channels, heads) for _ in range(blocks))
        self.head = LayeredMLP(channels, channels, out_dim, mlp_depth)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map [B, N, in_dim] to [B, N, out_dim]; the mask is a boolean [B, N], True at real points."""
        check_mask(mask, *x.shape[:2])
        e_BNM = self.scores(self.trunk(x[..., : self.trunk_dim]))
        own = e_BNM if mask is None else e_BNM.masked_fill(~mask[..., None], torch.finfo(e_BNM.dtype).min)
        z_BMC = own.softmax(1).transpose(1, 2) @ self.branch(x)
        for block in self.blocks:
            z_BMC = block(z_BMC)
        return self.head(e_BNM.softmax(-1) @ z_BMC)

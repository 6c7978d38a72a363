"""The mixer with the points of every sample split over ranks: each rank has its own points, all have the same latents.

Keys and values are never sent. The forward pass merges the latents of all ranks with one maximum of H·M numbers and one
sum of H·M·(D+1); the backward pass adds the gradients of the latents, H·M·D numbers. The amount of communication does
not depend on the number of points.
"""

# B batch, N points of this rank, n points of a tile, M latents per head, H heads, D head width

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from flare.mixer import native
from flare.mixer.chunked import TILE, PartialLatents, encode_partial, fraction
from flare.mixer.reference import scores

Group = dist.ProcessGroup


def encode(
    q_HMD: Tensor,
    k_BHND: Tensor,
    v_BHND: Tensor,
    *,
    group: Group,
    scale: float = 1.0,
    mask: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """Compute `flare.mixer.encode` over the points of all ranks in `group`.

    Gradients are those of the points of this rank; the gradient of q is complete once it is summed over the ranks.

    Returns:
        The latents Z, [B, H, M, D], equal on all ranks.
    """
    return _ShardedEncode.apply(q_HMD, k_BHND, v_BHND, mask, scale, backend, group)


class _ShardedEncode(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q_HMD: Tensor, k_BHND: Tensor, v_BHND: Tensor, mask: Tensor | None, *how: Any) -> Tensor:
        scale, backend, group = how
        own = encode_partial(q_HMD, k_BHND, v_BHND, scale=scale, mask=mask, backend=backend)
        total = merge_over_ranks(own, group)
        ctx.save_for_backward(q_HMD, k_BHND, v_BHND, mask, total.z_BHMD, total.log_sum_BHM)
        ctx.scale, ctx.native, ctx.group = scale, backend in ("auto", "native"), group
        return total.z_BHMD

    @staticmethod
    def backward(ctx: Any, dz_BHMD: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, mask, z, log_sum = ctx.saved_tensors
        # The sum over ranks is taken in float32 or wider: a loss scaler keeps float16 in range on one rank only.
        dz = dz_BHMD.to(log_sum.dtype, copy=True).contiguous()
        dist.all_reduce(dz, group=ctx.group)
        use_kernel = ctx.native and native.supports_encode(q, k, v, mask, ctx.scale) and k.numel() > 0
        gradients = _native_gradients if use_kernel else encode_gradients
        return *gradients(q, k, v, mask, ctx.scale, PartialLatents(z, log_sum), dz), None, None, None, None


def merge_over_ranks(own: PartialLatents, group: Group) -> PartialLatents:
    """Merge the partial latents of all ranks; every rank gets the result."""
    highest = own.log_sum_BHM.clone()
    dist.all_reduce(highest, dist.ReduceOp.MAX, group=group)
    weight = fraction(own.log_sum_BHM, highest)[..., None]
    sums = torch.cat([weight * own.z_BHMD.to(weight.dtype), weight], dim=-1)
    dist.all_reduce(sums, group=group)
    total = sums[..., -1:]
    z_BHMD = sums[..., :-1] / total.clamp_min(torch.finfo(total.dtype).tiny)  # zero where no rank has a point
    return PartialLatents(z_BHMD.to(own.z_BHMD.dtype), highest + total[..., 0].log())


def encode_gradients(
    q_HMD: Tensor,
    k_BHND: Tensor,
    v_BHND: Tensor,
    mask: Tensor | None,
    scale: float,
    total: PartialLatents,
    dz_BHMD: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients dq, dk, dv of the encode at the points of this rank.

    `total` holds the latents of the points of all ranks; the softmax weights are exp(scores − total.log_sum_BHM).
    """
    (_, _, N, _), wide = k_BHND.shape, total.log_sum_BHM.dtype
    dz = dz_BHMD.to(wide)
    along_BHM1 = (dz * total.z_BHMD.to(wide)).sum(-1, keepdim=True)
    log_sum_BHM1 = total.log_sum_BHM[..., None].clamp_min(torch.finfo(wide).min)
    dq, dk, dv = torch.zeros_like(q_HMD, dtype=wide), torch.empty_like(k_BHND), torch.empty_like(v_BHND)
    for start in range(0, N, TILE):
        tile = slice(start, start + TILE)
        k, v = k_BHND[:, :, tile], v_BHND[:, :, tile]
        p_BHMn = (scores(q_HMD, k, scale=scale) - log_sum_BHM1).exp()
        if mask is not None:
            p_BHMn = p_BHMn.masked_fill(~mask[:, None, None, tile], 0)
        ds_BHMn = scale * p_BHMn * (dz @ v.to(wide).transpose(-1, -2) - along_BHM1)
        dv[:, :, tile] = (p_BHMn.transpose(-1, -2) @ dz).to(dv.dtype)
        dk[:, :, tile] = (ds_BHMn.transpose(-1, -2) @ q_HMD.to(wide)).to(dk.dtype)
        dq_tile = (ds_BHMn @ k.to(wide)).sum(0)
        dq += dq_tile if len(dq) == len(dq_tile) else dq_tile.sum(0, keepdim=True)
    return dq.to(q_HMD.dtype), dk, dv


def _native_gradients(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, total: PartialLatents, dz: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute dq, dk, dv with the backward kernel. Its latents and denominators may include points of other ranks."""
    heads = k.shape[1]
    log2 = (total.log_sum_BHM / math.log(2)).clamp_min(torch.finfo(torch.float32).min)
    bounds = k.new_full((len(k), heads), math.inf)  # scores have no known bound: the kernel takes the safe softmax
    dq, dk, dv, _ = torch.ops.flare.mixer_backward(
        q.expand(heads, -1, -1), k, v, mask, scale, total.z_BHMD, log2, None, None, None, bounds, dz
    )
    return (dq if len(q) == heads else dq.sum(0, keepdim=True)), dk, dv


def norm_of_all(own: Tensor, group: Group | None) -> Tensor:
    """Compute the norm of a vector that is split over ranks from the norms of its pieces.

    The gradient flows to the piece of this rank. Without a group, the norm is returned as it is.
    """
    if group is None:
        return own
    norms = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(norms, own.detach().contiguous(), group=group)
    norms[dist.get_rank(group)] = own
    return torch.linalg.vector_norm(torch.stack(norms), dim=0)

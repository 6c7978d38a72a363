"""The mixer with the points of every sample split over ranks: each holds a share, all hold the same latents.

Keys and values never travel. Forward, the parts of all ranks merge by one maximum of H·M numbers and one sum of
H·M·(D+1); backward, the gradients of the latents by one sum of H·M·D. The number of points does not matter.
"""

# B batch, N points of this rank, n points of a tile, M latents per head, H heads, D head width

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from flare.mixer import native
from flare.mixer.chunked import TILE, Part, encode_part, share
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
    """`flare.mixer.encode` over the points of all ranks of the group: Z, [B, H, M, D], the same on each.

    Its gradients are those of this rank's points: the ones of q add up over the ranks to the whole.
    """
    return _Encode.apply(q_HMD, k_BHND, v_BHND, mask, scale, backend, group)


class _Encode(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q_HMD: Tensor,
        k_BHND: Tensor,
        v_BHND: Tensor,
        mask: Tensor | None,
        scale: float,
        backend: str,
        group: Group,
    ) -> Tensor:
        whole = merged(encode_part(q_HMD, k_BHND, v_BHND, scale=scale, mask=mask, backend=backend), group)
        ctx.save_for_backward(q_HMD, k_BHND, v_BHND, mask, whole.z_BHMD, whole.log_BHM)
        ctx.scale, ctx.native, ctx.group = scale, backend in ("auto", "native"), group
        return whole.z_BHMD

    @staticmethod
    def backward(ctx: Any, dz_BHMD: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, mask, z, log = ctx.saved_tensors
        # Every rank scatters the same latents to points of its own. In float32 at least, as the sums of the forward: a
        # loss scaler keeps float16 in range on one rank, not on the sum of many.
        dz = dz_BHMD.to(log.dtype, copy=True).contiguous()
        dist.all_reduce(dz, group=ctx.group)
        by_kernel = ctx.native and native.serves_encode(q, k, v, mask, ctx.scale) and k.numel() > 0
        gradients = _native_gradients if by_kernel else encode_gradients
        return *gradients(q, k, v, mask, ctx.scale, Part(z, log), dz), None, None, None, None


def merged(part: Part, group: Group) -> Part:
    """The part of all ranks together."""
    highest = part.log_BHM.clone()
    dist.all_reduce(highest, dist.ReduceOp.MAX, group=group)
    weight = share(part.log_BHM, highest)[..., None]
    sums = torch.cat([weight * part.z_BHMD.to(weight.dtype), weight], dim=-1)
    dist.all_reduce(sums, group=group)
    total = sums[..., -1:]
    z_BHMD = sums[..., :-1] / total.clamp_min(torch.finfo(total.dtype).tiny)  # zero where no rank has a point
    return Part(z_BHMD.to(part.z_BHMD.dtype), highest + total[..., 0].log())


def encode_gradients(
    q_HMD: Tensor, k_BHND: Tensor, v_BHND: Tensor, mask: Tensor | None, scale: float, whole: Part, dz_BHMD: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Of the encode, at points that are part of a whole: dq, dk, dv. The weights are exp(scores − log of the whole)."""
    (_, _, N, _), wide = k_BHND.shape, whole.log_BHM.dtype
    dz = dz_BHMD.to(wide)
    along_BHM1 = (dz * whole.z_BHMD.to(wide)).sum(-1, keepdim=True)
    log_BHM1 = whole.log_BHM[..., None].clamp_min(torch.finfo(wide).min)
    dq, dk, dv = torch.zeros_like(q_HMD, dtype=wide), torch.empty_like(k_BHND), torch.empty_like(v_BHND)
    for start in range(0, N, TILE):
        tile = slice(start, start + TILE)
        k, v = k_BHND[:, :, tile], v_BHND[:, :, tile]
        p_BHMn = (scores(q_HMD, k, scale=scale) - log_BHM1).exp()
        if mask is not None:
            p_BHMn = p_BHMn.masked_fill(~mask[:, None, None, tile], 0)
        ds_BHMn = scale * p_BHMn * (dz @ v.to(wide).transpose(-1, -2) - along_BHM1)
        dv[:, :, tile] = (p_BHMn.transpose(-1, -2) @ dz).to(dv.dtype)
        dk[:, :, tile] = (ds_BHMn.transpose(-1, -2) @ q_HMD.to(wide)).to(dk.dtype)
        of_heads = (ds_BHMn @ k.to(wide)).sum(0)
        dq += of_heads if len(dq) == len(of_heads) else of_heads.sum(0, keepdim=True)
    return dq.to(q_HMD.dtype), dk, dv


def _native_gradients(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, whole: Part, dz: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The same by the kernel's backward, which takes latents and denominators as it finds them."""
    heads = k.shape[1]
    log2 = (whole.log_BHM / math.log(2)).clamp_min(torch.finfo(torch.float32).min)
    bounds = torch.full((len(k), heads), math.inf)  # of the scores: unknown, so weights are made the careful way
    dq, dk, dv, _ = torch.ops.flare.mixer_backward(
        q.expand(heads, -1, -1), k, v, mask, scale, whole.z_BHMD, log2, None, None, None, bounds, dz
    )
    return (dq if len(q) == heads else dq.sum(0, keepdim=True)), dk, dv


def norm_of_all(own: Tensor, group: Group | None) -> Tensor:
    """The norm of a vector that is split over ranks, from that of this rank's part; its gradient is this part's own."""
    if group is None:
        return own
    parts = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, own.detach().contiguous(), group=group)
    parts[dist.get_rank(group)] = own
    return torch.linalg.vector_norm(torch.stack(parts), dim=0)

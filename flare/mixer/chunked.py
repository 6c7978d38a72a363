"""The encode in parts: over chunks of the points, or over the shares of several ranks.

A part is the latents of some points alone, and the logarithm of their softmax's denominator. Parts merge exactly: that
of all points is the mean of the parts weighted by their denominators, H·M·(D+1) numbers however many points there are.
"""

# B batch, N points, n points of a tile, M latents per head, H heads, D head width

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from flare.mixer import _check, _check_values, _module, native, reference, sdpa

TILE = 4096
"""Points whose scores exist at the same time, where PyTorch computes them."""


@dataclass(frozen=True)
class Part:
    z_BHMD: Tensor
    """softmax over the part's points, times V; zero without a point."""
    log_BHM: Tensor
    """Natural logarithm of the sum of exp(scores) over the part's points; -infinity without a point."""


def encode_part(
    q_HMD: Tensor,
    k_BHND: Tensor,
    v_BHND: Tensor,
    *,
    scale: float = 1.0,
    mask: Tensor | None = None,
    backend: str = "auto",
) -> Part:
    """`flare.mixer.encode`, with what is needed to merge it with that of other points. Takes no gradient."""
    _check(q_HMD, k_BHND, mask)
    _check_values(v_BHND, k_BHND)
    (B, H, N, _), M = k_BHND.shape, q_HMD.shape[1]
    if N == 0:
        wide = torch.promote_types(k_BHND.dtype, torch.float32)
        return Part(v_BHND.new_zeros(B, H, M, v_BHND.shape[3]), v_BHND.new_full((B, H, M), -math.inf, dtype=wide))
    with torch.no_grad():
        module = _module(backend)
        if module is native and native.serves_encode(q_HMD, k_BHND, v_BHND, mask, scale):
            z_BHMD, log2_BHM, _ = torch.ops.flare.encode(q_HMD.expand(H, -1, -1), k_BHND, v_BHND, mask, scale)
            log_BHM = log2_BHM * math.log(2)
        else:
            module = sdpa if module is native else module
            z_BHMD = module.encode(q_HMD, k_BHND, v_BHND, scale=scale, mask=mask)
            log_BHM = _log_sum(q_HMD, k_BHND, scale, mask)
        if mask is not None:
            log_BHM = log_BHM.masked_fill(~mask.any(1)[:, None, None], -math.inf)
    return Part(z_BHMD, log_BHM)


def _log_sum(q_HMD: Tensor, k_BHND: Tensor, scale: float, mask: Tensor | None) -> Tensor:
    """log Σ exp(scores) over the points, a tile of them at a time: the scores of all are M numbers a point and head."""
    tiles = []
    for start in range(0, k_BHND.shape[2], TILE):
        tile = slice(start, start + TILE)
        with torch.autocast(k_BHND.device.type, enabled=False):  # a part weighs exp(log): half precision would not do
            s_BHMn = reference.scores(q_HMD, k_BHND[:, :, tile], scale=scale)
        if mask is not None:
            s_BHMn = s_BHMn.masked_fill(~mask[:, None, None, tile], -math.inf)
        tiles.append(s_BHMn.logsumexp(-1))
    return torch.stack(tiles).logsumexp(0)


class Gathered:
    """Parts merged one by one, in float64: a million of them round no worse than one."""

    def __init__(self) -> None:
        self._whole: Part | None = None

    def add(self, part: Part) -> None:
        part = Part(part.z_BHMD.double(), part.log_BHM.double())
        if self._whole is None:
            self._whole = part
            return
        log_BHM = torch.logaddexp(self._whole.log_BHM, part.log_BHM)
        mine, theirs = (share(p.log_BHM, log_BHM)[..., None] for p in (self._whole, part))
        self._whole = Part(mine * self._whole.z_BHMD + theirs * part.z_BHMD, log_BHM)

    def latents(self, dtype: torch.dtype) -> Tensor:
        """[B, H, M, D] of all points."""
        assert self._whole is not None, "nothing was gathered"
        return self._whole.z_BHMD.to(dtype)


def share(log_part: Tensor, log_whole: Tensor) -> Tensor:
    """exp(part - whole): what a part weighs; zero where nothing has a point."""
    return (log_part - log_whole.clamp_min(torch.finfo(log_whole.dtype).min)).exp()

"""Encode over chunks of points: partial latents that merge exactly, like a running log-sum-exp.

The partial latents of some points are their own encode Z and the logarithm of the denominator of its softmax. The
encode of all points is the mean of the partial ones, weighted by their denominators. These are H·M·(D+1) numbers,
however many points there are.
"""

# B batch, N points, n points of a tile, M latents per head, H heads, D head width

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from flare.mixer import check_inputs, get_backend, native, no_autocast, reference, sdpa

TILE = 4096
"""Number of points whose scores exist at the same time where PyTorch computes them."""


@dataclass(frozen=True)
class PartialLatents:
    """The encode of some of the points of each sample, ready to be merged with that of others."""

    z_BHMD: Tensor
    """Softmax over these points, times V; zero if there are none."""
    log_sum_BHM: Tensor
    """Natural logarithm of the sum of exp(scores) over these points; -inf if there are none."""


def encode_partial(
    q_HMD: Tensor,
    k_BHND: Tensor,
    v_BHND: Tensor,
    *,
    scale: float = 1.0,
    mask: Tensor | None = None,
    backend: str = "auto",
) -> PartialLatents:
    """Compute `flare.mixer.encode` together with its denominator, without gradients."""
    check_inputs(q_HMD, k_BHND, mask, v_BHND)
    (B, H, N, _), M = k_BHND.shape, q_HMD.shape[1]
    if N == 0:
        wide = torch.promote_types(k_BHND.dtype, torch.float32)
        z_BHMD = v_BHND.new_zeros(B, H, M, v_BHND.shape[3])
        return PartialLatents(z_BHMD, v_BHND.new_full((B, H, M), -math.inf, dtype=wide))
    with torch.no_grad():
        implementation = get_backend(backend)
        if implementation is native and native.supports_encode(q_HMD, k_BHND, v_BHND, mask, scale):
            z_BHMD, log2_BHM, _ = torch.ops.flare.encode(q_HMD.expand(H, -1, -1), k_BHND, v_BHND, mask, scale)
            log_sum_BHM = log2_BHM * math.log(2)
        else:
            implementation = sdpa if implementation is native else implementation
            z_BHMD = implementation.encode(q_HMD, k_BHND, v_BHND, scale=scale, mask=mask)
            log_sum_BHM = _log_sum_exp(q_HMD, k_BHND, scale, mask)
        if mask is not None:
            log_sum_BHM = log_sum_BHM.masked_fill(~mask.any(1)[:, None, None], -math.inf)
    return PartialLatents(z_BHMD, log_sum_BHM)


def _log_sum_exp(q_HMD: Tensor, k_BHND: Tensor, scale: float, mask: Tensor | None) -> Tensor:
    """Compute log Σ exp(scores) over the points, [B, H, M], tile by tile to bound the memory."""
    tiles = []
    for start in range(0, k_BHND.shape[2], TILE):
        tile = slice(start, start + TILE)
        with no_autocast(k_BHND):  # half precision would distort the weights exp(log)
            s_BHMn = reference.scores(q_HMD, k_BHND[:, :, tile], scale=scale)
        if mask is not None:
            s_BHMn = s_BHMn.masked_fill(~mask[:, None, None, tile], -math.inf)
        tiles.append(s_BHMn.logsumexp(-1))
    return torch.stack(tiles).logsumexp(0)


class LatentAccumulator:
    """Merges partial latents one by one, in float64, so that a million of them round no worse than one."""

    def __init__(self) -> None:
        self._total: PartialLatents | None = None

    def add(self, part: PartialLatents) -> None:
        """Merge the latents of further points."""
        part = PartialLatents(part.z_BHMD.double(), part.log_sum_BHM.double())
        if self._total is None:
            self._total = part
            return
        log_sum_BHM = torch.logaddexp(self._total.log_sum_BHM, part.log_sum_BHM)
        old, new = (fraction(p.log_sum_BHM, log_sum_BHM)[..., None] for p in (self._total, part))
        self._total = PartialLatents(old * self._total.z_BHMD + new * part.z_BHMD, log_sum_BHM)

    def latents(self, dtype: torch.dtype) -> Tensor:
        """Return the latents of all points added so far, [B, H, M, D]."""
        assert self._total is not None, "no latents were added"
        return self._total.z_BHMD.to(dtype)


def fraction(log_sum: Tensor, log_total: Tensor) -> Tensor:
    """Compute exp(log_sum − log_total), the weight of a part in the whole; zero where the whole has no point."""
    return (log_sum - log_total.clamp_min(torch.finfo(log_total.dtype).min)).exp()

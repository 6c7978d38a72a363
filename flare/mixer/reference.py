"""The mixer by its definition. It forms both softmax matrices, O(N M) memory: for tests, analysis and small meshes."""

# B batch, N points, M latents per head, H heads, D head width

from __future__ import annotations

import torch
from torch import Tensor


def scores(q_HMD: Tensor, k_BHND: Tensor, *, scale: float) -> Tensor:
    """Compute S = scale · Q Kᵀ, [B, H, M, N], in float32 or wider."""
    wide = torch.promote_types(k_BHND.dtype, torch.float32)
    return scale * (q_HMD.to(wide) @ k_BHND.to(wide).transpose(-1, -2))


def encode(q_HMD: Tensor, k_BHND: Tensor, v_BHND: Tensor, *, scale: float = 1.0, mask: Tensor | None = None) -> Tensor:
    """Compute the latents Z = softmax(S over N) V, [B, H, M, D]."""
    s_BHMN = scores(q_HMD, k_BHND, scale=scale)
    if mask is None:
        w_BHMN = s_BHMN.softmax(-1)
    else:
        real = mask[:, None, None, :]
        # The product also zeroes samples without a real point, where softmax alone would be uniform.
        w_BHMN = s_BHMN.masked_fill(~real, torch.finfo(s_BHMN.dtype).min).softmax(-1) * real
    return (w_BHMN @ v_BHND.to(w_BHMN.dtype)).to(v_BHND.dtype)


def decode(q_HMD: Tensor, k_BHND: Tensor, z_BHMD: Tensor, *, scale: float = 1.0, mask: Tensor | None = None) -> Tensor:
    """Compute the mixed values Y = softmax(Sᵀ over M) Z, [B, H, N, D], zero at padding."""
    w_BHNM = scores(q_HMD, k_BHND, scale=scale).transpose(-1, -2).softmax(-1)
    y_BHND = (w_BHNM @ z_BHMD.to(w_BHNM.dtype)).to(z_BHMD.dtype)
    return y_BHND if mask is None else y_BHND * mask[:, None, :, None]

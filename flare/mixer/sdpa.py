"""The mixer as two fused attention calls: keeps nothing of size M × N and runs on every device of PyTorch."""

# B batch, N points, M latents per head, H heads, D head width

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


def encode(q_HMD: Tensor, k_BHND: Tensor, v_BHND: Tensor, *, scale: float = 1.0, mask: Tensor | None = None) -> Tensor:
    """Compute the latents Z = softmax(S over N) V, [B, H, M, D]."""
    real = None if mask is None else mask[:, None, None, :]
    z_BHMD = scaled_dot_product_attention(_expand(q_HMD, k_BHND), k_BHND, v_BHND, attn_mask=real, scale=scale)
    # For a sample without a real point, devices disagree on what attention returns.
    return z_BHMD if mask is None else z_BHMD.masked_fill(~mask.any(1)[:, None, None, None], 0)


def decode(q_HMD: Tensor, k_BHND: Tensor, z_BHMD: Tensor, *, scale: float = 1.0, mask: Tensor | None = None) -> Tensor:
    """Compute the mixed values Y = softmax(Sᵀ over M) Z, [B, H, N, D], zero at padding."""
    y_BHND = scaled_dot_product_attention(k_BHND, _expand(q_HMD, k_BHND), z_BHMD, scale=scale)
    return y_BHND if mask is None else y_BHND * mask[:, None, :, None]


def _expand(q_HMD: Tensor, k_BHND: Tensor) -> Tensor:
    """Give the queries the batch and heads of the keys, as the fused kernels require; copies nothing."""
    return q_HMD.expand(k_BHND.shape[0], k_BHND.shape[1], -1, -1)

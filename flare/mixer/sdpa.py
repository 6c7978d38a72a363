"""The mixer as two fused attention calls: nothing of size M x N is kept, on any device PyTorch runs on."""

# B batch, N points, M latents per head, H heads, D head width

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


def encode(q_HMD: Tensor, k_BHND: Tensor, v_BHND: Tensor, *, scale: float = 1.0, mask: Tensor | None = None) -> Tensor:
    """Gather the points into the latents: Z = softmax over N of S, times V. [B, H, M, D]."""
    real = None if mask is None else mask[:, None, None, :]
    z_BHMD = scaled_dot_product_attention(_over_batch(q_HMD, k_BHND), k_BHND, v_BHND, attn_mask=real, scale=scale)
    # A sample of padding alone has no point to gather; what a kernel returns for it differs between devices.
    return z_BHMD if mask is None else z_BHMD.masked_fill(~mask.any(1)[:, None, None, None], 0)


def decode(q_HMD: Tensor, k_BHND: Tensor, z_BHMD: Tensor, *, scale: float = 1.0, mask: Tensor | None = None) -> Tensor:
    """Scatter the latents back to the points: Y = softmax over M of Sᵀ, times Z. [B, H, N, D], zero at padding."""
    y_BHND = scaled_dot_product_attention(k_BHND, _over_batch(q_HMD, k_BHND), z_BHMD, scale=scale)
    return y_BHND if mask is None else y_BHND * mask[:, None, :, None]


def _over_batch(q_HMD: Tensor, k_BHND: Tensor) -> Tensor:
    """The fused kernels want the queries to have the batch and heads of the keys; expanding copies nothing."""
    return q_HMD.expand(k_BHND.shape[0], k_BHND.shape[1], -1, -1)

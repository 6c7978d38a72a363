"""The mixer as fused C++ kernels for float32 on the CPU. Scores exist only inside a tile of 64 points.

Other devices or precisions, autocast, `torch.func` and `torch.export` are not supported; they go to `sdpa`.
"""

# B batch, N points, M latents per head, H heads, D head width

from __future__ import annotations

import torch
from torch import Tensor, nn

from flare.mixer import sdpa
from flare.mixer.native import mixer_ops  # noqa: F401  (registers the operators)
from flare.mixer.native.library import why_not as why_not
from flare.utils.errors import ConfigError

_PLAIN = {Tensor, nn.Parameter}


def supports(*tensors: Tensor, mask: Tensor | None = None, scale: object = 1.0) -> bool:
    """Return whether the kernels can compute with these tensors, mask and scale in the present context."""
    for t in tensors:
        if t.dtype is not torch.float32 or not t.is_cpu or t.layout is not torch.strided or t.is_nested:
            return False
    if mask is not None and not (mask.is_cpu and mask.dtype is torch.bool):
        return False
    if not isinstance(scale, int | float):  # a tensor might need a gradient
        return False
    if torch.is_autocast_enabled("cpu") or torch._C._get_tracing_state() is not None:
        return False
    if torch._C._are_functorch_transforms_active():  # torch.func needs operators that it can look into
        return False
    if torch.compiler.is_compiling():
        return not torch.compiler.is_exporting() and why_not() is None  # exported programs must run without flare
    if not {type(t) for t in tensors} <= _PLAIN:  # DTensor, quantized tensors, ...
        return False
    return torch.autograd.forward_ad._current_level < 0 and why_not() is None


def supports_encode(q_HMD: Tensor, k_BHND: Tensor, v_BHND: Tensor, mask: Tensor | None, scale: float) -> bool:
    """Return whether the kernels can encode these tensors."""
    fits = v_BHND.shape == k_BHND.shape and q_HMD.numel() > 0
    return fits and supports(q_HMD, k_BHND, v_BHND, mask=mask, scale=scale)


def require() -> None:
    """Raise ConfigError, with the reason, if the kernels are not available on this machine."""
    reason = why_not()
    if reason:
        raise ConfigError(f"backend='native': {reason}")


def mix(q_HMD: Tensor, k_BHND: Tensor, v_BHND: Tensor, *, scale: float = 1.0, mask: Tensor | None = None) -> Tensor:
    """Compute encode and decode as one operator; its backward needs each exponential only once."""
    if not supports_encode(q_HMD, k_BHND, v_BHND, mask, scale):
        z_BHMD = sdpa.encode(q_HMD, k_BHND, v_BHND, scale=scale, mask=mask)
        return sdpa.decode(q_HMD, k_BHND, z_BHMD, scale=scale, mask=mask)
    return torch.ops.flare.mix(_expand(q_HMD, k_BHND), k_BHND, v_BHND, mask, scale)[0]


def encode(q_HMD: Tensor, k_BHND: Tensor, v_BHND: Tensor, *, scale: float = 1.0, mask: Tensor | None = None) -> Tensor:
    """Compute the latents Z = softmax(S over N) V, [B, H, M, D]."""
    if not supports_encode(q_HMD, k_BHND, v_BHND, mask, scale):
        return sdpa.encode(q_HMD, k_BHND, v_BHND, scale=scale, mask=mask)
    return torch.ops.flare.encode(_expand(q_HMD, k_BHND), k_BHND, v_BHND, mask, scale)[0]


def decode(q_HMD: Tensor, k_BHND: Tensor, z_BHMD: Tensor, *, scale: float = 1.0, mask: Tensor | None = None) -> Tensor:
    """Compute the mixed values Y = softmax(Sᵀ over M) Z, [B, H, N, D], zero at padding."""
    q_HMD = _expand(q_HMD, k_BHND)
    fits = z_BHMD.shape == (k_BHND.shape[0], *q_HMD.shape) and q_HMD.numel() > 0
    if not (fits and supports(q_HMD, k_BHND, z_BHMD, mask=mask, scale=scale)):
        return sdpa.decode(q_HMD, k_BHND, z_BHMD, scale=scale, mask=mask)
    return torch.ops.flare.decode(q_HMD, k_BHND, z_BHMD, mask, scale)[0]


def _expand(q_HMD: Tensor, k_BHND: Tensor) -> Tensor:
    """Give the queries the heads of the keys; copies nothing."""
    return q_HMD.expand(k_BHND.shape[1], -1, -1)

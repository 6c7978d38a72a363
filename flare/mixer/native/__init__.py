"""The mixer by fused C++ kernels, for float32 on the CPU. Scores exist only inside a tile of 64 points.

Whatever the kernels do not serve (another device or precision, autocast, `torch.func`, `torch.export`) goes to `sdpa`.
"""

# B batch, N points, M latents per head, H heads, D head width

from __future__ import annotations

import torch
from torch import Tensor, nn

from flare.mixer import sdpa
from flare.mixer.native import ops  # noqa: F401  (registers the operators)
from flare.mixer.native.library import why_not as why_not
from flare.utils.errors import ConfigError


def serves(*tensors: Tensor) -> bool:
    """Whether the kernels can compute with these tensors, here and now."""
    for t in tensors:
        if t.dtype is not torch.float32 or not t.is_cpu or t.layout is not torch.strided or t.is_nested:
            return False
    if torch.is_autocast_enabled("cpu") or torch._C._get_tracing_state() is not None:
        return False
    if torch._C._are_functorch_transforms_active():  # torch.func would have to look inside
        return False
    if torch.compiler.is_compiling():
        return not torch.compiler.is_exporting() and why_not() is None  # an exported program should run without flare
    return _are_plain(tensors) and why_not() is None


_PLAIN = {Tensor, nn.Parameter}


def _are_plain(tensors: tuple[Tensor, ...]) -> bool:
    """No tensor of another kind (DTensor, quantised, ...), and no forward-mode derivative."""
    return {type(t) for t in tensors} <= _PLAIN and torch.autograd.forward_ad._current_level < 0


def serves_mask(mask: Tensor | None) -> bool:
    return mask is None or (mask.is_cpu and mask.dtype is torch.bool)


def serves_scale(scale: object) -> bool:
    return isinstance(scale, int | float)  # not a tensor, which may want a gradient


def require() -> None:
    """Raise where the kernels were asked for by name and there are none."""
    reason = why_not()
    if reason:
        raise ConfigError(f"backend='native': {reason}")


def mix(q_HMD: Tensor, k_BHND: Tensor, v_BHND: Tensor, *, scale: float = 1.0, mask: Tensor | None = None) -> Tensor:
    """Both halves at once: one power of each score serves both softmaxes in the backward."""
    if not serves_encode(q_HMD, k_BHND, v_BHND, mask, scale):
        return sdpa.decode(
            q_HMD, k_BHND, sdpa.encode(q_HMD, k_BHND, v_BHND, scale=scale, mask=mask), scale=scale, mask=mask
        )
    return torch.ops.flare.mix(_all_heads(q_HMD, k_BHND), k_BHND, v_BHND, mask, scale)[0]


def encode(q_HMD: Tensor, k_BHND: Tensor, v_BHND: Tensor, *, scale: float = 1.0, mask: Tensor | None = None) -> Tensor:
    """Gather the points into the latents: Z = softmax over N of S, times V. [B, H, M, D]."""
    if not serves_encode(q_HMD, k_BHND, v_BHND, mask, scale):
        return sdpa.encode(q_HMD, k_BHND, v_BHND, scale=scale, mask=mask)
    return torch.ops.flare.encode(_all_heads(q_HMD, k_BHND), k_BHND, v_BHND, mask, scale)[0]


def decode(q_HMD: Tensor, k_BHND: Tensor, z_BHMD: Tensor, *, scale: float = 1.0, mask: Tensor | None = None) -> Tensor:
    """Scatter the latents back to the points: Y = softmax over M of Sᵀ, times Z. [B, H, N, D], zero at padding."""
    q_HMD = _all_heads(q_HMD, k_BHND)
    if not (z_BHMD.shape == (k_BHND.shape[0], *q_HMD.shape) and _serves_mixer(q_HMD, k_BHND, z_BHMD, mask, scale)):
        return sdpa.decode(q_HMD, k_BHND, z_BHMD, scale=scale, mask=mask)
    return torch.ops.flare.decode(q_HMD, k_BHND, z_BHMD, mask, scale)[0]


def serves_encode(q_HMD: Tensor, k_BHND: Tensor, v_BHND: Tensor, mask: Tensor | None, scale: float) -> bool:
    return v_BHND.shape == k_BHND.shape and _serves_mixer(q_HMD, k_BHND, v_BHND, mask, scale)


def _serves_mixer(q_HMD: Tensor, k_BHND: Tensor, other: Tensor, mask: Tensor | None, scale: float) -> bool:
    return q_HMD.numel() > 0 and serves_mask(mask) and serves_scale(scale) and serves(q_HMD, k_BHND, other)


def _all_heads(q_HMD: Tensor, k_BHND: Tensor) -> Tensor:
    return q_HMD.expand(k_BHND.shape[1], -1, -1)

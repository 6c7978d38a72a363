"""The operator Y = softmax(K Qᵀ) softmax(Q Kᵀ) V, one file per way to compute it.

Every backend gives the answer and the gradients of `reference`, at any scale and with any mask.
"""

# B batch, N points, M latents per head, H heads, D head width

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from flare.mixer import native, reference, sdpa
from flare.utils.errors import ConfigError, nearest

BACKENDS: dict[str, ModuleType] = {"reference": reference, "sdpa": sdpa, "native": native}
"""Each offers `encode` and `decode`, the two halves of the mixer, and may offer `mix` where both at once cost less."""


def mix(
    q_HMD: Tensor,
    k_BHND: Tensor,
    v_BHND: Tensor,
    *,
    scale: float = 1.0,
    mask: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """Mix N points through M latents per head: gather, then scatter. Time O(N M).

    The mixing matrix of a head is softmax(K Qᵀ) softmax(Q Kᵀ), of rank at most M; it is never formed.

    Args:
        q_HMD: latent queries. One head, [1, M, D], serves all heads of k.
        k_BHND: keys of the points.
        v_BHND: values of the points.
        scale: factor of the scores; the paper uses 1.
        mask: [B, N], bool, True at real points. Padding adds nothing to the encode and padded outputs are zero, as
            long as it is finite. None: every point is real.
        backend: `reference`, `sdpa`, `native` (C++ for float32 on the CPU; anything else goes to `sdpa`), or `auto` for
            the fastest that applies.

    Returns:
        [B, H, N, D]
    """
    _check(q_HMD, k_BHND, mask)
    _check_values(v_BHND, k_BHND)
    module = _module(backend)
    if hasattr(module, "mix"):
        return module.mix(q_HMD, k_BHND, v_BHND, scale=scale, mask=mask)
    z_BHMD = module.encode(q_HMD, k_BHND, v_BHND, scale=scale, mask=mask)
    return module.decode(q_HMD, k_BHND, z_BHMD, scale=scale, mask=mask)


def encode(
    q_HMD: Tensor,
    k_BHND: Tensor,
    v_BHND: Tensor,
    *,
    scale: float = 1.0,
    mask: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """First half of `mix`: the latents Z, [B, H, M, D]."""
    _check(q_HMD, k_BHND, mask)
    _check_values(v_BHND, k_BHND)
    return _module(backend).encode(q_HMD, k_BHND, v_BHND, scale=scale, mask=mask)


def decode(
    q_HMD: Tensor,
    k_BHND: Tensor,
    z_BHMD: Tensor,
    *,
    scale: float = 1.0,
    mask: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """Second half of `mix`: the points' answer Y, [B, H, N, D]."""
    _check(q_HMD, k_BHND, mask)
    latents = [*k_BHND.shape[:2], q_HMD.shape[1]]
    if z_BHMD.ndim != 4 or list(z_BHMD.shape[:3]) != latents:
        raise ConfigError(f"z is {list(z_BHMD.shape)}; with these q and k it should be {latents} by any width")
    return _module(backend).decode(q_HMD, k_BHND, z_BHMD, scale=scale, mask=mask)


def choose() -> tuple[str, str]:
    """The backend `auto` stands for, and why."""
    reason = native.why_not()
    if reason is None:
        return "native", "fused C++ kernels for float32 on the CPU; everything else goes to sdpa"
    return "sdpa", f"two fused attention calls, on any device (no native kernels: {reason})"


def check_backend(backend: str) -> None:
    """Refuse a name that is no backend, with the nearest that is."""
    if backend not in BACKENDS and backend != "auto":
        raise ConfigError(f"unknown mixer backend {backend!r}; {nearest(str(backend), ['auto', *BACKENDS])}")


def _check(q_HMD: Tensor, k_BHND: Tensor, mask: Tensor | None) -> None:
    """What a kernel would misread in silence or refuse in its own words."""
    if (
        q_HMD.ndim != 3
        or k_BHND.ndim != 4
        or q_HMD.shape[0] not in (1, k_BHND.shape[1])
        or q_HMD.shape[2] != k_BHND.shape[3]
    ):
        raise ConfigError(f"q {list(q_HMD.shape)} and k {list(k_BHND.shape)} should be [H, M, D] and [B, H, N, D]")
    if mask is not None and (mask.dtype != torch.bool or mask.shape != (k_BHND.shape[0], k_BHND.shape[2])):
        expected = [k_BHND.shape[0], k_BHND.shape[2]]
        raise ConfigError(
            f"mask is {mask.dtype} {list(mask.shape)}; it should be torch.bool {expected}, True at real points"
        )


def _check_values(v_BHND: Tensor, k_BHND: Tensor) -> None:
    if v_BHND.ndim != 4 or v_BHND.shape[:3] != k_BHND.shape[:3]:
        raise ConfigError(f"v is {list(v_BHND.shape)}; it should be {list(k_BHND.shape[:3])} by any width, like k")


def _module(backend: str) -> ModuleType:
    check_backend(backend)
    if backend == "native":
        native.require()
    return native if backend == "auto" else BACKENDS[backend]  # which hands on what it does not serve

"""The FLARE operator Y = softmax(K Qᵀ) softmax(Q Kᵀ) V, one file per implementation.

`reference` spells out the definition, `sdpa` runs on any device, `native` is C++ for the CPU. All give the outputs and
gradients of `reference`, at any scale and with any mask. `chunked` and `sharded` compute the first half of the operator
over chunks of points and over the points of several ranks.
"""

# B batch, N points, M latents per head, H heads, D head width

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from flare.mixer import native, reference, sdpa
from flare.utils.errors import ConfigError, suggest_name
from flare.utils.registry import Registry

BACKENDS: Registry[Any] = Registry("mixer backend", {"reference": reference, "sdpa": sdpa, "native": native})
"""Implementations by name: modules or classes with functions `encode` and `decode`, and optionally a faster `mix`."""


def mix(
    q_HMD: Tensor,
    k_BHND: Tensor,
    v_BHND: Tensor,
    *,
    scale: float = 1.0,
    mask: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """Mix N points through M latents per head in O(N M) time.

    `encode` averages the values of the points into latents, `decode` distributes the latents back to the points. The
    N × N mixing matrix of a head, softmax(K Qᵀ) softmax(Q Kᵀ), has rank at most M and is never formed.

    Args:
        q_HMD: Latent queries, [H, M, D]. One head, [1, M, D], serves all heads of k.
        k_BHND: Keys of the points, [B, H, N, D].
        v_BHND: Values of the points, [B, H, N, D].
        scale: Factor of the scores. The paper uses 1.
        mask: Boolean, [B, N], True at real points. Padding, if finite, does not influence real points; outputs there
            are zero. None means that every point is real.
        backend: `reference`, `sdpa`, `native` (C++ for float32 on the CPU; everything else goes to `sdpa`), or `auto`
            for the fastest one that applies.

    Returns:
        Mixed values, [B, H, N, D].

    Raises:
        ConfigError: Shapes do not fit together, or the backend is unknown or not available.

    Example:
        >>> import torch
        >>> from flare import mix
        >>> q, k, v = torch.randn(8, 64, 4), torch.randn(1, 8, 1000, 4), torch.randn(1, 8, 1000, 4)
        >>> mix(q, k, v).shape
        torch.Size([1, 8, 1000, 4])
    """
    check_inputs(q_HMD, k_BHND, mask, v_BHND)
    implementation = get_backend(backend)
    if hasattr(implementation, "mix"):
        return implementation.mix(q_HMD, k_BHND, v_BHND, scale=scale, mask=mask)
    z_BHMD = implementation.encode(q_HMD, k_BHND, v_BHND, scale=scale, mask=mask)
    return implementation.decode(q_HMD, k_BHND, z_BHMD, scale=scale, mask=mask)


def encode(
    q_HMD: Tensor,
    k_BHND: Tensor,
    v_BHND: Tensor,
    *,
    scale: float = 1.0,
    mask: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """Compute the first half of `mix`: the latents Z, [B, H, M, D]."""
    check_inputs(q_HMD, k_BHND, mask, v_BHND)
    return get_backend(backend).encode(q_HMD, k_BHND, v_BHND, scale=scale, mask=mask)


def decode(
    q_HMD: Tensor,
    k_BHND: Tensor,
    z_BHMD: Tensor,
    *,
    scale: float = 1.0,
    mask: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """Compute the second half of `mix`: the mixed values Y, [B, H, N, D], from the latents Z, [B, H, M, D]."""
    check_inputs(q_HMD, k_BHND, mask)
    expected = [*k_BHND.shape[:2], q_HMD.shape[1]]
    if z_BHMD.ndim != 4 or list(z_BHMD.shape[:3]) != expected:
        raise ConfigError(f"z is {list(z_BHMD.shape)}; with these q and k it must be {expected} by any width")
    return get_backend(backend).decode(q_HMD, k_BHND, z_BHMD, scale=scale, mask=mask)


def choose() -> tuple[str, str]:
    """Return the backend that `auto` stands for on this machine, and the reason."""
    reason = native.why_not()
    if reason is None:
        return "native", "fused C++ kernels for float32 on the CPU; everything else goes to sdpa"
    return "sdpa", f"two fused attention calls, on any device (no native kernels: {reason})"


def check_backend(backend: str) -> None:
    """Raise ConfigError, with the nearest known name, unless `backend` is `auto` or registered."""
    if backend != "auto" and backend not in BACKENDS:
        raise ConfigError(f"unknown mixer backend {backend!r}; {suggest_name(str(backend), ['auto', *BACKENDS])}")


def get_backend(backend: str) -> Any:
    """Return the implementation called `backend`; `auto` is `native`, which passes on what it does not support."""
    check_backend(backend)
    if backend == "native":
        native.require()
    return native if backend == "auto" else BACKENDS.get(backend)


def check_inputs(q_HMD: Tensor, k_BHND: Tensor, mask: Tensor | None, v_BHND: Tensor | None = None) -> None:
    """Raise ConfigError for shapes or masks that a backend would misread or reject with an obscure message."""
    q, k = list(q_HMD.shape), list(k_BHND.shape)
    if len(q) != 3 or len(k) != 4 or q[0] not in (1, k[1]) or q[2] != k[3]:
        raise ConfigError(f"q {q} and k {k} must be [H, M, D] and [B, H, N, D]")
    if v_BHND is not None and (v_BHND.ndim != 4 or list(v_BHND.shape[:3]) != k[:3]):
        raise ConfigError(f"v is {list(v_BHND.shape)}; it must be {k[:3]} by any width, like k")
    check_mask(mask, k[0], k[2])


def check_mask(mask: Tensor | None, samples: int, points: int) -> None:
    """Raise ConfigError unless the mask is None or a boolean [samples, points]."""
    if mask is not None and (mask.dtype != torch.bool or mask.shape != (samples, points)):
        raise ConfigError(f"mask is {mask.dtype} {list(mask.shape)}; it must be torch.bool {[samples, points]}")


def no_autocast(x: Tensor) -> AbstractContextManager[object]:
    """Return a context without autocast on the device of x; some devices, such as `meta`, have no autocast."""
    device = x.device.type
    return torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext()

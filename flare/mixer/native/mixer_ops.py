"""The mixer kernels as PyTorch operators, with shapes for tracing and formulas for autograd."""

# B batch, N points, M latents per head, H heads, D head width, T tokens per tile

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from flare.mixer.native.library import T, call, sizes

LIBRARY = torch.library.Library("flare", "DEF")


def define(schema: str, kernel: Callable[..., Any], fake: Callable[..., Any]) -> None:
    """Register an operator: its CPU kernel, and a function that makes outputs of the right shapes for tracing."""
    LIBRARY.define(schema)
    name = schema.split("(")[0]
    LIBRARY.impl(name, kernel, "CPU")
    torch.library.register_fake(f"flare::{name}", fake, lib=LIBRARY)


def differentiate(name: str, backward: Callable[..., Any], keep: Callable[..., Any]) -> None:
    """Register the gradient of an operator, `backward(ctx, gradient)`; `keep` saves what it needs.

    Only the first output is differentiable.
    """
    torch.library.register_autograd(f"flare::{name}", unless_unused(backward), setup_context=keep, lib=LIBRARY)


def unless_unused(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Return a gradient that is None for all inputs if the loss does not depend on the first output."""

    def gradient(ctx: Any, dy: Tensor | None, *_: None) -> Any:
        return (None,) * len(ctx.needs_input_grad) if dy is None else backward(ctx, dy)

    return gradient


def tensors(count: int) -> str:
    """Return the type of `count` tensors in a schema."""
    return f"({', '.join(['Tensor'] * count)})"


def forbid_second_derivative(name: str) -> None:
    """Make the gradient of an operator, itself a gradient, an error instead of a silent zero."""

    def fail(ctx: Any, gradient: Tensor) -> None:
        raise NotImplementedError("the native kernels have first derivatives only; use backend='reference'")

    differentiate(name, fail, lambda ctx, inputs, output: None)


def tiles(points: int) -> int:
    """Return the number of tiles that `points` points fill."""
    return (points + T - 1) // T


def aligned(tensor: Tensor) -> Tensor:
    """Return the tensor contiguous and vector-aligned, as the kernels read tiles; rarely a copy."""
    tensor = tensor.contiguous()
    return tensor if tensor.data_ptr() % 64 == 0 else tensor.clone()


def contiguous_channels(tensor: Tensor) -> Tensor:
    """Return the tensor with adjacent channels, as the kernels read points."""
    return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] == 1 else tensor.contiguous()


def contiguous_mask(mask: Tensor | None) -> Tensor | None:
    """Return the mask contiguous; raise TypeError unless it is boolean."""
    if mask is not None and mask.dtype is not torch.bool:
        raise TypeError(f"mask is {mask.dtype}; it must be torch.bool, True at real points")
    return None if mask is None else mask.contiguous()


def _sizes(q_HMD: Tensor, k_BHND: Tensor) -> Any:
    (B, H, N, D), M = k_BHND.shape, q_HMD.shape[1]
    return sizes(torch.get_num_threads(), B, H, M, N, D)


def check_shapes(**tensors: tuple[Tensor | None, tuple[int, ...]]) -> None:
    """Raise ValueError for a tensor whose shape would make a kernel read beyond its end."""
    for name, (tensor, shape) in tensors.items():
        if tensor is not None and tensor.shape != shape:
            raise ValueError(f"{name} is {list(tensor.shape)}; it must be {list(shape)}")


def _strides(x_BHND: Tensor | None) -> Any:
    return None if x_BHND is None else sizes(*x_BHND.stride()[:3])


def _like_points(k_BHND: Tensor) -> Tensor:
    """Allocate [B, H, N, D] with the channels of all heads adjacent, so that merging heads copies nothing."""
    B, H, N, D = k_BHND.shape
    return k_BHND.new_empty(B, N, H, D).transpose(1, 2)


def _encode(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    z, log_sums, bounds = out = _encode_fake(q, k, v, mask, scale)
    (B, H, N, D), M = k.shape, q.shape[1]
    check_shapes(q=(q, (H, M, D)), v=(v, (B, H, N, D)), mask=(mask, (B, N)))
    q, k, v, mask = q.contiguous(), contiguous_channels(k), contiguous_channels(v), contiguous_mask(mask)
    if k.numel() == 0:
        z.zero_(), log_sums.zero_(), bounds.zero_()
        return out
    call("flare_encode", _sizes(q, k), scale, q, k, _strides(k), v, _strides(v), mask, z, log_sums, bounds)
    return out


def _encode_fake(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    (B, H, _, D), M = k.shape, q.shape[1]
    return k.new_empty(B, H, M, D), k.new_empty(B, H, M), k.new_empty(B, H)


def _decode(q: Tensor, k: Tensor, z: Tensor, mask: Tensor | None, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    y, log_sums, bounds = out = _decode_fake(q, k, z, mask, scale)
    (B, H, N, D), M = k.shape, q.shape[1]
    check_shapes(q=(q, (H, M, D)), z=(z, (B, H, M, D)), mask=(mask, (B, N)))
    q, k, z, mask = q.contiguous(), contiguous_channels(k), z.contiguous(), contiguous_mask(mask)
    if k.numel() == 0:
        log_sums.zero_(), bounds.zero_()
        return out
    call("flare_decode", _sizes(q, k), scale, q, k, _strides(k), z, mask, y, log_sums, bounds)
    return out


def _decode_fake(q: Tensor, k: Tensor, z: Tensor, mask: Tensor | None, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    B, H, N, _ = k.shape
    return _like_points(k), k.new_empty(B * tiles(N), H, T), k.new_empty(B, H)


def _mixer_backward(
    q: Tensor, k: Tensor, v: Tensor | None, mask: Tensor | None, scale: float, *others: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute dq, dk, dv, dz of the encode (given v, dz), the decode (given y, dy) or both; unused ones are empty."""
    z, enc_log_sums, y, dy, dec_log_sums, bounds, dz = others
    (B, H, N, D), M = k.shape, q.shape[1]
    points, latents = (B, H, N, D), (B, H, M, D)
    check_shapes(q=(q, (H, M, D)), v=(v, points), mask=(mask, (B, N)), z=(z, latents), dz=(dz, latents))
    check_shapes(y=(y, points), dy=(dy, points), bounds=(bounds, (B, H)))
    check_shapes(enc_log_sums=(enc_log_sums, (B, H, M)), dec_log_sums=(dec_log_sums, (B * tiles(N), H, T)))
    missing = (enc_log_sums is None and v is not None) or ((y is None or dec_log_sums is None) and dy is not None)
    if missing or (dy is None and (v is None or dz is None)):
        raise ValueError("the encode requires v, enc_log_sums and dz, the decode y, dy and dec_log_sums")
    out = _mixer_backward_fake(q, k, v, mask, scale, *others)
    if k.numel() == 0:
        out[0].zero_(), out[3].zero_()
        return out
    q, k = q.contiguous(), contiguous_channels(k)
    z, enc_log_sums, bounds, dz = (None if t is None else t.contiguous() for t in (z, enc_log_sums, bounds, dz))
    v, y, dy = (None if t is None else contiguous_channels(t) for t in (v, y, dy))
    encoded = v, _strides(v), contiguous_mask(mask), z, enc_log_sums
    decoded = y, _strides(y), dy, _strides(dy), None if dec_log_sums is None else aligned(dec_log_sums)
    call("flare_mixer_backward", _sizes(q, k), scale, q, k, _strides(k), *encoded, *decoded, bounds, dz, *out)
    return out


def _mixer_backward_fake(
    q: Tensor, k: Tensor, v: Tensor | None, mask: Tensor | None, scale: float, *others: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    z, _, _, dy, *_ = others
    dv = k.new_empty(0) if v is None else _like_points(k)
    dz = k.new_empty(0) if dy is None else k.new_empty(z.shape)
    return q.new_empty(q.shape), _like_points(k), dv, dz


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """Save inputs and outputs of encode, decode or mix; only the first output is differentiable."""
    *tensors, ctx.scale = inputs
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*output[1:])
    ctx.save_for_backward(*tensors, *output)


def _encode_gradient(ctx: Any, dz: Tensor) -> tuple[Tensor | None, ...]:
    q, k, v, mask, z, log_sums, bounds = ctx.saved_tensors
    dq, dk, dv, _ = torch.ops.flare.mixer_backward(q, k, v, mask, ctx.scale, z, log_sums, None, None, None, bounds, dz)
    return dq, dk, dv, None, None


def _decode_gradient(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    q, k, z, mask, y, log_sums, bounds = ctx.saved_tensors
    dq, dk, _, dz = torch.ops.flare.mixer_backward(q, k, None, mask, ctx.scale, z, None, y, dy, log_sums, bounds, None)
    return dq, dk, dz, None, None


def _mix(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> tuple[Tensor, ...]:
    z, enc_log_sums, _ = _encode(q, k, v, mask, scale)
    y, dec_log_sums, bounds = _decode(q, k, z, mask, scale)
    return y, z, enc_log_sums, dec_log_sums, bounds


def _mix_fake(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> tuple[Tensor, ...]:
    z, enc_log_sums, _ = _encode_fake(q, k, v, mask, scale)
    y, dec_log_sums, bounds = _decode_fake(q, k, z, mask, scale)
    return y, z, enc_log_sums, dec_log_sums, bounds


def _mix_gradient(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    q, k, v, mask, y, z, enc_log_sums, dec_log_sums, bounds = ctx.saved_tensors
    dq, dk, dv, _ = torch.ops.flare.mixer_backward(
        q, k, v, mask, ctx.scale, z, enc_log_sums, y, dy, dec_log_sums, bounds, None
    )
    return dq, dk, dv, None, None


_TAKES = "(Tensor q, Tensor k, Tensor v, Tensor? mask, float scale)"
define(f"encode{_TAKES} -> {tensors(3)}", _encode, _encode_fake)
define(f"decode{_TAKES.replace('Tensor v', 'Tensor z')} -> {tensors(3)}", _decode, _decode_fake)
define(f"mix{_TAKES} -> {tensors(5)}", _mix, _mix_fake)
define(
    "mixer_backward(Tensor q, Tensor k, Tensor? v, Tensor? mask, float scale, Tensor z, Tensor? enc_log_sums, "
    f"Tensor? y, Tensor? dy, Tensor? dec_log_sums, Tensor bounds, Tensor? dz) -> {tensors(4)}",
    _mixer_backward,
    _mixer_backward_fake,
)
differentiate("encode", _encode_gradient, _keep)
differentiate("decode", _decode_gradient, _keep)
differentiate("mix", _mix_gradient, _keep)
forbid_second_derivative("mixer_backward")

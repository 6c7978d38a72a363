"""A residual MLP and a whole FLARE block as PyTorch operators, with shapes for tracing and formulas for autograd.

A block takes two passes over the points in each direction, with the latents between them. Training keeps the input, the
keys, the values and the mixed features: about 1 KB per point at C = 64. The activations inside the MLPs need three
times as much. They are kept up to `MOST_ACTIVATIONS` bytes; beyond that, the backward recomputes them tile by tile.
"""

# B batch, N points, M latents per head, H heads, D head width, C = H * D channels, T tokens per tile

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from flare.mixer.native.library import T, addresses, call, sizes
from flare.mixer.native.mixer_ops import (
    aligned,
    check_shapes,
    contiguous_channels,
    contiguous_mask,
    define,
    differentiate,
    forbid_second_derivative,
    tensors,
    tiles,
    unless_unused,
)

Shapes = list[tuple[int, ...]]

MOST_ACTIVATIONS = 12 * 2**20
"""Largest size in bytes of the activations that one operator keeps: about 3,800 points of the paper's block.

Beyond it the backward recomputes them, which takes longer but lets large meshes train in little memory.
"""


def mlp_shapes(in_dim: int, hidden: int, out_dim: int, depth: int) -> Shapes:
    """Return the shapes of the weights and biases of a ResMLP."""
    widths = [in_dim, *[hidden] * (depth + 1), out_dim]
    return [shape for a, b in pairwise(widths) for shape in ((b, a), (b,))]


def block_shapes(C: int, kv_depth: int, ffn_depth: int, rms: int) -> Shapes:
    """Return the shapes of the weights of a block in the order of the kernel: norm, key, value, out, norm, MLP."""
    norm: Shapes = [(C,)] if rms else [(C,), (C,)]
    kv, ffn = mlp_shapes(C, C, C, kv_depth), mlp_shapes(C, C, C, ffn_depth)
    return [*norm, *kv, *kv, (C, C), (C,), *norm, *ffn]


cached_mlp_shapes = cache(mlp_shapes)  # torch.compile cannot trace a cache
cached_block_shapes = cache(block_shapes)


def _check_weights(weights: Sequence[Tensor], shapes: Shapes) -> None:
    """Raise ValueError for weights whose shapes would make the kernel read beyond their end."""
    if [w.shape for w in weights] != shapes:
        raise ValueError(f"weights are {[list(w.shape) for w in weights]}; they must be {[list(s) for s in shapes]}")


def _ready(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the tensors contiguous and without the lazy negative bit, as the kernels read weights."""
    return [t.resolve_neg().contiguous() for t in tensors]


def _unflatten(flat: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
    """Split the gradients of all weights into one tensor per weight."""
    return [g.view(w.shape) for g, w in zip(flat.split([w.numel() for w in weights]), weights, strict=True)]


# ---- kept activations -----------------------------------------------------------------------------------------------


def mlp_activations(rows: int, hidden: int, depth: int) -> tuple[int, ...]:
    """Return the shape of what a residual MLP keeps for its backward: [tiles, channels, T], or [0] if too large.

    It keeps the inputs of its activation functions, tile by tile.
    """
    return _if_small(tiles(rows), (depth + 1) * hidden)


def block_activations(B: int, N: int, C: int, kv_depth: int, ffn_depth: int) -> tuple[int, ...]:
    """Return the same for a block, which keeps those of its three MLPs and the input of the second norm."""
    return _if_small(B * tiles(N), (2 * (kv_depth + 1) + (ffn_depth + 1) + 1) * C)


def _if_small(count: int, channels: int) -> tuple[int, ...]:
    return (count, channels, T) if 4 * count * channels * T <= MOST_ACTIVATIONS else (0,)


_FLOATS = MOST_ACTIVATIONS // 4
"""Size of every buffer, so that any buffer fits any shape."""
_spare: list[np.ndarray] = []
"""Buffers that are free."""
_lent: dict[int, tuple[weakref.ref[np.ndarray], np.ndarray]] = {}
"""Buffers in use, by the id of the weak reference whose callback frees them."""


def _borrow(shape: tuple[int, ...]) -> Tensor:
    """Return a buffer for activations, which goes back to `_spare` when the last tensor on it is freed.

    The C library would return the memory to the system after every step, and the page faults of the next step would
    cost more time than keeping the activations saves.
    """
    try:
        memory = _spare.pop()
    except IndexError:
        memory = torch.empty(_FLOATS, dtype=torch.float32, device="cpu").numpy()
    lent = memory[: math.prod(shape)].reshape(shape)
    reference = weakref.ref(lent, _take_back)  # weakref.finalize does the same, but takes as long as a layer
    _lent[id(reference)] = reference, memory
    return torch.from_numpy(lent)


def _take_back(reference: weakref.ref[np.ndarray]) -> None:
    _spare.append(_lent.pop(id(reference))[1])


def _allocate_activations(keep: bool, shape: tuple[int, ...]) -> Tensor:
    if keep and 0 not in shape:
        return _borrow(shape)
    return torch.empty(shape if keep else (0,), dtype=torch.float32, device="cpu")


def _wants_gradient(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


def is_watched() -> bool:
    """Return whether a tracer, dispatch mode or profiler must see the operators.

    Otherwise a call bypasses torch.library, which takes half a millisecond per step for lists of tensors: as long as
    the kernels on a small mesh.
    """
    return (
        torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() > 0 or torch.autograd._profiler_enabled()  # type: ignore[attr-defined]
    )


def _operator(name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Return the operator of a backward, or its bare kernel where nothing needs to see the operator."""
    return getattr(torch.ops.flare, name) if is_watched() or torch.is_grad_enabled() else kernel


# ---- residual MLP ---------------------------------------------------------------------------------------------------


def resmlp(x: Tensor, weights: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
    """Compute a residual MLP, [..., in] to [..., out]; shape: in, hidden, out, depth, skip_in, skip_out, silu."""
    keep = _wants_gradient(x, *weights)
    if is_watched():
        return torch.ops.flare.resmlp(x, weights, shape, keep)[0]
    if keep:
        return _Resmlp.apply(x, shape, *weights)
    return _run_resmlp(x, weights, shape, keep)[0]


def fits_skips(in_dim: int, hidden: int, out_dim: int, skip_in: int, skip_out: int) -> bool:
    """Return whether no width is zero and every skip connects equal widths."""
    return (
        0 not in (in_dim, hidden, out_dim)
        and not (skip_in and in_dim != hidden)
        and not (skip_out and hidden != out_dim)
    )


def _check_mlp(x: Tensor, weights: Sequence[Tensor], shape: Sequence[int]) -> None:
    in_dim, hidden, out_dim, depth, skip_in, skip_out, _ = shape
    if not fits_skips(in_dim, hidden, out_dim, skip_in, skip_out):
        raise ValueError(f"widths {in_dim}, {hidden}, {out_dim} do not fit skip_in={skip_in}, skip_out={skip_out}")
    _check_weights(weights, cached_mlp_shapes(in_dim, hidden, out_dim, depth))
    check_shapes(x=(x, (*x.shape[:-1], in_dim)))


def _resmlp(x: Tensor, weights: Sequence[Tensor], shape: Sequence[int], keep: bool) -> tuple[Tensor, Tensor]:
    _check_mlp(x, weights, shape)
    return _run_resmlp(x, weights, shape, keep)


def _run_resmlp(x: Tensor, weights: Sequence[Tensor], shape: Sequence[int], keep: bool) -> tuple[Tensor, Tensor]:
    rows, weights = contiguous_channels(x.resolve_neg().reshape(-1, shape[0])), _ready(weights)
    y, kept = (
        x.new_empty(*x.shape[:-1], shape[2]),
        _allocate_activations(keep, mlp_activations(len(rows), shape[1], shape[3])),
    )
    threads = torch.get_num_threads()
    call("flare_resmlp", threads, len(rows), sizes(*shape), rows, rows.stride(0), addresses(weights), kept, y)
    return y, kept


def _resmlp_fake(x: Tensor, weights: Sequence[Tensor], shape: Sequence[int], keep: bool) -> tuple[Tensor, Tensor]:
    kept = mlp_activations(math.prod(x.shape[:-1]), shape[1], shape[3]) if keep else (0,)
    return x.new_empty(*x.shape[:-1], shape[2]), x.new_empty(kept)


def _resmlp_backward(
    x: Tensor, weights: Sequence[Tensor], kept: Tensor, dy: Tensor, shape: Sequence[int], wants_dx: bool
) -> tuple[Tensor, Tensor]:
    _check_mlp(x, weights, shape)
    rows, drows = contiguous_channels(x.reshape(-1, shape[0])), contiguous_channels(dy.reshape(-1, shape[2]))
    check_shapes(dy=(dy, (*x.shape[:-1], shape[2])), kept=(kept, mlp_activations(len(rows), shape[1], shape[3])))
    dx, dweights = _resmlp_backward_fake(x, weights, kept, dy, shape, wants_dx)
    weights, kept = _ready(weights), aligned(kept)
    given = torch.get_num_threads(), len(rows), sizes(*shape), rows, rows.stride(0), addresses(weights), kept
    call("flare_resmlp_backward", *given, drows, drows.stride(0), dx if wants_dx else None, dweights)
    return dx, dweights


def _resmlp_backward_fake(
    x: Tensor, weights: Sequence[Tensor], kept: Tensor, dy: Tensor, shape: Sequence[int], wants_dx: bool
) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape if wants_dx else 0), weights[0].new_empty(sum(w.numel() for w in weights))


def _keep_outputs(ctx: Any, keep: bool, output: Sequence[Tensor], *inputs: Tensor | None) -> None:
    """Save tensors for the backward: inputs, and all outputs but the first, which are not differentiable."""
    if not keep:
        raise ValueError("an operator with keep=False keeps nothing for a backward; use keep=True")
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*output[1:])
    ctx.save_for_backward(*inputs, *output[1:])


def _keep_resmlp(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, weights, ctx.shape, keep = inputs
    _keep_outputs(ctx, keep, output, x, *weights)


def _resmlp_gradient(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    x, *weights, kept = ctx.saved_tensors
    wants_dx = ctx.needs_input_grad[0]
    backward = _operator("resmlp_backward", _resmlp_backward)
    dx, dweights = backward(x, weights, kept, dy, ctx.shape, wants_dx)
    return dx if wants_dx else None, _unflatten(dweights, weights), None, None


class _Resmlp(torch.autograd.Function):
    """The registered gradient, for weights passed one by one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shape: Sequence[int], *weights: Tensor) -> Tensor:
        _keep_resmlp(ctx, (x, weights, shape, True), output := _run_resmlp(x, weights, shape, True))
        return output[0]

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None) -> Any:
        dx, dweights, *_ = unless_unused(_resmlp_gradient)(ctx, dy)
        return dx, None, *(dweights or [None] * (len(ctx.needs_input_grad) - 2))


# ---- FLARE block ----------------------------------------------------------------------------------------------------

KEPT = 8
"""Number of tensors kept for a backward: keys, values, mixed features, latents, both sums, bounds, activations."""


class BlockInputs(NamedTuple):
    """Inputs of a block, in the order of the operators."""

    x: Tensor
    q: Tensor
    weights: Sequence[Tensor]
    mask: Tensor | None
    scale: float
    eps: float
    shape: Sequence[int]
    """kv_depth, ffn_depth, silu, rms."""

    def check(self) -> None:
        (B, N, C), (H, _, D), (kv_depth, ffn_depth, _, rms) = self.x.shape, self.q.shape, self.shape
        check_shapes(x=(self.x, (B, N, H * D)), mask=(self.mask, (B, N)))
        _check_weights(self.weights, cached_block_shapes(C, kv_depth, ffn_depth, rms))

    def kept(self) -> list[tuple[int, ...]]:
        """Return the shapes of what is kept for a backward, the activations last."""
        (B, N, C), (H, M, D) = self.x.shape, self.q.shape
        count = B * tiles(N)
        points = [(count, C, T)] * 3
        return [*points, (B, H, M, D), (B, H, M), (count, H, T), (B, H), block_activations(B, N, C, *self.shape[:2])]

    def call(self, kernel: str, kept: Sequence[Tensor], *rest: Tensor) -> None:
        x, (q, *weights) = contiguous_channels(self.x.resolve_neg()), _ready((self.q, *self.weights))
        (B, N, _), (H, M, D), mask = x.shape, q.shape, contiguous_mask(self.mask)
        numbers = sizes(torch.get_num_threads(), B, H, M, N, D, *self.shape, x.stride(0), x.stride(1))
        given = numbers, self.scale, self.eps, x, q, addresses(weights), mask
        call(kernel, *given, addresses(kept) if kept else None, *rest)


def block(inputs: BlockInputs) -> Tensor:
    """Compute a FLARE block, [B, N, C] to [B, N, C]."""
    keep = _wants_gradient(inputs.x, inputs.q, *inputs.weights)
    if is_watched():
        return torch.ops.flare.block(*inputs, keep)[0]
    if keep:
        return _Block.apply(inputs.x, inputs.q, inputs[3:], *inputs.weights)
    return _run_block(inputs, keep)[0]


def _block(*arguments: Any) -> tuple[Tensor, ...]:
    *given, keep = arguments
    inputs = BlockInputs(*given)
    inputs.check()
    return _with_empty(_run_block(inputs, keep))


def _run_block(inputs: BlockInputs, keep: bool) -> list[Tensor]:
    x, kept = inputs.x, inputs.kept() if keep else []
    made = [x.new_empty(shape) for shape in [x.shape, *kept[:-1]]]
    if keep:
        made.append(_allocate_activations(keep, kept[-1]))
    inputs.call("flare_block", made[1:], made[0])
    return made


def _block_fake(*arguments: Any) -> tuple[Tensor, ...]:
    *given, keep = arguments
    inputs = BlockInputs(*given)
    return _with_empty([inputs.x.new_empty(shape) for shape in [inputs.x.shape, *(inputs.kept() if keep else [])]])


def _with_empty(made: list[Tensor]) -> tuple[Tensor, ...]:
    """Fill up with empty tensors: an operator always returns the same number of them."""
    return *made, *(made[0].new_empty(0) for _ in range(1 + KEPT - len(made)))


def _block_backward(dout: Tensor, kept: Sequence[Tensor], *given: Any) -> tuple[Tensor, Tensor, Tensor]:
    inputs = BlockInputs(*given)
    inputs.check()
    shapes = {f"kept[{i}]": pair for i, pair in enumerate(zip(kept, inputs.kept(), strict=True))}
    check_shapes(dout=(dout, inputs.x.shape), **shapes)
    out = _block_backward_fake(dout, kept, *given)
    inputs.call("flare_block_backward", [aligned(t) for t in kept], dout.contiguous(), *out)
    return out


def _block_backward_fake(dout: Tensor, kept: Sequence[Tensor], *given: Any) -> tuple[Tensor, Tensor, Tensor]:
    x, q, weights, *_ = given
    return x.new_empty(x.shape), q.new_empty(q.shape), x.new_empty(sum(w.numel() for w in weights))


def _keep_block(ctx: Any, inputs: tuple[Any, ...], output: Sequence[Tensor]) -> None:
    x, q, weights, mask, *ctx.how, keep = inputs
    _keep_outputs(ctx, keep, output, x, q, mask, *weights)


def _block_gradient(ctx: Any, dout: Tensor) -> tuple[Any, ...]:
    x, q, mask, *rest = ctx.saved_tensors
    weights, kept = rest[:-KEPT], rest[-KEPT:]
    backward = _operator("block_backward", _block_backward)
    dx, dq, dweights = backward(dout, kept, x, q, weights, mask, *ctx.how)
    return dx, dq, _unflatten_block(dweights, x.shape[2], *ctx.how[-1]), None, None, None, None, None


def _unflatten_block(flat: Tensor, C: int, kv_depth: int, ffn_depth: int, silu: int, rms: int) -> list[Tensor]:
    """Do the same as `_unflatten` for a block with fewer views, whose time counts on a small mesh."""
    norm = 1 if rms else 2
    maps, ffn = 2 * (kv_depth + 2) + 1, ffn_depth + 2
    before, maps_, after, ffn_ = flat.split([norm * C, maps * C * (C + 1), norm * C, ffn * C * (C + 1)])

    def layers(gradient: Tensor) -> list[Tensor]:
        rows = gradient.view(-1, C + 1, C)
        pairs = zip(rows[:, :C].unbind(), rows[:, C].unbind(), strict=True)
        return [t for pair in pairs for t in pair]

    return [*before.view(norm, C).unbind(), *layers(maps_), *after.view(norm, C).unbind(), *layers(ffn_)]


class _Block(torch.autograd.Function):
    """The registered gradient, for weights passed one by one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, q: Tensor, how: tuple[Any, ...], *weights: Tensor) -> Tensor:
        inputs = BlockInputs(x, q, weights, *how)
        _keep_block(ctx, (*inputs, True), output := _run_block(inputs, True))
        return output[0]

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None) -> Any:
        dx, dq, dweights, *_ = unless_unused(_block_gradient)(ctx, dout)
        return dx, dq, None, *(dweights or [None] * (len(ctx.needs_input_grad) - 3))


define(f"resmlp(Tensor x, Tensor[] weights, int[] shape, bool keep) -> {tensors(2)}", _resmlp, _resmlp_fake)
define(
    f"resmlp_backward(Tensor x, Tensor[] weights, Tensor kept, Tensor dy, int[] shape, bool wants_dx) -> {tensors(2)}",
    _resmlp_backward,
    _resmlp_backward_fake,
)
_TAKES = "Tensor x, Tensor q, Tensor[] weights, Tensor? mask, float scale, float eps, int[] shape"
define(f"block({_TAKES}, bool keep) -> {tensors(1 + KEPT)}", _block, _block_fake)
define(f"block_backward(Tensor dout, Tensor[] kept, {_TAKES}) -> {tensors(3)}", _block_backward, _block_backward_fake)
differentiate("resmlp", _resmlp_gradient, _keep_resmlp)
differentiate("block", _block_gradient, _keep_block)
forbid_second_derivative("resmlp_backward")
forbid_second_derivative("block_backward")

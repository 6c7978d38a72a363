"""A residual MLP, and a whole FLARE block, as single operators on the CPU. The weights stay those of the modules.

A block is two passes over the points each way, with the latents between them. Training keeps its input, the keys, the
values and the mixed features, about 1 KB per point at C = 64; all else is made again, tile by tile, in the backward.
"""

# B batch, N points, M latents per head, H heads, D head width, C = H * D channels, T tokens of a tile

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from flare.mixer import native
from flare.mixer.native.library import T, addresses, call, sizes
from flare.mixer.native.ops import (
    aligned,
    check_shapes,
    contiguous_channels,
    define,
    differentiate,
    mask_bytes,
    only_once,
    tiles,
)
from flare.models import flare as paper  # which imports this file: only its name is bound here

if TYPE_CHECKING:
    from flare.models.flare import FLARE, FLAREBlock, ResMLP


def resmlp(mlp: ResMLP, x: Tensor) -> Tensor | None:
    """[..., in] -> [..., out]; None where the kernel cannot stand in for the module."""
    weights = None if _has_any_global_hook() else _mlp_weights(mlp)
    if weights is None or x.ndim == 0 or not native.serves(x, weights[0]):
        return None
    (hidden, in_dim), out_dim = weights[0].shape, weights[-1].shape[0]
    if x.shape[-1] != in_dim or [w.shape for w in weights] != _mlp_widths(in_dim, hidden, out_dim, mlp.depth):
        return None
    shape = [in_dim, hidden, out_dim, mlp.depth, int(mlp.skip_in), int(mlp.skip_out), int(_is_silu(mlp))]
    return _Resmlp.apply(x, shape, *weights) if _is_eager() else torch.ops.flare.resmlp(x, weights, shape)


def flare_block(block: FLAREBlock, x_BNC: Tensor, mask: Tensor | None) -> Tensor | None:
    """[B, N, C] -> [B, N, C]; None where the kernel cannot stand in for the module.

    Variants of the layer (normalised queries and keys, blocks between the latents) take the operators one by one.
    """
    mixer, before, after, ffn = _parts(block, "mixer", "mixer_norm", "ffn_norm", "ffn")
    if _has_any_global_hook() or x_BNC.ndim != 3 or not (_is_usual(mixer) and _are_norms(before, after)):
        return None
    key, value, out = _parts(mixer, "key", "value", "out")
    latents, channels = mixer.latents, x_BNC.shape[2]
    if not (_are_alike(key, value, ffn) and native.serves(x_BNC, latents, out.weight) and native.serves_mask(mask)):
        return None
    if mask is not None and (mask.dtype != torch.bool or mask.shape != x_BNC.shape[:2]):
        return None
    parts = _weights(before), _mlp_weights(key), _mlp_weights(value), _weights(out, after), _mlp_weights(ffn)
    weights = [part for part in parts if part is not None]
    if len(weights) < len(parts):
        return None
    gather, scatter = weights[0] + weights[1] + weights[2], weights[3] + weights[4]  # in the order of the kernel
    shape = [key.depth, ffn.depth, int(_is_silu(key)), int(type(before) is nn.RMSNorm)]
    if not _fit(gather, scatter, mixer.heads * latents.shape[2], shape) or channels != gather[0].shape[0]:
        return None
    keep = torch.is_grad_enabled() and any(t.requires_grad for t in (x_BNC, latents, *gather, *scatter))
    how = mask, mixer.scale, before.eps, shape
    q_HMD = latents.expand(mixer.heads, -1, -1)
    if keep and _is_eager():
        return _Block.apply(x_BNC, q_HMD, how, len(gather), *gather, *scatter)
    return torch.ops.flare.block(x_BNC, q_HMD, gather, scatter, *how, keep)[0]


def _is_eager() -> bool:
    """Whether to spare a call what torch.library does with lists of tensors: half a millisecond, there and back."""
    return not torch.compiler.is_compiling()


def _parts(module: nn.Module, *names: str) -> list[Any]:
    """Looked up in the module's dictionary: by attribute it takes ten times as long, and there are many."""
    return [module._modules[name] for name in names]


def _is_usual(mixer: FLARE) -> bool:
    """As built from the paper, and nobody listens."""
    if not _is_untouched(mixer, paper.FLARE) or mixer.backend not in ("auto", "native"):
        return False
    query_norm, key_norm, out, latent_blocks = _parts(mixer, "query_norm", "key_norm", "out", "latent_blocks")
    plain = _is_untouched(query_norm, nn.Identity) and _is_untouched(key_norm, nn.Identity)
    return plain and type(out) is nn.Linear and len(latent_blocks) == 0


def _are_norms(before: Any, after: Any) -> bool:
    kind = type(before)
    return kind in (nn.LayerNorm, nn.RMSNorm) and type(after) is kind and before.eps == after.eps is not None


def _are_alike(key: ResMLP, value: ResMLP, ffn: ResMLP) -> bool:
    """Three residual MLPs with one activation and every skip, the first two of one depth."""
    if any(type(mlp) is not paper.ResMLP for mlp in (key, value, ffn)) or key.depth != value.depth:
        return False
    kind = type(_activation(key))
    return all(mlp.skip_in and mlp.skip_out and type(_activation(mlp)) is kind for mlp in (key, value, ffn))


def _activation(mlp: ResMLP) -> Any:
    return mlp._modules["activation"]


def _is_silu(mlp: ResMLP) -> bool:
    return type(_activation(mlp)) is nn.SiLU


def _is_tanh(mlp: ResMLP) -> bool:
    return type(_activation(mlp)) is nn.GELU and _activation(mlp).approximate == "tanh"


def _mlp_weights(mlp: ResMLP) -> list[Tensor] | None:
    if mlp.backend == "native":
        native.require()
    elif mlp.backend != "auto":
        return None
    layers = _parts(mlp, "layers")[0]._modules.values()
    if not (_is_tanh(mlp) or _is_silu(mlp)) or any(type(layer) is not nn.Linear for layer in layers):
        return None
    if not _is_untouched(mlp, paper.ResMLP) or _is_changed(_activation(mlp)):
        return None
    return _weights(*layers)


def _weights(*modules: Any) -> list[Tensor] | None:
    """The parameters of all, in order; None where one is missing or a module was changed."""
    found: list[Tensor] = []
    for module in modules:
        if _is_changed(module):
            return None
        found += module._parameters.values()
    return None if any(weight is None for weight in found) else found


def _is_untouched(module: Any, kind: type) -> bool:
    return type(module) is kind and not _is_changed(module)


def _is_changed(module: Any) -> bool:
    """Whether it has hooks or a forward of its own. A fused operator never calls the module, so they would not run."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in module.__dict__
    )


def _check_weights(weights: Sequence[Tensor], widths: list[tuple[int, ...]]) -> None:
    """Refuse what the kernel would read beyond the end of: a layer of another size in place of one."""
    if [w.shape for w in weights] != widths:
        raise ValueError(f"weights are {[list(w.shape) for w in weights]}; they should be {[list(s) for s in widths]}")


def _mlp_widths(in_dim: int, hidden: int, out_dim: int, depth: int) -> list[tuple[int, ...]]:
    """Shapes of the weights and biases of a ResMLP."""
    widths = [in_dim, *[hidden] * (depth + 1), out_dim]
    return [shape for a, b in pairwise(widths) for shape in ((b, a), (b,))]


def _block_widths(C: int, kv_depth: int, ffn_depth: int, rms: int) -> tuple[list[tuple[int, ...]], ...]:
    norm: list[tuple[int, ...]] = [(C,)] if rms else [(C,), (C,)]
    gather = norm + 2 * _mlp_widths(C, C, C, kv_depth)
    return gather, [(C, C), (C,), *norm, *_mlp_widths(C, C, C, ffn_depth)]


_cached_block_widths = cache(_block_widths)  # for calls that torch.compile does not trace
_cached_mlp_widths = cache(_mlp_widths)


def _fit(gather: Sequence[Tensor], scatter: Sequence[Tensor], channels: int, shape: Sequence[int]) -> bool:
    kv_depth, ffn_depth, _, rms = shape
    widths = _cached_block_widths if _is_eager() else _block_widths
    return ([w.shape for w in gather], [w.shape for w in scatter]) == widths(channels, kv_depth, ffn_depth, rms)


def _flat(weights: Sequence[Tensor]) -> Tensor:
    """Room for the gradients of all, end to end."""
    return weights[0].new_empty(sum(w.numel() for w in weights))


def _apart(flat: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
    return [part.view(w.shape) for part, w in zip(flat.split([w.numel() for w in weights]), weights, strict=True)]


# ---- residual MLP ---------------------------------------------------------------------------------------------------


def _resmlp(x: Tensor, weights: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
    _check_weights(weights, _cached_mlp_widths(*shape[:4]))
    y = _resmlp_fake(x, weights, shape)
    rows, weights = contiguous_channels(x.reshape(-1, shape[0])), [w.contiguous() for w in weights]
    threads = torch.get_num_threads()
    call("flare_resmlp", threads, len(rows), sizes(*shape), rows, rows.stride(0), addresses(weights), y)
    return y


def _resmlp_fake(x: Tensor, weights: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
    return x.new_empty(*x.shape[:-1], shape[2])


def _resmlp_backward(
    x: Tensor, weights: Sequence[Tensor], dy: Tensor, shape: Sequence[int], wants_dx: bool
) -> tuple[Tensor, Tensor]:
    _check_weights(weights, _cached_mlp_widths(*shape[:4]))
    dx, dweights = out = _resmlp_backward_fake(x, weights, dy, shape, wants_dx)
    rows, drows = contiguous_channels(x.reshape(-1, shape[0])), contiguous_channels(dy.reshape(-1, shape[2]))
    weights = [w.contiguous() for w in weights]
    call(
        "flare_resmlp_backward",
        torch.get_num_threads(),
        len(rows),
        sizes(*shape),
        rows,
        rows.stride(0),
        addresses(weights),
        drows,
        drows.stride(0),
        dx if wants_dx else None,
        dweights,
    )
    return out


def _resmlp_backward_fake(
    x: Tensor, weights: Sequence[Tensor], dy: Tensor, shape: Sequence[int], wants_dx: bool
) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape if wants_dx else 0), _flat(weights)


def _keep_resmlp(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weights, ctx.shape = inputs
    ctx.save_for_backward(x, *weights)


def _resmlp_gradient(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    x, *weights = ctx.saved_tensors
    wants_dx = ctx.needs_input_grad[0]
    dx, dweights = torch.ops.flare.resmlp_backward(x, weights, dy, ctx.shape, wants_dx)
    return dx if wants_dx else None, _apart(dweights, weights), None


class _Resmlp(torch.autograd.Function):
    """The registered formula, for weights one by one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shape: Sequence[int], *weights: Tensor) -> Tensor:
        _keep_resmlp(ctx, (x, weights, shape), y := torch.ops.flare.resmlp(x, weights, shape))
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        dx, dweights, _ = _resmlp_gradient(ctx, dy)
        return dx, None, *dweights


# ---- FLARE block ----------------------------------------------------------------------------------------------------


def _block_sizes(x: Tensor, q: Tensor, shape: Sequence[int]) -> Any:
    (B, N, _), (H, M, D) = x.shape, q.shape
    return sizes(torch.get_num_threads(), B, H, M, N, D, *shape, x.stride(0), x.stride(1))


def _check_block(
    x: Tensor,
    q: Tensor,
    gather: Sequence[Tensor],
    scatter: Sequence[Tensor],
    mask: Tensor | None,
    shape: Sequence[int],
) -> None:
    (B, N, C), (H, _, D), (kv_depth, ffn_depth, _, rms) = x.shape, q.shape, shape
    check_shapes(x=(x, (B, N, H * D)), mask=(mask, (B, N)))
    for weights, widths in zip((gather, scatter), _cached_block_widths(C, kv_depth, ffn_depth, rms), strict=True):
        _check_weights(weights, widths)


def _block(
    x: Tensor,
    q: Tensor,
    gather: Sequence[Tensor],
    scatter: Sequence[Tensor],
    mask: Tensor | None,
    scale: float,
    eps: float,
    shape: Sequence[int],
    keep: bool,
) -> tuple[Tensor, ...]:
    _check_block(x, q, gather, scatter, mask, shape)
    out, keys, values, mixed, z, enc_log_sums, dec_log_sums, bounds = made = _block_fake(
        x, q, gather, scatter, mask, scale, eps, shape, keep
    )
    x, q, mask = contiguous_channels(x), q.contiguous(), mask_bytes(mask)
    gather, scatter = [w.contiguous() for w in gather], [w.contiguous() for w in scatter]
    if not keep:
        keys = keys.new_empty(x.shape[0] * tiles(x.shape[1]), x.shape[2], T)
    s = _block_sizes(x, q, shape)
    kept_values, kept_mixed, kept_sums = (values, mixed, dec_log_sums) if keep else (None, None, None)
    call(
        "flare_block_gather", s, scale, eps, x, q, addresses(gather), mask, keys, kept_values, z, enc_log_sums, bounds
    )  # then the latents are complete
    call(
        "flare_block_scatter",
        s,
        scale,
        eps,
        x,
        q,
        addresses(scatter),
        mask,
        keys,
        z,
        bounds,
        kept_mixed,
        kept_sums,
        out,
    )
    return made


def _block_fake(
    x: Tensor,
    q: Tensor,
    gather: Sequence[Tensor],
    scatter: Sequence[Tensor],
    mask: Tensor | None,
    scale: float,
    eps: float,
    shape: Sequence[int],
    keep: bool,
) -> tuple[Tensor, ...]:
    (B, N, C), (H, M, D) = x.shape, q.shape
    count = B * tiles(N) if keep else 0
    keys, values, mixed = (x.new_empty(count, C, T) for _ in range(3))
    latents = x.new_empty(B, H, M, D), x.new_empty(B, H, M)
    return x.new_empty(B, N, C), keys, values, mixed, *latents, x.new_empty(count, H, T), x.new_empty(B, H)


def _block_backward(
    dout: Tensor,
    x: Tensor,
    q: Tensor,
    gather: Sequence[Tensor],
    scatter: Sequence[Tensor],
    mask: Tensor | None,
    kept: Sequence[Tensor],
    scale: float,
    eps: float,
    shape: Sequence[int],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    _check_block(x, q, gather, scatter, mask, shape)
    dx, dq, dgather, dscatter = out = _block_backward_fake(dout, x, q, gather, scatter, mask, kept, scale, eps, shape)
    (B, N, C), (H, M, D) = x.shape, q.shape
    tile, latents = (B * tiles(N), C, T), (B, H, M, D)
    shapes = tile, tile, tile, latents, latents[:3], (B * tiles(N), H, T), latents[:2]
    check_shapes(
        dout=(dout, (B, N, C)), **{f"kept[{i}]": pair for i, pair in enumerate(zip(kept, shapes, strict=True))}
    )
    keys, values, mixed, z, enc_log_sums, dec_log_sums, bounds = map(aligned, kept)
    x, q, dout, mask = contiguous_channels(x), q.contiguous(), dout.contiguous(), mask_bytes(mask)
    gather, scatter = [w.contiguous() for w in gather], [w.contiguous() for w in scatter]
    dmixed, dmiddle, dz = torch.empty_like(keys), torch.empty_like(keys), torch.empty_like(z)
    head = _block_sizes(x, q, shape), scale, eps, x, q
    call(
        "flare_block_scatter_backward",
        *head,
        addresses(scatter),
        mask,
        keys,
        mixed,
        dec_log_sums,
        bounds,
        dout,
        dmixed,
        dmiddle,
        dz,
        dscatter,
    )
    call(
        "flare_block_gather_backward",
        *head,
        addresses(gather),
        mask,
        keys,
        values,
        mixed,
        z,
        enc_log_sums,
        dec_log_sums,
        bounds,
        dmixed,
        dmiddle,
        dz,
        dx,
        dq,
        dgather,
    )
    return out


def _block_backward_fake(
    dout: Tensor,
    x: Tensor,
    q: Tensor,
    gather: Sequence[Tensor],
    scatter: Sequence[Tensor],
    mask: Tensor | None,
    kept: Sequence[Tensor],
    scale: float,
    eps: float,
    shape: Sequence[int],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return x.new_empty(x.shape), q.new_empty(q.shape), _flat(gather), _flat(scatter)


def _keep_block(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, q, gather, scatter, mask, ctx.scale, ctx.eps, ctx.shape, keep = inputs
    if not keep:
        raise ValueError("flare::block with keep=False keeps nothing for a backward; call it with keep=True")
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*output[1:])
    ctx.counts = [len(gather), len(scatter)]
    ctx.save_for_backward(x, q, mask, *gather, *scatter, *output[1:])


def _block_gradient(ctx: Any, dout: Tensor | None, *_: None) -> tuple[Any, ...]:
    if dout is None:
        return (None,) * 9
    x, q, mask, *rest = ctx.saved_tensors
    first, both = ctx.counts[0], sum(ctx.counts)
    gather, scatter, kept = rest[:first], rest[first:both], rest[both:]
    dx, dq, dgather, dscatter = torch.ops.flare.block_backward(
        dout, x, q, gather, scatter, mask, kept, ctx.scale, ctx.eps, ctx.shape
    )
    return dx, dq, _apart(dgather, gather), _apart(dscatter, scatter), None, None, None, None, None


class _Block(torch.autograd.Function):
    """The registered formula, for weights one by one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, q: Tensor, how: tuple[Any, ...], first: int, *weights: Tensor) -> Tensor:
        inputs = x, q, weights[:first], weights[first:], *how, True
        output = torch.ops.flare.block(*inputs)
        _keep_block(ctx, inputs, output)
        return output[0]

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None) -> Any:
        dx, dq, dgather, dscatter, *_ = _block_gradient(ctx, dout)
        weights = [None] * sum(ctx.counts) if dout is None else dgather + dscatter
        return dx, dq, None, None, *weights


define("resmlp(Tensor x, Tensor[] weights, int[] shape) -> Tensor", _resmlp, _resmlp_fake)
define(
    "resmlp_backward(Tensor x, Tensor[] weights, Tensor dy, int[] shape, bool wants_dx) -> (Tensor, Tensor)",
    _resmlp_backward,
    _resmlp_backward_fake,
)
define(
    "block(Tensor x, Tensor q, Tensor[] gather, Tensor[] scatter, Tensor? mask, float scale, float eps, int[] shape, "
    "bool keep) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    _block,
    _block_fake,
)
define(
    "block_backward(Tensor dout, Tensor x, Tensor q, Tensor[] gather, Tensor[] scatter, Tensor? mask, Tensor[] kept, "
    "float scale, float eps, int[] shape) -> (Tensor, Tensor, Tensor, Tensor)",
    _block_backward,
    _block_backward_fake,
)
differentiate("resmlp", _resmlp_gradient, _keep_resmlp)
differentiate("block", _block_gradient, _keep_block)
only_once("resmlp_backward")
only_once("block_backward")

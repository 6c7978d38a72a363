"""Choose between a module's `forward` and the C++ kernel that computes the same: one operator per MLP or block.

A kernel reads the weights and calls none of the modules inside. So it is used only if they are as built: no module was
replaced or subclassed, none has a hook or a method of its own. Otherwise the module runs as it is written. This file
knows modules by their attributes and does not import `flare.models.flare`, which uses it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from operator import itemgetter
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from flare.mixer import native
from flare.mixer.native import block_ops

Module = TypeVar("Module", bound=nn.Module)
Inputs = ParamSpec("Inputs")
Forward = Callable[Concatenate[Module, Inputs], Tensor]


def use_kernel(kernel: Callable[..., Tensor | None]) -> Callable[[Forward[Module, Inputs]], Forward[Module, Inputs]]:
    """Return a decorator for a `forward` that tries a kernel first.

    Args:
        kernel: Takes the arguments of the forward. Returns None if it cannot give the same result.
    """

    def decorate(definition: Forward[Module, Inputs]) -> Forward[Module, Inputs]:
        @wraps(definition)
        def forward(self: Module, /, *args: Inputs.args, **kwargs: Inputs.kwargs) -> Tensor:
            y = kernel(self, *args, **kwargs)
            return definition(self, *args, **kwargs) if y is None else y

        return forward

    return decorate


def resmlp(mlp: Any, x: Tensor) -> Tensor | None:
    """Compute a ResMLP, [..., in] to [..., out], or return None."""
    found = _weights_and_shape(mlp, _plan_mlp)
    if found is None or x.ndim == 0 or not native.supports(x, *found[0]):
        return None
    weights, shape = found
    depth, skip_in, skip_out, _ = shape
    (hidden, in_dim), out_dim = weights[0].shape, weights[-1].shape[0]
    if x.shape[-1] != in_dim or not block_ops.fits_skips(in_dim, hidden, out_dim, skip_in, skip_out):
        return None
    shapes = block_ops.mlp_shapes if torch.compiler.is_compiling() else block_ops.cached_mlp_shapes
    if [w.shape for w in weights] != shapes(in_dim, hidden, out_dim, depth):
        return None
    return block_ops.resmlp(x, weights, [in_dim, hidden, out_dim, *shape])


def flare_block(block: Any, x_BNC: Tensor, mask: Tensor | None = None) -> Tensor | None:
    """Compute a FLAREBlock, [B, N, C] to [B, N, C], or return None.

    Variants of the layer (normalized queries and keys, latent blocks) have no kernel for the whole block.
    """
    found = _weights_and_shape(block, _plan_block)
    if found is None or x_BNC.ndim != 3 or block.mixer.group is not None:  # the kernel has no communication
        return None
    weights, (kv_depth, ffn_depth, silu, rms) = found
    mixer, latents = block.mixer, block.mixer.latents
    if not native.supports(x_BNC, latents, *weights, mask=mask, scale=mixer.scale):
        return None
    if mask is not None and mask.shape != x_BNC.shape[:2]:
        return None
    channels = mixer.heads * latents.shape[2]
    shapes = block_ops.block_shapes if torch.compiler.is_compiling() else block_ops.cached_block_shapes
    if x_BNC.shape[2] != channels or [w.shape for w in weights] != shapes(channels, kv_depth, ffn_depth, rms):
        return None
    q_HMD, eps = latents.expand(mixer.heads, -1, -1), block.mixer_norm.eps
    shape = [kv_depth, ffn_depth, silu, rms]
    return block_ops.block(block_ops.BlockInputs(x_BNC, q_HMD, weights, mask, mixer.scale, eps, shape))


# ---- which modules a kernel can replace -----------------------------------------------------------------------------

Plan = tuple[list[nn.Module], list[int]]
"""Modules that hold the weights, in the order of the kernel, and the integers that the kernel takes beside them."""


def _plan_mlp(mlp: Any) -> Plan | None:
    if mlp.backend == "native":
        native.require()
    elif mlp.backend != "auto":
        return None
    layers, silu = list(mlp.layers), type(mlp.activation) is nn.SiLU
    tanh_gelu = type(mlp.activation) is nn.GELU and mlp.activation.approximate == "tanh"
    if any(type(layer) is not nn.Linear for layer in layers) or not (silu or tanh_gelu):
        return None
    return layers, [mlp.depth, int(mlp.skip_in), int(mlp.skip_out), int(silu)]


def _plan_block(block: Any) -> Plan | None:
    mixer, before, after, ffn = block.mixer, block.mixer_norm, block.ffn_norm, block.ffn
    if not (_is_built_in(mixer, "FLARE") and _is_plain_mixer(mixer) and _are_equal_norms(before, after)):
        return None
    mlps = mixer.key, mixer.value, ffn
    if not all(_is_built_in(mlp, "ResMLP") and mlp.skip_in and mlp.skip_out for mlp in mlps):
        return None
    plans = [plan for plan in map(_plan_mlp, mlps) if plan]
    if len(plans) < len(mlps) or len({plan[1][-1] for plan in plans}) > 1 or mixer.key.depth != mixer.value.depth:
        return None
    (key_layers, _), (value_layers, _), (ffn_layers, (_, _, _, silu)) = plans
    layers = [before, *key_layers, *value_layers, mixer.out, after, *ffn_layers]
    return layers, [mixer.key.depth, ffn.depth, silu, int(type(before) is nn.RMSNorm)]


def _is_built_in(module: nn.Module, name: str) -> bool:
    """Return whether the class is that of `flare.models.flare`, and not a subclass."""
    return (type(module).__module__, type(module).__qualname__) == ("flare.models.flare", name)


def _is_plain_mixer(mixer: Any) -> bool:
    return (
        mixer.backend in ("auto", "native")
        and type(mixer.query_norm) is type(mixer.key_norm) is nn.Identity
        and type(mixer.out) is nn.Linear
        and len(mixer.latent_blocks) == 0
    )


def _are_equal_norms(before: Any, after: Any) -> bool:
    if type(before) not in (nn.LayerNorm, nn.RMSNorm) or type(after) is not type(before):
        return False
    return before.normalized_shape == after.normalized_shape and before.eps == after.eps is not None


# ---- whether they are as built --------------------------------------------------------------------------------------


def _weights_and_shape(module: Any, make_plan: Callable[[Any], Plan | None]) -> tuple[list[Tensor], list[int]] | None:
    if _has_any_global_hook():
        return None
    plan = _checked_plan(module, make_plan) if torch.compiler.is_compiling() else _cached_plan(module, make_plan)
    if plan is None:
        return None
    weights: list[Any] = []
    for layer in plan[0]:
        own = layer._parameters
        weights.append(own.get("weight"))
        if type(layer) is not nn.RMSNorm:
            weights.append(own.get("bias"))
    return None if any(weight is None for weight in weights) else (weights, plan[1])


def _checked_plan(module: nn.Module, make_plan: Callable[[Any], Plan | None]) -> Plan | None:
    _, *inner = module.modules()
    return None if any(is_customized(m) for m in inner) else make_plan(module)


def is_customized(module: nn.Module) -> bool:
    """Return whether a module has hooks, or a method that was replaced on the instance."""
    m = module
    hooks = m._forward_hooks or m._forward_pre_hooks or m._backward_hooks or m._backward_pre_hooks
    return bool(hooks) or any(name in m.__dict__ for name in _METHODS)


def _cached_plan(module: Any, make_plan: Callable[[Any], Plan | None]) -> Plan | None:
    """Reuse the last plan unless something changed: making one takes as long as a kernel on a small mesh."""
    last = module.__dict__.get("_fused_plan")
    if last is not None and last.still_holds(module):
        return last.plan
    plan = _checked_plan(module, make_plan)
    module.__dict__["_fused_plan"] = None if plan is None else _CachedPlan(module, plan)
    return plan


_HOOKS = itemgetter("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_METHODS = ("forward", "queries_and_keys", "process_latents")
_SETTINGS = ("backend", "depth", "skip_in", "skip_out", "heads", "eps", "normalized_shape", "approximate")


class _CachedPlan:
    """A plan and everything it depends on. It is stored in the module; copies and pickles of the module drop it."""

    def __init__(self, module: nn.Module, plan: Plan) -> None:
        self.plan = plan
        _, *self._inner = module.modules()
        self._getters = []
        for place, inner in enumerate([module, *self._inner]):
            if names := [name for name in _SETTINGS if name in inner.__dict__]:
                self._getters.append((place, itemgetter(*names)))
        self._state = self._read(module)

    def still_holds(self, module: nn.Module) -> bool:
        try:
            return self._read(module) == self._state
        except KeyError:  # a setting was deleted
            return False

    def _read(self, module: nn.Module) -> list[Any]:
        own = [module.__dict__, *[inner.__dict__ for inner in self._inner]]
        return [
            [type(inner) for inner in self._inner],
            [tuple(attributes["_modules"].values()) for attributes in own],
            [get(own[place]) for place, get in self._getters],
            [any(_HOOKS(attributes)) for attributes in own[1:]],
            [len(attributes) for attributes in own[1:]],  # grows with a method that is replaced on an instance
        ]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()

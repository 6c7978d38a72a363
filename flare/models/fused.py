"""A residual MLP, or a whole FLARE block, by one native operator, where the module is what the operator computes.

An operator takes the weights and never calls the modules inside. So they must be as built: nobody replaced a part,
listens by a hook, or gave one a forward of its own. Else the module computes layer by layer, as it is written.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from flare.mixer import native
from flare.mixer.native import block_ops
from flare.models import flare as paper  # which imports this file: only its name is bound here

if TYPE_CHECKING:
    from flare.models.flare import FLARE, FLAREBlock, ResMLP


def resmlp(mlp: ResMLP, x: Tensor) -> Tensor | None:
    """[..., in] -> [..., out]; None where the kernel cannot stand in for the module."""
    found = _weights_and_shape(mlp, _look_at_mlp)
    if found is None or x.ndim == 0 or not native.serves(x, found[0][0]):
        return None
    weights, shape = found
    (hidden, in_dim), out_dim = weights[0].shape, weights[-1].shape[0]
    if x.shape[-1] != in_dim or [w.shape for w in weights] != _mlp_widths(in_dim, hidden, out_dim, shape[0]):
        return None
    return block_ops.resmlp(x, weights, [in_dim, hidden, out_dim, *shape])


def flare_block(block: FLAREBlock, x_BNC: Tensor, mask: Tensor | None) -> Tensor | None:
    """[B, N, C] -> [B, N, C]; None where the kernel cannot stand in for the module.

    Variants of the layer (normalised queries and keys, blocks between the latents) take the operators one by one.
    """
    found = _weights_and_shape(block, _look_at_block)
    if found is None or x_BNC.ndim != 3:
        return None
    weights, shape = found
    mixer, latents = block.mixer, block.mixer.latents
    norm: Any = block.mixer_norm
    if not (native.serves(x_BNC, latents, weights[0]) and native.serves_mask(mask)):
        return None
    if mask is not None and (mask.dtype != torch.bool or mask.shape != x_BNC.shape[:2]):
        return None
    channels = mixer.heads * latents.shape[2]
    if x_BNC.shape[2] != channels or [w.shape for w in weights] != _block_widths(channels, *shape):
        return None
    q_HMD = latents.expand(mixer.heads, -1, -1)
    return block_ops.block(x_BNC, q_HMD, weights, mask, mixer.scale, norm.eps, shape)


def _mlp_widths(in_dim: int, hidden: int, out_dim: int, depth: int) -> block_ops.Widths:
    widths = block_ops.mlp_widths if torch.compiler.is_compiling() else block_ops.cached_mlp_widths
    return widths(in_dim, hidden, out_dim, depth)


def _block_widths(channels: int, kv_depth: int, ffn_depth: int, silu: int, rms: int) -> block_ops.Widths:
    widths = block_ops.block_widths if torch.compiler.is_compiling() else block_ops.cached_block_widths
    return widths(channels, kv_depth, ffn_depth, rms)


# ---- a look at the modules ------------------------------------------------------------------------------------------

Look = tuple[list[nn.Module], list[int]]
"""The modules with the weights, in the order of the kernel, and what it wants to know beside them."""


def _weights_and_shape(module: Any, look_at: Callable[[Any], Look | None]) -> tuple[list[Tensor], list[int]] | None:
    if _has_any_global_hook():
        return None
    look = _look(module, look_at) if torch.compiler.is_compiling() else _last_look(module, look_at)
    if look is None:
        return None
    weights: list[Any] = [weight for part in look[0] for weight in part._parameters.values()]
    return None if any(weight is None for weight in weights) else (weights, look[1])


def _look(module: nn.Module, look_at: Callable[[Any], Look | None]) -> Look | None:
    _, *parts = module.modules()
    return None if any(_is_touched(part) for part in parts) else look_at(module)


def _is_touched(part: nn.Module) -> bool:
    """Whether it has hooks or a forward of its own. Nobody calls it, so they would not run."""
    hooks = part._forward_hooks or part._forward_pre_hooks or part._backward_hooks or part._backward_pre_hooks
    return bool(hooks) or "forward" in part.__dict__


def _last_look(module: Any, look_at: Callable[[Any], Look | None]) -> Look | None:
    """A look takes as long as the kernels on a small mesh, so it is taken again only after a change."""
    last = _looks.get(module)
    if last is not None and last[0].holds():
        return last[1]
    look = _look(module, look_at)
    if look is not None:
        _looks[module] = Snapshot(module), look
    return look


_HOOKS = itemgetter("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_SETTINGS = ("backend", "depth", "skip_in", "skip_out", "heads", "scale", "eps", "approximate")


class Snapshot:
    """Of all that a look at a module depends on. Refers to its parts, not to the module, which may then end."""

    def __init__(self, module: nn.Module) -> None:
        _, *self._parts = module.modules()
        self._own = [part.__dict__ for part in self._parts]
        self._children = [part._modules for part in module.modules()]
        self._settings = []
        for own in (module.__dict__, *self._own):
            if names := [name for name in _SETTINGS if name in own]:
                self._settings.append((itemgetter(*names), own))
        self._seen = self._see()

    def holds(self) -> bool:
        return self._see() == self._seen

    def _see(self) -> list[Any]:
        return [
            [type(part) for part in self._parts],
            [tuple(children.values()) for children in self._children],
            [get(own) for get, own in self._settings],
            [any(_HOOKS(own)) or "forward" in own for own in self._own],  # as _is_touched, at a third of the time
        ]


_looks: WeakKeyDictionary[nn.Module, tuple[Snapshot, Look]] = WeakKeyDictionary()


def _look_at_mlp(mlp: ResMLP) -> Look | None:
    if mlp.backend == "native":
        native.require()
    elif mlp.backend != "auto":
        return None
    layers = list(mlp.layers)
    if any(type(layer) is not nn.Linear for layer in layers) or not (_is_tanh(mlp) or _is_silu(mlp)):
        return None
    return layers, [mlp.depth, int(mlp.skip_in), int(mlp.skip_out), int(_is_silu(mlp))]


def _look_at_block(block: FLAREBlock) -> Look | None:
    mixer, before, after, ffn = block.mixer, block.mixer_norm, block.ffn_norm, block.ffn
    if not (_is_usual(mixer) and _are_norms(before, after) and _are_alike(mixer.key, mixer.value, ffn)):
        return None
    looks = [_look_at_mlp(mlp) for mlp in (mixer.key, mixer.value, ffn)]
    if any(look is None for look in looks):
        return None
    key, value, last = (look[0] for look in looks if look)
    shape = [mixer.key.depth, ffn.depth, int(_is_silu(ffn)), int(type(before) is nn.RMSNorm)]
    return [before, *key, *value, mixer.out, after, *last], shape


def _is_usual(mixer: FLARE) -> bool:
    """As built from the paper."""
    return (
        type(mixer) is paper.FLARE
        and mixer.backend in ("auto", "native")
        and type(mixer.query_norm) is type(mixer.key_norm) is nn.Identity
        and type(mixer.out) is nn.Linear
        and len(mixer.latent_blocks) == 0
    )


def _are_norms(before: Any, after: Any) -> bool:
    kind = type(before)
    return kind in (nn.LayerNorm, nn.RMSNorm) and type(after) is kind and before.eps == after.eps is not None


def _are_alike(key: Any, value: Any, ffn: Any) -> bool:
    """Three residual MLPs with one activation and every skip, the first two of one depth."""
    return (
        type(key) is type(value) is type(ffn) is paper.ResMLP
        and type(key.activation) is type(value.activation) is type(ffn.activation)
        and all(mlp.skip_in and mlp.skip_out for mlp in (key, value, ffn))
        and key.depth == value.depth
    )


def _is_silu(mlp: ResMLP) -> bool:
    return type(mlp.activation) is nn.SiLU


def _is_tanh(mlp: ResMLP) -> bool:
    return type(mlp.activation) is nn.GELU and mlp.activation.approximate == "tanh"

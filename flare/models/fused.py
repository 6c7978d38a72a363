"""A residual MLP, or a whole FLARE block, by one native operator, where the module is what the operator computes.

An operator takes the weights and never calls the modules inside. So they must be as built: nobody replaced a part,
listens by a hook, or gave one a forward of its own. Else the module computes layer by layer, as it is written.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import TYPE_CHECKING, Any

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
    if found is None or x.ndim == 0 or not native.serves(x, *found[0]):
        return None
    weights, shape = found
    depth, skip_in, skip_out, _ = shape
    (hidden, in_dim), out_dim = weights[0].shape, weights[-1].shape[0]
    if x.shape[-1] != in_dim or not block_ops.fits_skips(in_dim, hidden, out_dim, skip_in, skip_out):
        return None
    if [w.shape for w in weights] != _mlp_widths(in_dim, hidden, out_dim, depth):
        return None
    return block_ops.resmlp(x, weights, [in_dim, hidden, out_dim, *shape])


def flare_block(block: FLAREBlock, x_BNC: Tensor, mask: Tensor | None) -> Tensor | None:
    """[B, N, C] -> [B, N, C]; None where the kernel cannot stand in for the module.

    Variants of the layer (normalised queries and keys, blocks between the latents) take the operators one by one.
    """
    if block.mixer.group is not None:  # the kernel gathers from its own points alone
        return None
    found = _weights_and_shape(block, _look_at_block)
    if found is None or x_BNC.ndim != 3:
        return None
    weights, shape = found
    mixer, latents = block.mixer, block.mixer.latents
    norm: Any = block.mixer_norm
    if not (native.serves(x_BNC, latents, *weights) and native.serves_mask(mask) and native.serves_scale(mixer.scale)):
        return None
    if mask is not None and mask.shape != x_BNC.shape[:2]:
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
    weights: list[Any] = []
    for part in look[0]:
        own = part._parameters
        weights.append(own.get("weight"))
        if type(part) is not nn.RMSNorm:
            weights.append(own.get("bias"))
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
    if _forwards() != _FORWARDS:
        return None
    last = module.__dict__.get("_look")
    if last is not None and last.still_holds(module):
        return last.look
    look = _look(module, look_at)
    module.__dict__["_look"] = None if look is None else Snapshot(module, look)
    return look


def _forwards() -> list[Any]:
    """Of PyTorch's own modules, which other libraries may replace for a whole process."""
    return [nn.Linear.forward, nn.LayerNorm.forward, nn.RMSNorm.forward, nn.GELU.forward, nn.SiLU.forward]


_FORWARDS = _forwards()
_HOOKS = itemgetter("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_SETTINGS = ("backend", "depth", "skip_in", "skip_out", "heads", "eps", "normalized_shape", "approximate")


class Snapshot:
    """A look at a module, and all that it depended on. Kept with the module; a copy or a pickle of that has none."""

    def __init__(self, module: nn.Module, look: Look) -> None:
        self.look = look
        _, *self._parts = module.modules()
        self._getters = []
        for place, part in enumerate([module, *self._parts]):
            if names := [name for name in _SETTINGS if name in part.__dict__]:
                self._getters.append((place, itemgetter(*names)))
        self._seen = self._see(module)

    def still_holds(self, module: nn.Module) -> bool:
        try:
            return self._see(module) == self._seen
        except KeyError:  # a setting is gone
            return False

    def _see(self, module: nn.Module) -> list[Any]:
        own = [module.__dict__, *[part.__dict__ for part in self._parts]]
        return [
            [type(part) for part in self._parts],
            [tuple(mine["_modules"].values()) for mine in own],
            [get(own[place]) for place, get in self._getters],
            [any(_HOOKS(mine)) or "forward" in mine for mine in own[1:]],  # as _is_touched, at a third of the time
        ]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()


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
    mixer, before, after = block.mixer, block.mixer_norm, block.ffn_norm
    ffn: Any = block.ffn
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
    if kind not in (nn.LayerNorm, nn.RMSNorm) or type(after) is not kind:
        return False
    if before.weight is None or after.weight is None:
        return False
    shapes = {before.normalized_shape, after.normalized_shape, tuple(before.weight.shape), tuple(after.weight.shape)}
    return len(shapes) == 1 and before.eps == after.eps is not None


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

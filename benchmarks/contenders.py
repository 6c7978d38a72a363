"""What is timed: the same layer, with the same weights, by eager PyTorch, torch.compile and the native kernels."""

# B batch, N points, M latents per head, H heads, D head width, C = H * D channels

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from flare import FLAREBlock, ResMLP, build_model, mix
from flare.mixer.native.library import kernels
from operations import Work, mixer_work, module_work


@dataclass(frozen=True)
class Size:
    """Of a dataset and of the paper's model for it."""

    batch: int
    points: int
    in_dim: int
    heads: int
    latents: int
    rounds: int = 1
    compiled: bool = True


SIZES = {
    "Elasticity": Size(2, 972, 2, 8, 64, rounds=15),
    "Darcy": Size(2, 7225, 3, 16, 256, rounds=5),
    "Pipe": Size(1, 16641, 2, 8, 128, rounds=7),
    "100k": Size(1, 100_000, 3, 8, 128, rounds=2, compiled=False),
}
C, BLOCKS, DEPTH = 64, 8, 3
LEVELS = ("residual MLP", "mixer", "safe mixer", "block", "model")
"""The safe mixer has scores beyond the bound: its softmaxes must look for the largest."""
BACKENDS = {"reference": "reference", "eager": "sdpa", "compiled": "sdpa", "native": "native"}

Call = Callable[[], Sequence[Tensor]]


def make(level: str, size: Size, contender: str, *, training: bool) -> Call:
    """Return the call to time, which returns its result. The seed gives all variants the same weights and inputs."""
    torch.manual_seed(0)
    if "mixer" in level:
        qkv = mixer_inputs(size, safe=level == "safe mixer")
        dy_BHND = heads_of(torch.randn(size.batch, size.points, C), size)
        return step(partial(mix, backend=BACKENDS[contender]), qkv, qkv, dy_BHND, training=training)
    module, x = layer(level, size, BACKENDS[contender]), features(level, size)
    wanted = [*module.parameters(), *([x] if x.requires_grad else [])]
    dy = torch.randn(size.batch, size.points, 1 if level == "model" else C)
    function = torch.compile(module, dynamic=False) if contender == "compiled" else module
    return step(function, [x], wanted, dy, training=training)


def work_of(level: str, size: Size, *, training: bool) -> Work:
    if "mixer" in level:
        each = mixer_work(C, size.heads, size.latents, training=training)
    else:
        each = module_work(layer(level, size, "sdpa"), training=training)
    return each * (size.batch * size.points)


def layer(level: str, size: Size, backend: str) -> nn.Module:
    if level == "residual MLP":
        return ResMLP(C, C, C, DEPTH, backend=backend)
    sizes = {"channels": C, "heads": size.heads, "latents": size.latents, "kv_depth": DEPTH, "ffn_depth": DEPTH}
    if level == "block":
        return FLAREBlock(**sizes, backend=backend)  # type: ignore[arg-type]
    return build_model("flare", size.in_dim, 1, blocks=BLOCKS, **sizes, backend=backend)


def features(level: str, size: Size) -> Tensor:
    """Inside a model the input of a layer has a gradient; the model's own has none."""
    return torch.randn(size.batch, size.points, size.in_dim if level == "model" else C, requires_grad=level != "model")


def mixer_inputs(size: Size, *, safe: bool) -> list[Tensor]:
    """q, k and v as a layer makes them; for the safe mixer q is doubled until no head's scores are bounded."""
    q_HMD = 0.1 * torch.randn(size.heads, size.latents, C // size.heads)
    k_BHND, v_BHND = (heads_of(torch.randn(size.batch, size.points, C), size) for _ in range(2))
    longest = k_BHND.norm(dim=3).amax(2)
    while safe and (q_HMD.norm(dim=2).amax(1) * longest).min() / math.log(2) <= kernels().flare_bound():
        q_HMD = 2 * q_HMD
    return [t.requires_grad_() for t in (q_HMD, k_BHND, v_BHND)]


def heads_of(x_BNC: Tensor, size: Size) -> Tensor:
    return x_BNC.unflatten(2, (size.heads, -1)).transpose(1, 2)


def step(
    function: Callable[..., Tensor], inputs: Sequence[Tensor], wanted: Sequence[Tensor], dy: Tensor, *, training: bool
) -> Call:
    """Inference, or forward and backward and nothing else."""

    def infer() -> Sequence[Tensor]:
        with torch.inference_mode():
            return [function(*inputs)]

    def train() -> Sequence[Tensor]:
        return torch.autograd.grad(function(*inputs), wanted, dy)

    return train if training else infer


def difference(mine: Sequence[Tensor], theirs: Sequence[Tensor]) -> float:
    """Largest relative difference of two answers, each tensor by its own norm."""
    return max(((a - b).norm() / b.norm()).item() for a, b in zip(mine, theirs, strict=True))

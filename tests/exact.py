"""Comparing float32 kernels with float64 truth."""

import torch
from torch import Tensor

OUTPUT, GRADIENT, CAP = 1e-5, 5e-5, 3e-3
"""What the native kernels promise, relative to the largest entry; and the most that bad luck may excuse."""


def error(got: Tensor, want: Tensor, floor: float = 0.1) -> float:
    """Largest difference over the largest entry of `want`, or over `floor` where that is smaller.

    Inputs are of order one. What comes out much smaller has cancelled, or vanishes by symmetry like the gradient of a
    softmax over one point, and is nothing but rounding in any precision.
    """
    if want.numel() == 0:
        return 0.0
    return ((got.double() - want).abs().max() / want.abs().max().clamp_min(floor)).item()


def assert_exact(
    got: list[Tensor], want: list[Tensor], *eager: list[Tensor], floors: float | list[float] = 0.1, slack: float = 3.0
) -> None:
    """The first is an output, the others are gradients, within the promise.

    `eager` are the same by PyTorch in float32. Where scores of hundreds, or a norm over two channels, cost those their
    digits too, `slack` times the largest of their errors is allowed, but never more than `CAP`.
    """
    floors = floors if isinstance(floors, list) else [floors] * len(want)
    for i, (a, b, floor) in enumerate(zip(got, want, floors, strict=True)):
        promise = OUTPUT if i == 0 else GRADIENT
        theirs = max((error(other[i], b, floor) for other in eager), default=0.0)
        allowed = max(promise, min(CAP, slack * theirs))
        assert error(a, b, floor) <= allowed, f"entry {i}: {error(a, b, floor):.1e} > {allowed:.1e}"


def noise(shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)

"""Comparing float32 kernels with float64 truth."""

import torch
from torch import Tensor

OUTPUT, GRADIENT = 1e-5, 5e-5
"""What the native kernels promise, relative to the largest entry."""


def error(got: Tensor, want: Tensor, floor: float = 0.1) -> float:
    """Largest difference over the largest entry of `want`, or over `floor` where that is smaller.

    Inputs are of order one. What comes out much smaller has cancelled, or vanishes by symmetry like the gradient of a
    softmax over one point, and is nothing but rounding in any precision.
    """
    if want.numel() == 0:
        return 0.0
    return ((got.double() - want).abs().max() / want.abs().max().clamp_min(floor)).item()


def assert_exact(
    got: list[Tensor], want: list[Tensor], *eager: list[Tensor], floor: float = 0.1, slack: float = 3.0
) -> None:
    """The first is an output, the others are gradients, within the promise.

    `eager` are the same by PyTorch in float32. Scores of hundreds carry errors of their own there, whoever computes
    them, so `slack` times the largest of theirs is allowed too.
    """
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        allowed = max([OUTPUT if i == 0 else GRADIENT, *(slack * error(other[i], b, floor) for other in eager)])
        assert error(a, b, floor) <= allowed, f"entry {i}: {error(a, b, floor):.1e} > {allowed:.1e}"


def noise(shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)

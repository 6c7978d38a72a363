"""Muon: momentum made orthogonal for weight matrices; AdamW for everything else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from flare.mixer import native
from flare.mixer.native.library import call
from flare.train.optimizers.stacks import MatrixOptimizer

COEFFICIENTS = (
    (8.3837, -24.7659, 18.3571),
    (4.0434, -3.0114, 0.5695),
    (3.5056, -2.6267, 0.5257),
    (2.4901, -1.8343, 0.4368),
)
"""Odd quintic polynomials a x + b x³ + c x⁵, one triple per iteration. Each is the best uniform approximation of 1 on
the interval that the ones before it map [0.003, 1] into; together they map it into [0.80, 1.20]."""
LARGEST_NATIVE = 256
"""Columns up to which the native kernel, which keeps a matrix in the cache, is faster than batched products."""
UPDATE_RMS = 0.2
"""Root mean square of an update at learning rate 1. AdamW's is about the same, so both take similar learning rates."""


def orthogonalize(matrices: Tensor, coefficients: Sequence[tuple[float, float, float]] = COEFFICIENTS) -> Tensor:
    """Approximate the polar factor U Vᵀ of each matrix U S Vᵀ of a stack by Newton–Schulz iterations.

    Args:
        matrices: Stack of matrices, shape (n, rows, columns).
        coefficients: One triple (a, b, c) per iteration X ← a X + (b A + c A²) X with A = X Xᵀ.

    Returns:
        Matrices of the same shape whose singular values are near 1.
    """
    is_tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if is_tall else matrices
    if native.supports(x) and x.shape[-1] <= LARGEST_NATIVE:
        x = _orthogonalize_native(x.contiguous(), coefficients)
    else:
        x = x / x.norm(dim=(-2, -1), keepdim=True).clamp_min(1e-20)
        for a, b, c in coefficients:
            gram = x @ x.mT
            x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if is_tall else x


def _orthogonalize_native(x: Tensor, coefficients: Sequence[tuple[float, float, float]]) -> Tensor:
    triples, out = torch.tensor(coefficients), torch.empty_like(x)
    call("flare_orthogonalize", torch.get_num_threads(), *x.shape, len(triples), triples, x, out)
    return out


class Muon(MatrixOptimizer):
    """Muon for parameter groups marked `matrices`, AdamW for the others.

    Args:
        params: Parameter groups, see `parameter_groups`.
        lr: Learning rate of groups that have none of their own.
        betas: Betas of AdamW.
        eps: Denominator floor of AdamW.
        momentum: Momentum of the matrices (Nesterov's).
        coefficients: Newton–Schulz polynomials, see `orthogonalize`.
        fused: Use the fused AdamW kernel.
    """

    def __init__(
        self,
        params: Iterable[dict[str, Any]],
        *,
        lr: float = 3e-3,
        betas: tuple[float, float] = (0.9, 0.99),
        eps: float = 1e-8,
        momentum: float = 0.95,
        coefficients: Sequence[tuple[float, float, float]] = COEFFICIENTS,
        fused: bool = True,
    ) -> None:
        self.coefficients = coefficients
        defaults = {"lr": lr, "betas": betas, "eps": eps, "momentum": momentum, "weight_decay": 0.0, "fused": fused}
        super().__init__(params, defaults)

    def _update(self, params: list[Tensor], grads: list[Tensor], group: dict[str, Any]) -> None:
        for p in params:
            if "momentum" not in self.state[p]:
                self.state[p]["momentum"] = torch.zeros_like(p)
        momenta = [self.state[p]["momentum"] for p in params]
        torch._foreach_lerp_(momenta, grads, 1 - group["momentum"])
        ahead = torch.stack(torch._foreach_lerp(grads, momenta, group["momentum"]))
        updates = orthogonalize(ahead, self.coefficients)
        size = group["lr"] * UPDATE_RMS * max(params[0].shape) ** 0.5
        self._decay_and_add(params, updates, size, group)

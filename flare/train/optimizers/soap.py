"""SOAP: Adam in the eigenbasis of Shampoo's preconditioner; AdamW for everything that is not a matrix."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from flare.train.optimizers.stacks import MatrixOptimizer

# n matrices of one shape, r rows, c columns


class SOAP(MatrixOptimizer):
    """SOAP for parameter groups marked `matrices`, AdamW for the others.

    SOAP averages the covariances of the rows (G Gᵀ) and of the columns (Gᵀ G) of the gradients G of a matrix, and runs
    Adam in their eigenbases. One power iteration and a QR decomposition refresh the bases every few steps. The first
    step of a matrix only fits its eigenbases.

    Args:
        params: Parameter groups, see `parameter_groups`.
        lr: Learning rate of groups that have none of their own.
        betas: Betas of Adam; the second is that of the covariances, too.
        eps: Denominator floor of Adam.
        refresh: Steps between refreshes of the eigenbases.
        fused: Use the fused AdamW kernel.
    """

    def __init__(
        self,
        params: Iterable[dict[str, Any]],
        *,
        lr: float = 3e-3,
        betas: tuple[float, float] = (0.95, 0.95),
        eps: float = 1e-8,
        refresh: int = 10,
        fused: bool = True,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "refresh": refresh, "weight_decay": 0.0, "fused": fused}
        super().__init__(params, defaults)

    def _update(self, params: list[Tensor], grads: list[Tensor], group: dict[str, Any]) -> None:
        states, grad_nrc = [self.state[p] for p in params], torch.stack(grads)
        beta1, beta2 = group["betas"]
        if not states[0]:
            for state, start in zip(states, _start(grad_nrc, beta2), strict=True):
                state |= start
            return
        step = int(states[0]["step"]) + 1
        names = ("rows_covariance", "columns_covariance", "rows_basis", "columns_basis", "exp_avg", "exp_avg_sq")
        rows_nrr, columns_ncc, u_nrr, v_ncc, mean_nrc, square_nrc = (
            torch.stack([state[name] for state in states]) for name in names
        )
        mean_nrc.lerp_(grad_nrc, 1 - beta1)
        square_nrc.lerp_((u_nrr.mT @ grad_nrc @ v_ncc).square(), 1 - beta2)
        turned_nrc = (u_nrr.mT @ mean_nrc @ v_ncc) / square_nrc.sqrt().add_(group["eps"])
        update_nrc = u_nrr @ turned_nrc @ v_ncc.mT
        size = group["lr"] * (1 - beta2**step) ** 0.5 / (1 - beta1**step)
        self._decay_and_add(params, update_nrc, size, group)
        rows_nrr.lerp_(grad_nrc @ grad_nrc.mT, 1 - beta2)
        columns_ncc.lerp_(grad_nrc.mT @ grad_nrc, 1 - beta2)
        if step % group["refresh"] == 0:
            u_nrr, square_nrc = refresh_basis(rows_nrr, u_nrr, square_nrc)
            v_ncc, square_ncr = refresh_basis(columns_ncc, v_ncc, square_nrc.mT)
            square_nrc = square_ncr.mT
        for name, stack in zip(names, (rows_nrr, columns_ncc, u_nrr, v_ncc, mean_nrc, square_nrc), strict=True):
            for state, new in zip(states, stack.unbind(), strict=True):
                state[name] = new
        for state in states:
            state["step"] += 1


def _start(grad_nrc: Tensor, beta2: float) -> list[dict[str, Tensor]]:
    """Return the state of each matrix of a stack after its first gradient."""
    covariances = {"rows": (1 - beta2) * grad_nrc @ grad_nrc.mT, "columns": (1 - beta2) * grad_nrc.mT @ grad_nrc}
    stacked = {"exp_avg": torch.zeros_like(grad_nrc), "exp_avg_sq": torch.zeros_like(grad_nrc)}
    for side, covariance in covariances.items():
        stacked[f"{side}_covariance"] = covariance
        stacked[f"{side}_basis"] = torch.linalg.eigh(covariance)[1].flip(-1)
    return [
        {"step": torch.zeros(())} | {name: stack[i] for name, stack in stacked.items()} for i in range(len(grad_nrc))
    ]


def refresh_basis(covariance_nrr: Tensor, basis_nrr: Tensor, square_nrc: Tensor) -> tuple[Tensor, Tensor]:
    """Improve eigenbases by one power iteration and sort them by eigenvalue.

    Args:
        covariance_nrr: Symmetric matrices, shape (n, r, r).
        basis_nrr: Bases near their eigenvectors, same shape.
        square_nrc: Second moments whose rows belong to the columns of these bases, shape (n, r, c).

    Returns:
        New orthonormal bases, largest eigenvalue first, and the second moments in the same order.
    """
    values_nr = (basis_nrr * (covariance_nrr @ basis_nrr)).sum(-2)
    order_nr = values_nr.argsort(dim=-1, descending=True)
    basis_nrr = basis_nrr.gather(-1, order_nr[:, None, :].expand_as(basis_nrr))
    square_nrc = square_nrc.gather(-2, order_nr[:, :, None].expand_as(square_nrc))
    return torch.linalg.qr(covariance_nrr @ basis_nrr)[0], square_nrc

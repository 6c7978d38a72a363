"""The base of Muon and SOAP: matrices of one shape as one stack, and AdamW for everything that is not a matrix."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.adamw import adamw


class MatrixOptimizer(Optimizer):
    """Optimizer of the parameter groups marked `matrices`; AdamW updates the others.

    All matrices of one shape form one stack, so a step is a few batched products.
    """

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update all parameters that have a gradient."""
        for group in self.param_groups:
            if not group["matrices"]:
                self._adamw(group)
                continue
            for params, grads in stacks(group["params"]):
                self._update(params, grads, group)

    def _update(self, params: list[Tensor], grads: list[Tensor], group: dict[str, Any]) -> None:
        """Update the matrices of one shape."""
        raise NotImplementedError

    def _decay_and_add(self, params: list[Tensor], updates: Tensor, size: float, group: dict[str, Any]) -> None:
        torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(params, updates.unbind(), alpha=-size)

    def _adamw(self, group: dict[str, Any]) -> None:
        params = [p for p in group["params"] if p.grad is not None]
        states = [self.state[p] for p in params]
        for p, state in zip(params, states, strict=True):
            if "step" not in state:
                state["step"] = torch.zeros((), device=p.device if group["fused"] else "cpu")
                state |= {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
        means, squares, steps = ([state[name] for state in states] for name in ("exp_avg", "exp_avg_sq", "step"))
        beta1, beta2 = group["betas"]
        same: Any = {name: group[name] for name in ("fused", "lr", "eps", "weight_decay")}
        grads: Any = [p.grad for p in params]
        adamw(params, grads, means, squares, [], steps, beta1=beta1, beta2=beta2, amsgrad=False, maximize=False, **same)


def stacks(params: list[Tensor]) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    """Yield all parameters of one shape and their gradients, shape by shape; skip parameters without a gradient."""
    by_shape: dict[torch.Size, list[Tensor]] = {}
    for p in params:
        if p.grad is not None:
            by_shape.setdefault(p.shape, []).append(p)
    for alike in by_shape.values():
        yield alike, [p.grad for p in alike if p.grad is not None]

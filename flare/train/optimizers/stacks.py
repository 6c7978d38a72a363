"""What Muon and SOAP share: parameters of one shape as one stack, and AdamW for everything that is not a matrix."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw


def stacks(params: list[Tensor]) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    """Yield all parameters of one shape and their gradients, shape by shape; skip parameters without a gradient."""
    by_shape: dict[torch.Size, list[Tensor]] = {}
    for p in params:
        if p.grad is not None:
            by_shape.setdefault(p.shape, []).append(p)
    for alike in by_shape.values():
        yield alike, [p.grad for p in alike if p.grad is not None]


def adamw_step(state: MutableMapping[Any, Any], group: dict[str, Any]) -> None:
    """Do one AdamW step for a parameter group.

    Args:
        state: State of the optimizer; each parameter has `step`, `exp_avg` and `exp_avg_sq`, as in torch's AdamW.
        group: Parameters and their `lr`, `betas`, `eps`, `weight_decay` and `fused`.
    """
    params = [p for p in group["params"] if p.grad is not None]
    for p in params:
        if "step" not in state[p]:
            state[p]["step"] = torch.zeros((), device=p.device if group["fused"] else "cpu")
            state[p] |= {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
    beta1, beta2 = group["betas"]
    adamw(
        params,
        [p.grad for p in params],
        [state[p]["exp_avg"] for p in params],
        [state[p]["exp_avg_sq"] for p in params],
        [],
        [state[p]["step"] for p in params],
        fused=group["fused"],
        amsgrad=False,
        maximize=False,
        lr=group["lr"],
        beta1=beta1,
        beta2=beta2,
        eps=group["eps"],
        weight_decay=group["weight_decay"],
    )

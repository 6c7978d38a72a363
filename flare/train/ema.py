"""Exponential moving average of the weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class WeightAverage:
    """Running average of the weights: average ← decay · average + (1 − decay) · weights after every step.

    Args:
        model: Module whose parameters are averaged.
        decay: Decay per step, such as 0.999.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.weights = {name: p.detach().clone() for name, p in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Add the present weights to the average."""
        params = dict(model.named_parameters())
        torch._foreach_lerp_(list(self.weights.values()), [params[name] for name in self.weights], 1 - self.decay)

    @contextmanager
    def swapped_in(self, model: nn.Module) -> Iterator[None]:
        """Give the model the averaged weights within this context."""
        self._swap(model)
        try:
            yield
        finally:
            self._swap(model)

    @torch.no_grad()
    def _swap(self, model: nn.Module) -> None:
        for name, p in model.named_parameters():
            current: Tensor = p.detach().clone()
            p.copy_(self.weights[name])
            self.weights[name].copy_(current)

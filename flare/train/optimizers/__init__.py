"""Optimizers by name: AdamW, Muon and SOAP, each with its own defaults."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn
from torch.optim import AdamW, Optimizer

from flare.train.config import OptimConfig
from flare.train.optimizers.groups import parameter_groups
from flare.train.optimizers.muon import Muon
from flare.train.optimizers.soap import SOAP
from flare.utils.errors import ConfigError, nearest


def build_optimizer(model: nn.Module, optim: OptimConfig, *, fused: bool = True) -> Optimizer:
    """Build the optimizer that `optim.name` names for the parameters of a model.

    Args:
        model: Module with its parameters on their final device.
        optim: Optimizer settings.
        fused: Use the fused AdamW kernel. Float16 training cannot.
    """
    if optim.name not in OPTIMIZERS:
        raise ConfigError(f"unknown optimizer {optim.name!r}; {nearest(optim.name, OPTIMIZERS)}")
    return OPTIMIZERS[optim.name](model, optim, fused)


def _adamw(model: nn.Module, optim: OptimConfig, fused: bool) -> Optimizer:
    return AdamW(parameter_groups(model, optim), eps=optim.eps, fused=fused)


def _muon(model: nn.Module, optim: OptimConfig, fused: bool) -> Optimizer:
    return Muon(parameter_groups(model, optim, matrices=True), eps=optim.eps, fused=fused)


def _soap(model: nn.Module, optim: OptimConfig, fused: bool) -> Optimizer:
    return SOAP(parameter_groups(model, optim, matrices=True), eps=optim.eps, fused=fused)


OPTIMIZERS: dict[str, Callable[[nn.Module, OptimConfig, bool], Optimizer]] = {
    "adamw": _adamw,
    "muon": _muon,
    "soap": _soap,
}

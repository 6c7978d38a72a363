"""Optimizers by name: AdamW, Muon, SOAP and registered ones."""

from __future__ import annotations

from torch import nn
from torch.optim import AdamW, Optimizer

from flare.train.config import OPTIMIZERS as OPTIMIZERS
from flare.train.config import OptimConfig
from flare.train.optimizers.groups import parameter_groups as parameter_groups
from flare.train.optimizers.muon import Muon
from flare.train.optimizers.soap import SOAP


def build_optimizer(model: nn.Module, optim: OptimConfig, *, fused: bool = True) -> Optimizer:
    """Build the optimizer that `optim.name` names for the parameters of a model.

    Args:
        model: Module with its parameters on their final device.
        optim: Optimizer settings.
        fused: Use the fused AdamW kernel. Float16 training cannot.
    """
    return OPTIMIZERS.get(optim.name)(model, optim, fused)


def build_adamw(model: nn.Module, optim: OptimConfig, fused: bool) -> Optimizer:
    """Build AdamW for all parameters."""
    return AdamW(parameter_groups(model, optim), eps=optim.eps, fused=fused)


def build_muon(model: nn.Module, optim: OptimConfig, fused: bool) -> Optimizer:
    """Build Muon for weight matrices and AdamW for the rest."""
    return Muon(parameter_groups(model, optim, matrices=True), eps=optim.eps, fused=fused)


def build_soap(model: nn.Module, optim: OptimConfig, fused: bool) -> Optimizer:
    """Build SOAP for weight matrices and AdamW for the rest."""
    return SOAP(parameter_groups(model, optim, matrices=True), eps=optim.eps, fused=fused)

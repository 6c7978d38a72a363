"""Weights and inputs of the golden values, independent of the order of the parameters."""

import math

import torch
from torch import nn


def pseudo_random(count):
    """Return numbers in [-0.5, 0.5) that any language can reproduce."""
    i = torch.arange(1, count + 1, dtype=torch.float64)
    u = 43758.5453 * torch.sin(12.9898 * i)
    return u - u.floor() - 0.5


def fill(model: nn.Module) -> nn.Module:
    """Set all parameters to reproducible values."""
    model.double().eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith(".temperature"):
                p.fill_(0.5)
            elif p.ndim <= 1:
                p.fill_(1.0 if "norm" in name and name.endswith("weight") else 0.0)
            else:
                gain = 1.0 if name.endswith("latents") else math.sqrt(12 / p[0].numel())
                p.copy_(gain * pseudo_random(p.numel()).view_as(p))
    return model


def digest(y):
    """Return the first three outputs, their sum and their norm."""
    y = y.detach().flatten()
    return torch.cat([y[:3], y.sum()[None], y.norm()[None]])


def points(count=24, dim=2):
    """Return reproducible coordinates, [1, count, dim]."""
    n, c = torch.arange(count, dtype=torch.float64), torch.arange(dim, dtype=torch.float64)
    return torch.cos(0.9 * n[:, None] + 0.4 * c)[None]

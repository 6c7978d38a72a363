"""Weights and random gradients to compare optimizers with."""

import torch
from torch import nn


def random_gradients(shapes, dtype, steps, first=0):
    """Return (weight, gradients) of each shape; they depend on the position in the list, counted from `first`."""
    found = []
    for i, shape in enumerate(shapes):
        rng = torch.Generator().manual_seed(first + i)
        start, *gradients = (torch.randn(shape, generator=rng, dtype=torch.float64).to(dtype) for _ in range(steps + 1))
        found.append((start, gradients))
    return found


def follow(make, shapes, dtype, first=0, steps=25):
    """Return the weights after some steps with random gradients by the optimizer that `make` builds."""
    made = random_gradients(shapes, dtype, steps, first)
    params = [nn.Parameter(start.clone()) for start, _ in made]
    optimizer = make(params)
    for step in range(steps):
        for p, (_, gradients) in zip(params, made, strict=True):
            p.grad = gradients[step]
        optimizer.step()
    return [p.detach() for p in params]

"""Useful floating-point operations and exponentials of an MLP, a mixer, a block, a model: by formula, in one place.

All variants are credited with the same work, so their GFLOP/s compare as their times do. Per point, with C channels,
H heads and M latents per head:

  Linear  2 in out operations.
  MLP     its Linear maps, and one exponential per GELU.
  mixer   4 products of 2 M C operations: scores and weighted sum in the encode, the same again in the decode; 2 M H
          exponentials.

A training step is three times the operations: every product, of weights or of scores, has a gradient for each of its
two factors. What a method does again only to save memory is not counted, with one exception: the exponentials of the
mixer count in the backward too, 2 M H, since to keep them would take memory of size M N. Norms, biases, skips and the
sums of the softmax, about a hundredth of it all, are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from flare import FLARE, ResMLP


@dataclass(frozen=True)
class Work:
    """Of one point, or of as many as it was multiplied by."""

    flops: float
    exps: float

    def __add__(self, other: Work) -> Work:
        return Work(self.flops + other.flops, self.exps + other.exps)

    def __mul__(self, points: int) -> Work:
        return Work(self.flops * points, self.exps * points)


def mixer_work(channels: int, heads: int, latents: int, *, training: bool) -> Work:
    products, exponentials = (12, 4) if training else (4, 2)
    return Work(products * 2 * latents * channels, exponentials * latents * heads)


def module_work(module: nn.Module, *, training: bool) -> Work:
    """Of every Linear, GELU and mixer in a module."""
    work = Work(0, 0)
    for part in module.modules():
        if isinstance(part, nn.Linear):
            work += Work((3 if training else 1) * 2 * part.in_features * part.out_features, 0)
        elif isinstance(part, ResMLP):
            work += Work(0, sum(layer.out_features for layer in list(part.layers)[:-1]))
        elif isinstance(part, FLARE):
            heads, latents, width = part.latents.shape
            work += mixer_work(heads * width, heads, latents, training=training)
    return work

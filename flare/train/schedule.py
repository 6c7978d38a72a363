"""Learning rate and first momentum as pure functions of the step: nothing to save, nothing to restore."""

from __future__ import annotations

import math

from flare.train.config import OptimConfig

BETA1_HIGH, BETA1_LOW = 0.95, 0.85


def learning_rate(step: int, total: int, optim: OptimConfig) -> float:
    """Learning rate of optimiser step `step` (from 0) of a run of `total` steps."""
    if optim.schedule == "constant":
        return optim.lr
    start = optim.lr / optim.div
    return _one_cycle(step, total, optim.warmup, start, optim.lr, start / optim.final_div)


def first_beta(step: int, total: int, optim: OptimConfig) -> float:
    """β₁ of the same step: a one-cycle schedule moves it against the learning rate."""
    if optim.schedule == "constant" or not optim.cycle_beta1:
        return optim.betas[0]
    return _one_cycle(step, total, optim.warmup, BETA1_HIGH, BETA1_LOW, BETA1_HIGH)


def _one_cycle(step: int, total: int, warmup: float, start: float, peak: float, end: float) -> float:
    """Half a cosine up to the peak at step warmup · total − 1, half a cosine down to the last step."""
    top, last = warmup * total - 1, total - 1
    if step <= top:
        return _cosine(start, peak, step / top if top > 0 else 1.0)
    return _cosine(peak, end, (step - top) / (last - top) if last > top else 1.0)


def _cosine(a: float, b: float, part: float) -> float:
    return b + (a - b) / 2 * (1 + math.cos(math.pi * part))

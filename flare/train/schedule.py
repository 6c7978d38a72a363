"""Learning rate and first beta as functions of the step, without state to save."""

from __future__ import annotations

import math

from flare.train.config import OptimConfig

BETA1_HIGH, BETA1_LOW = 0.95, 0.85


def learning_rate(step: int, total: int, optim: OptimConfig, peak: float) -> float:
    """Compute the learning rate of one optimizer step.

    Args:
        step: Number of the step, from 0.
        total: Number of steps of the run.
        optim: The schedule and its settings.
        peak: Highest learning rate of the run.
    """
    if optim.schedule == "constant":
        return peak
    if optim.schedule == "onecycle":
        start = peak / optim.div
        return _one_cycle(step, total, optim.warmup, start, peak, start / optim.final_div)
    warm, decay = optim.warmup * total, decay_start(total, optim)
    if step + 1 < warm:
        return peak * (step + 1) / warm
    if step < decay:
        return peak
    part = (step - decay) / (total - decay)
    return peak * (1 - math.sqrt(part)) if optim.schedule == "wsd" else _cosine(peak, 0.0, part)


def decay_start(total: int, optim: OptimConfig) -> int:
    """Return the first step at which the learning rate of `wsd` or `cosine` falls."""
    if optim.schedule == "wsd":
        return total - math.ceil(optim.decay * total)
    return min(math.ceil(optim.warmup * total), total - 1)


def first_beta(step: int, total: int, optim: OptimConfig) -> float:
    """Return β₁ of AdamW at the same step; a one-cycle schedule moves it against the learning rate."""
    assert optim.betas is not None
    if optim.schedule != "onecycle" or not optim.cycle_beta1:
        return optim.betas[0]
    return _one_cycle(step, total, optim.warmup, BETA1_HIGH, BETA1_LOW, BETA1_HIGH)


def _one_cycle(step: int, total: int, warmup: float, start: float, peak: float, end: float) -> float:
    """Rise by half a cosine to the peak at step warmup · total − 1, then fall by half a cosine to the last step."""
    top, last = warmup * total - 1, total - 1
    if step <= top:
        return _cosine(start, peak, step / top if top > 0 else 1.0)
    return _cosine(peak, end, (step - top) / (last - top) if last > top else 1.0)


def _cosine(a: float, b: float, part: float) -> float:
    return b + (a - b) / 2 * (1 + math.cos(math.pi * part))

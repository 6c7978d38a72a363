"""Conformal error bars: |truth − prediction| ≤ q s(x) at 90 % of the points of a new sample, whatever the model.

s(x) says where errors are large: log s is a quadratic function of the normalised inputs and predictions at a point,
fitted to errors on training samples. q makes the bars honest: it is a quantile of |error| / s over held-out samples.
Points of a sample are alike, samples are exchangeable; so each held-out sample counts as one, and one more, the new
one, counts as infinitely wrong. Then the coverage at a random point of a new sample is at least the level, exactly, for
any number of samples (hierarchical conformal prediction: Lee, Barber and Willett, 2023).
"""

# N points, d input and target channels, p terms of the quadratic, F target channels

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flare.utils.errors import DataError

LEVEL = 0.9
ENOUGH = 19
"""Held-out samples with which bars at 90 % cover 95 % at most."""
RIDGE = 1e-3
CHUNK = 65_536
"""Points at a time."""
MANY_CHANNELS = 24
"""Beyond, products of two channels are left out."""


@dataclass(frozen=True)
class Bars:
    """Half widths of the bars, at any point."""

    weights: np.ndarray
    """(p, F): log s is a quadratic in the normalised channels."""
    low: np.ndarray
    """(F,): log s is kept within what was seen, so that no bar explodes far from the data."""
    high: np.ndarray
    quantile: np.ndarray
    """(F,): q."""
    level: float = LEVEL

    def widths(self, channels: np.ndarray) -> np.ndarray:
        """(N, d) normalised inputs and predictions -> (N, F) half widths, physical."""
        parts = np.array_split(channels, max(1, len(channels) // CHUNK))  # the quadratic has many terms
        return self.quantile * np.concatenate([_scale(self.weights, self.low, self.high, part) for part in parts])


def fit_bars(
    training: Sequence[tuple[np.ndarray, np.ndarray]],
    held_out: Sequence[tuple[np.ndarray, np.ndarray]],
    *,
    level: float = LEVEL,
) -> Bars:
    """From samples as (normalised channels (N, d), errors (N, F) in physical values).

    Raises:
        DataError: there are too few held-out samples for a bar of finite width.
    """
    needed = fewest(level)
    if len(held_out) < needed:
        raise DataError(
            f"error bars at {level:.0%} need {needed} held-out samples, there are {len(held_out)}; hold out more, with "
            f"--calibration at import, or a larger test split"
        )
    terms = np.concatenate([_quadratic(channels) for channels, _ in training])
    errors = np.abs(np.concatenate([error for _, error in training]))
    # The logarithm of a tiny error says little of where errors are large; below a hundredth of the mean it is cut off.
    logs = np.log(np.maximum(errors, 0.01 * errors.mean(0) + 1e-30))
    gram = terms.T @ terms / len(terms) + RIDGE * np.eye(terms.shape[1])
    weights = np.linalg.solve(gram, terms.T @ logs / len(terms))
    low, high = np.quantile(terms @ weights, [0.01, 0.99], axis=0)
    ratios = [np.abs(error) / _scale(weights, low, high, channels) for channels, error in held_out]
    quantile = np.array([hierarchical_quantile([r[:, f] for r in ratios], level) for f in range(errors.shape[1])])
    return Bars(weights, low, high, quantile, level)


def hierarchical_quantile(scores: Sequence[np.ndarray], level: float) -> float:
    """The smallest q below which lies `level` of the mass, where each of K samples weighs 1 / (K + 1) and the rest of
    the mass is at infinity."""
    values = np.concatenate(scores)
    mass = np.concatenate([np.full(len(s), 1 / (len(scores) + 1) / len(s)) for s in scores])
    order = np.argsort(values, kind="stable")
    reached = np.searchsorted(np.cumsum(mass[order]), level * (1 - 1e-12))
    return float(values[order][reached]) if reached < len(values) else float("inf")


def fewest(level: float) -> int:
    """Held-out samples without which a bar is infinitely wide: K / (K + 1) must reach the level."""
    return int(np.ceil(level / (1 - level) - 1e-9))


def wide_bars(samples: int, level: float = LEVEL) -> str:
    """What to know of bars that few held-out samples made; empty where they are enough.

    The coverage is at most 1 / (K + 1) above the level, and with few samples near that.
    """
    if samples >= ENOUGH:
        return ""
    most, usual = (f"{level + 1 / (count + 1):.0%}" for count in (samples, ENOUGH))
    largest = ", as wide as the largest error seen," if samples == fewest(level) else ""
    return (
        f"bars of {samples} held-out samples{largest} cover up to {most} instead of {level:.0%}; of {ENOUGH}, up to "
        f"{usual}"
    )


def coverage(bars: Bars, samples: Sequence[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """(samples, F): share of each sample's points whose error is within its bar."""
    return np.array([(np.abs(error) <= bars.widths(channels)).mean(0) for channels, error in samples])


def _scale(weights: np.ndarray, low: np.ndarray, high: np.ndarray, channels: np.ndarray) -> np.ndarray:
    return np.exp(np.clip(_quadratic(channels) @ weights, low, high))


def _quadratic(channels: np.ndarray) -> np.ndarray:
    """(N, d) -> (N, p): 1, every channel, and products of two."""
    u = np.clip(np.asarray(channels, dtype=np.float64), -6, 6)
    one = np.ones((len(u), 1))
    if u.shape[1] > MANY_CHANNELS:
        return np.concatenate([one, u, u**2], axis=1)
    i, j = np.triu_indices(u.shape[1])
    return np.concatenate([one, u, u[:, i] * u[:, j]], axis=1)

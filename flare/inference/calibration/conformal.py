"""Conformal error bars: |truth − prediction| ≤ q s(x) at 90 % of the points of a new sample, for any model.

The scale s(x) describes where errors are large: log s is a quadratic function of the normalized inputs and predictions
at a point, fitted to the errors of training samples. The factor q is a quantile of |error| / s over held-out samples.
Points of one sample are not independent, but samples are exchangeable: each held-out sample has the same weight, and
one more, the new sample, counts as infinitely wrong. The coverage at a random point of a new sample is then at least
the level, for any number of samples (hierarchical conformal prediction: Lee, Barber and Willett, 2023).
"""

# N points, d input and target channels, p terms of the quadratic, F target channels

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from flare.data.splits import COVERAGE, fewest_calibration_samples
from flare.utils.errors import DataError

RIDGE = 1e-3
CHUNK = 65_536
"""Points per chunk; the quadratic has many terms."""
MANY_CHANNELS = 24
"""Number of channels above which products of two channels are left out."""


@dataclass(frozen=True)
class ErrorBars:
    """A fitted model of the half widths of error bars."""

    weights: np.ndarray
    """(p, F), coefficients of log s."""
    low: np.ndarray
    """(F,), lower limit of log s, from the training samples."""
    high: np.ndarray
    """(F,), upper limit of log s, so that error bars stay finite far from the data."""
    quantile: np.ndarray
    """(F,), the factor q."""
    level: float = COVERAGE
    """Fraction of points that the error bars cover."""

    def half_widths(self, channels: np.ndarray) -> np.ndarray:
        """Compute half widths in physical units, shape (N, F), from normalized inputs and predictions, shape (N, d)."""
        chunks = np.array_split(channels, max(1, len(channels) // CHUNK))
        logs = (np.clip(_quadratic(chunk) @ self.weights, self.low, self.high) for chunk in chunks)
        return self.quantile * np.concatenate([np.exp(log) for log in logs])


def fit_error_bars(
    training: Sequence[tuple[np.ndarray, np.ndarray]],
    held_out: Sequence[tuple[np.ndarray, np.ndarray]],
) -> ErrorBars:
    """Fit error bars.

    Args:
        training: For each training sample, normalized channels (N, d) and errors (N, F) in physical units.
        held_out: The same for samples the model was not trained on.

    Raises:
        DataError: There are too few held-out samples for error bars of finite width.
    """
    needed = fewest_calibration_samples()
    if len(held_out) < needed:
        raise DataError(
            f"error bars at {COVERAGE:.0%} need {needed} held-out samples, there are {len(held_out)}; make a larger "
            f"`calibration` or test split when the data is imported"
        )
    terms = np.concatenate([_quadratic(channels) for channels, _ in training])
    errors = np.abs(np.concatenate([error for _, error in training]))
    # Logarithms of tiny errors are cut off at a hundredth of the mean: they say little about where errors are large.
    logs = np.log(np.maximum(errors, 0.01 * errors.mean(0) + 1e-30))
    gram = terms.T @ terms / len(terms) + RIDGE * np.eye(terms.shape[1])
    weights = np.linalg.solve(gram, terms.T @ logs / len(terms))
    low, high = np.quantile(terms @ weights, [0.01, 0.99], axis=0)
    scale = ErrorBars(weights, low, high, np.ones(errors.shape[1]))
    ratios = [np.abs(error) / scale.half_widths(channels) for channels, error in held_out]
    quantile = np.array([hierarchical_quantile([r[:, f] for r in ratios], COVERAGE) for f in range(errors.shape[1])])
    return replace(scale, quantile=quantile)


def hierarchical_quantile(scores: Sequence[np.ndarray], level: float) -> float:
    """Return the quantile of scores in which each of K samples has weight 1 / (K + 1) and the rest is at infinity."""
    values = np.concatenate(scores)
    mass = np.concatenate([np.full(len(s), 1 / (len(scores) + 1) / len(s)) for s in scores])
    order = np.argsort(values, kind="stable")
    reached = np.searchsorted(np.cumsum(mass[order]), level * (1 - 1e-12))
    return float(values[order][reached]) if reached < len(values) else float("inf")


def coverage(error_bars: ErrorBars, samples: Sequence[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Return the fraction of points of each sample whose error is within its error bar, shape (samples, F)."""
    return np.array([(np.abs(error) <= error_bars.half_widths(channels)).mean(0) for channels, error in samples])


def _quadratic(channels: np.ndarray) -> np.ndarray:
    """Return 1, every channel, and products of two channels, shape (N, p)."""
    u = np.clip(np.asarray(channels, dtype=np.float64), -6, 6)
    one = np.ones((len(u), 1))
    if u.shape[1] > MANY_CHANNELS:
        return np.concatenate([one, u, u**2], axis=1)
    i, j = np.triu_indices(u.shape[1])
    return np.concatenate([one, u, u[:, i] * u[:, j]], axis=1)

"""Out-of-distribution (OOD) detection by the distance of a sample's latents from those of the training samples.

A FLARE model knows a sample only through the latents of its blocks. The latents of one family of shapes vary along a
few directions only. They are described by a Gaussian with the covariance of the training samples plus ρ in every
direction; ρ maximizes the likelihood of the held-out samples. The Mahalanobis distance

    distance² = Σ over directions of c² / (λ + ρ)  +  |remainder|² / ρ

is divided by that of the farthest held-out sample: a score above 1 is farther than every held-out sample.
"""

# T training samples, K held-out samples, P numbers of a latent vector, k directions

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

MOST_DIRECTIONS = 128
CANDIDATES = 10.0 ** np.arange(-8.0, 1.5, 0.5)
"""Candidates for ρ, relative to the variance of one number; smaller ones are rounding errors."""
TINY = 1e-12


@dataclass(frozen=True)
class OODDetector:
    """A Gaussian model of the latents of the training samples."""

    mean: np.ndarray
    """(P,), mean."""
    spread: np.ndarray
    """(P,), standard deviation of each number."""
    directions: np.ndarray
    """(k, P), orthonormal."""
    variance: np.ndarray
    """(k,), λ: variance of the training samples along each direction."""
    rest: float
    """ρ."""
    distances: np.ndarray
    """(K,), sorted distances of the held-out samples."""

    def distance(self, latents: np.ndarray) -> float:
        """Return the Mahalanobis distance of one latent vector, shape (P,)."""
        along, left = _split((latents[None] - self.mean) / self.spread, self.directions)
        return float(np.sqrt(_squares(along, left, self.variance, self.rest)[0]))

    def score(self, latents: np.ndarray) -> float:
        """Return the distance divided by that of the farthest held-out sample."""
        return self.distance(latents) / float(self.distances[-1])

    def rank(self, latents: np.ndarray) -> int:
        """Return the number of held-out samples that are at least as far."""
        return int((self.distances >= self.distance(latents)).sum())

    def describe(self, rank: int, score: float) -> str:
        """Return one line with the score and its meaning."""
        return f"OOD score {score:.2f} (1: the farthest held-out sample): {self.verdict(rank)}"

    def verdict(self, rank: int) -> str:
        """Return the meaning of a rank. In-distribution samples have rank 0 with probability 1 / (K + 1)."""
        count = len(self.distances)
        if rank == 0:
            return (
                f"WARNING: unlike the training set, farther than all {count} held-out samples; do not trust the "
                "fields, error bars do not hold here"
            )
        others = f"all {count}" if rank == count else f"{rank} of {count}"
        return f"in distribution: closer to the training set than {others} held-out samples"


def fit_ood_detector(training: np.ndarray, held_out: np.ndarray) -> OODDetector:
    """Fit a detector to latent vectors of training samples, (T, P), and of held-out samples, (K, P)."""
    mean, spread = training.mean(0), training.std(0)
    spread = np.maximum(spread, 1e-3 * spread.mean() + TINY)
    _, values, directions = np.linalg.svd((training - mean) / spread, full_matrices=False)
    count = max(1, min(MOST_DIRECTIONS, len(training) - 1))
    directions, variance = directions[:count], values[:count] ** 2 / len(training)
    along, left = _split((held_out - mean) / spread, directions)
    beyond = training.shape[1] - count

    def likelihood(rest: float) -> float:
        volume = np.log(variance + rest).sum() + beyond * np.log(rest)
        return -0.5 * float(volume + _squares(along, left, variance, rest).mean())

    rest = float(max(CANDIDATES, key=likelihood))
    distances = np.sort(np.sqrt(_squares(along, left, variance, rest)))
    return OODDetector(mean, spread, directions.astype(np.float32), variance, rest, np.maximum(distances, TINY))


def _split(white: np.ndarray, directions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return coordinates along the directions, (n, k), and squared lengths of the remainders, (n,)."""
    along = white @ directions.T
    rest = white - along @ directions  # not by Pythagoras, which loses all digits of a small remainder
    return along, (rest**2).sum(1)


def _squares(along: np.ndarray, left: np.ndarray, variance: np.ndarray, rest: float) -> np.ndarray:
    """Return squared Mahalanobis distances, shape (n,)."""
    return (along**2 / (variance + rest)).sum(1) + left / rest

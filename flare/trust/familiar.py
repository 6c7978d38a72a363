"""Is this part like those of the training? The distance of its latent code to the training codes.

A FLARE model knows a sample only through the latents of its blocks. Codes of one family of shapes fill a thin sheet of
all codes: wide along a few directions, next to nothing along the others. A Gaussian with the covariance of the training
codes, plus ρ in every direction, describes that sheet; ρ is the one under which held-out samples are most likely. The
distance is Mahalanobis's,

    distance² = Σ over directions of c² / (λ + ρ)  +  |what is left|² / ρ,

in units of that of the farthest held-out sample: above 1, no held-out sample was as strange.
"""

# T training samples, K held-out samples, P numbers of a code, k directions

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

MOST_DIRECTIONS = 128
CANDIDATES = 10.0 ** np.arange(-8.0, 1.5, 0.5)
"""For ρ, in units of a number's variance; below the first is rounding."""
TINY = 1e-12
FAR = 3.0
"""Score beyond which chance is no explanation."""


@dataclass(frozen=True)
class Familiar:
    mean: np.ndarray
    """(P,)."""
    spread: np.ndarray
    """(P,): deviation of each number of a code."""
    directions: np.ndarray
    """(k, P), orthonormal."""
    variance: np.ndarray
    """(k,): λ, of training codes along each."""
    rest: float
    """ρ."""
    distances: np.ndarray
    """(K,): of the held-out samples, sorted."""

    def distance(self, code: np.ndarray) -> float:
        """Of one code, (P,)."""
        along, left = _split((code[None] - self.mean) / self.spread, self.directions)
        return float(np.sqrt(_squares(along, left, self.variance, self.rest)[0]))

    def score(self, code: np.ndarray) -> float:
        """Distance over that of the farthest held-out sample."""
        return self.distance(code) / float(self.distances[-1])

    def rank(self, code: np.ndarray) -> int:
        """How many held-out samples are at least as far."""
        return int((self.distances >= self.distance(code)).sum())

    def sentence(self, rank: int, score: float) -> str:
        """Score and verdict."""
        return f"familiarity score {score:.2f} (1 is the farthest held-out sample): {self.verdict(rank, score)}"

    def verdict(self, rank: int, score: float | None = None) -> str:
        """What rank and score mean. Of parts like the training's, one in K + 1 is farther than all K held-out ones."""
        count = len(self.distances)
        if rank == 0:
            far = score is not None and score > FAR
            chance = "" if far else f" (one in {count + 1} parts like those of the training gets this warning, too)"
            return (
                f"WARNING: unlike the training set, {'far beyond' if far else 'farther than'} all {count} held-out "
                f"samples; do not trust the fields, and error bars do not hold here{chance}"
            )
        others = f"all {count}" if rank == count else f"{rank} of {count}"
        return f"familiar: nearer to the training set than {others} held-out samples"


def fit_familiar(training: np.ndarray, held_out: np.ndarray) -> Familiar:
    """From codes (T, P) and (K, P)."""
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
    return Familiar(mean, spread, directions.astype(np.float32), variance, rest, np.maximum(distances, TINY))


def _split(white: np.ndarray, directions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Coordinates along the directions, (n, k), and the squared lengths of what is left, (n,)."""
    along = white @ directions.T
    rest = white - along @ directions  # not by Pythagoras, which loses all digits of a small rest
    return along, (rest**2).sum(1)


def _squares(along: np.ndarray, left: np.ndarray, variance: np.ndarray, rest: float) -> np.ndarray:
    """(n,)."""
    return (along**2 / (variance + rest)).sum(1) + left / rest

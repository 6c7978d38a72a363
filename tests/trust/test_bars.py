"""Error bars cover what they promise, for whatever model, and say when they cannot."""

import numpy as np
import pytest

from flare.errors import DataError
from flare.trust.bars import coverage, fewest, fit_bars, hierarchical_quantile


def samples(rng, count, *, points=200, wrong=1.0):
    """Errors that grow with the first channel, and are larger in some samples than in others: points are no samples."""
    found = []
    for _ in range(count):
        channels = rng.normal(size=(points, 3))
        size = np.exp(0.7 * channels[:, :1]) * rng.gamma(4.0, 0.25) * [1.0, 100.0]
        found.append((channels, wrong * size * rng.normal(size=(points, 2))))
    return found


def test_coverage_over_many_draws_is_the_level_and_never_below_it():
    rng = np.random.default_rng(0)
    shares = []
    for _ in range(60):
        bars = fit_bars(samples(rng, 20), samples(rng, 19))
        shares.append(coverage(bars, samples(rng, 20)).mean(0))
    mean, noise = np.mean(shares, 0), np.std(shares, 0) / np.sqrt(len(shares))
    assert (mean > 0.9 - 3 * noise).all()
    assert (mean < 0.9 + 1 / 20 + 3 * noise).all()  # the price of 19 samples is at most 1 / (19 + 1)


def test_bars_are_wide_where_errors_are_large():
    rng = np.random.default_rng(1)
    bars = fit_bars(samples(rng, 40), samples(rng, 40))
    channels = np.zeros((2, 3))
    channels[:, 0] = [-1.5, 1.5]
    narrow, wide = bars.widths(channels)[:, 0]
    assert wide / narrow == pytest.approx(np.exp(0.7 * 3), rel=0.35)


def test_a_model_that_is_better_in_training_gets_no_narrower_bars():
    rng = np.random.default_rng(2)
    held, test = samples(rng, 60), samples(rng, 60)
    flattered = fit_bars([(channels, 0.01 * error) for channels, error in samples(rng, 20)], held)
    assert coverage(flattered, test).mean() == pytest.approx(0.9, abs=0.04)


def test_the_quantile_counts_samples_not_points():
    big, small = np.full(10_000, 1.0), [np.array([float(i)]) for i in range(2, 11)]
    assert hierarchical_quantile([big, *small], 0.9) == 10.0
    assert hierarchical_quantile(small, 0.9) == 10.0
    assert hierarchical_quantile(small[:-1], 0.9) == float("inf")


def test_too_few_samples_are_said():
    rng = np.random.default_rng(3)
    assert fewest(0.9) == 9
    with pytest.raises(DataError, match="error bars at 90% need 9 held-out samples, there are 8"):
        fit_bars(samples(rng, 5), samples(rng, 8))


def test_bars_stay_bounded_far_from_the_data():
    rng = np.random.default_rng(4)
    bars = fit_bars(samples(rng, 20), samples(rng, 20))
    far, near = bars.widths(np.full((1, 3), 1e6)), bars.widths(rng.normal(size=(1000, 3)))
    assert (far <= near.max(0) * 1.5).all()

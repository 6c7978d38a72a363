"""Error bars cover what they promise, for whatever model, and say when they cannot."""

import numpy as np
import pytest

from flare.trust.bars import ENOUGH, coverage, fewest, fit_bars, hierarchical_quantile, wide_bars
from flare.utils.errors import DataError


def samples(rng, count, *, points=200, wrong=1.0):
    """Errors that grow with the first channel, and are larger in some samples than in others: points are no samples."""
    found = []
    for _ in range(count):
        channels = rng.normal(size=(points, 3))
        size = np.exp(0.7 * channels[:, :1]) * rng.gamma(4.0, 0.25) * [1.0, 100.0]
        found.append((channels, wrong * size * rng.normal(size=(points, 2))))
    return found


@pytest.mark.parametrize("held", [9, 12, 19, 49])
def test_coverage_over_many_draws_is_the_level_and_never_below_it(held):
    rng = np.random.default_rng(0)
    shares = []
    for _ in range(60):
        bars = fit_bars(samples(rng, 20), samples(rng, held))
        shares.append(coverage(bars, samples(rng, 20)).mean(0))
    mean, noise = np.mean(shares, 0), np.std(shares, 0) / np.sqrt(len(shares))
    assert (mean > 0.9 - 3 * noise).all()
    assert (mean < 0.9 + 1 / (held + 1) + 3 * noise).all()  # the price of 19 samples is at most 1 / (19 + 1)
    assert (mean > 0.9 + 0.6 / (held + 1)).all()  # and hardly less, as the page says


def test_with_the_fewest_samples_a_bar_is_the_largest_error_and_that_is_said():
    rng = np.random.default_rng(5)
    held = samples(rng, 9)
    bars = fit_bars(samples(rng, 20), held)
    assert coverage(bars, held).min() == 1
    said = "bars of 9 held-out samples, as wide as the largest error seen, cover up to 100% instead of 90%; of 19, up"
    assert wide_bars(9) == f"{said} to 95%"
    assert wide_bars(12) == "bars of 12 held-out samples cover up to 98% instead of 90%; of 19, up to 95%"
    assert wide_bars(ENOUGH) == ""


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

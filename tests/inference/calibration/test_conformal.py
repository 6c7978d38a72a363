"""Conformal error bars: coverage, width, and the smallest number of samples."""

import numpy as np
import pytest

from flare.data.splits import ENOUGH_SAMPLES, few_samples_note, fewest_calibration_samples
from flare.inference.calibration.conformal import coverage, fit_error_bars, hierarchical_quantile
from flare.utils.errors import DataError


def samples(rng, count, *, points=200):
    """Return errors that grow with the first channel and differ between samples, so that points are correlated."""
    found = []
    for _ in range(count):
        channels = rng.normal(size=(points, 3))
        size = np.exp(0.7 * channels[:, :1]) * rng.gamma(4.0, 0.25) * [1.0, 100.0]
        found.append((channels, size * rng.normal(size=(points, 2))))
    return found


@pytest.mark.parametrize("held_out", [9, 19])
def test_mean_coverage_is_between_the_level_and_its_upper_bound(held_out):
    rng = np.random.default_rng(0)
    shares = []
    for _ in range(60):
        error_bars = fit_error_bars(samples(rng, 20), samples(rng, held_out))
        shares.append(coverage(error_bars, samples(rng, 20)).mean(0))
    mean, noise = np.mean(shares, 0), np.std(shares, 0) / np.sqrt(len(shares))
    assert (mean > 0.9 - 3 * noise).all()
    assert (mean < 0.9 + 1 / (held_out + 1) + 3 * noise).all()
    assert (mean > 0.9 + 0.6 / (held_out + 1)).all()


def test_with_the_fewest_samples_an_error_bar_is_the_largest_error():
    rng = np.random.default_rng(5)
    held_out = samples(rng, 9)
    assert coverage(fit_error_bars(samples(rng, 20), held_out), held_out).min() == 1
    assert "100%" in few_samples_note(9)
    assert "98%" in few_samples_note(12)
    assert few_samples_note(ENOUGH_SAMPLES) == ""


def test_error_bars_are_wide_where_errors_are_large_and_bounded_far_from_the_data():
    rng = np.random.default_rng(1)
    error_bars = fit_error_bars(samples(rng, 40), samples(rng, 40))
    narrow, wide = error_bars.half_widths(np.array([[-1.5, 0, 0], [1.5, 0, 0]]))[:, 0]
    assert wide / narrow == pytest.approx(np.exp(0.7 * 3), rel=0.35)
    far, near = error_bars.half_widths(np.full((1, 3), 1e6)), error_bars.half_widths(rng.normal(size=(1000, 3)))
    assert (far <= near.max(0) * 1.5).all()


def test_overfitting_the_training_samples_does_not_narrow_error_bars():
    rng = np.random.default_rng(2)
    held_out, test = samples(rng, 60), samples(rng, 60)
    overfitted = fit_error_bars([(channels, 0.01 * error) for channels, error in samples(rng, 20)], held_out)
    assert coverage(overfitted, test).mean() == pytest.approx(0.9, abs=0.04)


def test_the_quantile_weighs_samples_not_points():
    big, small = np.full(10_000, 1.0), [np.array([float(i)]) for i in range(2, 11)]
    assert hierarchical_quantile([big, *small], 0.9) == 10.0
    assert hierarchical_quantile(small, 0.9) == 10.0
    assert hierarchical_quantile(small[:-1], 0.9) == float("inf")


def test_too_few_samples_are_refused():
    rng = np.random.default_rng(3)
    assert fewest_calibration_samples(0.9) == 9
    with pytest.raises(DataError, match=r"\b9\b.*\b8\b"):
        fit_error_bars(samples(rng, 5), samples(rng, 8))

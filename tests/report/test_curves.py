"""Training curves and error histograms show the numbers they were given."""

import numpy as np
import pytest

from flare.report.curves import error_histogram, loss_curves


def train(step, loss, lr=1e-3):
    return {"kind": "train", "step": step, "epoch": 0, "loss": loss, "lr": lr, "grad_norm": 1.0, "seconds": 1.0}


def evaluate(step, error, split="test", **more):
    return {"kind": "evaluate", "step": step, "epoch": 0, "split": split, "rel_l2": error, "seconds": 1.0, **more}


def lines(figure):
    figure.draw_without_rendering()
    return {line.get_label(): line.get_xydata().tolist() for line in figure.axes[0].lines}


RECORDS = [
    {"kind": "start", "step": 0},
    train(20, 0.3, 1e-4),
    evaluate(30, 0.4, rel_l2_ema=0.5),
    train(40, 0.2, 2e-4),
    evaluate(40, 0.01, split="train"),
    evaluate(60, 0.3, rel_l2_ema=0.35),
]


def test_curves_are_the_records():
    figure = loss_curves(RECORDS)
    assert lines(figure) == {
        "training loss": [[20, 0.3], [40, 0.2]],
        "test: relative L2": [[30, 0.4], [60, 0.3]],
        "test: relative L2, averaged weights": [[30, 0.5], [60, 0.35]],
        "train: relative L2": [[40, 0.01]],
    }
    upper, lower = figure.axes
    assert upper.get_yscale() == "log"
    assert lower.lines[0].get_xydata().tolist() == [[20, 1e-4], [40, 2e-4]]
    assert lower.get_xlim() == upper.get_xlim()
    assert lower.get_position().height < 0.5 * upper.get_position().height


def test_steps_run_again_after_a_resume_count_once():
    assert lines(loss_curves([train(20, 9.0), train(40, 9.0), train(20, 0.5), train(40, 0.4)]))["training loss"] == [
        [20, 0.5],
        [40, 0.4],
    ]


@pytest.mark.parametrize(
    "records",
    [
        [train(1, 0.5)],
        [train(1, 0.5), train(2, 0.4)],
        [evaluate(1, 0.5)],
        [train(1, 0.0)],
        [train(1, float("nan")), train(2, 0.1)],
        [train(1, float("nan"))],
        [train(1, 0.5, lr=None)],
        [train(i, 10.0**-i) for i in range(1, 7)],
        [train(i, 0.5 + 0.01 * i) for i in range(1, 7)],
    ],
)
def test_short_and_odd_runs_are_drawn(records):
    figure = loss_curves(records)
    kinds = {record["kind"] for record in records}
    drawn = lines(figure)
    assert "training loss" in drawn
    assert ("test: relative L2" in drawn) == ("evaluate" in kinds)


def test_a_run_of_one_record_shows_a_dot():
    assert loss_curves([train(1, 0.5)]).axes[0].lines[0].get_marker() == "o"


def histogram(errors, baseline=None):
    figure = error_histogram(errors, baseline)
    figure.draw_without_rendering()
    return figure.axes[0]


def test_the_histogram_counts_every_sample_and_marks_median_mean_and_baseline():
    errors = np.random.default_rng(0).lognormal(-4, 0.3, 200)
    axes = histogram(errors, baseline=0.4)
    assert sum(bar.get_height() for bar in axes.patches) == 200
    marks = [line.get_xdata()[0] for line in axes.lines]
    assert marks == pytest.approx([sorted(errors)[100], errors.mean(), 0.4])
    assert [line.get_label().rsplit(" ", 1)[0] for line in axes.lines] == ["median", "mean", "mean-field baseline"]


@pytest.mark.parametrize(
    ("errors", "baseline", "scale"),
    [
        ([0.01, 0.02, 0.05], None, "linear"),
        ([0.01, 0.02, 0.5], None, "log"),
        ([0.01, 0.02, 0.05], 0.4, "log"),
        ([0.0, 0.02, 0.5], None, "linear"),
    ],
)
def test_the_axis_is_logarithmic_beyond_a_decade(errors, baseline, scale):
    axes = histogram(errors, baseline)
    assert axes.get_xscale() == scale
    assert sum(bar.get_height() for bar in axes.patches) == 3


@pytest.mark.parametrize("errors", [[0.1], [0.1, 0.1], [0.0]])
def test_equal_errors_are_drawn(errors):
    bars = histogram(errors, 1.0).patches
    assert sum(bar.get_height() for bar in bars) == len(errors)
    assert min(bar.get_width() for bar in bars) > 0

"""Truth, prediction, error: the promises of a picture that does not flatter."""

import numpy as np
import pytest

from flare.report.triptych import triptych

POINTS = np.stack(np.meshgrid(np.linspace(0, 1, 6), np.linspace(0, 1, 7), indexing="ij"), -1).reshape(-1, 2)
TRUTH = np.sin(3 * POINTS[:, 0]) + POINTS[:, 1]


def of_one(truth, prediction, points=POINTS, **options):
    """The triptych of a field with one component."""
    columns = (np.asarray(values)[:, None] for values in (truth, prediction))
    return triptych(points, *columns, names=["pressure"], units=["Pa"], **options)


def fields(figure):
    """The colored artist of each panel, [rows, 3]."""
    figure.draw_without_rendering()
    return np.array([axes.collections[0] for axes in figure.axes], dtype=object).reshape(-1, 3)


@pytest.mark.parametrize("options", [{}, {"grid": (6, 7)}, {"cells": [[0, 1, 7], [1, 8, 7]]}], ids=str)
@pytest.mark.parametrize("prediction", [TRUTH + 0.5, 3 * TRUTH, 0 * TRUTH, -TRUTH], ids=["+", "3x", "0", "-"])
def test_colors_come_from_the_truth_and_the_error_is_about_zero(options, prediction):
    ((truth, guess, error),) = fields(of_one(TRUTH, prediction, **options))
    assert truth.get_clim() == guess.get_clim() == (TRUTH.min(), TRUTH.max())
    low, high = error.get_clim()
    assert low == -high
    assert high == pytest.approx(np.abs(prediction - TRUTH).max())
    assert truth.get_cmap() == guess.get_cmap() != error.get_cmap()
    for artist, values in ((truth, TRUTH), (guess, prediction), (error, prediction - TRUTH)):
        np.testing.assert_allclose(np.ravel(artist.get_array()), values)


def test_a_perfect_prediction_has_an_error_of_zero_in_the_middle_of_its_colors():
    ((_, _, error),) = fields(of_one(TRUTH, TRUTH))
    low, high = error.get_clim()
    assert low == -high < 0


def test_vectors_have_a_row_for_each_component_with_its_own_range():
    truth = np.stack([TRUTH, 100 * TRUTH], 1)
    figure = triptych(POINTS, truth, 1.1 * truth, names=["u", "v"], units=["m/s"] * 2, grid=(6, 7))
    rows = fields(figure)
    assert rows.shape == (2, 3)
    assert rows[0, 0].get_clim() == rows[0, 1].get_clim() == (TRUTH.min(), TRUTH.max())
    assert rows[1, 0].get_clim() == rows[1, 1].get_clim() == (100 * TRUTH.min(), 100 * TRUTH.max())
    labels = [[field.colorbar.ax.get_ylabel() for field in row[1:]] for row in rows]
    assert labels == [["u [m/s]", "error of u [m/s]"], ["v [m/s]", "error of v [m/s]"]]
    assert "relative L2 error 0.1" in figure.get_suptitle()


@pytest.mark.parametrize(
    ("title", "truth", "text"),
    [
        ("Median sample", TRUTH, "Median sample · relative L2 error 0.25"),
        ("", TRUTH, "relative L2 error 0.25"),
        ("", 0 * TRUTH, "relative L2 error undefined: the truth is zero"),
    ],
)
def test_the_error_of_the_sample_is_printed(title, truth, text):
    figure = of_one(truth, truth + 0.25 * np.linalg.norm(truth) / 42**0.5, title=title)
    assert figure.get_suptitle() == text


def test_points_in_space():
    points = np.concatenate([POINTS, TRUTH[:, None]], 1)
    ((truth, guess, _),) = fields(of_one(TRUTH, 2 * TRUTH, points))
    assert truth.get_clim() == guess.get_clim() == (TRUTH.min(), TRUTH.max())
    assert truth.axes.name == "3d"


@pytest.mark.parametrize("extent", [(1, 1), (10, 1), (1, 3)])
def test_panels_have_one_size_and_color_bars_their_height(extent):
    rows = fields(of_one(TRUTH, TRUTH + 0.1, POINTS * extent, grid=(6, 7)))
    boxes = [field.axes.get_window_extent() for field in rows[0]]
    for box in boxes:
        assert (box.width, box.y0, box.y1) == pytest.approx((boxes[0].width, boxes[0].y0, boxes[0].y1), abs=1)
        assert box.height / box.width == pytest.approx(boxes[0].height / boxes[0].width)
    error_bar = rows[0, 2].colorbar.ax.get_window_extent()
    assert (error_bar.y0, error_bar.y1) == pytest.approx((boxes[2].y0, boxes[2].y1), abs=1)


def test_a_prediction_with_nan_is_drawn_with_the_truths_colors():
    prediction = TRUTH.copy()
    prediction[3] = np.nan
    ((truth, guess, error),) = fields(of_one(TRUTH, prediction, grid=(6, 7)))
    assert truth.get_clim() == guess.get_clim()
    assert np.isfinite(error.get_clim()).all()

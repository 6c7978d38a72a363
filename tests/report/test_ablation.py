"""Curves of errors can be read: numbers at the axis, the paper's single point, and what the mean field has."""

import matplotlib.colors
import pytest

from flare.experiments.learning import learning_curves
from flare.experiments.ledger import Record
from flare.report import ablation
from flare.report.ablation import Series, error_curves
from flare.report.million import million_figure


def line(*errors, paper=()):
    count = len(errors)
    return Series(list(range(1, count + 1)), list(errors), [0.0] * count, [*paper, *[None] * (count - len(paper))])


def ticks(axes):
    """Labels that are seen."""
    axes.figure.draw_without_rendering()
    low, high = axes.get_ylim()
    labels = [t.get_text() for t in axes.get_yticklabels(which="both")]
    places = [*axes.get_yticks(), *axes.get_yticks(minor=True)]
    return [text for text, y in zip(labels, places, strict=True) if text and low <= y <= high]


@pytest.mark.parametrize("errors", [(0.31, 0.39), (0.101, 0.128), (0.9, 1.1), (0.055, 0.089), (0.11, 0.8), (0.02, 0.9)])
def test_a_short_axis_has_three_plain_numbers_at_least(errors):
    shown = ticks(error_curves({"a": line(*errors)}, axis="epoch").axes[0])
    assert 3 <= len(shown) <= 10
    assert all(f"{float(text):g}" == text for text in shown)


def test_a_single_point_of_the_paper_has_a_mark():
    axes = error_curves({"a": line(0.3, 0.2, paper=[0.1])}, axis="depth").axes[0]
    (paper,) = [drawn for drawn in axes.lines if drawn.get_label() == "a, paper"]
    assert paper.get_xydata().tolist() == [[1, 0.1]]
    assert paper.get_marker() == "o"
    assert matplotlib.colors.to_hex(paper.get_markerfacecolor()) == "#ffffff", "ours is full"


def test_only_several_seeds_have_bars():
    single = error_curves({"a": line(0.3, 0.2)}, axis="depth").axes[0]
    assert not single.containers
    assert [one.get_label() for one in single.lines] == ["a"]
    of_one = line(0.3, 0.2)
    of_one.spread = [0.0, 0.01]
    (bars,) = error_curves({"a": of_one}, axis="depth").axes[0].containers
    (segments,) = [part.get_segments() for part in bars.lines[2]]
    assert sum(len(segment) == 2 and bool((segment == segment).all()) for segment in segments) == 1


def test_learning_curves_have_the_mean_field_where_a_record_has_it(monkeypatch):
    drawn = []
    monkeypatch.setattr("flare.experiments.learning.png", lambda figure: drawn.append(figure) or b"")
    curve = [(epoch, 1 / epoch) for epoch in (1, 2, 3, 4)]
    young = Record("unfinished", {"curve": curve, "epochs": 9})
    done = Record("done", {"curve": curve, "rel_l2_mean_field": 0.3})
    (picture,) = learning_curves("a", "Errors.", {"young": young, "done": done})
    assert picture.caption == "Errors. Dashed: the mean field of the training samples."
    (level,) = [one for one in drawn[0].axes[0].lines if one.get_label() == "mean field"]
    assert set(level.get_ydata()) == {0.3}
    assert level.get_linestyle() == "--"
    assert level.get_color() == ablation.GREY
    (picture,) = learning_curves("a", "Errors.", {"young": young})
    assert picture.caption == "Errors."
    assert learning_curves("a", "Errors.", {}) == []


def test_a_million_points_have_plain_numbers_at_their_axes():
    rows = [
        {"blocks": b, "latents": 4, "rel_l2": 0.3 + 0.06 / b, "seconds": 3.0 * b, "peak_mb": 2000.0 * b} for b in (1, 2)
    ]
    for axes in million_figure({"rows": rows}).axes:
        assert len(ticks(axes)) >= 3
        assert all("10^" not in text for text in ticks(axes))

"""Figures of results: readable axes, a panel for the paper, error bars, one look per model."""

import math

import matplotlib.colors
import pytest

from flare.report.style import GREY, MODELS, look_of_model
from flare.reproduce import figures
from flare.reproduce.budgets import BUDGETS
from flare.reproduce.figures import Series, error_curves, learning_curves, million_figure
from flare.reproduce.items.table1 import PAPER
from flare.reproduce.ledger import Ledger, Record
from flare.reproduce.registry import find_item
from flare.reproduce.study import outcomes


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
def test_a_short_axis_has_at_least_three_plain_numbers(errors):
    shown = ticks(error_curves({"a": line(*errors)}, axis="epoch").axes[0])
    assert 3 <= len(shown) <= 10
    assert all(f"{float(text):g}" == text for text in shown)


def test_the_papers_errors_have_their_own_panel_and_a_single_point_a_marker():
    ours, theirs = error_curves({"a": line(0.3, 0.2, paper=[0.01])}, axis="depth").axes
    assert (ours.get_title(), theirs.get_title()) == ("ours", "the paper's")
    (paper,) = theirs.lines
    assert paper.get_xydata().tolist() == [[1, 0.01]]
    assert paper.get_marker() == "o"
    assert ours.get_ylim()[0] > 0.1, "not flattened by what is far below"
    assert ours.get_xlim() == theirs.get_xlim()
    assert len(error_curves({"a": line(0.3, 0.2)}, axis="depth").axes) == 1


def test_the_papers_number_is_drawn_where_ours_is_missing():
    gap = Series([1, 2, 4], [0.3, math.nan, 0.2], [0.01, 0.0, 0.02], [0.03, 0.02, 0.01])
    ours, theirs = error_curves({"a": gap}, axis="depth").axes
    assert ours.lines[0].get_xydata().tolist() == [[1, 0.3], [4, 0.2]]
    assert theirs.lines[0].get_xydata().tolist() == [[1, 0.03], [2, 0.02], [4, 0.01]]


def test_an_ablation_draws_all_of_the_papers_points(monkeypatch, tmp_path):
    drawn = {}
    monkeypatch.setattr(figures, "png", lambda figure: b"")
    monkeypatch.setattr(figures, "error_curves", lambda lines, **how: drawn.update(lines))
    item, ledger = find_item("kv-depth"), Ledger(tmp_path)
    cells = item.cells(BUDGETS["cpu"])
    for cell in cells[:2]:
        ledger.write(cell.job, Record("done", {"rel_l2": 0.1}))
    item.report(outcomes(ledger, cells), BUDGETS["cpu"])
    (line,) = drawn.values()
    assert line.paper == [cell.paper for cell in cells]
    assert [error for error in line.y if not math.isnan(error)] == [0.1, 0.1]


def test_coinciding_curves_are_all_visible():
    drawn = error_curves({name: line(0.3, 0.2) for name in "abc"}, axis="depth").axes[0].lines
    assert len({curve.get_marker() for curve in drawn}) == 3
    assert len({matplotlib.colors.to_hex(curve.get_color()) for curve in drawn}) == 3
    for size in ("linewidth", "markersize"):
        sizes = [getattr(curve, f"get_{size}")() for curve in drawn]
        assert sizes == sorted(set(sizes), reverse=True), "the later ones leave a rim of the earlier"


def test_error_bars_are_drawn_only_where_there_is_a_spread():
    spread = Series([1, 2], [0.3, 0.2], [0.01, 0.02], [None, None])
    axes = error_curves({"one seed": line(0.3, 0.2), "three": spread}, axis="depth").axes[0]
    assert [bars.get_label() for bars in axes.containers] == ["three"]


def test_a_model_has_one_look_in_every_picture(monkeypatch):
    drawn = []
    monkeypatch.setattr("flare.reproduce.figures.png", lambda figure: drawn.append(figure) or b"")
    record = Record("done", {"curve": [(epoch, 1 / epoch) for epoch in (1, 2, 3, 4)]})
    for labels in (["transformer", "lno", "flare"], ["gnot", "FLARE"]):
        learning_curves("a", "Errors.", dict.fromkeys(labels, record))
    looks = [{one.get_label(): (one.get_color(), one.get_marker()) for one in f.axes[0].lines} for f in drawn]
    assert looks[0]["flare"] == looks[1]["FLARE"]
    assert set(MODELS) == set(PAPER), "each model of Table 1 has one"
    assert len({look.color for look in MODELS.values()}) == len({look.marker for look in MODELS.values()}) == 7
    variant = look_of_model("perceiver-self")
    assert variant.color == MODELS["perceiver"].color
    assert variant.marker not in {look.marker for look in MODELS.values()}
    assert look_of_model("transolver-conv-odd").color == MODELS["transolver-conv"].color
    assert look_of_model("mine").color == GREY


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
    monkeypatch.setattr("flare.reproduce.figures.png", lambda figure: drawn.append(figure) or b"")
    curve = [(epoch, 1 / epoch) for epoch in (1, 2, 3, 4)]
    young = Record("unfinished", {"curve": curve, "epochs": 9})
    done = Record("done", {"curve": curve, "rel_l2_mean_field": 0.3})
    learning_curves("a", "Errors.", {"young": young, "done": done})
    (level,) = [one for one in drawn[0].axes[0].lines if one.get_label() == "mean field"]
    assert set(level.get_ydata()) == {0.3}
    assert level.get_linestyle() == "--"
    assert level.get_color() == GREY
    assert learning_curves("a", "Errors.", {}) == []


def test_axes_of_a_million_points_have_plain_numbers():
    rows = [
        {"blocks": b, "latents": 4, "rel_l2": 0.3 + 0.06 / b, "seconds": 3.0 * b, "peak_mb": 2000.0 * b} for b in (1, 2)
    ]
    for axes in million_figure({"rows": rows}).axes:
        assert len(ticks(axes)) >= 3
        assert all("10^" not in text for text in ticks(axes))

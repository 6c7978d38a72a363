"""The scaling studies measure sizes within their limits, extrapolate the others, and do nothing twice."""

import json

import pytest

from flare.reproduce.budgets import BUDGETS
from flare.reproduce.figures import scaling_figure
from flare.reproduce.items import million, scaling
from flare.reproduce.items.layer_costs import SIZES, WARM_UP, measure_layer, summary, with_known_memory
from flare.reproduce.items.scaling import papers_table
from flare.reproduce.ledger import address
from flare.reproduce.registry import find_item
from flare.train.profiling import Usage
from tests.reproduce.items.test_layer_costs import lawful


def made_up(names, points, slow=()):
    """A record of lawful rows; of `slow`, no more than 100,000 points."""
    rows = [lawful(name, n) for name in names for n in points if name not in slow or n <= 100_000]
    about = {"rows": rows, "threads": 1, "precision": "32", "limit_seconds": 60, "limit_gb": 1, "sizes": SIZES}
    return about | summary(rows, names=names, largest=1_000_000)


def test_factors_that_rest_on_extrapolation_are_in_italics_beside_the_measured_ones():
    names, points = ["softmax", "flare 128"], (10_000, 100_000, 1_000_000)
    whole, record = made_up(names, points), made_up(names, points, slow=["softmax"])
    titles = [scaling_figure(made).legends[0].get_title().get_text() for made in (whole, record)]
    assert titles == ["", "dashed: extrapolated"]
    assert scaling.scaling_table(whole).rows[1][-3:] == ["8,865×", "8,865×", "1,000,000"]
    softmax, flare = scaling.scaling_table(record).rows
    assert flare[3] == "1,000,000"
    assert flare[-3:] == ["*8,865×*", "887×", "100,000"]
    assert (softmax[3], softmax[-3]) == ("100,000", "1×")
    assert scaling.scaling_table(record, {"paper": {"flare 128": "255×"}}).rows[1][-1] == "255×"


def test_factors_of_the_paper_are_those_of_its_times():
    softmax = scaling.PAPER["softmax"][0][-1]
    for layer, factor in scaling.FACTORS.items():
        assert int(factor.rstrip("×")) == pytest.approx(softmax / scaling.PAPER[layer][0][-1], rel=0.01)


def test_the_backend_of_flare_is_a_setting():
    record = made_up(["softmax", "flare 128"], (10_000, 100_000))
    assert scaling._settings(record)["mixer backend of FLARE"] == "auto"
    rows = [row | {"mixer": "native"} for row in record["rows"] if row["layer"] != "softmax"]
    assert scaling._settings(record | {"rows": rows})["mixer backend of FLARE"] == "native"


def test_factors_have_three_digits():
    assert [scaling._factor(ratio) for ratio in (0.5491, 75.19, 1620.9)] == ["0.549×", "75.2×", "1,621×"]


def test_memory_that_the_warm_up_has_already_fetched_is_not_shown():
    names, points = ["softmax", "flare 128"], (1_000, 10_000, 1_000_000)
    record = made_up(names, points)
    shown = with_known_memory(record["rows"])
    assert {row["points"] for row in shown if row["peak_mb"] is None} == {1_000}
    lines = {row[:2]: row[2:4] for row in papers_table(record).rows}
    assert lines["flare 128", "1,000"] == ("1.13", "")
    assert lines["flare 128", "1,000,000"][1] == "1.05"
    seconds, memory = scaling_figure(record | {"rows": shown}).axes
    assert [min(panel.lines[0].get_xdata()) for panel in (seconds, memory)] == [1_000, 10_000]
    newer = [row | {"warm_up": WARM_UP} for row in record["rows"]]
    assert with_known_memory(newer) == newer
    assert measure_layer("flare 4", 64)["warm_up"] < 64


def test_the_papers_float32_study_is_another_job_that_leaves_the_usual_one_where_it_was():
    usual, _, other, by_pytorch = find_item("scaling").cells(BUDGETS["cpu"])
    assert [address(cell.job) for cell in (usual, other)] == ["03673595b3ff4bf7", "e2e6f8a81b0a2812"]
    assert (usual.extra, other.extra, by_pytorch.extra) == (False, True, True)
    assert by_pytorch.job.settings == other.job.settings | {"backend": "sdpa", "limit_seconds": 20.0}
    (papers, _) = find_item("scaling").cells(BUDGETS["paper"])
    for key in ("points", "latents", "sizes", "precision"):
        assert other.job.settings[key] == papers.job.settings[key]


def test_sizes_over_the_limit_are_extrapolated(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(
        scaling, "run_isolated", lambda function, name, n, *how: seen.append((name, n)) or lawful(name, n)
    )
    points = (1000, 10_000, 100_000, 1_000_000)
    how = {"points": points, "latents": (128,), "limit_seconds": 60.0, "limit_gb": 0.5}
    record = scaling.run(tmp_path, **how)
    assert ("softmax", 10_000) in seen
    assert ("softmax", 100_000) not in seen, "it would take 100 s"
    assert ("flare 128", 100_000) in seen
    assert ("flare 128", 1_000_000) not in seen, "it would take 1 GB"
    softmax = scaling.scaling_table(record).rows[0]
    assert softmax[:6] == ["softmax", "2.00", "–", "10,000", "*1e+04*", "–"]
    seen.clear()
    assert scaling.run(tmp_path, **how)["rows"] == record["rows"]
    assert seen == []


@pytest.fixture
def at_144_points(monkeypatch, tmp_path):
    """The study of tiny flows in this process, by the arguments of its run."""
    monkeypatch.setattr(million, "run_isolated", lambda function, *arguments: function(*arguments))

    def study(**how):
        return million.run(tmp_path, points=144, steps=8, **how)

    return study


def test_blocks_by_latents_are_trained_once(at_144_points, tmp_path, monkeypatch):
    record = at_144_points(blocks=(1, 2), latents=(4, 8))
    rows = record["rows"]
    assert [(row["blocks"], row["latents"]) for row in rows] == [(1, 4), (1, 8), (2, 4), (2, 8)]
    result = json.loads((tmp_path / "runs" / "blocks-2-latents-8" / "result.json").read_text())
    assert (rows[-1]["rel_l2"], rows[-1]["parameters"]) == (result["rel_l2"], result["parameters"])
    assert result["steps"] == 8
    assert record["fingerprint"] == million.Dataset(tmp_path / "data").fingerprint
    monkeypatch.setattr("flare.train.run.start", None)
    assert at_144_points(blocks=(1, 2), latents=(4, 8)) == record


def test_runs_on_fewer_points_are_evaluated_on_all_and_cost_a_step_on_all(at_144_points, monkeypatch):
    measured = []
    monkeypatch.setattr(million, "measure", lambda setting: measured.append(setting) or Usage(321.0, 6.5))
    (row,) = at_144_points(blocks=(1,), latents=(4,), subsample=50)["rows"]
    assert (row["seconds"], row["peak_mb"]) == (6.5, 321.0)
    assert [(setting.points, setting.size("blocks"), setting.size("latents")) for setting in measured] == [(144, 1, 4)]


def test_a_training_over_the_limit_is_skipped(at_144_points):
    record = at_144_points(blocks=(1,), latents=(4, 8), limit_seconds=1e-9)
    assert [(row["blocks"], row["latents"]) for row in record["rows"]] == [(1, 4)]
    assert [(row["blocks"], row["latents"]) for row in record["left_out"]] == [(1, 8)]


def test_rows_stand_beside_the_papers_and_settings_differ(tmp_path):
    (cell,) = find_item("million").cells(BUDGETS["cpu"])
    row = {"blocks": 8, "latents": 512, "parameters": 5, "seconds": 2.0, "peak_mb": 9483.0}
    about = {"data": "darcy", "points": 1_000_000, "left_out": [], "limit_seconds": 3600.0}
    about |= {"precision": "32", "constants": False, "rows": [row | {"rel_l2": 0.5, "mean_field": 0.6}]}
    record = {**cell.job.settings, **about}
    ours = ["8", "512", "5", "2.00", "9.94", "0.5000", "0.6000"]
    assert million.million_table(record, paper=True).rows == [[*ours, "0.56", "33.7"]]
    assert million.million_table(record).rows == [ours]
    settings = {name: (here, paper) for name, here, paper in million._setting_rows(record)}
    assert settings["samples (train + test)"] == ("8 + 2", "387 + 97")
    assert settings["training steps"] == ("160", "193,500")
    same = {"data": "drivaerml", "samples": [387, 97], "steps": 193_500, "subsample": None, "precision": "16"}
    exact = million.million_table(record | same | {"constants": True}, paper=True)
    assert exact.rows[0][-1] == "0.0060"

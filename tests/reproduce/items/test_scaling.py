"""The scaling studies measure sizes within their limits, extrapolate the others, and do nothing twice."""

import json
from pathlib import Path

import numpy as np
import pytest

from flare.cli import main
from flare.reproduce.budgets import BUDGETS
from flare.reproduce.figures import scaling_figure
from flare.reproduce.items import million, scaling
from flare.reproduce.items.layer_costs import WARM_UP, measure_layer, summary, with_known_memory
from flare.reproduce.items.scaling import papers_table, table
from flare.reproduce.ledger import address
from flare.reproduce.registry import find_item
from flare.train.profiling import Usage
from tests.reproduce.items.test_layer_costs import lawful

KEPT = Path(__file__).parents[3] / "benchmarks" / "results"


def call(function, *arguments):
    return function(*arguments)


def made_up(names, points, slow=()):
    """A record of lawful rows; of `slow`, no more than 100,000 points."""
    rows = [lawful(name, n, 1) for name in names for n in points if name not in slow or n <= 100_000]
    about = {"rows": rows, "threads": 1, "precision": "32", "limit_seconds": 60, "limit_gb": 1}
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
    assert scaling.scaling_table(record, {"flare 128": "255×"}).rows[1][-1] == "255×"


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
    assert measure_layer("flare 4", 64, 1)["warm_up"] < 64


def test_the_papers_float32_study_is_another_job_that_leaves_the_usual_one_where_it_was():
    usual, _, other, by_pytorch = find_item("scaling").cells(BUDGETS["cpu"])
    assert [address(cell.job) for cell in (usual, other)] == ["03673595b3ff4bf7", "e2e6f8a81b0a2812"]
    assert (usual.extra, other.extra, by_pytorch.extra) == (False, True, True)
    assert by_pytorch.job.settings == other.job.settings | {"backend": "sdpa", "limit_seconds": 20.0}
    (papers, _) = find_item("scaling").cells(BUDGETS["paper"])
    for key in ("points", "latents", "sizes", "precision"):
        assert other.job.settings[key] == papers.job.settings[key]


def test_what_is_over_the_limit_is_extrapolated_and_nothing_is_measured_twice(tmp_path, monkeypatch, capsys):
    seen = []

    def measured(function, *arguments):
        seen.append(arguments[:2])
        return lawful(*arguments)

    monkeypatch.setattr(scaling, "run_isolated", measured)
    command = ["experiment", "scaling", "--out", str(tmp_path), "--points", "1000,10000,100000,1000000"]
    command += ["--latents", "128", "--limit", "60", "--memory", "0.5"]
    assert main(command) == 0
    told = capsys.readouterr().out
    assert ("softmax", 10_000) in seen
    assert ("softmax", 100_000) not in seen, "it would take 100 s"
    assert ("flare 128", 100_000) in seen
    assert ("flare 128", 1_000_000) not in seen, "it would take 1 GB"
    assert "*1e+04*" in told
    assert "| softmax | 2.00 | – | 10,000 |" in told
    record = json.loads((tmp_path / "scaling.json").read_text())
    assert table(record) == told
    assert (tmp_path / "scaling.png").stat().st_size > 10_000
    seen.clear()
    assert main(command) == 0
    assert seen == []
    assert main([*command, "--latents", "many"]) == 2
    seen.clear()
    assert main([*command, "--points", "1000,10000"]) == 0
    assert seen == []
    smaller = json.loads((tmp_path / "scaling.json").read_text())
    assert smaller["rows"] == record["rows"], "rows of other sizes stay"
    assert smaller["layers"]["flare 128"]["seconds_at_largest"] == lawful("flare 128", 10_000, 1)["seconds"]
    assert main([*command, "--threads", "2", "--points", "1000"]) == 0
    assert len(json.loads((tmp_path / "scaling.json").read_text())["rows"]) == len(record["rows"]) + 3
    assert main([*command, "--precision", "bf16", "--points", "1000"]) == 0
    assert "| precision | bf16 |" in (tmp_path / "scaling.md").read_text()
    assert len(json.loads((tmp_path / "scaling.json").read_text())["rows"]) == len(record["rows"]) + 6
    assert main(command) == 0
    assert json.loads((tmp_path / "scaling.json").read_text())["layers"] == record["layers"], "nothing is lost"


def test_blocks_by_latents_are_trained_once_and_told(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(million, "run_isolated", call)
    command = [
        "experiment",
        "million",
        "--out",
        str(tmp_path),
        "--points",
        "144",
        "--blocks",
        "1,2",
        "--latents",
        "4,8",
    ]
    command += ["--steps", "8", "--workers", "1"]
    assert main(command) == 0
    told = capsys.readouterr().out
    rows = json.loads((tmp_path / "million.json").read_text())["rows"]
    assert [(row["blocks"], row["latents"]) for row in rows] == [(1, 4), (1, 8), (2, 4), (2, 8)]
    result = json.loads((tmp_path / "runs" / "blocks-2-latents-8" / "result.json").read_text())
    assert rows[-1]["rel_l2"] == result["rel_l2"]
    assert result["steps"] == 8
    assert f"| 2 | 8 | {result['parameters']:,} |" in told
    assert (tmp_path / "million.png").stat().st_size > 10_000
    monkeypatch.setattr("flare.train.run.start", None)
    assert main(command) == 0
    assert capsys.readouterr().out == told
    assert main([*command, "--steps", "9"]) == 2
    capsys.readouterr()
    moved = tmp_path.rename(tmp_path.with_name("moved"))
    (moved / "million.json").unlink()
    command[command.index("--out") + 1] = str(moved)
    assert main(command) == 0
    assert capsys.readouterr().out == told, "of the runs in the folder, wherever it is"


def test_runs_on_fewer_points_are_judged_on_all_and_cost_a_step_on_all(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(million, "run_isolated", call)
    measured = []
    monkeypatch.setattr(million, "measure", lambda setting: measured.append(setting) or Usage(321.0, 6.5))
    words = ["experiment", "million", "--out", str(tmp_path), "--points", "144", "--blocks", "1", "--latents", "4"]
    words += ["--steps", "8", "--workers", "1", "--subsample", "50"]
    assert main(words) == 0
    (row,) = json.loads((tmp_path / "million.json").read_text())["rows"]
    assert (row["seconds"], row["peak_mb"]) == (6.5, 321.0)
    assert [(setting.points, setting.blocks, setting.latents) for setting in measured] == [(144, 1, 4)]
    told = capsys.readouterr().out
    assert "| training steps | 8 |" in told
    assert "| points per training step | 50 |" in told
    assert main(words) == 0
    assert len(measured) == 1, "kept"


def test_a_kept_record_is_gone_on_from_and_its_origin_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(million, "run_isolated", call)
    kept = json.loads((KEPT / "experiment-million.json").read_text())
    (tmp_path / "million.json").write_text(json.dumps(kept))
    words = ["experiment", "million", "--out", str(tmp_path), "--latents", "128,512,2048", "--steps", "160"]
    words += ["--subsample", "20000", "--workers", "1"]
    monkeypatch.setattr(million, "_darcy", lambda *_: pytest.fail("nothing is left to do"))
    assert main(words) == 0
    record = json.loads((tmp_path / "million.json").read_text())
    assert (record["rows"], record["environment"]) == (kept["rows"], kept["environment"])
    with pytest.raises(pytest.fail.Exception):
        main([*words, "--latents", "1024"])
    with pytest.raises(pytest.fail.Exception):
        main([*words, "--steps", "80"])


def test_a_training_over_the_limit_is_left_out(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(million, "run_isolated", call)
    words = ["experiment", "million", "--out", str(tmp_path), "--points", "36", "--blocks", "1", "--latents", "4,8"]
    assert main([*words, "--steps", "8", "--workers", "1", "--limit", "1e-9"]) == 0
    told = capsys.readouterr()
    assert "1 blocks, 8 latents: skipped" in told.err
    assert np.shape(json.loads((tmp_path / "million.json").read_text())["rows"]) == (1,)
    assert "\n| 1 | 8 | " in told.out


def test_rows_stand_beside_the_papers_and_settings_differ(tmp_path):
    (cell,) = find_item("million").cells(BUDGETS["cpu"])
    row = {"blocks": 8, "latents": 512, "parameters": 5, "seconds": 2.0, "peak_mb": 9483.0}
    about = {"data": "darcy", "points": 1_000_000, "left_out": [], "limit_seconds": 3600.0}
    record = {**million.DEFAULTS, **cell.job.settings, **about, "rows": [row | {"rel_l2": 0.5, "mean_field": 0.6}]}
    ours = ["8", "512", "5", "2.00", "9.94", "0.5000", "0.6000"]
    assert million.million_table(record, paper=True).rows == [[*ours, "0.56", "33.7"]]
    assert million.million_table(record).rows == [ours]
    settings = {name: (here, paper) for name, here, paper in million._setting_rows(record)}
    assert settings["samples (train + test)"] == ("8 + 2", "387 + 97")
    assert settings["training steps"] == ("160", "193,500")
    same = {"data": "drivaerml", "samples": [387, 97], "steps": 193_500, "subsample": None, "precision": "16"}
    exact = million.million_table(record | same | {"constants": True}, paper=True)
    assert exact.rows[0][-1] == "0.0060"


def test_a_new_row_keeps_its_data_time_and_environment(tmp_path, monkeypatch):
    monkeypatch.setattr(million, "run_isolated", call)
    words = ["experiment", "million", "--out", str(tmp_path), "--points", "36", "--blocks", "1", "--latents", "4"]
    assert main([*words, "--steps", "8", "--workers", "1"]) == 0
    record = json.loads((tmp_path / "million.json").read_text())
    (row,) = record["rows"]
    assert row["data_fingerprint"] == million.Dataset(tmp_path / "data").fingerprint
    result = json.loads(next(tmp_path.rglob("result.json")).read_text())
    assert row["training_seconds"] == result["seconds"] >= 0
    assert row["environment"] == record["environment"]

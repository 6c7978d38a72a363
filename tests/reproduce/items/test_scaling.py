"""The scaling studies measure what is within their limits, extrapolate the rest and say so, and do nothing twice."""

import json
from pathlib import Path

import numpy as np
import pytest

from flare.cli import main
from flare.report.scaling import scaling_figure
from flare.reproduce.budgets import BUDGETS
from flare.reproduce.items import million, scaling
from flare.reproduce.items.layer_costs import WARM_UP, measure_layer, summary, with_sound_memory
from flare.reproduce.items.papers_layers import papers_table
from flare.reproduce.items.scaling import table, verdict
from flare.reproduce.ledger import address
from flare.reproduce.registry import item_named
from flare.trial import Need
from tests.reproduce.items.test_layer_costs import lawful

KEPT = Path(__file__).parents[3] / "benchmarks" / "results"


def call(function, *arguments):
    return function(*arguments)


def made_up(names, points, slow=()):
    """A record of lawful rows; of `slow`, no more than 100,000 points."""
    rows = [lawful(name, n, 1) for name in names for n in points if name not in slow or n <= 100_000]
    about = {"rows": rows, "threads": 1, "precision": "32", "limit_seconds": 60, "limit_gb": 1}
    return about | summary(rows, names=names, largest=1_000_000)


def test_a_factor_that_rests_on_extrapolation_says_so_and_stands_beside_the_measured_one():
    names, points = ["softmax", "flare 128"], (10_000, 100_000, 1_000_000)
    whole = made_up(names, points)
    assert verdict(whole) == (
        "FLARE's time and memory grow as N^1.00 to N^1.00; flare 128 is 8,865 times as fast as softmax attention at "
        "1,000,000 points. Of memory it takes 1 times as much at 1,000,000 points; on the paper's GPU 1.6 times at a "
        "million."
    )
    record = made_up(names, points, slow=["softmax"])
    rests = "(extrapolated: softmax from 100,000 points)"
    told = "flare 128 is 887 times as fast as softmax attention at 100,000 points, the most measured of both, and "
    assert f"{told}8,865 times as fast at 1,000,000 {rests}." in verdict(record)
    titles = [scaling_figure(made).legends[0].get_title().get_text() for made in (whole, record)]
    assert titles == ["", "dashed: extrapolated"]
    softmax, flare = scaling.scaling_table(record).rows
    assert flare[-2:] == [f"8,865× {rests}", "887× (100,000)"]
    assert softmax[-2] == "1×"
    (line,) = [line for line in scaling.scaling_table(record).csv().splitlines() if line.startswith("flare 128")]
    assert line.endswith(',8865,"extrapolated: softmax from 100,000 points",887,100000')
    both = scaling.scaling_table(made_up([*names, "physics 128"], points, slow=["softmax", "physics 128"])).rows[-1]
    assert "extrapolated: softmax from 100,000, physics 128 from 100,000 points" in both[-2]


def test_it_is_told_by_whose_kernels_flare_was_computed():
    record = made_up(["softmax", "flare 128"], (10_000, 100_000))
    assert "by kernels of this package wherever they are built, as `auto` does, the others by" in scaling._how(record)
    for mixer, words in (("native", "by kernels of this package, the"), ("sdpa", "by two calls of PyTorch's fused")):
        rows = [row | {"mixer": mixer} for row in record["rows"] if row["layer"] != "softmax"]
        assert words in scaling._how(record | {"rows": rows})


def test_a_layer_that_is_slower_is_not_said_to_be_as_fast():
    assert [scaling._factor(ratio) for ratio in (0.5491, 75.19, 1620.9)] == ["0.549", "75.2", "1,621"]


def test_memory_that_the_warm_up_has_already_fetched_is_not_shown():
    names, points = ["softmax", "flare 128"], (1_000, 10_000, 1_000_000)
    record = made_up(names, points)
    assert "No memory is shown for 1,000 points: a warm-up of 1,024 points came before" in table(
        record | {"environment": {"processor": "an abacus", "torch": "2", "commit": "abc"}}
    )
    shown = with_sound_memory(record["rows"])
    assert {row["points"] for row in shown if row["peak_mb"] is None} == {1_000}
    lines = {row[:2]: row[2:4] for row in papers_table(shown).rows}
    assert lines["flare 128", "1,000"] == ("1.13", "")
    assert lines["flare 128", "1,000,000"][1] == "1.05"
    seconds, memory = scaling_figure(record | {"rows": shown}).axes
    assert [min(panel.lines[0].get_xdata()) for panel in (seconds, memory)] == [1_000, 10_000]
    newer = [row | {"warm_up": WARM_UP} for row in record["rows"]]
    assert with_sound_memory(newer) == newer
    assert measure_layer("flare 4", 64, 1)["warm_up"] < 64


def test_the_papers_float32_study_is_another_job_that_leaves_the_usual_one_where_it_was():
    usual, _, other, by_pytorch = item_named("scaling").cells(BUDGETS["cpu"])
    assert [address(cell.job) for cell in (usual, other)] == ["03673595b3ff4bf7", "e2e6f8a81b0a2812"]
    assert (usual.extra, other.extra, by_pytorch.extra) == (False, True, True)
    assert by_pytorch.job.settings == other.job.settings | {"backend": "sdpa", "limit_seconds": 20.0}
    (papers, _) = item_named("scaling").cells(BUDGETS["paper"])
    for key in ("points", "latents", "sizes", "precision"):
        assert other.job.settings[key] == papers.job.settings[key]
    record = made_up(["softmax", "flare 128"], (1_000, 10_000, 1_000_000))
    told = scaling._which_study(record)
    assert "The layers are those of the paper's mixed-precision study, measured here in float32." in told
    assert "(1,000 to 50,000 points; softmax C = 96, H = 6, D = 16; flare C = 64, H = 8, D = 8;" in told
    assert f"--only {other.parts[0]}`" in told
    assert scaling._which_study(record | {"precision": "16"}) == ""
    assert scaling._lead("precision=32", record) == "**precision=32**, layers of the paper's mixed-precision study:"
    single = {"sizes": other.job.settings["sizes"], "largest": 50_000}
    whose = "**fp32-study**, layers and numbers of points of the paper's float32 study, off whose figure"
    assert scaling._lead("fp32-study", record | single).startswith(whose)
    assert "as softmax attention (C = 96; FLARE has 64) at" in verdict(record | {"rows": [], **single})
    assert scaling._lead("precision=32", record | {"largest": 128}) == "**precision=32**:"


def test_what_is_over_the_limit_is_extrapolated_and_nothing_is_measured_twice(tmp_path, monkeypatch, capsys):
    seen = []

    def measured(function, *arguments):
        seen.append(arguments[:2])
        return lawful(*arguments)

    monkeypatch.setattr(scaling, "alone", measured)
    command = ["experiment", "scaling", "--out", str(tmp_path), "--points", "1000,10000,100000,1000000"]
    command += ["--latents", "128", "--limit", "60", "--memory", "0.5"]
    assert main(command) == 0
    told = capsys.readouterr().out
    assert ("softmax", 10_000) in seen
    assert ("softmax", 100_000) not in seen, "it would take 100 s"
    assert ("flare 128", 100_000) in seen
    assert ("flare 128", 1_000_000) not in seen, "it would take 1 GB"
    assert "*1e+04*" in told
    assert "softmax (to 10,000)" in told
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
    assert "bf16 under autocast" in (tmp_path / "scaling.md").read_text()
    assert len(json.loads((tmp_path / "scaling.json").read_text())["rows"]) == len(record["rows"]) + 6
    assert main(command) == 0
    assert json.loads((tmp_path / "scaling.json").read_text())["layers"] == record["layers"], "nothing is lost"


def test_blocks_by_latents_are_trained_once_and_told(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(million, "alone", call)
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
    monkeypatch.setattr(million, "alone", call)
    measured = []
    monkeypatch.setattr(million, "measure", lambda setting: measured.append(setting) or Need(321.0, 6.5))
    words = ["experiment", "million", "--out", str(tmp_path), "--points", "144", "--blocks", "1", "--latents", "4"]
    words += ["--steps", "8", "--workers", "1", "--subsample", "50"]
    assert main(words) == 0
    (row,) = json.loads((tmp_path / "million.json").read_text())["rows"]
    assert (row["seconds"], row["peak_mb"]) == (6.5, 321.0)
    assert [(setting.points, setting.blocks, setting.latents) for setting in measured] == [(144, 1, 4)]
    told = capsys.readouterr().out
    assert "8 training samples, once each: 8 steps of one sample each and 50 of its points" in told
    assert main(words) == 0
    assert len(measured) == 1, "kept"


def test_a_kept_record_is_gone_on_from_and_its_origin_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(million, "alone", call)
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
    monkeypatch.setattr(million, "alone", call)
    words = ["experiment", "million", "--out", str(tmp_path), "--points", "36", "--blocks", "1", "--latents", "4,8"]
    assert main([*words, "--steps", "8", "--workers", "1", "--limit", "1e-9"]) == 0
    told = capsys.readouterr()
    assert "1 blocks, 8 latents: left out" in told.err
    assert np.shape(json.loads((tmp_path / "million.json").read_text())["rows"]) == (1,)
    assert "Left out, blocks × latents" in told.out
    assert "1 × 8 (" in told.out

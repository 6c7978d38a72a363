"""The scaling studies measure what is within their limits, extrapolate the rest and say so, and do nothing twice."""

import json
from pathlib import Path

import numpy as np
import pytest

from flare.cli import main
from flare.experiments import million, scaling
from flare.experiments.scaling import make_layer, summary, table, verdict
from flare.models import count_parameters
from flare.trial import Need

KEPT = Path(__file__).parents[2] / "benchmarks" / "results"


def call(function, *arguments):
    return function(*arguments)


def lawful(name, points, threads, precision="32", sizes=scaling.SIZES):
    """A machine on which softmax takes N² and the others N."""
    kind, _, size = name.partition(" ")
    seconds = 1e-8 * points**2 if kind == "softmax" else 1e-6 * points * (1 + int(size) / 1000)
    measured = {"seconds": seconds, "peak_mb": 1e-3 * points}
    return {"layer": name, "points": points, **measured, "threads": threads, "precision": precision}


def test_layers_have_the_papers_parameters():
    assert count_parameters(make_layer("flare 128")) == 198_016
    assert count_parameters(make_layer("softmax")) == 4 * 128 * 128 + 128
    maps, slices, tokens = 3 * (128 * 128 + 128), 16 * 128 + 128 + 8, 3 * 16 * 16
    assert count_parameters(make_layer("physics 128")) == maps + slices + tokens


def test_a_layer_is_measured(monkeypatch):
    for name in ("softmax", "flare 4", "physics 4"):
        row = scaling.measure_layer(name, 50, 1)
        assert row["seconds"] > 0
        assert (row["layer"], row["points"]) == (name, 50)


def test_exponents_and_ratios_are_those_of_the_machine():
    points = (1000, 10_000, 100_000)
    rows = [lawful(name, n, 1) for name in ("softmax", "flare 128") for n in points if n < 100_000 or name != "softmax"]
    found = summary(rows, names=["softmax", "flare 128"], largest=1_000_000)["layers"]
    assert found["softmax"]["seconds_exponent"] == pytest.approx(2)
    assert found["flare 128"]["seconds_exponent"] == pytest.approx(1)
    assert found["softmax"]["measured_to"] == 10_000
    assert found["softmax"]["extrapolated"]
    assert found["softmax"]["seconds_at_largest"] == pytest.approx(1e4)
    assert found["flare 128"]["faster_than_softmax"] == pytest.approx(1e4 / 1.128)


def test_the_verdict_says_whether_flare_scales_as_it_should():
    points = (10_000, 100_000, 1_000_000)
    rows = [lawful(name, n, 1) for name in ("softmax", "flare 128") for n in points]
    found = summary(rows, names=["softmax", "flare 128"], largest=1_000_000)
    assert "exponents are at most 1.05 (largest 1.00)" in verdict(found)
    assert "flare 128 is at least 200 times as fast as softmax attention (8,865×)" in verdict(found)
    slow = [row | {"seconds": 1e-9 * row["points"] ** 2} if row["layer"] != "softmax" else row for row in rows]
    told = verdict(summary(slow, names=["softmax", "flare 128"], largest=1_000_000))
    assert "**not** at most 1.05 (largest 2.00)" in told
    assert "flare 128 is **not** 200 times as fast" in told


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
    monkeypatch.setattr("flare.train.start.start", None)
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

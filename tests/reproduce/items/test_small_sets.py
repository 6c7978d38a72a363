"""The experiment generates and trains each small set, reuses finished ones, and tabulates them."""

import json

import pytest

from flare.cli import main
from flare.reproduce.items import small_sets
from flare.reproduce.items.small_sets import SETS, SmallSet


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(
        small_sets,
        "SETS",
        {
            "darcy": SmallSet(6, 2, 1, {"resolution": 8, "stride": 1, "grid": "node"}),
            "elasticity": SmallSet(6, 2, 1),
            "pipe": SmallSet(6, 2, 1, {"nodes": 9}),
        },
    )
    small = [("model.channels", 8), ("model.blocks", 1), ("model.heads", 2), ("model.latents", 4), ("device", "cpu")]
    monkeypatch.setattr(small_sets, "SETTINGS", small)


@pytest.mark.usefixtures("tiny")
def test_the_table_says_what_the_runs_say_and_nothing_is_done_twice(tmp_path, capsys):
    command = ["experiment", "small-sets", "--out", str(tmp_path / "s"), "--workers", "1"]
    assert main(command) == 0
    printed = capsys.readouterr().out
    rows = json.loads((tmp_path / "s" / "table.json").read_text())["rows"]
    assert [row["dataset"] for row in rows] == ["darcy", "elasticity", "pipe"]
    for row in rows:
        result = json.loads((tmp_path / "s" / "runs" / row["dataset"] / "result.json").read_text())
        assert row["rel_l2"] == result["rel_l2"]
        assert row["mean_field"] == result["rel_l2_mean_field"]
        assert f"| {row['rel_l2']:.4f} | {row['mean_field']:.4f} |" in printed
        assert (row["train"], row["test"]) == (4, 2)
    written = (tmp_path / "s" / "runs" / "pipe" / "checkpoints" / "last").stat().st_mtime_ns
    assert main(command) == 0
    assert capsys.readouterr().out.split("| dataset")[1] == printed.split("| dataset")[1]
    assert (tmp_path / "s" / "runs" / "pipe" / "checkpoints" / "last").stat().st_mtime_ns == written


@pytest.mark.usefixtures("tiny")
def test_one_set_alone(tmp_path, capsys):
    assert main(["experiment", "small-sets", "--only", "elasticity", "--out", str(tmp_path / "s")]) == 0
    assert "| elasticity | as published | 972 | 4, 2 | 1 |" in capsys.readouterr().out


@pytest.mark.usefixtures("tiny")
def test_the_table_goes_between_the_marks_of_a_page_and_rows_of_earlier_calls_stay(tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{small_sets.BEGIN}\nold\n{small_sets.END}\nafter\n")
    for name in ("pipe", "darcy"):
        command = ["experiment", "small-sets", "--only", name, "--out", str(tmp_path / "s"), "--page", str(page)]
        assert main(command) == 0
    text = page.read_text()
    assert text.startswith("before\n")
    assert "old" not in text
    assert text.index("| darcy | resolution 8, stride 1, grid node | 64 |") < text.index("| pipe | nodes 9 | 81 |")
    assert main([*command[:-1], str(tmp_path / "no.md")]) == 2
    assert "no.md" in capsys.readouterr().err


def test_an_unknown_set_or_experiment_is_refused(capsys):
    assert main(["experiment", "small-sets", "--only", "elasticty"]) == 2
    assert "elasticity" in capsys.readouterr().err
    assert main(["experiment", "small-set"]) == 2
    assert "small-sets" in capsys.readouterr().err


def test_there_is_a_case_for_every_benchmark_with_a_solver():
    from flare.physics import GENERATORS

    others = {"lpbf", "car-potential"}
    assert set(SETS) | others == set(GENERATORS), "others have experiments of their own: printed-parts, cars"

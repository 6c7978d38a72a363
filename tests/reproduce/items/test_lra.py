"""The comparison of attentions trains, judges and tabulates, and keeps what is finished; its table is what runs say."""

import json

import numpy as np
import pytest

from flare.cli import main
from flare.reproduce import runs
from flare.reproduce.items.lra import CONTENDERS, Row, table


@pytest.fixture
def command(tmp_path):
    words = [
        "experiment",
        "lra",
        "--tasks",
        "listops-small",
        "--out",
        str(tmp_path / "o"),
        "--data",
        str(tmp_path / "d"),
    ]
    return [*words, "--steps", "2", "--samples", "1000", "--workers", "1"]


def test_every_contender_is_trained_judged_and_kept(tmp_path, command, capsys):
    assert main([*command, "--contenders", "all", "--seeds", "1"]) == 0
    printed = capsys.readouterr().out
    out = tmp_path / "o" / "listops-small"
    record = json.loads((out / "table.json").read_text())
    assert {row["contender"] for row in record["rows"]} == set(CONTENDERS)
    assert (out / "table.md").read_text() == printed
    assert record["samples"] == {"val": 37, "test": 37}
    few = "963 of 98,000 to train and validate, 37 of 2,000 to test"
    assert record["departures"] == {"min_length": 10, "max_length": 80, "max_depth": 3, "samples": few}
    for row in record["rows"]:
        result = json.loads((out / row["contender"] / "seed-0" / "result.json").read_text())
        assert row["accuracy"] == {split: [share] for split, share in result["accuracy"].items()}
        assert result["steps"] == 2
        assert f"| {row['contender']} | {row['parameters']:,} | {100 * row['accuracy']['val'][0]:.1f} |" in printed
    for kind in ("chance", "majority class", "root operator"):
        share = record["guesses"][kind]["test"]
        assert f"{100 * share:.1f} |  | {kind} |" in printed
    configs = {name: (out / name / "seed-0" / "config.yaml").read_text() for name in CONTENDERS}
    assert "rotate_latents: true" in configs["flare-rotary-latents"]
    assert "qk_norm: true" in configs["flare-qk-norm"]
    written = (out / "norm" / "seed-0" / "checkpoints" / "last").stat().st_mtime_ns
    assert main([*command, "--contenders", "norm", "--seeds", "2"]) == 0
    assert (out / "norm" / "seed-0" / "checkpoints" / "last").stat().st_mtime_ns == written, "not trained again"
    again = json.loads((out / "table.json").read_text())["rows"]
    assert len(again[0]["accuracy"]["test"]) == 2
    assert main([*command, "--contenders", "norm", "--seeds", "1", "--samples", "900"]) == 2
    error = capsys.readouterr().err
    assert "holds another dataset already: samples is 1000 there, 900 here. Choose another folder" in error
    assert "(--data says in which folder" in error
    assert main([*command, "--contenders", "norm", "--steps", "3"]) == 2
    assert "steps is 2 there and 3 here" in capsys.readouterr().err


def test_the_table_tells_spread_readings_and_what_diverged():
    guessed = {"chance": 0.1, "majority class": 0.17, "root operator": 0.363}
    about = {
        "task": "listops",
        "dataset": "listops",
        "provenance": "recreated",
        "departures": {},
        "train_samples": 96_000,
        "samples": {"val": 2000, "test": 2000},
        "steps": 10_000,
        "guesses": {kind: {"val": share, "test": share} for kind, share in guessed.items()},
        "protocol": "own",
        "commits": ["abc"],
        "environment": {"flare": "0", "torch": "2", "processor": "some"},
    }
    rows = [
        Row("vanilla", 1_000, {"val": [0.5, 0.54], "test": [0.6, 0.64]}, [60.0, 62.0], 0),
        Row("flare", 2_000, {"val": [0.3, 0.3], "test": [0.361, 0.362]}, [60.0, 60.0], 1),
        Row("linear", 3_000, {"val": [0.1, 0.1], "test": [0.171, 0.171]}, [1.0, 1.0], 0),
        Row("norm", 0, {}, [], 2),
    ]
    text = table(rows, about)
    spread = 100 * np.std([0.6, 0.64], ddof=1)
    assert (
        f"| vanilla | 1,000 | 52.0 ± {spread:.1f} | 62.0 ± {spread:.1f} | 1 min 01 s | 25.7 points above the root"
        in text
    )
    assert "not clearly above the root operator; 1 of 3 seeds diverged | 36.15 |" in text
    assert "| 17.1 ± 0.0 | 1 s | not clearly above the majority class | 17.15 |" in text
    assert "| norm | 0 |  |  |  | diverged | 17.10 |" in text
    assert "the paper's (dev split, no mask), %" in text
    assert "| that is, on test |" in text
    assert "listops: listops, recreated, 96,000 samples" in text
    assert "| the paper's, % |" in table(rows, about | {"protocol": "dev-split-no-mask"})
    other = table(rows, about | {"departures": {"max_length": 80}})
    assert "paper" not in other, "what is not the benchmark is not set beside its numbers"
    columns = {line.count("|") for line in text.splitlines() if line.startswith("|")}
    assert len(columns) == 1, "every row has every cell"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tasks", "listop-small"], "did you mean 'listops-small'"),
        (["--contenders", "flare,vanila"], "did you mean 'vanilla'"),
        (["--seeds", "0"], "--seeds 0: at least 1, please"),
        (["--samples", "99"], "--samples 99: at least 100, please"),
        (["--page", "nope.md"], "nope.md is no page with the marks <!-- lra table -->"),
        (["--steps", "0"], "steps=0; it must be at least 1"),
        (["--tasks", "image-small"], "flare data download image --side 8 --levels 16 --out"),
    ],
)
def test_bad_wishes_are_refused_before_anything_is_trained(tmp_path, command, capsys, words, message):
    assert main([*command, *words]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


def test_a_contender_that_diverges_does_not_stop_the_others(tmp_path, command, capsys, monkeypatch):
    from flare.utils.errors import TrainingDiverged

    honest = runs.start_or_resume

    def start(config, folder):
        if config.model["attention"] == "linear":
            raise TrainingDiverged("the loss is nan")
        return honest(config, folder)

    monkeypatch.setattr(runs, "start_or_resume", start)
    assert main([*command, "--contenders", "linear,norm", "--seeds", "1"]) == 0
    assert "| linear | 0 |  |  |  | diverged |" in capsys.readouterr().out

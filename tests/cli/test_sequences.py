"""Sequences on the command line: train, evaluate, report; and what is for fields says so."""

import json

import pytest

from flare.cli import main

MAKE = ["data", "make", "listops", "--min_length", "3", "--max_length", "30", "--max_depth", "3", "--workers", "1"]
SMALL = ["--model.channels", "8", "--model.blocks", "1", "--model.heads", "2", "--device", "cpu", "--steps", "3"]


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    folder = tmp_path_factory.mktemp("session")
    sizes = ["--samples", "300", "--val_samples", "20", "--test_samples", "30"]
    assert main([*MAKE, *sizes, "--out", str(folder / "d")]) == 0
    preset = ["--preset", "lra/listops-small", "--data.path", str(folder / "d")]
    command = ["train", *preset, *SMALL, "--model.attention", "performer", "--model.features", "8"]
    assert main([*command, "--out", str(folder / "run")]) == 0
    return folder


def test_training_leaves_a_run_with_a_report(session, capsys):
    result = json.loads((session / "run" / "result.json").read_text())
    assert result["model"]["attention"] == "performer"
    page = (session / "run" / "report.html").read_text()
    assert "root operator" in page
    assert {p.stem for p in (session / "run" / "pictures").iterdir()} == {"accuracy", "confusion"}
    assert main(["train", "--resume", str(session / "run")]) == 0
    printed = capsys.readouterr().out
    assert f"test accuracy         {100 * result['accuracy']['test']:.1f} %" in printed
    assert f"root operator {100 * result['guesses']['root operator']['test']:.1f}" in printed
    assert f"that is               {result['reading']}" in printed


def test_evaluation_says_what_training_said(session, capsys, tmp_path):
    result = json.loads((session / "run" / "result.json").read_text())
    capsys.readouterr()
    assert main(["evaluate", str(session / "run"), "--out", str(tmp_path / "e.json")]) == 0
    printed = capsys.readouterr().out
    assert f"test accuracy         {100 * result['accuracy']['test']:.1f} %" in printed
    right = json.loads((tmp_path / "e.json").read_text())["right"]
    assert sum(right) / len(right) == pytest.approx(result["accuracy"]["test"])
    assert main(["evaluate", str(session / "run"), "--split", "val"]) == 0
    assert f"val accuracy          {100 * result['accuracy']['val']:.1f} %" in capsys.readouterr().out
    assert main(["evaluate", str(session / "run"), "--data", str(session / "d")]) == 0
    assert f"test accuracy         {100 * result['accuracy']['test']:.1f} %" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["predict", "RUN", "DATA", "--out", "OUT"], "holds a classifier of sequences"),
        (["spectra", "RUN"], "holds a classifier of sequences"),
        (["encode", "RUN", "x.csv", "--out", "OUT"], "holds a classifier of sequences"),
        (
            ["plan", "--preset", "lra/listops-small", "--points", "1000"],
            "only FLARE models are planned, not 'sequence'",
        ),
        (
            ["train", "--preset", "lra/listops-small", "--data.path", "DATA", "--split", "points", "--out", "OUT"],
            "drop what is for fields only: split points",
        ),
        (["train", "--preset", "lra/listop", "--out", "o"], "lra/listops"),
        (
            ["train", "--preset", "lra/listops-small", "--data.path", "DATA", "--model.attention", "x"],
            "unknown attention",
        ),
        (["train", "--data.path", "DATA", "--out", "OUT"], "use --model.name sequence"),
        (["compare", "--preset", "lra/listops-small", "--models", "flare", "--out", "OUT"], "flare experiment lra"),
        (["evaluate", "RUN", "--ema"], "has no averaged weights"),
        (["evaluate", "RUN", "--split", "dev"], "no split 'dev'"),
    ],
)
def test_what_does_not_go_together_is_one_message(session, capsys, words, message, tmp_path):
    names = {"RUN": str(session / "run"), "DATA": str(session / "d"), "OUT": str(tmp_path / "out")}
    assert main([names.get(word, word) for word in words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_model_by_its_name_alone_reads_sequences(session, tmp_path):
    words = ["train", "--data.path", str(session / "d"), "--data.batch_size", "10", "--report", "false"]
    assert (
        main([*words, "--model.name", "sequence", "--model.attention", "vanilla", *SMALL, "--out", str(tmp_path / "r")])
        == 0
    )
    assert list(json.loads((tmp_path / "r" / "result.json").read_text())["accuracy"]) == ["test"]

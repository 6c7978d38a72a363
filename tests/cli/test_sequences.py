"""Sequences on the command line: train, evaluate, report; and what is for fields says so."""

import json
import shlex
import shutil

import numpy as np
import pytest

from flare.cli import main
from flare.data.benchmarks.cards import command_for
from flare.reproduce.items import lra
from flare.sequence import store
from flare.utils.errors import DataError

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
    assert f"that is, on test      {result['reading']}" in printed


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


def test_a_copy_is_judged_beside_the_same_guesses(session, capsys, tmp_path):
    result = json.loads((session / "run" / "result.json").read_text())
    guessed = f"root operator {100 * result['guesses']['root operator']['test']:.1f}"
    copy = tmp_path / "copy"
    shutil.copytree(session / "d", copy)
    away = session / "away"
    for gone in (False, True):
        capsys.readouterr()
        if gone:
            (session / "d").rename(away)
        try:
            assert main(["evaluate", str(session / "run"), "--data", str(copy)]) == 0
        finally:
            if gone:
                away.rename(session / "d")
        told = capsys.readouterr()
        assert f"test accuracy         {100 * result['accuracy']['test']:.1f} %" in told.out
        assert guessed in told.out
        assert ("guesses are of the training samples of" in told.err) == gone
    about = json.loads((copy / "dataset.json").read_text())
    (copy / "dataset.json").write_text(json.dumps(about | {"splits": {"test": about["splits"]["test"]}}))
    (session / "d").rename(away)
    try:
        assert main(["evaluate", str(session / "run"), "--data", str(copy)]) == 0
    finally:
        away.rename(session / "d")
    told = capsys.readouterr()
    assert "no guesses but chance: " in told.err
    assert "chance 10.0\n" in told.out


def test_a_label_out_of_range_is_a_finding_and_stops_an_evaluation(session, capsys, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(session / "d", copy)
    labels = np.load(copy / "labels.npy")
    labels[7] = 200
    np.save(copy / "labels.npy", labels)
    assert main(["data", "check", str(copy)]) == 2
    assert "sample 7: there is no class 200" in capsys.readouterr().err
    assert main(["data", "info", str(copy)]) == 0
    assert main(["evaluate", str(session / "run"), "--data", str(copy)]) == 2
    assert "labels.npy: entry 7 is 200; classes are 0 … 9" in capsys.readouterr().err


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
        (["train", "--attention", "linear"], "unknown option --attention; did you mean '--model.attention'?"),
        (["models", "--preset", "lra/listops"], "--preset lra/listops is for sequences"),
        (["data", "make", "listops", "--samples", "20", "--out", "OUT"], "leaves none of them for --val-samples"),
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


def test_the_command_for_short_expressions_is_what_the_experiment_does(tmp_path, monkeypatch):
    asked = []

    def ask(generator, path, **how):
        asked.append((generator, {key: how[key] for key in ("samples", "val_samples", "test_samples", "seed")}))
        raise DataError("that will do")

    monkeypatch.setattr(store, "generate_sequences", ask)
    monkeypatch.setattr(lra, "generate_sequences", ask)
    command = command_for(tmp_path / "listops-small")
    assert main(shlex.split(command)[1:]) == 2
    with pytest.raises(DataError):
        lra.run(tmp_path / "o", tasks=["listops-small"], data=tmp_path)
    assert asked[0] == asked[1]


@pytest.mark.parametrize(
    ("task", "command"),
    [
        ("image", "Fetch it with `flare data download image --out"),
        ("image-small", "Fetch it with `flare data download image --side 8 --levels 16 --out"),
        ("listops-small", "Make it with `flare data make listops --min_length 10 --max_length 80 --max_depth 3 "),
        ("retrieval", "Make it with `flare data read retrieval --folder FILES --out"),
        ("text", "Fetch it with `flare data download text --out"),
    ],
)
def test_a_preset_without_its_data_says_how_to_have_them(task, command, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--preset", f"lra/{task}"]) == 2
    assert command in capsys.readouterr().err

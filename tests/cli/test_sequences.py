"""Sequences on the command line: train, evaluate, report, and refusals of what only fields have."""

import json
import shlex
import shutil

import numpy as np
import pytest

from flare.cli import main
from flare.data.benchmarks.cards import command_for
from flare.reproduce import sequences
from flare.reproduce.items.table2 import SMALL_LISTOPS
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
    assert result["reading"] in printed


def test_evaluation_and_training_report_the_same_accuracy(session, capsys, tmp_path):
    result = json.loads((session / "run" / "result.json").read_text())
    capsys.readouterr()
    assert main(["evaluate", str(session / "run"), "--out", str(tmp_path / "e.json")]) == 0
    printed = capsys.readouterr().out
    assert f"test accuracy         {100 * result['accuracy']['test']:.1f} %" in printed
    right = json.loads((tmp_path / "e.json").read_text())["right"]
    assert sum(right) / len(right) == pytest.approx(result["accuracy"]["test"])
    assert main(["evaluate", str(session / "run"), "--split", "val"]) == 0
    assert f"val accuracy          {100 * result['accuracy']['val']:.1f} %" in capsys.readouterr().out


def test_a_copy_is_compared_with_the_same_baselines_while_the_own_data_are_there(session, capsys, tmp_path):
    result = json.loads((session / "run" / "result.json").read_text())
    baseline = f"root operator {100 * result['guesses']['root operator']['test']:.1f}"
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
        printed = capsys.readouterr()
        assert f"test accuracy         {100 * result['accuracy']['test']:.1f} %" in printed.out
        assert (baseline in printed.out) != gone


def test_a_label_out_of_range_is_a_finding_and_stops_an_evaluation(session, capsys, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(session / "d", copy)
    labels = np.load(copy / "labels.npy")
    labels[7] = 200
    np.save(copy / "labels.npy", labels)
    assert main(["data", "check", str(copy)]) == 2
    printed = capsys.readouterr().err
    assert "entry 7 is 200" in printed
    assert main(["data", "info", str(copy)]) == 0
    assert main(["evaluate", str(session / "run"), "--data", str(copy)]) == 2
    assert "labels.npy: entry 7 is 200" in capsys.readouterr().err


PRESET = ["--preset", "lra/listops-small"]


@pytest.mark.parametrize(
    ("words", "fact"),
    [
        (["predict", "RUN", "DATA", "--out", "OUT"], "sequences"),
        (["spectra", "RUN"], "sequences"),
        (["encode", "RUN", "x.csv", "--out", "OUT"], "sequences"),
        (["plan", *PRESET, "--points", "1000"], "'sequence'"),
        (["train", *PRESET, "--data.path", "DATA", "--ranks-share", "points", "--out", "OUT"], "--ranks-share points"),
        (["train", "--preset", "lra/listop", "--out", "o"], "lra/listops"),
        (["train", *PRESET, "--data.path", "DATA", "--model.attention", "x"], "attention='x'"),
        (["train", "--data.path", "DATA", "--out", "OUT"], "model.name=sequence"),
        (["compare", *PRESET, "--models", "flare", "--out", "OUT"], "lra/listops-small"),
        (["evaluate", "RUN", "--ema"], "averaged weights"),
        (["train", "--attention", "linear"], "'--model.attention'"),
        (["models", "--preset", "lra/listops"], "lra/listops"),
        (["evaluate", "RUN", "--split", "dev"], "'dev'"),
    ],
)
def test_what_sequences_do_not_support_is_refused_in_one_line(session, capsys, words, fact, tmp_path):
    names = {"RUN": str(session / "run"), "DATA": str(session / "d"), "OUT": str(tmp_path / "out")}
    assert main([names.get(word, word) for word in words]) == 2
    error = capsys.readouterr().err
    assert fact in error
    assert len(error.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_sequences_are_trained_without_a_preset(session, tmp_path):
    words = ["train", "--data.path", str(session / "d"), "--data.batch_size", "10", "--no-report"]
    assert (
        main([*words, "--model.name", "sequence", "--model.attention", "vanilla", *SMALL, "--out", str(tmp_path / "r")])
        == 0
    )
    assert list(json.loads((tmp_path / "r" / "result.json").read_text())["accuracy"]) == ["test"]


def test_the_command_for_listops_small_makes_the_dataset_of_table_2(tmp_path, monkeypatch):
    asked = []

    def ask(generator, path, **how):
        asked.append((generator, [how[key] for key in ("samples", "val_samples", "test_samples")], how.get("seed", 0)))
        raise DataError("stop")

    monkeypatch.setattr(store, "generate_sequences", ask)
    monkeypatch.setattr(sequences, "generate_sequences", ask)
    command = command_for(tmp_path / "listops-small")
    assert main(shlex.split(command)[1:]) == 2
    with pytest.raises(DataError):
        SMALL_LISTOPS.make(tmp_path / "o", tmp_path)
    assert asked[0] == asked[1]


@pytest.mark.parametrize(
    ("task", "command"),
    [
        ("image", "flare data download image --out"),
        ("image-small", "flare data download image --side 8 --levels 16 --out"),
        ("listops-small", "flare data make listops --min_length 10 --max_length 80 --max_depth 3 "),
        ("retrieval", "flare data read retrieval --folder FILES --out"),
        ("text", "flare data download text --out"),
    ],
)
def test_a_preset_without_its_data_names_the_command_that_makes_them(task, command, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--preset", f"lra/{task}"]) == 2
    assert command in capsys.readouterr().err

"""A whole session at the command line, from making data to spectra."""

import csv
import json
import re
import subprocess
import sys

import numpy as np
import pytest

import flare
from flare.cli import main
from flare.data.dataset import Dataset
from flare.data.sample import Field, Sample, Schema
from flare.data.writer import DatasetWriter
from flare.mixer import choose
from flare.mixer.native import library
from tests.cli.conftest import TINY
from tests.factory import ragged_dataset


def test_make_info_and_check(tmp_path, capsys):
    words = ["data", "make", "darcy", "--samples", "6", "--resolution", "8", "--stride", "1", "--workers", "1"]
    assert main([*words, "--out", str(tmp_path / "d")]) == 0
    assert "6 samples, 384 points" in capsys.readouterr().out
    assert main(["data", "info", str(tmp_path / "d")]) == 0
    told = capsys.readouterr().out
    assert "train 5, test 1" in told
    assert "pressure" in told
    assert main(["data", "check", str(tmp_path / "d")]) == 0
    assert "are sound" in capsys.readouterr().out


def test_training_ends_with_error_baseline_and_report(darcy, tmp_path, capsys):
    words = ["train", "--data.path", str(darcy.path), "--epochs", "2", "--out", str(tmp_path / "run"), *TINY]
    assert main(words) == 0
    told = capsys.readouterr()
    lines, size = told.out.splitlines(), json.loads((tmp_path / "run" / "result.json").read_text())["parameters"]
    began = "learning pressure from points, coefficient; samples: train 10, test 4; flare of"
    assert told.err.index(f"{began} {size:,} parameters on cpu\n") < told.err.index("training: ")
    assert re.match(r"test rel-L2 +0\.\d+", lines[0])
    assert re.match(r"training-mean field +0\.\d+", lines[1])
    assert lines[-1].split() == ["report", str(tmp_path / "run" / "report.html")]
    assert main([*words, "--if-exists", "resume"]) == 0
    assert capsys.readouterr().out.splitlines() == lines, "a finished run is shown, not trained again"


def test_the_report_is_one_file_with_everything_in_it(run):
    html = (run / "report.html").read_text()
    names = {"loss", "errors", "median", "best", "worst", "spectra", "eigenvectors"}
    assert {p.stem for p in (run / "pictures").glob("*.png")} == names
    assert html.count("data:image/png;base64,") == len(names)
    assert not re.search(r'(src|href)="https?://', html)
    for text in ("kv_depth: 0", "torch", "training-mean field", "data fingerprint"):
        assert text in html


def test_evaluate_tells_the_same_error_as_training(run, tmp_path, capsys):
    assert main(["evaluate", str(run), "--out", str(tmp_path / "errors.json")]) == 0
    told = capsys.readouterr().out
    result = json.loads((run / "result.json").read_text())
    assert f"rel-L2 mean           {result['rel_l2']:.4f}" in told
    assert np.mean(json.loads((tmp_path / "errors.json").read_text())["rel_l2"]) == pytest.approx(result["rel_l2"])


def test_predict_for_a_dataset_a_table_and_an_archive_agree(run, darcy, tmp_path, capsys):
    assert main(["predict", str(run), str(darcy.path), "--split", "test", "--out", str(tmp_path / "predicted")]) == 0
    index = int(darcy.split("test")[0])
    values = darcy[index].values
    want = Dataset(tmp_path / "predicted")[0].values["pressure"][:, 0]

    np.savez(tmp_path / "in.npz", points=values["points"], coefficient=values["coefficient"], other=np.ones(3))
    assert main(["predict", str(run), str(tmp_path / "in.npz"), "--out", str(tmp_path / "out.npz")]) == 0
    with np.load(tmp_path / "out.npz") as out:
        np.testing.assert_allclose(out["pressure_predicted"], want, rtol=1e-5, atol=1e-8)

    with (tmp_path / "in.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "coefficient", "y", "x"])
        for i, ((x, y), (a,)) in enumerate(zip(values["points"], values["coefficient"], strict=True)):
            writer.writerow([i, a, y, x])
    assert main(["predict", str(run), str(tmp_path / "in.csv"), "--out", str(tmp_path / "out.csv")]) == 0
    with (tmp_path / "out.csv").open() as file:
        rows = list(csv.DictReader(file))
    np.testing.assert_allclose([float(row["pressure_predicted"]) for row in rows], want, rtol=1e-4, atol=1e-7)
    assert set(rows[0]) - {"pressure_bar"} == {"x", "y", "coefficient", "id", "pressure_predicted"}


def test_spectra_are_written_with_pictures(run, tmp_path, capsys):
    assert main(["spectra", str(run), "--samples", "2", "--vectors", "3", "--out", str(tmp_path / "s")]) == 0
    assert "mean of 2 samples; M = 4 latents per head" in capsys.readouterr().out
    names = {"spectra.npz", "spectra.png", "eigenvectors.npz", "eigenvectors_block_1.png", "eigenvectors_block_2.png"}
    assert {p.name for p in (tmp_path / "s").iterdir()} == names
    with np.load(tmp_path / "s" / "spectra.npz") as spectra:
        assert spectra["eigenvalues"].shape == (2, 4, 4)
        np.testing.assert_allclose(spectra["eigenvalues"][..., 0], 1.0, atol=1e-12)
    with np.load(tmp_path / "s" / "eigenvectors.npz") as vectors:
        assert vectors["block_1"].shape == (4, 81, 3)


def test_info_says_which_mixer_and_why(capsys):
    assert main(["info"]) == 0
    told = capsys.readouterr().out
    backend, reason = choose()
    assert re.search(rf"mixer +{backend}: {re.escape(reason)}", told)
    assert "torch" in told


def test_info_says_why_there_are_no_kernels(capsys, monkeypatch):
    monkeypatch.setattr(library, "_loaded", None)
    monkeypatch.setenv("FLARE_NATIVE", "0")
    assert main(["info"]) == 0
    told = capsys.readouterr().out
    assert re.search(r"mixer +sdpa: .* \(no native kernels: switched off by FLARE_NATIVE=0\)", told)


def test_dashes_and_underscores_are_the_same(darcy, tmp_path, capsys):
    words = ["data", "make", "darcy", "--samples", "2", "--resolution", "6", "--stride=1", "--workers", "1"]
    assert (
        main([*words, "--grid=node", "--face-mean=harmonic", "--test_samples", "1", "--out", str(tmp_path / "d")]) == 0
    )
    assert Dataset(tmp_path / "d").about["provenance"]["options"]["face_mean"] == "harmonic"


def test_examples_in_the_help_keep_their_lines(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    assert "\n  flare train --resume runs/darcy\n" in capsys.readouterr().out


def test_several_fields_are_judged_one_by_one(tmp_path, capsys):
    dataset = ragged_dataset(tmp_path / "d", [20] * 6, test=2)
    words = ["train", "--data.path", str(dataset.path), "--out", str(tmp_path / "r"), "--epochs", "2", *TINY]
    assert main([*words, "--report", "false"]) == 0
    told = capsys.readouterr().out
    result = json.loads((tmp_path / "r" / "result.json").read_text())
    assert set(result["fields"]) == {"force", "heat"}
    assert result["rel_l2"] == pytest.approx(np.mean([of["rel_l2"] for of in result["fields"].values()]))
    assert re.search(r"\n  force +\d\.\d{4}   training-mean field \d\.\d{4}; ours is", told)
    assert main(["evaluate", str(tmp_path / "r")]) == 0
    assert f"  heat                {result['fields']['heat']['rel_l2']:.4f}" in capsys.readouterr().out


def test_a_model_worse_than_the_mean_is_called_so(run, capsys):
    assert main(["evaluate", str(run)]) == 0
    assert re.search(r"ours is WORSE(, \d\.\d times its error| by \d\.\d%)", capsys.readouterr().out)


def test_a_reader_that_leaves_early_is_no_error(darcy):
    command = f"{sys.executable} -m flare data info {darcy.path} | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.stderr == ""
    assert "darcy: 14 samples" in done.stdout


def test_evaluation_of_a_set_without_a_training_split(run, darcy, tmp_path, capsys):
    assert main(["predict", str(run), str(darcy.path), "--split", "test", "--out", str(tmp_path / "p")]) == 0
    capsys.readouterr()
    assert main(["evaluate", str(run), "--data", str(tmp_path / "p")]) == 0
    told = capsys.readouterr().out
    assert "rel-L2 mean           0.0000" in told, "a model agrees with its own predictions"
    assert "training-mean field" in told


def test_points_on_a_line_train_and_report(tmp_path, capsys):
    schema = Schema(
        name="line",
        fields={
            "s": Field(role="points", components=("s",)),
            "u": Field(role="target", components=("u",)),
        },
    )
    writer = DatasetWriter(tmp_path / "d", schema, {"kind": "user"})
    for i in range(6):
        s = np.linspace(0, 1, 20 + i)[:, None]
        writer.append(Sample({"s": s, "u": 1 + s * i}))
    writer.finish({"train": [(0, 4)], "test": [(4, 6)]})
    assert (
        main(["train", "--data.path", str(tmp_path / "d"), "--out", str(tmp_path / "r"), "--epochs", "1", *TINY]) == 0
    )
    assert capsys.readouterr().out.splitlines()[-1].endswith("report.html")
    assert {p.stem for p in (tmp_path / "r" / "pictures").glob("*.png")} == {"loss", "errors", "spectra"}


def test_a_picture_that_cannot_be_drawn_does_not_cost_the_result(darcy, tmp_path, capsys, monkeypatch):
    from flare.report import run as report

    def fail(*_):
        raise flare.utils.errors.DataError("no ink")

    monkeypatch.setattr(report, "loss_curves", fail)
    assert main(["train", "--data.path", str(darcy.path), "--out", str(tmp_path / "r"), "--epochs", "1", *TINY]) == 0
    told = capsys.readouterr()
    assert "test rel-L2" in told.out
    assert "no report: no ink" in told.err
    monkeypatch.undo()
    assert main(["train", "--resume", str(tmp_path / "r")]) == 0
    assert (tmp_path / "r" / "report.html").exists(), "it is written when the run is asked for again"

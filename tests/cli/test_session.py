"""A session at the command line, from data to spectra."""

import csv
import json
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

from flare.cli import main
from flare.data.dataset import Dataset
from flare.data.sample import Field, Sample, Schema
from flare.data.writer import DatasetWriter
from flare.mixer import choose
from tests.cli.conftest import TINY
from tests.factory import ragged_dataset


def test_make_info_and_check(tmp_path, capsys):
    words = ["data", "make", "darcy", "--samples", "6", "--resolution", "8", "--stride", "1", "--workers", "1"]
    words += ["--grid=node", "--face-mean=harmonic", "--test_samples", "1"]  # dashes and underscores are the same
    assert main([*words, "--out", str(tmp_path / "d")]) == 0
    assert Dataset(tmp_path / "d").about["provenance"]["options"]["face_mean"] == "harmonic"
    assert "6 samples, " in capsys.readouterr().out
    assert main(["data", "info", str(tmp_path / "d")]) == 0
    printed = capsys.readouterr().out
    assert "train 5, test 1" in printed
    assert "pressure" in printed
    assert main(["data", "check", str(tmp_path / "d")]) == 0
    assert "nothing serious" in capsys.readouterr().out


def test_training_prints_error_baseline_and_report(run, darcy, tmp_path, capsys):
    lines, result = (run.parent / "out.txt").read_text().splitlines(), json.loads((run / "result.json").read_text())
    assert f"{result['parameters']:,} parameters" in (run.parent / "err.txt").read_text().split("training: ")[0]
    assert f"{result['rel_l2']:.4f}" in lines[0]
    assert f"{result['rel_l2_mean_field']:.4f}" in lines[1]
    assert lines[-1].split() == ["report", str(run / "report.html")]
    copy = shutil.copytree(run, tmp_path / "run")
    words = ["train", "--data.path", str(darcy.path), "--epochs", "2", "--out", str(copy), *TINY]
    assert main([*words, "--if-exists", "resume"]) == 0
    assert capsys.readouterr().out.replace(str(copy), str(run)).splitlines() == lines


def test_the_report_is_one_file(run):
    html = (run / "report.html").read_text()
    names = {"loss", "errors", "median", "best", "worst", "spectra", "eigenvectors"}
    assert {p.stem for p in (run / "pictures").glob("*.png")} == names
    assert html.count("data:image/png;base64,") == len(names)
    assert not re.search(r'(src|href)="https?://', html)
    for text in ("kv_depth: 0", "torch"):
        assert text in html


def test_evaluate_prints_the_same_error_as_training(run, tmp_path, capsys):
    assert main(["evaluate", str(run), "--out", str(tmp_path / "errors.json")]) == 0
    printed = capsys.readouterr().out
    result = json.loads((run / "result.json").read_text())
    assert f"{result['rel_l2']:.4f}" in printed
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
    assert "2 samples" in capsys.readouterr().out
    names = {"spectra.npz", "spectra.png", "eigenvectors.npz", "eigenvectors_block_1.png", "eigenvectors_block_2.png"}
    assert {p.name for p in (tmp_path / "s").iterdir()} == names
    with np.load(tmp_path / "s" / "spectra.npz") as spectra:
        assert spectra["eigenvalues"].shape == (2, 4, 4)
        np.testing.assert_allclose(spectra["eigenvalues"][..., 0], 1.0, atol=1e-12)
    with np.load(tmp_path / "s" / "eigenvectors.npz") as vectors:
        assert vectors["block_1"].shape == (4, 81, 3)


def test_info_prints_the_mixer_and_the_reason(capsys):
    assert main(["info"]) == 0
    printed = capsys.readouterr().out
    backend, reason = choose()
    assert re.search(rf"mixer +{backend}: {re.escape(reason)}", printed)
    assert "torch" in printed


def test_several_fields_are_evaluated_one_by_one(tmp_path, capsys):
    dataset = ragged_dataset(tmp_path / "d", [20] * 6, test=2)
    words = ["train", "--data.path", str(dataset.path), "--out", str(tmp_path / "r"), "--epochs", "2", *TINY]
    assert main([*words, "--no-report"]) == 0
    printed = capsys.readouterr().out
    result = json.loads((tmp_path / "r" / "result.json").read_text())
    assert set(result["fields"]) == {"force", "heat"}
    assert result["rel_l2"] == pytest.approx(np.mean([of["rel_l2"] for of in result["fields"].values()]))
    assert main(["evaluate", str(tmp_path / "r")]) == 0
    for text in (printed, capsys.readouterr().out):
        for name, errors in result["fields"].items():
            assert re.search(rf"\n  {name} +{errors['rel_l2']:.4f} ", text)


def test_a_closed_pipe_is_no_error(darcy):
    command = f"{sys.executable} -m flare data info {darcy.path} | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.stderr == ""
    assert "darcy: 14 samples" in done.stdout


def test_evaluation_of_a_set_without_a_training_split(run, darcy, tmp_path, capsys):
    assert main(["predict", str(run), str(darcy.path), "--split", "test", "--out", str(tmp_path / "p")]) == 0
    capsys.readouterr()
    assert main(["evaluate", str(run), "--data", str(tmp_path / "p")]) == 0
    assert "0.0000" in capsys.readouterr().out, "a model agrees with its own predictions"


def test_points_on_a_line_train_and_report(tmp_path):
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
    out = tmp_path / "r"

    assert main(["train", "--data.path", str(tmp_path / "d"), "--out", str(out), "--epochs", "1", *TINY]) == 0
    assert (out / "report.html").exists()
    assert {p.stem for p in (out / "pictures").glob("*.png")} == {"loss", "errors", "spectra"}

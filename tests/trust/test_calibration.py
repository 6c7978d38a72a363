"""On a generated dataset: bars cover 90 % of the points of test samples, and another family of shapes is noticed."""

import json
import re
import shutil

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import save_file

from flare.cli import main
from flare.data.dataset import Dataset
from flare.data.sample import Field, Sample, Schema
from flare.data.writer import DatasetWriter
from flare.surrogate import load, save_model
from flare.train.config import DataConfig, OptimConfig, TrainConfig
from flare.train.run import start
from flare.trust.calibration import FILE, calibrate_run, code_vector, load_calibration
from flare.utils.errors import CheckpointError

MODEL = {"name": "flare", "channels": 16, "blocks": 2, "heads": 4, "latents": 8, "kv_depth": 1, "ffn_depth": 1}


def outline(rng, family, points=64):
    """Closed curves: ellipses, or diamonds of the same size, each with a field that depends on the whole shape."""
    a, b, turn = rng.uniform(0.7, 1.3), rng.uniform(0.4, 0.9), rng.uniform(0, np.pi)
    t = 2 * np.pi * (np.arange(points) + rng.random()) / points
    x, y = a * np.cos(t), b * np.sin(t)
    if family == "diamond":
        length = np.abs(x) / a + np.abs(y) / b
        x, y = 1.25 * x / length, 1.25 * y / length
    curve = np.stack([np.cos(turn) * x - np.sin(turn) * y, np.sin(turn) * x + np.cos(turn) * y], 1)
    return curve, (100 + 50 * curve[:, 0] * a + 30 * b * np.sin(3 * curve[:, 1]))[:, None]


def dataset(path, family, splits, seed) -> Dataset:
    fields = {
        "points": Field(role="points", components=("x", "y"), unit="m"),
        "pressure": Field(role="target", components=("pressure",), unit="Pa"),
    }
    writer = DatasetWriter(path, Schema(name="outlines", fields=fields), {"kind": "user"})
    rng, ranges, start_at = np.random.default_rng(seed), {}, 0
    for name, count in splits.items():
        for _ in range(count):
            points, pressure = outline(rng, family)
            writer.append(Sample({"points": points, "pressure": pressure}))
        ranges[name] = [(start_at, start_at + count)]
        start_at += count
    return writer.finish(ranges)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trust")
    data = dataset(folder / "d", "ellipse", {"train": 80, "calibration": 120, "test": 120}, 0)
    config = TrainConfig(
        data=DataConfig(path=str(data.path), batch_size=8),
        optim=OptimConfig(lr=3e-3),
        model=MODEL,
        epochs=15,
        device="cpu",
    )
    start(config, folder / "run")
    calibrate_run(folder / "run", quiet=True)
    return folder / "run"


@pytest.fixture(scope="module")
def surrogate(run):
    return load(run)


def test_bars_cover_ninety_percent_of_the_test_points(run, surrogate):
    calibration = load_calibration(run, surrogate)
    measured = calibration.report["coverage"]["pressure"]
    assert measured == pytest.approx(0.9, abs=0.03)
    # and measured anew, not believed: from the files, sample by sample
    data = Dataset(run.parent / "d")
    shares = []
    for index in data.split("test"):
        sample = data[int(index)]
        fields = surrogate.predict_sample(sample)
        bars = calibration.judge(surrogate, Sample({"points": sample.values["points"]}), fields).bars
        shares.append(np.mean(np.abs(fields["pressure"] - sample.values["pressure"][:, 0]) <= bars["pressure"]))
    assert np.mean(shares) == pytest.approx(measured, abs=2e-3)


def test_another_family_of_shapes_is_told_apart(run, surrogate, tmp_path):
    strange = dataset(tmp_path / "s", "diamond", {"all": 40}, 1)
    familiar, own = load_calibration(run, surrogate).familiar, Dataset(run.parent / "d")

    def scores(data, indices):
        return np.array(
            [familiar.score(code_vector(surrogate.encode(data[int(i)].values["points"]).latents)) for i in indices]
        )

    known, other = scores(own, own.split("test")), scores(strange, range(40))
    auc = (other[:, None] > known[None]).mean()
    assert auc >= 0.95
    assert (known > 1).mean() < 0.1  # false alarms: one in a hundred and twenty is to be expected
    assert (other > 1).mean() > 0.5


def test_a_part_out_of_scale_is_strange(run, surrogate):
    points, _ = outline(np.random.default_rng(5), "ellipse")
    familiar = load_calibration(run, surrogate).familiar
    scores = [familiar.score(code_vector(surrogate.encode(scale * points).latents)) for scale in (1.0, 3.0, 1000.0)]
    assert scores[0] < 1.5
    assert min(scores[1:]) > 1.5


def test_a_calibration_is_for_its_weights_alone(run, surrogate, tmp_path):
    other = load(run)
    with torch.no_grad():
        next(other.parameters()).add_(1e-3)
    assert load_calibration(run, other) is None
    assert load_calibration(tmp_path, surrogate) is None


def test_other_weights_of_a_run_have_a_calibration_of_their_own(run, surrogate, tmp_path, capsys):
    copy = shutil.copytree(run, tmp_path / "run")
    best = load(run)
    with torch.no_grad():
        next(best.parameters()).add_(1e-3)
    shutil.rmtree(copy / "checkpoints" / "best", ignore_errors=True)
    (copy / "checkpoints" / "best").mkdir()
    save_model(best.state_dict(), best.about, copy / "checkpoints" / "best")
    np.savez(tmp_path / "a.npz", points=outline(np.random.default_rng(1), "ellipse")[0])
    words = ["predict", str(copy), str(tmp_path / "a.npz"), "--checkpoint", "best", "--out"]
    assert main([*words, str(tmp_path / "a-best.npz")]) == 0
    advice = re.search(r"\(flare (calibrate .*)\)", capsys.readouterr().err)[1]
    before = (copy / FILE).read_bytes()
    assert main(advice.split()) == 0
    assert (copy / FILE).read_bytes() == before, "that of the last weights is not lost"
    assert main([*words, str(tmp_path / "b-best.npz")]) == 0
    assert "not calibrated" not in capsys.readouterr().err
    assert load_calibration(copy, best).model != load_calibration(copy, surrogate).model


def test_saved_and_loaded_it_judges_the_same(run, surrogate):
    fresh, kept = calibrate_run(run, quiet=True), load_calibration(run, surrogate)
    data = Dataset(run.parent / "d")
    sample = Sample({"points": data[100].values["points"]})
    fields = surrogate.predict_sample(data[100])
    a, b = (c.judge(surrogate, sample, fields) for c in (fresh, kept))
    np.testing.assert_array_equal(a.bars["pressure"], b.bars["pressure"])
    assert (a.score, a.rank) == (b.score, b.rank)
    assert fresh.report == kept.report


def test_a_calibration_of_before_with_more_in_it_still_loads(run, surrogate, tmp_path):
    """Files once told the sizes of the training samples, too."""
    with safe_open(run / FILE, "numpy") as file:
        about, arrays = json.loads(file.metadata()["flare"]), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    assert "sizes" not in about
    save_file(arrays, tmp_path / FILE, {"flare": json.dumps({**about, "sizes": [40, 90]})})
    assert load_calibration(tmp_path, surrogate).report == load_calibration(run, surrogate).report


def test_a_damaged_file_is_said(run, surrogate, tmp_path):
    (tmp_path / FILE).write_bytes((run / FILE).read_bytes()[:200])
    with pytest.raises(CheckpointError, match="make it again with:  flare calibrate"):
        load_calibration(tmp_path, surrogate)


def test_a_part_a_little_farther_reads_otherwise_than_one_far_beyond(run, surrogate):
    familiar = load_calibration(run, surrogate).familiar
    near, far = familiar.verdict(0, 1.26), familiar.verdict(0, 154.0)
    assert "farther than all 120 held-out samples" in near
    assert near.endswith("(one in 121 parts like those of the training gets this warning, too)")
    assert "far beyond all 120 held-out samples" in far
    assert far.endswith("error bars do not hold here")


def test_a_familiar_part_reads_as_one(run, surrogate):
    familiar = load_calibration(run, surrogate).familiar
    assert familiar.verdict(120) == "familiar: nearer to the training set than all 120 held-out samples"
    assert familiar.verdict(3) == "familiar: nearer to the training set than 3 of 120 held-out samples"

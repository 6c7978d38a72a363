"""Calibration of a trained run: coverage of error bars on test points, and detection of another family of shapes."""

import json
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
from flare.inference.calibration.calibrate import FILE, calibration_path, latent_vector, load_calibration
from flare.inference.surrogate import load, save_model
from flare.train.config import DataConfig, OptimConfig, TrainConfig
from flare.train.run import calibrate_run, start
from flare.utils.errors import CheckpointError

MODEL = {"name": "flare", "channels": 16, "blocks": 2, "heads": 4, "latents": 8, "kv_depth": 1, "ffn_depth": 1}


def outline(rng, family, points=64):
    """Return a closed curve, ellipse or diamond, with a field that depends on the whole shape."""
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
    rng, ranges, first = np.random.default_rng(seed), {}, 0
    for name, count in splits.items():
        for _ in range(count):
            points, pressure = outline(rng, family)
            writer.append(Sample({"points": points, "pressure": pressure}))
        ranges[name] = [(first, first + count)]
        first += count
    return writer.finish(ranges)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("calibrated")
    data = dataset(folder / "d", "ellipse", {"train": 80, "calibration": 120, "test": 120}, 0)
    settings = {"data": DataConfig(path=str(data.path), batch_size=8), "optim": OptimConfig(lr=3e-3)}
    start(TrainConfig(**settings, model=MODEL, epochs=15, device="cpu"), folder / "run")
    calibrate_run(folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def surrogate(run):
    return load(run)


def perturbed(run):
    model = load(run)
    with torch.no_grad():
        next(model.parameters()).add_(1e-3)
    return model


def test_error_bars_cover_ninety_percent_of_the_test_points(run, surrogate):
    calibration, data, shares = load_calibration(run, surrogate), Dataset(run.parent / "d"), []
    for index in data.split("test"):
        sample = data[int(index)]
        fields = surrogate.predict_sample(sample)
        half_widths = calibration.assess(surrogate, Sample({"points": sample.values["points"]}), fields).error_bars
        shares.append(np.mean(np.abs(fields["pressure"] - sample.values["pressure"][:, 0]) <= half_widths["pressure"]))
    reported = calibration.report["coverage"]["pressure"]
    assert reported == pytest.approx(0.9, abs=0.03)
    assert np.mean(shares) == pytest.approx(reported, abs=2e-3)


def test_another_family_of_shapes_has_larger_ood_scores(run, surrogate, tmp_path):
    other, own = dataset(tmp_path / "s", "diamond", {"all": 40}, 1), Dataset(run.parent / "d")
    detector = load_calibration(run, surrogate).ood

    def scores(data, indices):
        vectors = (latent_vector(surrogate.encode(data[int(i)].values["points"]).latents) for i in indices)
        return np.array([detector.score(vector) for vector in vectors])

    inside, outside = scores(own, own.split("test")), scores(other, range(40))
    assert (outside[:, None] > inside[None]).mean() >= 0.95, "area under the ROC curve"
    assert (inside > 1).mean() < 0.1
    assert (outside > 1).mean() > 0.5


def test_a_calibration_is_for_its_weights_alone(run, surrogate, tmp_path):
    assert load_calibration(run, perturbed(run)) is None
    assert load_calibration(tmp_path, surrogate) is None


def test_each_checkpoint_has_its_own_calibration(run, surrogate, tmp_path):
    copy, best = shutil.copytree(run, tmp_path / "run"), perturbed(run)
    folder = copy / "checkpoints" / "best"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    save_model(best.state_dict(), best.about, folder)
    before = (copy / FILE).read_bytes()
    assert main(["calibrate", str(copy), "--checkpoint", "best"]) == 0
    assert (copy / FILE).read_bytes() == before
    assert calibration_path(copy, "best").exists()
    assert load_calibration(copy, best).model != load_calibration(copy, surrogate).model


def test_a_saved_calibration_gives_the_same_assessment(run, surrogate):
    fresh, loaded = calibrate_run(run), load_calibration(run, surrogate)
    data = Dataset(run.parent / "d")
    sample, fields = Sample({"points": data[100].values["points"]}), surrogate.predict_sample(data[100])
    a, b = (calibration.assess(surrogate, sample, fields) for calibration in (fresh, loaded))
    np.testing.assert_array_equal(a.error_bars["pressure"], b.error_bars["pressure"])
    assert (a.score, a.rank) == (b.score, b.rank)
    assert fresh.report == loaded.report


def test_a_file_with_unknown_entries_loads_and_a_damaged_one_is_refused(run, surrogate, tmp_path):
    with safe_open(run / FILE, "numpy") as file:
        about, arrays = json.loads(file.metadata()["flare"]), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    save_file(arrays, tmp_path / FILE, {"flare": json.dumps({**about, "sizes": [40, 90]})})
    assert load_calibration(tmp_path, surrogate).report == load_calibration(run, surrogate).report
    (tmp_path / FILE).write_bytes((run / FILE).read_bytes()[:200])
    with pytest.raises(CheckpointError, match=FILE):
        load_calibration(tmp_path, surrogate)


def test_only_a_sample_farther_than_all_others_gets_a_warning(run, surrogate):
    detector = load_calibration(run, surrogate).ood
    assert ["WARNING" in detector.verdict(rank) for rank in (0, 3, 120)] == [True, False, False]

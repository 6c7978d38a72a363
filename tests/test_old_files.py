"""Datasets, run folders and encodings of older versions, under tests/fixtures, still load."""

import shutil
from pathlib import Path

import numpy as np
import pytest

import flare
from flare.inference.calibration.calibrate import load_calibration
from flare.inference.encoding import load_encoding
from flare.train.run import Run, extend, read_result
from flare.train.run_folder import RunFolder

FIXTURES = sorted(path for path in (Path(__file__).parent / "fixtures").iterdir() if path.is_dir())


@pytest.fixture(params=FIXTURES, ids=lambda path: path.name)
def files(request, tmp_path, monkeypatch):
    """A copy of the files of one version, as the working directory."""
    monkeypatch.chdir(shutil.copytree(request.param, tmp_path / "files"))
    return np.load("expected.npz")


def test_a_dataset_loads(files):
    dataset = flare.Dataset("dataset")
    for name in dataset.schema.fields:
        np.testing.assert_array_equal(dataset[15].values[name], files[name])
    assert len(dataset.split("train")) == 6


def test_a_surrogate_with_its_calibration_loads_and_predicts_the_same(files):
    for ema in (False, True):
        surrogate = flare.load("run", ema=ema)
        sample = flare.Sample({name: files[name] for name in ("position", "thickness", "speed")})
        predicted = surrogate.predict_sample(sample)["heat"]
        assert np.allclose(predicted, files["predicted"], rtol=1e-5, atol=0) != ema
    surrogate = flare.load("run")
    calibration = load_calibration("run", surrogate)
    assert calibration.error_bars is not None
    assert calibration.assess(surrogate, sample, surrogate.predict_sample(sample)).score is not None


def test_an_encoding_loads_and_answers_the_same(files):
    encoding = load_encoding("encoding.code", flare.load("run"))
    heat = encoding.query(files["position"], {"thickness": files["thickness"]})["heat"]
    np.testing.assert_allclose(heat, files["predicted"], rtol=1e-5)


def test_a_run_has_metrics_and_continues(files):
    before = Run(Path("run"), read_result(Path("run")))
    assert before.metrics["test"]["rel_l2"] > 0
    result = extend("run", epochs=3)
    assert (before.result["steps"], result["steps"]) == (3, 9)
    assert RunFolder("run").config().loss.name == "relative_l2"

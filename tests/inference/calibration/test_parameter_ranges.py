"""Parameters outside the range of the training samples."""

import json
from dataclasses import replace

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from flare.cli import main
from flare.data.sample import Field, Sample, Schema
from flare.data.writer import DatasetWriter
from flare.inference.calibration.calibrate import FILE, fit_ranges, load_calibration, outside_ranges
from flare.inference.surrogate import load

POINTS = np.random.default_rng(3).uniform(-1, 1, (12, 2))


def test_a_parameter_outside_its_range_is_ood_also_without_a_detector(calibrated_data, calibrated_run):
    model = load(calibrated_run)
    calibration = replace(load_calibration(calibrated_run, model), ood=None)
    speeds = [float(calibrated_data[i].values["speed"][0]) for i in range(20)]
    for speed, is_ood in ((max(speeds), False), (3.5, True)):
        sample = model.sample(POINTS, {"thickness": np.ones(12), "speed": speed})
        assessment = calibration.assess(model, sample, model.predict_sample(sample))
        assert assessment.is_ood == is_ood
        assert [f"{max(speeds):.6g}" in text and "3.5 m/s" in text for text in assessment.outside] == [True] * is_ood
        assert len(calibration.warnings(assessment)) == is_ood


@pytest.mark.parametrize("verb", [["encode"], ["sensitivity", "--of", "mean", "--field", "heat"]], ids="-".join)
def test_commands_warn(verb, calibrated_run, tmp_path, capsys):
    for speed in (2.0, 3.5):
        np.savez(tmp_path / "in.npz", position=POINTS, thickness=np.ones(12), speed=speed)
        words = [
            verb[0],
            str(calibrated_run),
            str(tmp_path / "in.npz"),
            *verb[1:],
            "--out",
            str(tmp_path / f"{speed}.npz"),
        ]
        assert main(words) == 0
        assert ("speed = 3.5 m/s" in capsys.readouterr().err) == (speed == 3.5)


def test_an_old_calibration_without_ranges_loads(calibrated_run, tmp_path):
    with safe_open(calibrated_run / FILE, "numpy") as file:
        about, arrays = json.loads(file.metadata()["flare"]), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    del about["ranges"]
    save_file(arrays, tmp_path / FILE, {"flare": json.dumps(about)})
    model = load(calibrated_run)
    sample = model.sample(POINTS, {"thickness": np.ones(12), "speed": 3.5})
    assert load_calibration(tmp_path, model).assess(model, sample).outside == ()


def test_components_have_their_own_ranges_and_augmented_vectors_have_none(tmp_path):
    fields = {
        "points": Field(role="points", components=("x", "y")),
        "wind": Field(role="parameter", components=("x", "y"), unit="m/s"),
        "level": Field(role="parameter", components=("level",)),
        "heat": Field(role="target", components=("heat",)),
    }
    writer = DatasetWriter(tmp_path / "d", Schema(name="windy", fields=fields), {"kind": "user"})
    for wind in ([1, 7], [2, 8]):
        values = {"wind": np.array(wind), "level": np.array([0.3]), "points": POINTS, "heat": POINTS[:, :1]}
        writer.append(Sample(values))
    dataset = writer.finish({"train": [(0, 2)]})
    ranges = fit_ranges(dataset, range(2))
    for wind, level, channel in (([1.5, 9.0], 0.3, "wind.y"), ([1, 7], 0.4, "level")):
        (found,) = outside_ranges(ranges, dataset.schema, Sample({"wind": np.array(wind), "level": np.array([level])}))
        assert found.startswith(f"{channel} = ")
    assert list(fit_ranges(dataset, range(2), augmented=True)) == ["level"]

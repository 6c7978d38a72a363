"""A parameter that the training never had is said, and error bars are not vouched for there."""

import json
from dataclasses import replace

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from flare.cli import main
from flare.data.sample import Field, Sample, Schema
from flare.data.writer import DatasetWriter
from flare.prediction import describe, predict_file
from flare.report.prediction import write_prediction_page
from flare.surrogate import load
from flare.trust.calibration import FILE, calibrate, load_calibration
from flare.trust.ranges import fit_ranges, outside
from tests.factory import ragged_dataset, saved_run
from tests.test_export import surrogate

POINTS = np.random.default_rng(3).uniform(-1, 1, (12, 2))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return ragged_dataset(tmp_path_factory.mktemp("data") / "ragged", sizes=[12] * 40, test=20)


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    model = surrogate()
    folder = saved_run(model, tmp_path_factory.mktemp("runs") / "run")
    calibrate(model, data, range(20), range(20, 30), range(30, 40), quiet=True).save(folder / FILE)
    return folder


def part(folder, speed):
    np.savez(folder / f"{speed:g}.npz", position=POINTS, thickness=np.ones(12), speed=speed)
    return folder / f"{speed:g}.npz"


def test_bars_do_not_hold_where_a_parameter_lies_outside_the_training(data, run, tmp_path):
    model = load(run)
    calibration = load_calibration(run, model)
    speeds = [float(data[i].values["speed"][0]) for i in range(20)]
    said = f"speed = 3.5 m/s lies outside the training's {min(speeds):.6g} to {max(speeds):.6g}"
    inside, beyond = (predict_file(model, part(tmp_path, s), calibration=calibration) for s in (max(speeds), 3.5))
    assert inside.judgement.outside == ()
    assert "lies outside" not in "".join(describe(inside, calibration)) + inside.warning
    assert beyond.judgement.unlike
    assert said in beyond.warning
    lines = describe(replace(beyond, judgement=replace(beyond.judgement, rank=3)), calibration)
    assert lines[-1] == f"WARNING: {said}; error bars do not hold there"
    assert "(does not hold here)" in lines[0]
    assert not any("error bars are for" in line for line in lines)


def test_a_model_without_familiarity_says_it_alone(run, tmp_path):
    """As all models but FLARE are, which have no codes."""
    model = load(run)
    calibration = replace(load_calibration(run, model), familiar=None)
    found = predict_file(model, part(tmp_path, 3.5), calibration=calibration)
    assert found.warning.startswith("WARNING: speed = 3.5 m/s lies outside")
    assert describe(found, calibration)[-1].startswith("WARNING: speed = 3.5 m/s lies outside")
    found.save(tmp_path / "out.vtu")
    write_prediction_page(tmp_path / "out.html", found, describe(found, calibration))
    assert "speed = 3.5 m/s lies outside" in (tmp_path / "out.html").read_text(encoding="utf-8")


def test_the_other_verbs_say_it_too(run, tmp_path, capsys):
    for verb, more in (("encode", []), ("sensitivity", ["--of", "mean", "--field", "heat"])):
        for speed, told in ((2.0, False), (3.5, True)):
            words = [verb, str(run), str(part(tmp_path, speed)), *more, "--out", str(tmp_path / f"{verb}-{speed}.npz")]
            assert main(words) == 0
            assert ("3.5.npz: WARNING: speed = 3.5 m/s lies outside" in capsys.readouterr().err) is told


def test_a_calibration_of_before_has_no_ranges_and_warns_of_none(run, tmp_path):
    with safe_open(run / FILE, "numpy") as file:
        about, arrays = json.loads(file.metadata()["flare"]), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    del about["ranges"]
    save_file(arrays, tmp_path / FILE, {"flare": json.dumps(about)})
    model = load(run)
    calibration = load_calibration(tmp_path, model)
    assert predict_file(model, part(tmp_path, 3.5), calibration=calibration).judgement.outside == ()


def test_components_have_ranges_of_their_own_unless_the_training_moved_them(tmp_path):
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
    asked = Sample({"wind": np.array([1.5, 9.0]), "level": np.array([0.3])})
    assert outside(ranges, dataset.schema, asked) == ("wind.y = 9 m/s lies outside the training's 7 to 8",)
    assert list(fit_ranges(dataset, range(2), moved=True)) == ["level"]
    other = Sample({"wind": np.array([1, 7]), "level": np.array([0.4])})
    assert outside(ranges, dataset.schema, other) == ("level = 0.4 lies outside the training's 0.3",)

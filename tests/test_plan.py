"""The planner: its laws are fitted exactly, its answers are those of the laws, what cannot fit is refused."""

import json
from dataclasses import replace

import pytest

from flare import plan
from flare.cli import main
from flare.errors import ConfigError, DataError
from flare.plan import Need, Setting, calibrate, calibrated, surely_fits
from tests.factory import ragged_dataset

MODEL = {"name": "flare", "channels": 16, "heads": 2, "kv_depth": 0, "ffn_depth": 0, "blocks": 4, "latents": 8}
SETTING = Setting(model=MODEL, points=1000)


def law(setting):
    """A machine that keeps the laws to the letter."""
    w, b, m = setting.work, setting.blocks, setting.latents
    return Need(300 + 2e-3 * w + 1e-3 * w * b + setting.state_mb, 0.01 + 1e-6 * w + 3e-6 * w * b + 1e-8 * w * b * m)


@pytest.fixture
def lawful(monkeypatch):
    seen = []

    def measure(setting):
        seen.append(setting)
        return law(setting)

    monkeypatch.setattr(plan, "measure", measure)
    return seen


def test_a_lawful_machine_is_predicted_exactly_where_it_was_not_measured(lawful):
    calibration = calibrate(SETTING)
    for points, batch, blocks, latents in [(1_000_000, 1, 8, 2048), (50_000, 4, 2, 16), (10, 1, 12, 512)]:
        setting = replace(SETTING, points=points, batch=batch, model=MODEL | {"blocks": blocks, "latents": latents})
        assert setting not in lawful
        found, truth = calibration.predict(setting), law(setting)
        assert found.memory_mb == pytest.approx(truth.memory_mb, rel=1e-6)
        assert found.seconds == pytest.approx(truth.seconds, rel=1e-6)


@pytest.mark.usefixtures("lawful")
def test_the_largest_that_fits_is_the_largest():
    calibration = calibrate(SETTING)
    for what, most in calibration.largest(SETTING, 2000).items():

        def need(n, what=what):
            change = {"model": MODEL | {"latents": n}} if what == "latents" else {what: n}
            return calibration.predict(replace(SETTING, **change)).memory_mb

        assert need(most) <= 2000 < need(most + max(1, most // 500)), what
    assert calibration.largest(SETTING, 100) == {"points": 0, "batch": 0, "latents": 0}


@pytest.mark.usefixtures("lawful")
def test_a_calibration_is_kept_and_holds_for_its_model_alone(tmp_path):
    path = tmp_path / "c.json"
    first = calibrated(SETTING, path, lambda text: None)
    assert calibrated(SETTING, path, pytest.fail) == first
    with pytest.raises(ConfigError, match="this calibration is of"):
        calibrated(replace(SETTING, precision="bf16"), path, pytest.fail)
    path.write_text("{}")
    with pytest.raises(DataError, match="is no calibration"):
        calibrated(SETTING, path, pytest.fail)


def test_a_measured_step_is_a_training_step(monkeypatch):
    monkeypatch.setattr(plan, "alone", lambda function, *arguments: function(*arguments))
    for change in ({}, {"training": False}, {"recompute": True}, {"precision": "bf16"}):
        need = plan.measure(replace(SETTING, points=200, batch=2, **change))
        assert need.memory_mb > 50
        assert 0 < need.seconds < 10


def test_settings_that_cannot_be_are_refused():
    for change, said in [
        ({"points": 0}, "points=0"),
        ({"precision": "8"}, "precision '8'"),
        ({"model": {"name": "lno"}}, "only FLARE models are planned"),
    ]:
        with pytest.raises(ConfigError, match=said):
            replace(SETTING, **change)


@pytest.mark.usefixtures("lawful")
def test_plan_at_the_command_line(tmp_path, capsys):
    words = ["plan", "--points", "1000000", "--blocks", "4", "--memory", "2", "--calibration", str(tmp_path / "c")]
    assert main(words) == 0
    told = capsys.readouterr().out
    assert "training" in told
    assert "does NOT fit" in told
    assert main([*words, "--ranks", "8", "--steps", "1000"]) == 0
    told = capsys.readouterr().out
    assert "NOT" not in told
    assert "1,000 steps take" in told
    assert json.loads((tmp_path / "c.training.json").read_text())["about"]["training"] is True
    assert main([*words, "--ranks", "0"]) == 2


def test_the_bound_without_calibration_is_above_what_a_model_keeps():
    from flare.models.cost import cost_of

    model = {"name": "flare", "blocks": 4, "latents": 32}
    kept = cost_of(model, 3, 1, 5000).activations / 2**20
    setting = Setting(model=model, points=5000)
    assert not surely_fits(setting, 1024 + kept)


@pytest.mark.usefixtures("lawful")
def test_a_run_that_cannot_fit_is_refused_before_it_begins(tmp_path, monkeypatch, capsys):
    data = ragged_dataset(tmp_path / "d", [20] * 6)
    words = ["train", "--data.path", str(data.path), "--out", str(tmp_path / "r"), "--epochs", "1", "--device", "cpu"]
    words += ["--model", json.dumps(MODEL), "--report", "false"]
    monkeypatch.setattr(plan, "memory_of", lambda device: 200.0)  # the lawful machine wants 300 before the first point
    assert main(words) == 2
    told = capsys.readouterr().err
    assert "0.29 GiB" in told
    assert "--fit ignore" in told
    assert not (tmp_path / "r").exists()
    assert main([*words, "--fit", "ignore"]) == 0

"""`flare.train`: the same runs as the command line, from Python."""

import json
import logging

import numpy as np
import pytest
import torch

import flare
from flare.cli import main
from flare.data.batching import Batch
from flare.data.dataset import ArrayFolder
from flare.inference import surrogate as surrogates
from flare.inference.surrogate import Surrogate
from flare.models import MODELS
from flare.train.config import LOSSES, OptimConfig, TrainConfig
from flare.train.ema import WeightAverage
from flare.train.losses import relative_l2
from flare.train.optimizers import OPTIMIZERS, build_optimizer
from flare.train.run import default_folder
from flare.utils.errors import ConfigError, DataError
from flare.utils.files import save_arrays
from tests.factory import ragged_dataset, ragged_schema
from tests.inference.test_export import SMALL
from tests.train.test_loop import TINY, checkpoint_bytes

SETTINGS = {"device": "cpu", "evaluate_every": 1}


@pytest.fixture
def ragged(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return ragged_dataset(tmp_path / "data" / "mine", [12, 9, 14, 8, 10, 12], test=2)


def train(data=None, **how):
    return flare.train(data, **{"model": TINY, "settings": SETTINGS, "epochs": 1, "report": False} | how)


def test_a_run_has_metrics_surrogate_and_path(ragged, tmp_path):
    run = train(ragged, report=True)
    assert run.path.resolve() == tmp_path / "runs" / "mine-flare"
    assert run.metrics == {"test": {"rel_l2": pytest.approx(run.result["rel_l2"])}}
    assert json.loads((run.path / "result.json").read_text()) == run.result
    sample = ragged[5]
    errors = []
    for name, predicted in run.surrogate.predict_sample(sample).items():
        truth = sample.values[name].reshape(predicted.shape)
        errors.append(np.linalg.norm(predicted - truth) / np.linalg.norm(truth))
    kept = json.loads((run.path / "test_errors.json").read_text())["rel_l2"][-1]
    assert np.mean(errors) == pytest.approx(kept, rel=1e-4)
    assert run.calibration.report["held_out_samples"] == 1
    assert {"calibration.safetensors", "report.html"} <= {path.name for path in run.path.iterdir()}


def test_the_command_line_trains_the_same_weights(ragged, tmp_path):
    by_name = {"name": "adamw", "ema": 0.9}
    run = train("data/mine", lr=2e-3, batch_size=4, out="a", settings=SETTINGS | {"optim": by_name, "seed": 3})
    words = ["train", "data/mine", "-o", "b", "--lr", "2e-3", "--batch-size", "4", "--optimizer", "adamw"]
    words += ["--optim.ema", "0.9", "--seed", "3", "--device", "cpu", "--epochs", "1", "--no-report"]
    assert main([*words, "--model", json.dumps(TINY), "--evaluate_every", "1"]) == 0
    assert checkpoint_bytes(tmp_path / "a") == checkpoint_bytes(tmp_path / "b")
    assert run.metrics["test"].keys() == {"rel_l2", "rel_l2_ema"}


def test_a_run_is_resumed_extended_and_refused(ragged, tmp_path):
    constant = SETTINGS | {"optim.schedule": "constant", "optim.name": "adamw"}
    first = train(ragged, out="a", settings=constant)
    assert train(ragged, out="a", settings=constant, if_exists="resume").result == first.result
    longer = flare.train(resume="a", epochs=2, report=False)
    assert longer.result["steps"] == 2 * first.result["steps"]
    train(ragged, out="b", settings=constant, epochs=2)
    assert checkpoint_bytes(tmp_path / "a") == checkpoint_bytes(tmp_path / "b")
    for refused in (
        {"data": ragged, "out": "a"},
        {"data": ragged, "out": "a", "if_exists": "resume", "lr": 0.5},
        {"resume": "a", "settings": {"seed": 1}},
        {"resume": "a", "out": "c"},
    ):
        with pytest.raises(ConfigError):
            flare.train(**refused)


@pytest.mark.parametrize(
    ("settings", "fact"),
    [
        ({"settings": {"optim.lrr": 1}}, "optim.lrr"),
        ({"settings": {"optim.lr": 1e-3}, "lr": 1e-3}, "optim.lr"),
        ({"model": "flair"}, "flair"),
        ({"model": {"name": "flare", "width": 3}}, "width"),
        ({"settings": {"loss.name": "l3"}}, "l3"),
        ({"settings": {"optim.name": "adamx"}}, "adamx"),
        ({"recipe": "slow"}, "slow"),
        ({"preset": "darcey"}, "darcey"),
        ({"batch_size": 0}, "data.batch_size=0"),
        ({"if_exists": "overwrite"}, "if_exists='overwrite'"),
        ({"settings": {"optim.undecayed": ["bias"]}}, "bias"),
        ({"settings": {"shard": True, "optim.name": "soap"}}, "shard"),
    ],
)
def test_a_bad_setting_is_named_and_leaves_no_folder(ragged, tmp_path, settings, fact):
    with pytest.raises(ConfigError, match=fact):
        flare.train(ragged, **settings)
    assert not (tmp_path / "runs").exists()


def count(monkeypatch, owner, name):
    """Return a list that grows by one with every call of a function."""
    calls, function = [], getattr(owner, name)

    def counted(*args, **how):
        calls.append(name)
        return function(*args, **how)

    monkeypatch.setattr(owner, name, counted)
    return calls


def test_a_run_opens_its_dataset_once_and_loads_its_weights_once(ragged, monkeypatch):
    constant = SETTINGS | {"optim.schedule": "constant"}
    opened, loaded = count(monkeypatch, ArrayFolder, "__init__"), count(monkeypatch, surrogates, "load_weights")
    monkeypatch.setattr("flare.train.run.steps_within", lambda *_: 2)
    for how in (
        {"data": "data/mine", "out": "a", "model": TINY, "settings": constant, "epochs": 1},
        {"data": "data/mine", "out": "b", "model": TINY, "settings": constant | {"minutes": 0.5}, "report": False},
        {"resume": "a", "epochs": 2, "report": False},
    ):
        run = flare.train(**how)
        assert run.surrogate.run == run.path
        assert run.calibration is not None
        assert (len(opened), len(loaded)) == (1, 1)
        opened.clear()
        loaded.clear()
    flare.train(resume="a", report=False)
    assert not opened, "nothing is left to do"


def test_epochs_are_logged_and_nothing_is_printed(ragged, caplog, capsys):
    with caplog.at_level(logging.INFO, logger="flare"):
        train(ragged, epochs=2)
    assert capsys.readouterr().out == ""
    assert [f"epoch {epoch}: test" in caplog.text for epoch in (1, 2, 3)] == [True, True, False]


def test_missing_data_is_refused():
    with pytest.raises(ConfigError, match="data is missing"):
        flare.train()
    with pytest.raises(DataError, match="no/such"):
        flare.train("no/such")


def test_a_preset_names_the_run_folder():
    folders = {(None, None): "runs/darcy", ("fast", None): "runs/darcy-fast", (None, "lno"): "runs/darcy-lno"}
    for choice, folder in folders.items():
        assert default_folder(TrainConfig(), "darcy", *choice).as_posix() == folder


def test_fields_may_have_the_names_of_arguments(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    roles = {"points": "points", "chunk": "feature", "scratch": "parameter", "file": "feature", "self": "target"}
    fields = {name: flare.Field(role=role, components=("a",)) for name, role in roles.items()}
    writer = flare.DatasetWriter("data", flare.Schema(name="names", fields=fields), {"kind": "user"})
    rng = np.random.default_rng(0)
    for _ in range(16):
        values = {name: rng.random(1 if role == "parameter" else (7, 1)) + 1 for name, role in roles.items()}
        writer.append(flare.Sample(values))
    writer.finish({"train": [(0, 6)], "calibration": [(6, 15)], "test": [(15, 16)]})
    assert main(["train", "data", "--model", json.dumps(TINY), "--epochs", "1", "--device", "cpu", "-o", "run"]) == 0
    assert (tmp_path / "run" / "calibration.safetensors").exists()
    save_arrays("in.npz", {name: value for name, value in values.items() if name != "self"})
    assert main(["predict", "run", "in.npz", "--out", "out.npz"]) == 0
    features = {"chunk": values["chunk"], "file": values["file"]}
    inputs = {"features": features, "parameters": {"scratch": values["scratch"]}}
    predicted = flare.load("run").predict(values["points"], **inputs)["self"]
    np.testing.assert_allclose(np.load("out.npz")["self_predicted"], predicted, rtol=1e-5)
    assert main(["sensitivity", "run", "in.npz", "--of", "mean", "--field", "self", "--out", "slopes.npz"]) == 0
    assert {"file", "d_mean_d_file"} <= {*np.load("slopes.npz")}
    encoding = flare.load("run").encode(values["points"], **inputs, chunk=3)
    np.testing.assert_allclose(encoding.query(values["points"], features)["self"], predicted, rtol=1e-5)
    swapped = {"features": {**features, "scratch": 1.0}}
    with pytest.raises(DataError, match="'scratch'"):
        flare.load("run").predict(values["points"], **swapped)


def test_a_registered_loss_is_minimized(ragged, monkeypatch):
    monkeypatch.setattr(LOSSES, "_entries", dict(LOSSES._entries))
    calls = []

    @flare.register_loss("counted")
    def counted(prediction, target, mask=None):
        calls.append(prediction.shape)
        return ((prediction - target) / 100).square() if mask is None else ((prediction - target) / 100)[mask].square()

    run = train(ragged, settings=SETTINGS | {"loss.name": "counted"})
    assert len(calls) == run.result["steps"]
    with pytest.raises(ConfigError, match="counted"):
        train(ragged, out="points", settings={"loss.name": "counted", "ranks_share": "points"})


def test_a_failed_calibration_does_not_lose_the_run(ragged, monkeypatch, caplog):
    def fail(*_, **__):
        raise DataError("no luck")

    monkeypatch.setattr("flare.train.field_task.calibrate", fail)
    with caplog.at_level(logging.WARNING, logger="flare"):
        run = train(ragged)
    assert run.calibration is None
    assert run.metrics["test"]["rel_l2"] > 0
    assert "no luck" in caplog.text


# -- the meta device ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", MODELS)
def test_a_training_step_runs_on_the_meta_device(name, optimizer):
    schema = ragged_schema()
    surrogate = Surrogate({"name": name, **SMALL[name], "channels": 16}, schema).to("meta").train()
    shapes = {"inputs": schema.in_dim, "targets": schema.out_dim}
    tensors = {name: torch.rand(2, 9, width) for name, width in shapes.items()}
    batch = Batch(**tensors, mask=torch.ones(2, 9) > 0, indices=(0, 1))
    batch = batch.to(torch.device("meta"))
    step = build_optimizer(surrogate, OptimConfig(name=optimizer), fused=False)
    average = WeightAverage(surrogate, 0.9)
    predicted = surrogate(batch.inputs, batch.mask)
    loss = relative_l2(predicted, batch.targets, batch.mask, widths=schema.widths("target")).mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(surrogate.parameters(), 1.0)
    step.step()
    average.update(surrogate)
    with average.swapped_in(surrogate):
        assert surrogate(batch.inputs).device.type == loss.device.type == "meta"

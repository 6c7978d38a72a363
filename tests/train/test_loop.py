"""The training loop: it learns, goes on bit for bit, adds up over ranks and micro-batches, and stops when it must."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

import flare
from flare.errors import CheckpointError, ConfigError, TrainingDiverged
from flare.models import build_model
from flare.train.config import DataConfig, LossConfig, OptimConfig, TrainConfig
from flare.train.ema import WeightAverage
from flare.train.losses import relative_l2
from flare.train.optimizer import make_optimizer
from flare.train.run import RunFolder
from flare.train.start import resume, start
from tests.factory import darcy_dataset, ragged_dataset

TINY = {"name": "flare", "channels": 16, "blocks": 1, "heads": 2, "latents": 4, "kv_depth": 0, "ffn_depth": 0}


@pytest.fixture(scope="module")
def darcy(tmp_path_factory):
    return darcy_dataset(tmp_path_factory.mktemp("darcy") / "d", samples=24, test=4, resolution=12)


def config(dataset, *, optim=None, loss=None, data=None, **changes):
    base = TrainConfig(
        data=replace(DataConfig(path=str(dataset.path), batch_size=4), **data or {}),
        model=TINY,
        optim=replace(OptimConfig(lr=3e-3), **optim or {}),
        loss=loss or LossConfig(),
        epochs=2,
        evaluate_every=1,
        log_every=1,
        report=False,
        device="cpu",
    )
    return replace(base, **changes)


def losses(run):
    return [r["loss"] for r in RunFolder(run).records() if r["kind"] == "train"]


def checkpoint_bytes(run, name="last"):
    """What must not depend on how often a run was stopped: all tensors, to the bit."""
    folder = run / "checkpoints" / name
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.safetensors"))}


def test_it_learns_and_leaves_a_whole_run_folder(darcy, tmp_path):
    result = start(config(darcy, epochs=40, evaluate_every=10, optim={"lr": 1e-2}), tmp_path / "run")
    curve = losses(tmp_path / "run")
    assert np.mean(curve[-5:]) < 0.5 * np.mean(curve[:5])
    assert len(curve) == result["steps"] == 200
    assert {p.name for p in (tmp_path / "run").iterdir()} == {
        "config.yaml",
        "metrics.jsonl",
        "tensorboard",
        "checkpoints",
        "result.json",
    }
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == result
    evaluations = [r for r in RunFolder(tmp_path / "run").records() if r["kind"] == "evaluate"]
    assert [r["epoch"] for r in evaluations] == [10, 20, 30, 40]
    assert evaluations[-1]["rel_l2"] == pytest.approx(result["rel_l2"], rel=1e-6)
    assert list((tmp_path / "run" / "tensorboard").iterdir())


def test_the_metric_is_relative_l2_of_physical_values_as_anyone_would_compute_it(darcy, tmp_path):
    result = start(config(darcy), tmp_path / "run")
    model = flare.load(tmp_path / "run")
    errors = []
    for index in darcy.split("test"):
        values = darcy[int(index)].values
        u = values["pressure"][:, 0]
        predicted = model.predict(values["points"], coefficient=values["coefficient"])["pressure"]
        errors.append(np.linalg.norm(predicted - u) / np.linalg.norm(u))
    assert result["rel_l2"] == pytest.approx(np.mean(errors), rel=1e-4)
    mean = np.mean([darcy[int(i)].values["pressure"] for i in darcy.split("train")], axis=0)
    fields = [darcy[int(i)].values["pressure"] for i in darcy.split("test")]
    baseline = [np.linalg.norm(mean - u) / np.linalg.norm(u) for u in fields]
    assert result["rel_l2_mean_field"] == pytest.approx(np.mean(baseline), rel=1e-5)


def test_ragged_data_with_parameters_and_several_targets_trains(tmp_path):
    dataset = ragged_dataset(tmp_path / "d", [20 + 3 * i for i in range(12)], test=3)
    result = start(config(dataset, epochs=30, evaluate_every=30, data={"subsample": 25}), tmp_path / "run")
    curve = losses(tmp_path / "run")
    assert np.mean(curve[-5:]) < 0.5 * np.mean(curve[:5])
    assert result["mean_field"] == "one value"
    field = flare.load(tmp_path / "run").predict([[0.1, 0.2], [0.3, 0.4]], speed=2.0, thickness=[1.0, 1.0])
    assert field["force"].shape == (2, 2)
    assert field["heat"].shape == (2,)


# -- going on ----------------------------------------------------------------------------------------------------------


def command(dataset, out, **settings):
    options = {
        "data.path": dataset.path,
        "data.batch_size": 2,
        "model": json.dumps(TINY | {"channels": 32, "latents": 16}),
        "optim.ema": 0.9,
        "epochs": 2,
        "report": "false",
        "device": "cpu",
    } | settings
    flags = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return ["train", "--out", str(out), *flags]


def run_flare(arguments, **how):
    return subprocess.run([sys.executable, "-m", "flare", *arguments], capture_output=True, text=True, **how)


def wait_for(condition, job, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert job.poll() is None, f"ended too early: {job.communicate()}"
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_ten_steps_kill_nine_and_resume_equal_twenty_steps_bit_for_bit(darcy, tmp_path):
    assert len(darcy.split("train")) == 20, "ten steps an epoch"
    whole = run_flare(command(darcy, tmp_path / "whole"))
    assert whole.returncode == 0, whole.stderr
    # The other run is held up by its loader after the first epoch's checkpoint, so that the kill meets it on the way.
    killed = tmp_path / "killed"
    arguments = command(darcy, killed, **{"data.workers": 1})
    job = subprocess.Popen([sys.executable, "-m", "flare", *arguments], stdout=-1, stderr=-1, start_new_session=True)
    position = killed / "checkpoints" / "last" / "trainer.json"
    wait_for(lambda: position.exists(), job)
    os.killpg(job.pid, signal.SIGKILL)
    job.communicate()
    assert json.loads(position.read_text())["step"] == 10
    assert not (killed / "result.json").exists()
    resumed = run_flare(["train", "--resume", str(killed)])
    assert resumed.returncode == 0, resumed.stderr
    assert checkpoint_bytes(killed) == checkpoint_bytes(tmp_path / "whole")
    assert set(checkpoint_bytes(killed)) == {"model.safetensors", "ema.safetensors", "trainer.safetensors"}


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_within_the_epoch_and_says_how_to_go_on(darcy, tmp_path, number, code):
    stopped = tmp_path / "stopped"
    arguments = command(darcy, stopped, epochs=30, log_every=1)
    job = subprocess.Popen([sys.executable, "-m", "flare", *arguments], stdout=-1, stderr=-1, text=True)
    metrics = stopped / "metrics.jsonl"
    wait_for(lambda: metrics.exists() and metrics.read_text().count("\n") >= 3, job)
    job.send_signal(number)
    _, errors = job.communicate(timeout=60)
    assert job.returncode == code
    assert f"flare train --resume {stopped}" in errors
    position = json.loads((stopped / "checkpoints" / "last" / "trainer.json").read_text())
    assert 3 <= position["step"] < 300
    whole = start_in_process(darcy, tmp_path / "whole", 30)
    resume(stopped)
    assert checkpoint_bytes(stopped) == checkpoint_bytes(whole)
    steps = [r["step"] for r in RunFolder(stopped).records() if r["kind"] == "train"]
    assert steps == list(range(1, 301)), "every step is logged once"


def start_in_process(dataset, out, epochs):
    """The run of `command`, without the start-up of another interpreter."""
    data = {"batch_size": 2}
    model = TINY | {"channels": 32, "latents": 16}
    optim = OptimConfig(ema=0.9)
    start(replace(config(dataset, data=data, epochs=epochs, model=model), optim=optim, evaluate_every=10), out)
    return out


def test_a_finished_run_is_not_trained_again(darcy, tmp_path):
    result = start(config(darcy), tmp_path / "run")
    before = checkpoint_bytes(tmp_path / "run")
    assert resume(tmp_path / "run") == result
    assert checkpoint_bytes(tmp_path / "run") == before


def test_a_run_folder_is_never_overwritten(darcy, tmp_path):
    start(config(darcy), tmp_path / "run")
    with pytest.raises(ConfigError, match=r"holds a run already. Go on with it:  flare train --resume"):
        start(config(darcy, seed=1), tmp_path / "run")
    with pytest.raises(ConfigError, match=r"seed is 0 there and 1 here"):
        resume(tmp_path / "run", expected=config(darcy, seed=1))


def test_a_checkpoint_of_another_model_is_refused(darcy, tmp_path):
    start(config(darcy), tmp_path / "a")
    start(config(darcy, model=TINY | {"latents": 8}), tmp_path / "b")
    (tmp_path / "a" / "result.json").unlink()
    target = tmp_path / "a" / "checkpoints" / "last" / "model.safetensors"
    target.write_bytes((tmp_path / "b" / "checkpoints" / "last" / "model.safetensors").read_bytes())
    for attempt in (lambda: resume(tmp_path / "a"), lambda: flare.load(tmp_path / "a")):
        with pytest.raises(CheckpointError, match=r"another model: network.blocks.0.mixer.latents is \[2, 4, 8\]"):
            attempt()


def test_a_truncated_checkpoint_is_refused(darcy, tmp_path):
    start(config(darcy), tmp_path / "run")
    path = tmp_path / "run" / "checkpoints" / "last" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(CheckpointError, match="damaged or truncated"):
        flare.load(tmp_path / "run")


def test_a_run_does_not_go_on_with_other_data(tmp_path):
    dataset = darcy_dataset(tmp_path / "d", samples=12, test=4, resolution=8)
    start(config(dataset), tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    dataset.path.rename(tmp_path / "old")
    darcy_dataset(tmp_path / "d", samples=12, test=4, resolution=9)
    with pytest.raises(CheckpointError, match="was trained on other data"):
        resume(tmp_path / "run")


def test_a_run_killed_before_its_first_checkpoint_starts_over(darcy, tmp_path):
    whole = start(config(darcy), tmp_path / "whole")
    run = RunFolder(tmp_path / "run")
    run.create(config(darcy))
    run.log({"kind": "train", "step": 1, "loss": 9.0})
    run.close()
    assert resume(tmp_path / "run")["rel_l2"] == whole["rel_l2"]
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")


def test_a_kill_between_the_two_renames_of_a_checkpoint_is_survived(darcy, tmp_path):
    start(config(darcy), tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    folder = tmp_path / "run" / "checkpoints"
    (folder / "last").rename(folder / "last.previous")
    assert resume(tmp_path / "run")["steps"] == 10


# -- the same mathematics however it is shared out ---------------------------------------------------------------------


def test_micro_batches_change_memory_not_the_result(darcy, tmp_path):
    for parts in (1, 2, 4):
        start(config(darcy, optim={"accumulate": parts}), tmp_path / f"{parts}")
    for parts in (2, 4):
        np.testing.assert_allclose(losses(tmp_path / f"{parts}"), losses(tmp_path / "1"), rtol=2e-4)
    assert len(losses(tmp_path / "4")) == 10, "accumulation counts optimiser steps"


def test_two_processes_equal_one(darcy, tmp_path):
    """The same command under torchrun: same global batch, same losses, the order changes every epoch."""
    single = run_flare(command(darcy, tmp_path / "one", log_every=1, epochs=3))
    assert single.returncode == 0, single.stderr
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    torchrun += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]  # any free port
    arguments = command(darcy, tmp_path / "two", log_every=1, epochs=3)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    both = subprocess.run([*torchrun, "-m", "flare", *arguments], capture_output=True, text=True, env=environment)
    assert both.returncode == 0, both.stderr
    np.testing.assert_allclose(losses(tmp_path / "two"), losses(tmp_path / "one"), rtol=2e-4)
    results = [json.loads((tmp_path / name / "result.json").read_text()) for name in ("one", "two")]
    assert results[1]["rel_l2"] == pytest.approx(results[0]["rel_l2"], rel=1e-3)
    assert both.stdout.count("test rel-L2") == 1, "only the first rank speaks"


def test_the_average_of_weights_follows_its_formula(darcy, tmp_path):
    model = build_model("flare", 3, 1, **{k: v for k, v in TINY.items() if k != "name"})
    average = WeightAverage(model, 0.9)
    first = model.head.layers[0].weight.detach().clone()
    with torch.no_grad():
        model.head.layers[0].weight.add_(1.0)
    average.update(model)
    with average.swapped_in(model):
        torch.testing.assert_close(model.head.layers[0].weight.detach(), first + 0.1)
    torch.testing.assert_close(model.head.layers[0].weight.detach(), first + 1.0)


def test_averaged_weights_are_evaluated_saved_and_loaded(darcy, tmp_path):
    start(config(darcy, optim={"ema": 0.5}), tmp_path / "run")
    (last,) = [r for r in RunFolder(tmp_path / "run").records() if r["kind"] == "evaluate"][-1:]
    errors = {}
    for ema in (False, True):
        model = flare.load(tmp_path / "run", ema=ema)
        batch = [darcy[int(i)].values for i in darcy.split("test")]
        fields = [torch.from_numpy(model.predict(v["points"], coefficient=v["coefficient"])["pressure"]) for v in batch]
        truth = torch.from_numpy(np.stack([v["pressure"] for v in batch]))
        errors[ema] = relative_l2(torch.stack(fields)[..., None], truth).mean().item()
    assert errors[False] == pytest.approx(last["rel_l2"], rel=1e-4)
    assert errors[True] == pytest.approx(last["rel_l2_ema"], rel=1e-4)
    assert errors[True] != errors[False]


def test_biases_norms_and_latents_do_not_decay():
    model = build_model("flare", 2, 1, channels=8, blocks=1, heads=2, latents=2)
    decayed, free = make_optimizer(model, OptimConfig(weight_decay=0.1)).param_groups
    names = {id(p): name for name, p in model.named_parameters()}
    assert decayed["weight_decay"] == 0.1
    assert free["weight_decay"] == 0
    assert all(names[id(p)].endswith("weight") and "norm" not in names[id(p)] for p in decayed["params"])
    assert {names[id(p)].split(".")[-1] for p in free["params"]} == {"bias", "weight", "latents"}
    assert sum("latents" in names[id(p)] for p in free["params"]) == 1


# -- precision, compile, divergence ------------------------------------------------------------------------------------


def test_bfloat16_learns_alike(darcy, tmp_path):
    start(config(darcy, epochs=10), tmp_path / "32")
    start(config(darcy, epochs=10, precision="bf16"), tmp_path / "bf16")
    np.testing.assert_allclose(losses(tmp_path / "bf16"), losses(tmp_path / "32"), rtol=0.15)
    assert losses(tmp_path / "bf16") != losses(tmp_path / "32")


def test_float16_on_a_cpu_is_said_aloud(darcy, tmp_path, capsys):
    start(config(darcy, precision="16"), tmp_path / "run")
    assert "precision 16 needs a GPU" in capsys.readouterr().err


@pytest.mark.slow
def test_a_compiled_network_learns_the_same_and_saves_the_same_names(darcy, tmp_path):
    start(config(darcy), tmp_path / "eager")
    start(config(darcy, compile=True), tmp_path / "compiled")
    np.testing.assert_allclose(losses(tmp_path / "compiled"), losses(tmp_path / "eager"), rtol=1e-3)
    assert flare.load(tmp_path / "compiled").state_dict().keys() == flare.load(tmp_path / "eager").state_dict().keys()


def test_divergence_stops_with_step_batch_and_checkpoint(darcy, tmp_path):
    wild = {"lr": 1e4, "schedule": "constant", "clip": None}
    with pytest.raises(TrainingDiverged) as caught:
        start(config(darcy, epochs=50, optim=wild, diverged=50.0), tmp_path / "run")
    message = str(caught.value)
    assert "training stopped at step" in message
    assert "on samples [" in message
    assert str(tmp_path / "run" / "checkpoints" / "last") in message or "No checkpoint was written yet" in message


def test_a_loss_that_is_not_a_number_stops_and_keeps_the_last_good_checkpoint(darcy, tmp_path, monkeypatch):
    from flare.train.fields import FieldTask

    honest, calls = FieldTask.loss, []

    def poisoned(task, predict, batch):
        calls.append(batch)
        loss = honest(task, predict, batch)
        return loss * float("nan") if len(calls) == 8 else loss

    monkeypatch.setattr(FieldTask, "loss", poisoned)
    with pytest.raises(TrainingDiverged, match=r"step 7 \(epoch 1\): the loss is nan, on samples \[.*last good check"):
        start(config(darcy), tmp_path / "run")
    position = json.loads((tmp_path / "run" / "checkpoints" / "last" / "trainer.json").read_text())
    assert position["step"] == 5
    monkeypatch.undo()
    assert resume(tmp_path / "run")["steps"] == 10


def test_the_gradient_term_needs_a_grid(tmp_path):
    dataset = ragged_dataset(tmp_path / "d")
    with pytest.raises(ConfigError, match="needs data on a grid"):
        start(config(dataset, loss=LossConfig(gradient_weight=0.1)), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_gradient_term_enters_the_loss(darcy, tmp_path):
    start(config(darcy), tmp_path / "plain")
    start(config(darcy, loss=LossConfig(gradient_weight=0.1)), tmp_path / "with")
    assert losses(tmp_path / "with")[0] > losses(tmp_path / "plain")[0]

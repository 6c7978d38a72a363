"""The training loop: learning, bit-exact resuming, ranks and micro-batches, signals and divergence."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

import flare
from flare.cli import main
from flare.models import build_model
from flare.train.config import DataConfig, LossConfig, OptimConfig, TrainConfig
from flare.train.ema import WeightAverage
from flare.train.field_task import FieldTask
from flare.train.loop import Trainer
from flare.train.optimizers import OPTIMIZERS
from flare.train.run import extend, resume, start
from flare.train.run_folder import RunFolder
from flare.utils.errors import CheckpointError, ConfigError, DataError, TrainingDiverged
from tests.factory import content, darcy_dataset, ragged_dataset

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
        device="cpu",
    )
    return replace(base, **changes)


def losses(run):
    return [r["loss"] for r in RunFolder(run).records() if r["kind"] == "train"]


def evaluated(dataset, run, **weights):
    """Return the error of weights of a run on the test split."""
    model, task = flare.load(run, **weights), FieldTask(DataConfig(path=str(dataset.path)), LossConfig())
    return task.errors(model, model.device, task.test).mean()


def checkpoint_bytes(run, name="last"):
    """Return the bytes of all tensors of a checkpoint."""
    folder = run / "checkpoints" / name
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.safetensors"))}


@pytest.fixture(scope="module")
def finished(darcy, tmp_path_factory):
    """A run of ten steps; tests change copies of it."""
    run = tmp_path_factory.mktemp("finished") / "run"
    start(config(darcy), run)
    return run


@pytest.fixture
def unfinished(finished, tmp_path):
    """A copy of it that has trained, but has no result."""
    run = shutil.copytree(finished, tmp_path / "run")
    (run / "result.json").unlink()
    return run


def test_training_lowers_the_loss_and_writes_a_complete_run_folder(darcy, tmp_path):
    result = start(config(darcy, epochs=20, evaluate_every=10, optim={"lr": 1e-2}), tmp_path / "run")
    curve = losses(tmp_path / "run")
    assert np.mean(curve[-5:]) < 0.5 * np.mean(curve[:5])
    assert len(curve) == result["steps"] == 100
    names = {".lock", "config.yaml", "metrics.jsonl", "tensorboard", "checkpoints", "result.json", "test_errors.json"}
    assert {p.name for p in (tmp_path / "run").iterdir()} == names
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == result
    evaluations = [r for r in RunFolder(tmp_path / "run").records() if r["kind"] == "evaluate"]
    assert [r["epoch"] for r in evaluations] == [10, 20]
    assert evaluations[-1]["rel_l2"] == pytest.approx(result["rel_l2"], rel=1e-6)
    assert list((tmp_path / "run" / "tensorboard").iterdir())


def test_the_metric_is_the_relative_l2_error_of_physical_values(darcy, finished):
    result, model = json.loads((finished / "result.json").read_text()), flare.load(finished)
    train, test = ([darcy[int(i)] for i in darcy.split(name)] for name in ("train", "test"))
    mean = np.mean([sample.values["pressure"][:, 0] for sample in train], axis=0)

    def error(predict):
        pairs = [(predict(sample), sample.values["pressure"][:, 0]) for sample in test]
        return np.mean([np.linalg.norm(predicted - u) / np.linalg.norm(u) for predicted, u in pairs])

    assert result["rel_l2"] == pytest.approx(error(lambda s: model.predict_sample(s)["pressure"]), rel=1e-4)
    assert result["rel_l2_mean_field"] == pytest.approx(error(lambda s: mean), rel=1e-5)


def test_ragged_data_with_parameters_several_targets_and_a_curriculum_trains(tmp_path):
    dataset = ragged_dataset(tmp_path / "d", [20 + 3 * i for i in range(12)], test=3)
    data = {"subsample_from": 5, "subsample_growth": 0.5}
    result = start(config(dataset, epochs=60, evaluate_every=60, recompute=True, data=data), tmp_path / "run")
    curve = losses(tmp_path / "run")
    assert np.mean(curve[-5:]) < 0.6 * np.mean(curve[:5])
    assert all(of["rel_l2"] < of["rel_l2_mean_field"] for of in result["fields"].values()), "each field is learned"
    assert result["mean_field"] == "one value"


def test_a_curriculum_is_the_same_in_steps_and_in_epochs(tmp_path):
    dataset = ragged_dataset(tmp_path / "d", [20 + 3 * i for i in range(12)], test=3)
    data = {"subsample_from": 5, "subsample_growth": 0.75}
    start(config(dataset, epochs=3, data=data), tmp_path / "epochs")
    curve = losses(tmp_path / "epochs")
    start(config(dataset, epochs=99, steps=len(curve), data=data), tmp_path / "steps")
    assert losses(tmp_path / "steps") == curve


# -- resuming ----------------------------------------------------------------------------------------------------------


LIMIT = 1800
"""Seconds, for busy machines."""


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


DRIVER = """
import os, signal, sys
from flare.cli import main
from flare.train import loop

honest = loop.Trainer._step

def step(trainer, batches):
    if trainer.position.step == {step}:
        {act}
    return honest(trainer, batches)

loop.Trainer._step = step
sys.exit(main(sys.argv[1:]))
"""


def run_until(step, act, arguments):
    """Run the command in its own process group, which executes `act` when it reaches a step."""
    code = DRIVER.format(step=step, act=act)
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, start_new_session=True, timeout=LIMIT
    )


@pytest.fixture(scope="module")
def whole(darcy, tmp_path_factory):
    """An uninterrupted run of twenty steps."""
    out = tmp_path_factory.mktemp("whole") / "run"
    assert main(command(darcy, out, log_every=1)) == 0
    return out


def position(run):
    return json.loads((run / "checkpoints" / "last" / "trainer.json").read_text())


def test_a_killed_and_resumed_run_equals_an_uninterrupted_one_bit_for_bit(darcy, whole, tmp_path):
    assert len(darcy.split("train")) == 20, "ten steps per epoch"
    arguments = command(darcy, tmp_path / "killed", log_every=1)
    killed = run_until(13, "os.kill(os.getpid(), signal.SIGKILL)", arguments)
    assert killed.returncode == -signal.SIGKILL
    assert position(tmp_path / "killed")["step"] == 10
    assert not (tmp_path / "killed" / "result.json").exists()
    resume(tmp_path / "killed")
    assert checkpoint_bytes(tmp_path / "killed") == checkpoint_bytes(whole)
    assert set(checkpoint_bytes(whole)) == {"model.safetensors", "ema.safetensors", "trainer.safetensors"}
    steps = [r["step"] for r in RunFolder(tmp_path / "killed").records() if r["kind"] == "train"]
    assert steps == list(range(1, 21)), "every step is logged once"


class Killed(BaseException):
    """Ends a run without saving, like a kill."""


def act_at(monkeypatch, step, act):
    honest = Trainer._step

    def do(trainer, batches):
        if trainer.position.step == step:
            act()
        return honest(trainer, batches)

    monkeypatch.setattr(Trainer, "_step", do)


def kill_at(monkeypatch, step, settings, run):
    """Start a run that ends without saving at a step."""

    def kill():
        raise Killed

    with monkeypatch.context() as patch:
        act_at(patch, step, kill)
        with pytest.raises(Killed):
            start(settings, run)


SMALL = TINY | {"channels": 32, "latents": 16}
"""Model with matrices large enough for Muon and SOAP."""


@pytest.mark.parametrize(("optimizer", "schedule"), [("adamw", "onecycle"), ("muon", "wsd"), ("soap", "onecycle")])
def test_resuming_is_bit_exact_for_each_optimizer_and_schedule(darcy, tmp_path, monkeypatch, optimizer, schedule):
    optim = {"name": optimizer, "schedule": schedule, "ema": 0.9, "accumulate": 2}
    settings = config(darcy, model=SMALL, optim=optim)
    start(settings, tmp_path / "whole")
    kill_at(monkeypatch, 8, settings, tmp_path / "killed")
    assert position(tmp_path / "killed")["step"] == 5
    assert resume(tmp_path / "killed")["steps"] == 10
    assert checkpoint_bytes(tmp_path / "killed") == checkpoint_bytes(tmp_path / "whole")


# -- extending --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("short", "long"), [({"epochs": 1}, {"epochs": 2}), ({"steps": 7}, {"steps": 9})], ids=str)
def test_an_extended_run_of_constant_rate_equals_one_of_that_length(darcy, tmp_path, short, long):
    settings = config(darcy, optim={"schedule": "constant"})
    start(replace(settings, **short), tmp_path / "extended")
    result = extend(tmp_path / "extended", **long)
    start(replace(settings, **long), tmp_path / "whole")
    assert checkpoint_bytes(tmp_path / "extended") == checkpoint_bytes(tmp_path / "whole")
    logged = [r["step"] for r in RunFolder(tmp_path / "extended").records() if r["kind"] == "train"]
    assert logged == [*range(1, result["steps"] + 1)]


def test_a_wsd_run_is_extended_from_the_end_of_its_stable_phase(darcy, tmp_path):
    """The warm-up is that of the first length, the rest that of the new length."""
    wsd = {"schedule": "wsd", "decay": 0.5, "warmup": 1e-9}
    start(config(darcy, optim=wsd, epochs=2), tmp_path / "extended")
    (tmp_path / "extended" / "report.html").touch()
    assert json.loads((tmp_path / "extended" / "checkpoints" / "stable" / "trainer.json").read_text())["step"] == 5
    extend(tmp_path / "extended", epochs=4)
    start(config(darcy, optim=wsd, epochs=4), tmp_path / "whole")
    assert checkpoint_bytes(tmp_path / "extended") == checkpoint_bytes(tmp_path / "whole")
    assert not (tmp_path / "extended" / "report.html").exists(), "it is of the shorter run"


def test_a_wsd_run_can_end_early_in_its_stable_phase(darcy, tmp_path, monkeypatch):
    wsd = {"schedule": "wsd", "decay": 0.5, "warmup": 1e-9}
    kill_at(monkeypatch, 10, config(darcy, optim=wsd, epochs=8), tmp_path / "run")
    with pytest.raises(ConfigError, match="step 10"):
        extend(tmp_path / "run", epochs=3)
    assert extend(tmp_path / "run", epochs=4)["steps"] == 20
    start(config(darcy, optim=wsd, epochs=4), tmp_path / "planned")
    assert checkpoint_bytes(tmp_path / "run") == checkpoint_bytes(tmp_path / "planned")


def test_a_schedule_that_depends_on_the_length_is_not_extended(finished):
    before = content(finished)
    with pytest.raises(ConfigError, match="onecycle"):
        extend(finished, epochs=4)
    assert content(finished) == before


def test_minutes_only_choose_the_number_of_steps(darcy, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="minutes"):
        start(config(darcy, minutes=0.01), tmp_path / "none")
    assert not (tmp_path / "none").exists()
    monkeypatch.setattr("flare.train.run.RESERVE", 0.0)
    timed = config(darcy, epochs=500, minutes=0.03)
    result = start(timed, tmp_path / "timed")
    assert 0 < result["steps"] < 2500, "fewer than those of 500 epochs"
    assert RunFolder(tmp_path / "timed").config().steps == result["steps"]
    start(replace(timed, minutes=None, steps=result["steps"]), tmp_path / "counted")
    assert checkpoint_bytes(tmp_path / "timed") == checkpoint_bytes(tmp_path / "counted")
    assert resume(tmp_path / "timed", expected=timed)["steps"] == result["steps"]


@pytest.mark.slow
def test_a_signal_to_the_group_with_its_loaders_saves(darcy, whole, tmp_path):
    words = command(darcy, tmp_path / "stopped", log_every=1, **{"data.workers": 2})
    assert run_until(13, "os.killpg(os.getpgrp(), signal.SIGTERM)", words).returncode == 143
    resume(tmp_path / "stopped")
    assert checkpoint_bytes(tmp_path / "stopped") == checkpoint_bytes(whole)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)], ids=["SIGTERM", "Ctrl-C"])
def test_a_signal_saves_within_the_epoch_and_the_message_says_how_to_resume(
    darcy, whole, tmp_path, monkeypatch, capsys, number, code
):
    stopped = tmp_path / "stopped"
    with monkeypatch.context() as patch:
        act_at(patch, 13, lambda: signal.raise_signal(number))
        assert main(command(darcy, stopped, log_every=1)) == code
    assert f"flare train --resume {stopped}" in capsys.readouterr().err
    assert position(stopped)["step"] == 14
    resume(stopped)
    assert checkpoint_bytes(stopped) == checkpoint_bytes(whole)


def test_a_checkpoint_is_written_within_a_long_epoch(darcy, finished, tmp_path, monkeypatch):
    kill_at(monkeypatch, 8, config(darcy, checkpoint_minutes=1e-9), tmp_path / "killed")
    assert position(tmp_path / "killed")["step_in_epoch"] == 3
    resume(tmp_path / "killed")
    assert checkpoint_bytes(tmp_path / "killed") == checkpoint_bytes(finished)


def test_the_best_checkpoint_is_the_lowest_evaluation(darcy, tmp_path):
    start(config(darcy, epochs=4, optim={"lr": 0.05, "schedule": "constant"}), tmp_path / "run")
    lowest = min(r["rel_l2"] for r in RunFolder(tmp_path / "run").records() if r["kind"] == "evaluate")
    assert evaluated(darcy, tmp_path / "run", checkpoint="best") == pytest.approx(lowest, rel=1e-6)


def test_a_finished_run_is_neither_trained_again_nor_overwritten(darcy, finished):
    before, result = content(finished), json.loads((finished / "result.json").read_text())
    assert resume(finished) == result
    with pytest.raises(ConfigError, match="resume="):
        start(config(darcy, seed=1), finished)
    with pytest.raises(ConfigError, match="seed"):
        resume(finished, expected=config(darcy, seed=1))
    assert content(finished) == before


def test_a_checkpoint_of_another_model_or_a_truncated_one_is_refused(darcy, unfinished, tmp_path):
    start(config(darcy, model=TINY | {"latents": 8}, epochs=1), tmp_path / "b")
    target = unfinished / "checkpoints" / "last" / "model.safetensors"
    other = (tmp_path / "b" / "checkpoints" / "last" / "model.safetensors").read_bytes()
    for damaged in (other, target.read_bytes()[:-50]):
        target.write_bytes(damaged)
        for attempt in (resume, flare.load):
            with pytest.raises(CheckpointError, match=r"model\.safetensors"):
                attempt(unfinished)


def test_a_run_does_not_resume_with_other_data_but_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    dataset = darcy_dataset("d", samples=12, test=4, resolution=8)
    start(config(dataset, epochs=1), "run")
    (tmp_path / "run" / "result.json").unlink()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert resume(tmp_path / "run")["test_samples"] == 4
    (tmp_path / "run" / "result.json").unlink()
    (tmp_path / "d").rename(tmp_path / "old")
    darcy_dataset(tmp_path / "d", samples=12, test=4, resolution=9)
    with pytest.raises(CheckpointError, match="fingerprint"):
        resume(tmp_path / "run")


def test_a_run_killed_before_its_first_checkpoint_starts_over(darcy, finished, tmp_path):
    run = RunFolder(tmp_path / "run")
    run.create(config(darcy))
    run.log({"kind": "train", "step": 1, "loss": 9.0})
    run.close()
    resume(tmp_path / "run")
    assert losses(tmp_path / "run") == losses(finished)


def test_a_kill_between_renames_or_within_a_line_of_metrics_is_recovered(unfinished):
    folder = unfinished / "checkpoints"
    (folder / "last").rename(folder / "last.previous")
    with (unfinished / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "st')
    assert resume(unfinished)["steps"] == 10
    assert len(losses(unfinished)) == 10


# -- micro-batches and ranks -------------------------------------------------------------------------------------------


def test_micro_batches_do_not_change_the_result(darcy, finished, tmp_path):
    start(config(darcy, optim={"accumulate": 4}), tmp_path / "run")
    np.testing.assert_allclose(losses(tmp_path / "run"), losses(finished), rtol=2e-4)
    assert len(losses(tmp_path / "run")) == 10, "accumulation counts optimizer steps"


def torchrun(*arguments):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    launcher += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]  # any free port
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run([*launcher, *arguments], capture_output=True, text=True, env=environment, timeout=LIMIT)


@pytest.mark.slow
@pytest.mark.parametrize(("optimizer", "rounding"), [("muon", 2e-4), ("soap", 2e-3)])
def test_two_processes_equal_one_for_each_optimizer(darcy, tmp_path, optimizer, rounding):
    """The first covariances of SOAP have low rank, so rounding decides the basis of their null space."""
    settings = {"log_every": 1, "optim.name": optimizer}
    for run, launch in (
        (tmp_path / "one", run_flare),
        (tmp_path / "two", lambda words: torchrun("-m", "flare", *words)),
    ):
        done = launch(command(darcy, run, **settings))
        assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(losses(tmp_path / "two"), losses(tmp_path / "one"), rtol=rounding)


def test_two_processes_equal_one(darcy, whole, tmp_path):
    """Under torchrun the global batch, the order of samples and the losses are the same."""
    both = torchrun("-m", "flare", *command(darcy, tmp_path / "two", log_every=1))
    assert both.returncode == 0, both.stderr
    np.testing.assert_allclose(losses(tmp_path / "two"), losses(whole), rtol=2e-4)
    results = [json.loads((run / "result.json").read_text()) for run in (whole, tmp_path / "two")]
    assert results[1]["rel_l2"] == pytest.approx(results[0]["rel_l2"], rel=1e-3)
    assert both.stdout.count("test rel-L2") == 1, "only the first rank prints"


@pytest.mark.slow
def test_a_signal_to_one_of_two_ranks_stops_both_at_the_same_step(darcy, whole, tmp_path):
    """The signal arrives after the exchange of a step; ranks act on it after the next exchange."""
    code = DRIVER.replace("_step", "_agree").replace("batches)", "*values)")
    code = code.replace("    if", "    agreed = honest(trainer, *values)\n    if")
    code = code.replace("return honest(trainer, *values)", "return agreed")
    act = "os.environ['RANK'] == '0' and os.kill(os.getpid(), signal.SIGTERM)"
    (tmp_path / "driver.py").write_text(code.format(step=7, act=act))
    stopped = tmp_path / "stopped"
    done = torchrun(str(tmp_path / "driver.py"), *command(darcy, stopped, log_every=1))
    assert f"flare train --resume {stopped}" in done.stderr
    assert position(stopped)["step"] == 9
    resume(stopped)  # with one process: the same mathematics
    np.testing.assert_allclose(losses(stopped), losses(whole), rtol=2e-4)


def test_averaged_weights_follow_their_formula():
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
    assert last["rel_l2"] != last["rel_l2_ema"]
    assert evaluated(darcy, tmp_path / "run") == pytest.approx(last["rel_l2"], rel=1e-6)
    assert evaluated(darcy, tmp_path / "run", ema=True) == pytest.approx(last["rel_l2_ema"], rel=1e-6)


# -- precision, compile, divergence ------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_bfloat16_has_similar_losses(darcy, tmp_path, optimizer):
    optim = OptimConfig(name=optimizer, lr=3e-3)
    start(config(darcy, epochs=3, optim=vars(optim)), tmp_path / "32")
    start(config(darcy, epochs=3, optim=vars(optim), precision="bf16"), tmp_path / "bf16")
    np.testing.assert_allclose(losses(tmp_path / "bf16"), losses(tmp_path / "32"), rtol=0.15)
    assert losses(tmp_path / "bf16") != losses(tmp_path / "32")


def test_float16_on_a_cpu_trains_in_float32(darcy, finished, tmp_path):
    start(config(darcy, precision="16"), tmp_path / "run")
    assert losses(tmp_path / "run") == losses(finished)


@pytest.mark.slow
def test_a_compiled_network_has_the_same_losses_and_names(darcy, finished, tmp_path):
    start(config(darcy, compile=True), tmp_path / "run")
    np.testing.assert_allclose(losses(tmp_path / "run"), losses(finished), rtol=1e-3)
    assert flare.load(tmp_path / "run").state_dict().keys() == flare.load(finished).state_dict().keys()


def replace_loss(monkeypatch, change):
    """Replace the loss by `change(loss, number of the call)`."""
    honest, calls = FieldTask.loss, iter(range(10**6))

    def changed(task, predict, batch):
        return change(honest(task, predict, batch), next(calls))

    monkeypatch.setattr(FieldTask, "loss", changed)


@pytest.mark.parametrize("factor", [1e5, math.inf, math.nan])
def test_divergence_stops_with_step_and_batch_and_keeps_the_last_checkpoint(darcy, tmp_path, monkeypatch, factor):
    replace_loss(monkeypatch, lambda loss, call: loss * (factor if call >= 7 else 1.0))
    with pytest.raises(TrainingDiverged, match=r"step 7 \(epoch 1\).*samples \["):
        start(config(darcy), tmp_path / "run")
    assert position(tmp_path / "run")["step"] == 5
    monkeypatch.undo()
    assert resume(tmp_path / "run")["steps"] == 10


def test_a_non_finite_gradient_stops_before_the_weights_change(darcy, tmp_path, monkeypatch):
    replace_loss(monkeypatch, lambda loss, call: loss + torch.sqrt(loss - loss.detach()))  # finite, infinite slope
    with pytest.raises(TrainingDiverged, match=r"step 0 .*gradient"):
        start(config(darcy), tmp_path / "run")


def test_two_trainings_in_one_folder_are_refused(darcy, tmp_path):
    with RunFolder(tmp_path / "run").locked(), pytest.raises(DataError, match=str(tmp_path / "run")):
        start(config(darcy), tmp_path / "run")
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_the_gradient_term_enters_the_loss_and_needs_a_grid(darcy, finished, tmp_path):
    weighted = LossConfig(gradient_weight=0.1)
    start(config(darcy, epochs=1, loss=weighted), tmp_path / "run")
    assert losses(tmp_path / "run")[0] > losses(finished)[0]
    with pytest.raises(ConfigError, match="gradient_weight"):
        start(config(ragged_dataset(tmp_path / "d"), loss=weighted), tmp_path / "none")
    assert not (tmp_path / "none").exists()

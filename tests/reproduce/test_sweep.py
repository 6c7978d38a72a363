"""Sweeps: every job is done once, with any kind of worker; failures are recorded; stopped jobs are resumed."""

import json
import math
import os
import signal
import time
from dataclasses import dataclass, replace
from multiprocessing import get_context
from types import SimpleNamespace

import pytest
import torch

from flare.reproduce import sweep as sweeping
from flare.reproduce.analyses import TrainedSpectra
from flare.reproduce.jobs import Data, Job, Training, Workspace
from flare.reproduce.ledger import Ledger
from flare.reproduce.sweep import gpus, perform, sweep
from flare.train.loop import Trainer
from flare.train.signals import Interrupted
from flare.utils.errors import ConfigError, DataError, TrainingDiverged
from tests.factory import content
from tests.logs import Log

TINY = (
    *(("model.channels", 8), ("model.blocks", 1), ("model.heads", 2), ("model.latents", 4)),
    *(("model.kv_depth", 0), ("model.ffn_depth", 0), ("epochs", 2), ("evaluate_every", 1), ("device", "cpu")),
)
JOB = Training(Data("elasticity", 6, 2), overrides=TINY)
JOBS = [JOB.with_seed(seed) for seed in range(3)]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Data made once; runs in folders of their own."""
    root = tmp_path_factory.mktemp("work")
    Workspace(root).make(JOB.on)
    return Workspace(root)


def run(jobs, folder, place, **how):
    """Sweep with a ledger and run folders in `folder`; return the ledger and the log messages."""
    ledger, log = Ledger(folder / "records"), Log()
    with log:
        sweep(jobs, ledger, replace(place, runs=f"{folder.name}-runs"), **how)
    return ledger, log.lines


def without_made(ledger):
    """File name -> its record but for who made it and how long that took."""
    records = {path.name: json.loads(path.read_text()) for path in ledger.folder.glob("*.json")}
    return {name: {k: v for k, v in record.items() if k != "made"} for name, record in records.items()}


@pytest.fixture(scope="module")
def alone(place, tmp_path_factory):
    return run(JOBS, tmp_path_factory.mktemp("alone"), place)[0]


def test_a_record_has_result_curve_and_environment(alone):
    record = alone.find(JOB)
    assert record.outcome == "done"
    assert 0 < record.result["rel_l2"] < 3
    assert [epoch for epoch, _ in record.result["curve"]] == [1, 2]
    assert record.result["curve"][-1][1] == pytest.approx(record.result["rel_l2"], rel=1e-6)
    assert {"commit", "torch", "processor", "memory", "seconds", "peak_memory_mb"} <= set(record.made)
    seconds, errors = zip(*record.made["cpu_curve"], strict=True)
    assert errors == tuple(error for _, error in record.result["curve"])
    assert 0 < seconds[0] <= seconds[1] <= record.made["cpu_seconds"] + 0.1
    assert len(record.result["data_fingerprint"]) == 16
    assert len({alone.find(job).result["rel_l2"] for job in JOBS}) == 3, "seeds differ"


def test_a_training_with_held_out_samples_keeps_their_error_beside_that_of_the_test_split(place, tmp_path):
    job = JOB.with_settings(("data.holdout", 1), ("data.batch_size", 1))
    record = run([job], tmp_path, place)[0].find(job)
    assert record.result["rel_l2_validation"] == pytest.approx(record.result["curve"][-1][1], rel=1e-6)
    assert record.result["rel_l2_validation"] != record.result["rel_l2"]
    assert (record.result["train_samples"], record.result["test_samples"]) == (3, 2)


def test_two_workers_leave_the_same_ledger_as_one(alone, place, tmp_path):
    two, _ = run(JOBS, tmp_path, place, workers=2)
    assert without_made(two) == without_made(alone)


def test_a_dask_cluster_leaves_the_same_ledger(alone, place, tmp_path):
    distributed = pytest.importorskip("distributed")
    cluster = distributed.LocalCluster(n_workers=1, threads_per_worker=2, processes=False, dashboard_address=":0")
    with cluster:
        there, _ = run(JOBS, tmp_path, place, scheduler=cluster.scheduler_address)
    assert without_made(there) == without_made(alone)


@pytest.mark.parametrize("missing", ["work/locks", f"work/data/{JOB.on.folder}", "records"])
def test_a_worker_that_does_not_see_a_folder_names_it_and_creates_none(missing, tmp_path):
    for folder in ("work/locks", f"work/data/{JOB.on.folder}", "records"):
        if folder != missing:
            (tmp_path / folder).mkdir(parents=True)
    with pytest.raises(DataError, match=str(tmp_path / missing)):
        perform(JOB, tmp_path / "records", Workspace(tmp_path / "work"), 1)
    assert not (tmp_path / missing).exists()


def test_recorded_jobs_are_not_done_again(place, tmp_path, monkeypatch):
    ledger, _ = run(JOBS[:1], tmp_path, place)
    before = content(ledger.folder)
    monkeypatch.setattr(Training, "perform", lambda self, place: pytest.fail("done twice"))
    _, printed = run(JOBS[:1], tmp_path, place)
    assert printed == ["1 job, 1 already recorded"]
    assert content(ledger.folder) == before


def test_an_unwritable_ledger_is_reported_before_anything_is_made(tmp_path):
    (tmp_path / "file").write_text("of a person")
    with pytest.raises(DataError, match="file"):
        sweep(JOBS[:1], Ledger(tmp_path / "file"), Workspace(tmp_path / "work"))
    with pytest.raises(DataError, match="/proc/nope"):
        sweep(JOBS[:1], Ledger("/proc/nope"), Workspace(tmp_path / "work"))
    assert not (tmp_path / "work").exists()


def test_a_stopped_sweep_resumes_in_the_middle_of_a_training(alone, place, tmp_path, monkeypatch):
    real, evaluations = Trainer._evaluate, []

    def stop_once(self, epoch):
        real(self, epoch)
        evaluations.append(self.config.seed)
        if len(evaluations) == 3:  # the first epoch of the second job
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Trainer, "_evaluate", stop_once)
    with pytest.raises(Interrupted):
        run(JOBS, tmp_path, place)
    ledger = Ledger(tmp_path / "records")
    finished = ledger.path(JOBS[0]).read_bytes()
    assert ledger.find(JOBS[1]).outcome == "unfinished"
    assert [epoch for epoch, _ in ledger.find(JOBS[1]).result["curve"]] == [1]
    assert ledger.find(JOBS[2]) is None
    run(JOBS, tmp_path, place)
    assert ledger.path(JOBS[0]).read_bytes() == finished
    assert evaluations.count(0) == 2, "the first was not trained again"
    assert ledger.find(JOBS[1]).made["cpu_seconds"] is None, "of two processes, of which it knows one"
    assert ledger.find(JOBS[2]).made["cpu_seconds"] > 0
    assert without_made(ledger) == without_made(alone), "bit for bit, as though nothing had happened"


def sweep_and_die(folder, place):
    """Do all jobs, but be killed in the second: what a power cut does."""
    real, evaluations = Trainer._evaluate, []

    def die(self, epoch):
        real(self, epoch)
        evaluations.append(self.config.seed)
        if len(evaluations) == 3:
            os.kill(os.getpid(), signal.SIGKILL)

    Trainer._evaluate = die
    run(JOBS, folder, place)


def test_a_killed_sweep_resumes_without_repeating_finished_jobs(alone, place, tmp_path, monkeypatch):
    process = get_context("spawn").Process(target=sweep_and_die, args=(tmp_path, place))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    ledger = Ledger(tmp_path / "records")
    finished = ledger.path(JOBS[0]).read_bytes()
    assert ledger.find(JOBS[1]) is None
    real, trained = Training.train, []
    monkeypatch.setattr(Training, "train", lambda self, place: trained.append(self.seed) or real(self, place))
    _, printed = run(JOBS, tmp_path, place)
    assert printed[1] == "resuming 1 job"
    assert trained == [1, 2]
    assert ledger.path(JOBS[0]).read_bytes() == finished
    assert without_made(ledger) == without_made(alone), "bit for bit, as though nothing had happened"


LONG = [job.with_settings(("epochs", 100_000)) for job in JOBS]


def sweep_for_long(folder, place):
    run(LONG, folder, place, workers=2)


@pytest.mark.slow
def test_workers_of_a_stopped_sweep_save_their_progress(place, tmp_path):
    process = get_context("spawn").Process(target=sweep_for_long, args=(tmp_path, place))
    process.start()
    there = replace(place, runs=f"{tmp_path.name}-runs")
    until = time.monotonic() + 300
    while (
        not all(there.run(job).exists() and job.curves(there)["curve"] for job in LONG[:2]) and time.monotonic() < until
    ):
        time.sleep(0.2)
    process.terminate()
    process.join(120)
    assert process.exitcode == 1, "it ended by an exception, after its workers"
    ledger = Ledger(tmp_path / "records")
    assert [ledger.find(job).outcome for job in LONG[:2]] == ["unfinished"] * 2
    assert ledger.find(LONG[2]) is None
    for job in LONG[:2]:
        assert ledger.find(job).result["curve"] == [list(point) for point in job.curves(there)["curve"]]


@pytest.mark.parametrize("error", [TrainingDiverged("the loss is nan"), RuntimeError("no such kernel")])
def test_a_failed_job_is_recorded_and_the_others_continue(error, place, tmp_path, monkeypatch):
    real = Training.train

    def fail(self, there):
        if self.seed == 1:
            raise error
        return real(self, there)

    monkeypatch.setattr(Training, "train", fail)
    ledger, printed = run(JOBS[:2], tmp_path, place)
    record = ledger.find(JOBS[1])
    assert record.outcome == "failed"
    assert str(error) in record.failure
    assert record.made["seconds"] >= 0
    assert record.made["peak_memory_mb"] > 0
    assert ledger.find(JOB).outcome == "done"
    assert any(str(error) in line for line in printed)
    assert run(JOBS[:2], tmp_path, place)[1] == ["2 jobs, 2 already recorded"]
    assert run(JOBS[:2], tmp_path, place, retry=True)[1][0] == "2 jobs, 1 already recorded"


@dataclass(frozen=True)
class SeesGpu(Job):
    """Reports the GPU that its process sees."""

    number: int
    kind = "sees-gpu"

    @property
    def label(self):
        return f"sees-gpu-{self.number}"

    def definition(self):
        return {"kind": self.kind, "number": self.number}

    def perform(self, place):
        return {"gpu": os.environ["CUDA_VISIBLE_DEVICES"]}, {}


def test_each_worker_sees_its_own_gpu(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "device_count", lambda: 2)
        patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        assert gpus() == ["0", "1"]
        patch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
        shared = gpus()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # restored at the end, which `perform` does not do
    ledger = Ledger(tmp_path / "records")
    for folder in (ledger.folder, tmp_path / "locks"):
        folder.mkdir()
    for number in (2, 3):
        monkeypatch.setattr(sweeping, "current_process", lambda n=number: SimpleNamespace(name=f"SpawnProcess-{n}"))
        perform(SeesGpu(number), ledger.folder, Workspace(tmp_path), 1, shared)
    assert [ledger.find(SeesGpu(number)).result["gpu"] for number in (2, 3)] == ["4", "6"]


def test_a_training_that_ends_with_nan_has_failed(place, tmp_path, monkeypatch):
    real = Training.perform

    def perform(self, there):
        result, arrays = real(self, there)
        return result | {"rel_l2": math.nan}, arrays

    monkeypatch.setattr(Training, "perform", perform)
    ledger, _ = run(JOBS[:1], tmp_path, place)
    record = ledger.find(JOB)
    assert (record.outcome, record.failure) == ("failed", "TrainingDiverged: rel_l2 is nan at the end")


def test_in_a_fresh_clone_a_model_is_trained_again_for_its_spectra_and_its_record_stays(alone, place, tmp_path):
    spectra = TrainedSpectra(JOB, samples=1)
    path = Ledger(tmp_path / "records").path(JOB)
    path.parent.mkdir()
    path.write_bytes(alone.path(JOB).read_bytes())
    ledger, printed = run([JOB, spectra], tmp_path, place)
    assert printed[0] == "2 jobs, 1 already recorded"
    assert path.read_bytes() == alone.path(JOB).read_bytes()
    assert ledger.find(spectra).result["rel_l2"] == alone.find(JOB).result["rel_l2"], "the same model, bit for bit"
    assert ledger.arrays(spectra)["eigenvalues"].shape == (1, 2, 4)


def test_a_recorded_failure_has_no_absolute_path(place, tmp_path, monkeypatch):
    def fail(self, there):
        raise RuntimeError(f"{there.data(self.on)} by /usr/lib/some-where/kernel.so, 5 m/s, https://a.org/b/c")

    monkeypatch.setattr(Training, "perform", fail)
    ledger, _ = run(JOBS[:1], tmp_path, place)
    printed = f"RuntimeError: {JOB.on.folder} by kernel.so, 5 m/s, https://a.org/b/c"
    assert ledger.find(JOB).failure == printed


@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left on device"),
        ConfigError("begun with other settings"),
        DataError("is damaged"),
        ModuleNotFoundError("No module named 'gmsh'"),
    ],
)
def test_problems_of_the_machine_are_not_recorded_as_failures(error, place, tmp_path, monkeypatch):
    def fail(self, there):
        raise error

    monkeypatch.setattr(Training, "perform", fail)
    with pytest.raises(type(error)):
        run(JOBS[:1], tmp_path, place)
    assert Ledger(tmp_path / "records").find(JOB) is None


def test_a_stopped_training_resumes_in_another_folder_with_other_evaluations(alone, tmp_path, monkeypatch):
    real = Trainer._evaluate

    def stop(self, epoch):
        real(self, epoch)
        os.kill(os.getpid(), signal.SIGTERM)

    here, there = Workspace(tmp_path / "here"), Workspace(tmp_path / "there")
    here.make(JOB.on)
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_evaluate", stop)
        with pytest.raises(Interrupted):
            sweep([JOB], Ledger(tmp_path / "records"), here)
    assert Ledger(tmp_path / "records").find(JOB).outcome == "unfinished"
    here.root.rename(there.root)
    other = JOB.with_settings(("evaluate_every", 2), ("log_every", 7))
    sweep([other], Ledger(tmp_path / "records"), there)
    record = Ledger(tmp_path / "records").find(JOB)
    assert record.outcome == "done"
    assert record.result["rel_l2"] == alone.find(JOB).result["rel_l2"], "the same run, bit for bit"
    changed = JOB.with_settings(("optim.lr", 2e-3))
    there.run(JOB).rename(there.run(changed))
    with pytest.raises(ConfigError, match=r"optim\.lr"):
        changed.train(there)

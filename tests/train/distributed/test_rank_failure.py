"""Rank failure, simulated by one process: the run is saved, and nothing is missing after it is resumed."""

import shutil
import signal
from contextlib import contextmanager

import pytest
from torch.distributed import DistNetworkError

from flare.train.checkpoint import saved_step
from flare.train.distributed.rank_failure import is_rank_failure, rank_failure
from flare.train.loop import Trainer
from flare.train.run import resume, start
from flare.train.run_folder import RunFolder
from flare.utils.errors import RankFailure
from tests.factory import darcy_dataset
from tests.train.test_loop import checkpoint_bytes, config, losses

GONE = RuntimeError("[/src/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1. This may indicate")


@pytest.mark.parametrize(
    ("words", "gone"),
    [
        (str(GONE), True),
        ("Timed out waiting 5000ms for recv operation to complete", True),
        ("[enforce fail at /src/gloo/transport/tcp/pair.cc:446] op.preamble.length <= op.nbytes. 256 vs 128", False),
        ("mat1 and mat2 shapes cannot be multiplied", False),
    ],
)
def test_only_lost_connections_count_as_rank_failures(words, gone):
    assert is_rank_failure(RuntimeError(words)) == gone
    assert is_rank_failure(DistNetworkError("the store does not answer"))


@pytest.fixture(autouse=True)
def _signals():
    """Restore signal handlers: after a rank failure a process records signals until it ends."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="module")
def darcy(tmp_path_factory):
    return darcy_dataset(tmp_path_factory.mktemp("darcy") / "d", samples=12, test=4, resolution=8)


@pytest.fixture(scope="module")
def whole(darcy, tmp_path_factory):
    """Three epochs of two steps, evaluated after the second and the third, with averaged weights."""
    run = tmp_path_factory.mktemp("whole") / "run"
    start(settings(darcy), run)
    return run


def settings(dataset):
    return config(dataset, epochs=3, evaluate_every=2, checkpoint_every=9, optim={"ema": 0.9})


def evaluations(run):
    records = [r for r in RunFolder(run).records() if r["kind"] == "evaluate"]
    return [{name: value for name, value in r.items() if name not in ("seconds", "cpu_seconds")} for r in records]


@contextmanager
def fail_rank(monkeypatch, method, when, first=lambda trainer: None, match=None):
    """Within the context, `method` of the trainer loses its connection `when` a condition holds, which ends the run."""
    honest = getattr(Trainer, method)

    def noticing(trainer, *words):
        if when(trainer, *words):
            first(trainer)
            raise GONE
        return honest(trainer, *words)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, method, noticing)
        with pytest.raises(RankFailure, match=match) as failure:
            yield failure


@pytest.mark.parametrize(("step", "average"), [(4, False), (6, True)], ids=["the weights'", "the average's"])
def test_a_failure_in_an_evaluation_is_repaired_by_resuming(darcy, whole, tmp_path, monkeypatch, step, average):
    seen = []

    def now(trainer, split):
        seen.append(trainer.position.step)
        return seen.count(step) == 1 + average and seen[-1] == step

    with fail_rank(monkeypatch, "errors_of", now, match=f"saved at step {step}"):
        start(settings(darcy), tmp_path / "run")
    assert len(evaluations(tmp_path / "run")) == (step == 6)
    resume(tmp_path / "run")
    assert_equal_runs(tmp_path / "run", whole)


def assert_equal_runs(run, whole):
    assert evaluations(run) == evaluations(whole)
    assert losses(run) == losses(whole)
    for name in ("last", "best"):
        assert checkpoint_bytes(run, name) == checkpoint_bytes(whole, name)


def test_a_failure_while_saving_the_best_weights_is_repaired_by_resuming(darcy, whole, tmp_path, monkeypatch):
    with fail_rank(monkeypatch, "save", lambda trainer, name: name == "best"):
        start(settings(darcy), tmp_path / "run")
    assert len(evaluations(tmp_path / "run")) == 1
    assert not (tmp_path / "run" / "checkpoints" / "best").exists()
    resume(tmp_path / "run")
    assert_equal_runs(tmp_path / "run", whole)


@pytest.mark.parametrize(("others", "kept"), [(2, 4), (6, 6)])
def test_the_latest_step_of_any_surviving_rank_is_kept(darcy, tmp_path, monkeypatch, others, kept):
    """Another surviving rank saved first, at the same step or at an earlier or later one."""

    def stop_at(step, run, first=lambda trainer: None):
        def now(trainer, batches):
            return trainer.position.step == step

        with fail_rank(monkeypatch, "_step", now, first) as failure:
            start(config(darcy, epochs=9, checkpoint_every=9), run)
        return str(failure.value)

    stop_at(others, tmp_path / "other")

    def other_saves_first(trainer):
        shutil.copytree(tmp_path / "other" / "checkpoints" / "last", tmp_path / "run" / "checkpoints" / "last")

    assert f"step {kept}" in stop_at(4, tmp_path / "run", other_saves_first)
    assert saved_step(RunFolder(tmp_path / "run")) == kept
    same = checkpoint_bytes(tmp_path / "run") == checkpoint_bytes(tmp_path / "other")
    assert same == (others >= 4), "a saved step is not written again"


def test_the_error_names_the_cause_and_how_to_resume(darcy, tmp_path):
    run = RunFolder(tmp_path / "run")
    assert "--resume" not in str(rank_failure(GONE, 4, "here", run, shards=False))
    assert not run.path.exists()
    run.create(config(darcy))
    message = str(rank_failure(GONE, 4, "here", run, shards=True))
    assert "Connection closed by peer" in message
    assert f"--resume {run.path}" in message

"""A rank that is lost, played by one process: what is saved, what is said, and that nothing is missing afterwards."""

import shutil
import signal

import pytest
from torch.distributed import DistNetworkError

from flare.train.checkpoint import saved_step
from flare.train.distributed.rank_failure import is_lost, lost
from flare.train.loop import Trainer
from flare.train.run import resume, start
from flare.train.run_folder import RunFolder
from flare.utils.errors import RankLost
from tests.factory import darcy_dataset
from tests.train.test_loop import checkpoint_bytes, config, losses

GONE = RuntimeError("[/src/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1. This may indicate")


@pytest.mark.parametrize(
    ("words", "gone"),
    [
        (str(GONE), True),
        ("[/src/gloo/transport/tcp/pair.cc:538] Read error [10.0.0.1]:31: Connection reset by peer", True),
        (
            "[/src/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 5000ms for recv operation to complete",
            True,
        ),
        ("Application timeout caused pair closure", True),
        ("writev [127.0.0.1]:5: Broken pipe", True),
        ("[enforce fail at /src/gloo/transport/tcp/pair.cc:446] op.preamble.length <= op.nbytes. 256 vs 128", False),
        ("mat1 and mat2 shapes cannot be multiplied", False),
    ],
)
def test_only_silence_counts_as_a_lost_rank_other_errors_are_told_as_they_are(words, gone):
    assert is_lost(RuntimeError(words)) == gone
    assert is_lost(DistNetworkError("the store does not answer"))


@pytest.fixture(autouse=True)
def _signals():
    """A process that lost a rank notes signals to its end; this one has other tests to do."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="module")
def darcy(tmp_path_factory):
    return darcy_dataset(tmp_path_factory.mktemp("darcy") / "d", samples=12, test=4, resolution=8)


@pytest.fixture(scope="module")
def whole(darcy, tmp_path_factory):
    """Three epochs of two steps, evaluated after the second and the third, with an average of the weights."""
    run = tmp_path_factory.mktemp("whole") / "run"
    start(settings(darcy), run)
    return run


def settings(dataset):
    return config(dataset, epochs=3, evaluate_every=2, checkpoint_every=9, optim={"ema": 0.9})


def evaluations(run):
    records = [r for r in RunFolder(run).records() if r["kind"] == "evaluate"]
    return [{name: value for name, value in r.items() if name not in ("seconds", "cpu_seconds")} for r in records]


def lose_a_rank(monkeypatch, method, when, first=lambda trainer: None):
    """It is noticed by `method`, which the trainer calls `when` something holds; afterwards all is as before."""
    honest = getattr(Trainer, method)

    def noticing(trainer, *words):
        if when(trainer, *words):
            first(trainer)
            raise GONE
        return honest(trainer, *words)

    monkeypatch.setattr(Trainer, method, noticing)


@pytest.mark.parametrize("step", [4, 6], ids=["within the run", "the last"])
@pytest.mark.parametrize("average", [False, True], ids=["the weights'", "the average's"])
def test_a_rank_lost_in_an_evaluation_leaves_a_run_that_is_evaluated(
    darcy, whole, tmp_path, monkeypatch, step, average
):
    seen = []

    def now(trainer, split):
        seen.append(trainer.position.step)
        return seen.count(step) == 1 + average and seen[-1] == step

    with monkeypatch.context() as patch:
        lose_a_rank(patch, "errors_of", now)
        with pytest.raises(RankLost, match=f"saved at step {step}"):
            start(settings(darcy), tmp_path / "run")
    assert len(evaluations(tmp_path / "run")) == (step == 6)
    resume(tmp_path / "run")
    assert_nothing_is_missing(tmp_path / "run", whole)


def assert_nothing_is_missing(run, whole):
    assert evaluations(run) == evaluations(whole)
    assert losses(run) == losses(whole)
    for name in ("last", "best"):
        assert checkpoint_bytes(run, name) == checkpoint_bytes(whole, name)


def test_a_rank_lost_while_the_best_is_saved_leaves_a_run_that_is_evaluated(darcy, whole, tmp_path, monkeypatch):
    """The evaluation is logged by then; it is logged once in the end, and the best is saved."""
    with monkeypatch.context() as patch:
        lose_a_rank(patch, "save", lambda trainer, name: name == "best")
        with pytest.raises(RankLost):
            start(settings(darcy), tmp_path / "run")
    assert len(evaluations(tmp_path / "run")) == 1
    assert not (tmp_path / "run" / "checkpoints" / "best").exists()
    resume(tmp_path / "run")
    assert_nothing_is_missing(tmp_path / "run", whole)


@pytest.mark.parametrize(("others", "kept"), [(2, 4), (4, 4), (6, 6)])
def test_the_latest_step_of_any_rank_that_is_left_is_kept(darcy, tmp_path, monkeypatch, others, kept):
    """Another one of those left came first, with the same step or with the one before or after it."""

    def stop_at(step, run, first=lambda trainer: None):
        with monkeypatch.context() as patch:
            lose_a_rank(patch, "_step", lambda trainer, batches: trainer.position.step == step, first)
            with pytest.raises(RankLost) as told:
                start(config(darcy, epochs=9, checkpoint_every=9), run)
        return str(told.value)

    stop_at(others, tmp_path / "other")

    def other_comes_first(trainer):
        shutil.copytree(tmp_path / "other" / "checkpoints" / "last", tmp_path / "run" / "checkpoints" / "last")

    told = stop_at(4, tmp_path / "run", other_comes_first)
    assert f"The run is saved at step {kept}." in told
    assert saved_step(RunFolder(tmp_path / "run")) == kept
    same = checkpoint_bytes(tmp_path / "run") == checkpoint_bytes(tmp_path / "other")
    assert same == (others >= 4), "what is there already is not written again"


def test_what_is_said_tells_what_is_left_and_how_to_go_on(darcy, tmp_path):
    run = RunFolder(tmp_path / "run")
    assert "Nothing was written yet: give the same command again" in str(lost(GONE, 4, "here", run, shards=False))
    assert not run.path.exists()
    run.create(config(darcy))
    told = str(lost(GONE, 4, "here", run, shards=True))
    assert told.startswith("another of the 4 ranks is gone or silent, here (Connection closed by peer [127.0.0.1]:1);")
    assert "Its shard of the weights is gone, and with it what came after the last checkpoint." in told
    assert "No checkpoint was written yet." in told
    assert f"torchrun --nproc-per-node 4 -m flare train --resume {run.path}" in told

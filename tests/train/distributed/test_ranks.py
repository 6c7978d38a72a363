"""Trainings in which ranks share points, samples and weights equal trainings on one rank."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from flare.cli import main
from flare.data.batching import Share
from flare.sequence.listops import ListOps
from flare.sequence.store import generate_sequences
from flare.train.config import TrainConfig
from flare.train.distributed.fabric import PRECISIONS
from flare.train.distributed.ranks import place
from flare.train.field_task import FieldTask
from flare.train.run import resume
from flare.train.run_folder import RunFolder
from flare.utils.errors import ConfigError
from tests.factory import ragged_dataset
from tests.train.test_loop import losses, position

SIZES = {"channels": 16, "blocks": 2, "heads": 2}
MODEL = SIZES | {"name": "flare", "latents": 4, "kv_depth": 0, "ffn_depth": 0}
SETTINGS = {
    "model": json.dumps(MODEL),
    "data.batch_size": 4,
    "epochs": 2,
    "log_every": 1,
    "optim.name": "adamw",  # the only one that works on sharded weights
    "optim.lr": 3e-3,
    "evaluate_every": 2,
    "report": "false",
    "device": "cpu",
}
RANK = """
import json, os, signal, sys, time
import torch
from pathlib import Path
from flare.cli import main
from flare.train.distributed import fabric
from flare.train import field_task, loop

if "DOUBLE" in os.environ:
    torch.set_default_dtype(torch.float64)
    fabric.PRECISIONS["32"] = "64-true"
    field_task.FieldTask.calibrate = lambda *_: None
honest, commands, ports, death = loop.Trainer._step, *map(json.loads, sys.argv[1:])

def step(trainer, batches):
    if [trainer.run.path.name, trainer.position.step, int(os.environ["RANK"])] == death:
        Path(trainer.run.path, "killed").write_text(str(time.time()))
        os.kill(os.getpid(), signal.SIGSTOP if trainer.run.path.name == "hangs" else signal.SIGKILL)
    return honest(trainer, batches)

loop.Trainer._step = step
for words, port in zip(commands, ports):
    # A new rendezvous for each run: the store of torchrun still has the keys of the previous one.
    os.environ |= {"MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "False"}
    if code := main(words):
        Path(sys.argv[0]).with_name("left." + os.environ["RANK"]).write_text(str(time.time()))
        sys.exit(code)
"""
"""Program of a rank: runs commands in turn. It may kill itself before a step, or stop in a run called `hangs`; a rank
that fails writes the time. DOUBLE selects double precision."""


@pytest.fixture(scope="module")
def ragged(tmp_path_factory):
    """Samples of 1 to 40 points: with four ranks, some ranks have no point of a sample."""
    sizes = np.random.default_rng(0).integers(1, 40, 20)
    return ragged_dataset(tmp_path_factory.mktemp("ragged") / "d", sizes=sizes, test=4)


@pytest.fixture(scope="module")
def listops(tmp_path_factory):
    short = ListOps(min_length=3, max_length=30, max_depth=3)
    folder = tmp_path_factory.mktemp("listops") / "d"
    return generate_sequences(short, folder, samples=31, val_samples=4, test_samples=7, quiet=True)


def settings(dataset, out, **changes):
    options = SETTINGS | {"data.path": dataset.path, "out": out} | changes
    return ["train", *(word for name, value in options.items() for word in (f"--{name}", str(value)))]


def free_ports(count):
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [s.getsockname()[1] for s in sockets]


def torchrun(ranks, folder, commands, death=None, limit=1800, **environment):
    """Run commands on several ranks; `death` is (run, step, rank). Returns exit code and stderr.

    Whatever happens, no rank outlives the test.
    """
    (folder / "rank.py").write_text(RANK)
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--rdzv-backend", "c10d"]
    words = ["--rdzv-endpoint", "127.0.0.1:0", folder / "rank.py"]
    words += [json.dumps(stderr) for stderr in (commands, free_ports(len(commands)), death)]
    job = subprocess.Popen(
        [sys.executable, *launcher, *words],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
        start_new_session=True,
    )
    try:
        _, stderr = job.communicate(timeout=limit)
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGTERM)
            job.wait(60)
    return SimpleNamespace(code=job.returncode, stderr=stderr, folder=folder)


@pytest.fixture(scope="module")
def alone(ragged, tmp_path_factory):
    out = tmp_path_factory.mktemp("alone") / "run"
    assert main(settings(ragged, out)) == 0
    return out


def points(run):
    return [r["points"] for r in RunFolder(run).records() if r["kind"] == "train"]


def error(run):
    return json.loads((run / "result.json").read_text())["rel_l2"]


def assert_as_one(run, one):
    np.testing.assert_allclose(losses(run), losses(one), rtol=2e-5)
    assert error(run) == pytest.approx(error(one), rel=1e-4)


def on_ranks(dataset, out, **changes):
    return settings(dataset, out, ranks_share="points", **changes)


PERFORMER = {"name": "sequence", "attention": "performer", "features": 8, "kind": "orthogonal", "redraw_every": 3}
CLASSES = {
    "model": json.dumps(SIZES | PERFORMER),
    "data.eval_batch_size": 1,
}
"""A Performer, which redraws its features equally on all ranks; 4 ranks share 7 samples in evaluations."""


@pytest.fixture(scope="module")
def alone_with_classes(listops, tmp_path_factory):
    out = tmp_path_factory.mktemp("alone") / "classes"
    assert main(settings(listops, out, **CLASSES)) == 0
    return out


@pytest.fixture(scope="module")
def four_ranks(ragged, listops, tmp_path_factory):
    """Four trainings by the same four processes: starting them takes the most time. In the last, the first one dies."""
    folder = tmp_path_factory.mktemp("four")
    commands = [
        on_ranks(ragged, folder / "points-and-samples", point_ranks=2),
        on_ranks(ragged, folder / "weights-too", **{"shard": "true", "optim.ema": 0.9}),
        settings(listops, folder / "classes", shard="true", **CLASSES),
        on_ranks(ragged, folder / "killed", checkpoint_every=3),
    ]
    return torchrun(4, folder, commands, death=("killed", 6, 0))


@pytest.mark.parametrize("name", ["points-and-samples", "weights-too"])
@pytest.mark.slow
def test_four_ranks_train_as_one(four_ranks, alone, name):
    assert (four_ranks.folder / name / "result.json").exists(), four_ranks.stderr
    assert_as_one(four_ranks.folder / name, alone)
    assert points(four_ranks.folder / name) == points(alone), "points of all ranks"


@pytest.mark.slow
def test_four_ranks_classify_as_one(four_ranks, alone_with_classes):
    run = four_ranks.folder / "classes"
    assert (run / "result.json").exists(), four_ranks.stderr
    np.testing.assert_allclose(losses(run), losses(alone_with_classes), rtol=2e-5)
    many, one = (json.loads((of / "test_errors.json").read_text()) for of in (run, alone_with_classes))
    assert many == one


def assert_all_others_left(job, run, *, ranks, dead):
    """Check that the other ranks ended with a clear error within a minute."""
    assert job.code != 0
    killed = float((run / "killed").read_text())
    for rank in set(range(ranks)) - {dead}:
        assert float((job.folder / f"left.{rank}").read_text()) - killed < 60
        assert re.search(
            f"{rf'.rank {rank}. ' if rank else r'(?m)^'}RankFailure: .* {ranks} ranks .* step 6", job.stderr
        )
    assert f"torchrun --nproc-per-node {ranks} -m flare train --resume {run}" in job.stderr
    assert "Traceback" not in job.stderr.split("ChildFailedError")[0].split("RankFailure")[0]


@pytest.mark.slow
def test_after_the_first_rank_is_killed_another_saves_and_one_rank_resumes(four_ranks, alone):
    run = four_ranks.folder / "killed"
    assert_all_others_left(four_ranks, run, ranks=4, dead=0)
    assert position(run)["step"] == 6
    resume(run)
    assert_as_one(run, alone)


@pytest.mark.slow
def test_ranks_do_not_show_warnings_of_libraries(four_ranks):
    shown = four_ranks.stderr.split("RankFailure")[0]
    assert "deprecated" not in shown
    assert "GLOBAL_RANK" not in shown


@pytest.mark.slow
def test_after_another_rank_is_killed_two_resume(ragged, alone, tmp_path):
    run = tmp_path / "killed"
    job = torchrun(3, tmp_path, [on_ranks(ragged, run, checkpoint_every=3)], death=("killed", 6, 2))
    assert_all_others_left(job, run, ranks=3, dead=2)
    assert position(run)["step"] == 6
    job = torchrun(2, tmp_path, [["train", "--resume", str(run), "--no-report"]])
    assert job.code == 0, job.stderr
    assert_as_one(run, alone)


@pytest.mark.slow
def test_a_rank_that_hangs_counts_as_failed_after_the_timeout(ragged, alone, tmp_path):
    run = tmp_path / "hangs"
    job = torchrun(2, tmp_path, [on_ranks(ragged, run, rank_timeout=20)], death=("hangs", 6, 1))
    assert_all_others_left(job, run, ranks=2, dead=1)
    assert float((tmp_path / "left.0").read_text()) - float((run / "killed").read_text()) > 15
    resume(run)
    assert_as_one(run, alone)


@pytest.mark.slow
def test_sharded_weights_resume_from_the_last_checkpoint_on_more_ranks(ragged, alone, tmp_path):
    run = tmp_path / "killed"
    job = torchrun(2, tmp_path, [on_ranks(ragged, run, shard="true")], death=("killed", 6, 1))
    assert_all_others_left(job, run, ranks=2, dead=1)
    assert position(run)["step"] == 4
    job = torchrun(4, tmp_path, [["train", "--resume", str(run), "--no-report"]])
    assert job.code == 0, job.stderr
    assert_as_one(run, alone)


LONG = {"data.batch_size": 1, "data.eval_batch_size": 1, "epochs": 500, "evaluate_every": 500, "checkpoint_every": 500}
LONG |= {"optim.lr": 1e-4}
"""Five hundred steps with one sample."""


@pytest.fixture(scope="module")
def one_sample(tmp_path_factory):
    return ragged_dataset(tmp_path_factory.mktemp("long") / "d", sizes=[3001, 301], test=1)


@pytest.fixture(scope="module", params=["single", "double"])
def five_hundred_alone(one_sample, tmp_path_factory, request):
    out = tmp_path_factory.mktemp(request.param) / "one"
    usual = torch.get_default_dtype()
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "double":
            torch.set_default_dtype(torch.float64)
            patch.setitem(PRECISIONS, "32", "64-true")
            patch.setattr(FieldTask, "calibrate", lambda *_: None)  # it predicts in single precision
        try:
            assert main(settings(one_sample, out, **LONG)) == 0
        finally:
            torch.set_default_dtype(usual)
    one = losses(out)
    assert len(one) == 500
    assert np.mean(one[-20:]) < 0.5 * np.mean(one[:20]), "the loss falls"
    return one, request.param == "double"


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_five_hundred_steps_on_ranks_equal_those_of_one(one_sample, five_hundred_alone, tmp_path, ranks):
    """In single precision rounding errors grow over hundreds of steps; in double precision all steps agree."""
    one, double = five_hundred_alone
    environment = {"DOUBLE": "yes"} if double else {}
    job = torchrun(ranks, tmp_path, [on_ranks(one_sample, tmp_path / "many", **LONG)], **environment)
    assert job.code == 0, job.stderr
    many = losses(tmp_path / "many")
    if double:
        np.testing.assert_allclose(many, one, rtol=1e-12)
    else:
        np.testing.assert_allclose(many[:200], one[:200], rtol=1e-5)
        np.testing.assert_allclose(many, one, rtol=1e-2)


def test_shares_cover_all_items_once():
    for size in (0, 1, 7, 101):
        for count in (1, 2, 3, 8):
            parts = [range(size)[Share(i, count).of(size)] for i in range(count)]
            assert [i for part in parts for i in part] == list(range(size))
            assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_impossible_splits_are_refused(ragged, tmp_path, capsys):
    assert main(settings(ragged, tmp_path / "r", point_ranks=2)) == 2
    assert "point_ranks" in capsys.readouterr().err
    assert main(settings(ragged, tmp_path / "r", shard="true", precision="16")) == 2
    assert "shard" in capsys.readouterr().err
    assert not (tmp_path / "r").exists()
    with pytest.raises(ConfigError, match="point_ranks=3"):
        place(TrainConfig(ranks_share="points", point_ranks=3), SimpleNamespace(world_size=2, global_rank=0))

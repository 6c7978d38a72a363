"""Points split over ranks in a whole training: the losses and the result of one rank, for ragged samples too."""

import json
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest

from flare.cli import main
from flare.data.batch import Share
from flare.errors import ConfigError
from flare.train.config import TrainConfig
from flare.train.ranks import place
from flare.train.run import RunFolder
from flare.train.start import resume
from tests.factory import ragged_dataset

MODEL = {"name": "flare", "channels": 16, "blocks": 2, "heads": 2, "latents": 4, "kv_depth": 0, "ffn_depth": 0}
SETTINGS = {
    "model": json.dumps(MODEL),
    "data.batch_size": 4,
    "epochs": 3,
    "log_every": 1,
    "optim.lr": 3e-3,
    "evaluate_every": 1,
    "report": "false",
    "device": "cpu",
}
KILLER = """
import os, signal, sys
from flare.cli import main
from flare.train import loop

honest = loop.Trainer._step

def step(trainer, batches):
    if trainer.position.step == {step} and os.environ["RANK"] == "{rank}":
        os.kill(os.getpid(), signal.SIGKILL)
    return honest(trainer, batches)

loop.Trainer._step = step
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def ragged(tmp_path_factory):
    """Samples of 1 to 40 points: with four ranks, some have none of a sample."""
    sizes = np.random.default_rng(0).integers(1, 40, 20)
    return ragged_dataset(tmp_path_factory.mktemp("ragged") / "d", sizes=sizes, test=4)


def settings(dataset, out, **changes):
    options = SETTINGS | {"data.path": dataset.path, "out": out} | changes
    return ["train", *(word for name, value in options.items() for word in (f"--{name}", str(value)))]


def torchrun(ranks, words, script=("-m", "flare"), limit=900):
    """The command on so many ranks; whatever happens, none of them outlives the test."""
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--rdzv-backend", "c10d"]
    command = [sys.executable, *launcher, "--rdzv-endpoint", "127.0.0.1:0", *script, *words]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    job = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True)
    try:
        _, told = job.communicate(timeout=limit)
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGTERM)
            job.wait(60)
    return job.returncode, told


@pytest.fixture(scope="module")
def alone(ragged, tmp_path_factory):
    out = tmp_path_factory.mktemp("alone") / "run"
    assert main(settings(ragged, out)) == 0
    return out


def losses(run):
    return [r["loss"] for r in RunFolder(run).records() if r["kind"] == "train"]


def error(run):
    return json.loads((run / "result.json").read_text())["rel_l2"]


@pytest.mark.parametrize(
    ("ranks", "changes"),
    [(2, {}), (4, {"point_ranks": 2}), (2, {"shard": "true", "optim.ema": 0.9})],
    ids=["points", "points x samples", "weights too"],
)
def test_ranks_that_share_points_train_as_one(ragged, alone, tmp_path, ranks, changes):
    code, told = torchrun(ranks, settings(ragged, tmp_path / "run", split="points", **changes))
    assert code == 0, told
    np.testing.assert_allclose(losses(tmp_path / "run"), losses(alone), rtol=2e-5)
    assert error(tmp_path / "run") == pytest.approx(error(alone), rel=1e-4)


def test_a_killed_rank_ends_the_others_and_fewer_ranks_go_on(ragged, alone, tmp_path):
    (tmp_path / "killer.py").write_text(KILLER.format(step=6, rank=3))
    begin = time.monotonic()
    words = settings(ragged, tmp_path / "run", split="points", point_ranks=2, checkpoint_every=3)
    code, told = torchrun(4, words, [tmp_path / "killer.py"])
    assert code != 0
    assert time.monotonic() - begin < 60
    for rank in ("", "[rank 1] ", "[rank 2] "):
        assert f"{rank}RankLost: another of the 4 ranks is gone or silent, in step 6" in told
    assert "Traceback" not in told.split("ChildFailedError")[0].split("RankLost")[0]
    assert json.loads((tmp_path / "run/checkpoints/last/trainer.json").read_text())["step"] == 6
    resume(tmp_path / "run")
    np.testing.assert_allclose(losses(tmp_path / "run"), losses(alone), rtol=2e-5)
    assert error(tmp_path / "run") == pytest.approx(error(alone), rel=1e-4)


@pytest.mark.slow
def test_shards_go_on_from_the_last_checkpoint(ragged, alone, tmp_path):
    (tmp_path / "killer.py").write_text(KILLER.format(step=6, rank=1))
    words = settings(ragged, tmp_path / "run", split="points", shard="true")
    code, told = torchrun(2, words, [tmp_path / "killer.py"])
    assert code != 0
    assert "RankLost" in told
    assert json.loads((tmp_path / "run/checkpoints/last/trainer.json").read_text())["step"] == 4
    code, told = torchrun(2, ["train", "--resume", str(tmp_path / "run"), "--report", "false"])
    assert code == 0, told
    np.testing.assert_allclose(losses(tmp_path / "run"), losses(alone), rtol=2e-5)
    assert error(tmp_path / "run") == pytest.approx(error(alone), rel=1e-4)


@pytest.mark.slow
def test_five_hundred_steps_on_ranks_are_those_of_one(ragged, tmp_path):
    """Rounding grows along the way as in any two trainings, so the tolerance does too."""
    assert main(settings(ragged, tmp_path / "one", epochs=125)) == 0
    code, told = torchrun(2, settings(ragged, tmp_path / "two", epochs=125, split="points"))
    assert code == 0, told
    one, two = losses(tmp_path / "one"), losses(tmp_path / "two")
    assert len(one) == 500
    np.testing.assert_allclose(two[:50], one[:50], rtol=1e-4)
    np.testing.assert_allclose(two, one, rtol=2e-2)


def test_shares_cover_everything_once():
    for size in (0, 1, 7, 101):
        for count in (1, 2, 3, 8):
            parts = [range(size)[Share(i, count).of(size)] for i in range(count)]
            assert [i for part in parts for i in part] == list(range(size))
            assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_what_cannot_be_split_is_refused(ragged, tmp_path, capsys):
    assert main(settings(ragged, tmp_path / "r", point_ranks=2)) == 2
    assert "goes with --split points" in capsys.readouterr().err
    assert not (tmp_path / "r").exists()
    with pytest.raises(ConfigError, match="point_ranks=3 does not divide the 2 ranks"):
        place(TrainConfig(split="points", point_ranks=3), SimpleNamespace(world_size=2, global_rank=0))

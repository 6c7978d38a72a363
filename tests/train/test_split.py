"""Points split over ranks in a whole training: the losses and the result of one rank, for ragged samples too."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from flare.cli import main
from flare.data.batch import Share
from flare.train.run import RunFolder
from tests.factory import ragged_dataset

MODEL = {"name": "flare", "channels": 16, "blocks": 2, "heads": 2, "latents": 4, "kv_depth": 0, "ffn_depth": 0}


@pytest.fixture(scope="module")
def ragged(tmp_path_factory):
    """Samples of 1 to 40 points: with four ranks, some have none of a sample."""
    sizes = np.random.default_rng(0).integers(1, 40, 20)
    return ragged_dataset(tmp_path_factory.mktemp("ragged") / "d", sizes=sizes, test=4)


def train(dataset, out, *words, ranks=1):
    command = [
        "-m",
        "flare",
        "train",
        "--out",
        str(out),
        "--data.path",
        str(dataset.path),
        "--model",
        json.dumps(MODEL),
    ]
    command += ["--data.batch_size", "4", "--epochs", "3", "--log_every", "1", "--optim.lr", "3e-3"]
    command += ["--evaluate_every", "1", "--report", "false", "--device", "cpu", *words]
    if ranks > 1:
        launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
        command = [*launcher, "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", *command]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, env=environment, timeout=300)


@pytest.fixture(scope="module")
def alone(ragged, tmp_path_factory):
    out = tmp_path_factory.mktemp("alone") / "run"
    done = train(ragged, out)
    assert done.returncode == 0, done.stderr
    return out


def losses(run):
    return [r["loss"] for r in RunFolder(run).records() if r["kind"] == "train"]


@pytest.mark.parametrize(("ranks", "words"), [(2, []), (4, ["--point_ranks", "2"])], ids=["points", "points x samples"])
def test_ranks_that_share_points_train_as_one(ragged, alone, tmp_path, ranks, words):
    done = train(ragged, tmp_path / "run", "--split", "points", *words, ranks=ranks)
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(losses(tmp_path / "run"), losses(alone), rtol=2e-5)
    results = [json.loads((run / "result.json").read_text()) for run in (alone, tmp_path / "run")]
    assert results[1]["rel_l2"] == pytest.approx(results[0]["rel_l2"], rel=1e-4)


def test_shares_cover_everything_once():
    for size in (0, 1, 7, 101):
        for count in (1, 2, 3, 8):
            parts = [range(size)[Share(i, count).of(size)] for i in range(count)]
            assert [i for part in parts for i in part] == list(range(size))
            assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_what_cannot_be_split_is_refused(ragged, tmp_path, capsys):
    words = [
        "train",
        "--data.path",
        str(ragged.path),
        "--out",
        str(tmp_path / "r"),
        "--epochs",
        "1",
        "--report",
        "false",
    ]
    assert main([*words, "--point_ranks", "2"]) == 2
    assert "goes with --split points" in capsys.readouterr().err
    done = train(ragged, tmp_path / "r", "--split", "points", "--point_ranks", "3", ranks=2)
    assert "does not divide the 2 ranks" in done.stderr
    assert not (tmp_path / "r").exists()

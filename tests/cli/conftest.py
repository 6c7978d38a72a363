"""A small dataset and a finished run, shared by the tests of the command line."""

import pytest

from flare.cli import main
from tests.factory import darcy_dataset

TINY = ["--model.channels", "16", "--model.blocks", "2", "--model.heads", "4", "--model.latents", "4"]
TINY += ["--model.kv_depth", "0", "--model.ffn_depth", "0", "--device", "cpu"]


@pytest.fixture(scope="module")
def darcy(tmp_path_factory):
    return darcy_dataset(tmp_path_factory.mktemp("darcy") / "d", samples=14, test=4, resolution=9)


@pytest.fixture(scope="module")
def run(darcy, tmp_path_factory):
    """A finished run with its report."""
    out = tmp_path_factory.mktemp("runs") / "run"
    assert main(["train", "--data.path", str(darcy.path), "--epochs", "3", "--out", str(out), *TINY]) == 0
    return out

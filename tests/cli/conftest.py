"""A small dataset and a finished run, shared by the tests of the command line, which never change them."""

import contextlib
import io

import pytest

from flare.cli import main
from tests.factory import darcy_dataset

TINY = ["--model.channels", "16", "--model.blocks", "2", "--model.heads", "4", "--model.latents", "4"]
TINY += ["--model.kv_depth", "0", "--model.ffn_depth", "0", "--device", "cpu"]


@pytest.fixture(scope="session")
def darcy(tmp_path_factory):
    return darcy_dataset(tmp_path_factory.mktemp("darcy") / "d", samples=14, test=4, resolution=9)


@pytest.fixture(scope="session")
def run(darcy, tmp_path_factory):
    """A finished run with its report. Beside it is what the training printed: `out.txt` and `err.txt`."""
    folder = tmp_path_factory.mktemp("runs")
    words = ["train", "--data.path", str(darcy.path), "--epochs", "2", "--out", str(folder / "run"), *TINY]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        assert main(words) == 0
    (folder / "out.txt").write_text(out.getvalue())
    (folder / "err.txt").write_text(err.getvalue())
    return folder / "run"

"""The example plugin is installed into a folder and used by the command line, without changes to flare."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Environment variables with which Python finds the installed plugin."""
    target = tmp_path_factory.mktemp("site")
    how = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--target", str(target)]
    subprocess.run([sys.executable, "-m", "pip", "install", *how, str(ROOT / "examples" / "plugin")], check=True)
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(target), str(ROOT)])}


def run_flare(environment, folder, command):
    words = [sys.executable, "-m", "flare", *command.split()]
    return subprocess.run(words, env=environment, cwd=folder, capture_output=True, text=True)


def test_a_plugin_adds_a_dataset_a_model_and_a_loss(environment, tmp_path):
    train = "train data/waves --model deep-sets --model.channels 8 --loss.name huber --epochs 2 --device cpu"
    for command in ("data make waves --samples 12 --points 20 --workers 1", train, "evaluate runs/waves-deep-sets"):
        done = run_flare(environment, tmp_path, command)
        assert done.returncode == 0, done.stderr
    run = tmp_path / "runs" / "waves-deep-sets"
    assert json.loads((run / "result.json").read_text())["model"] == {"name": "deep-sets", "channels": 8}
    assert (run / "report.html").exists()
    refused = run_flare(environment, tmp_path, f"{train} --model.width 8 --out runs/other")
    assert refused.returncode == 2
    assert "width" in refused.stderr


def test_a_broken_plugin_is_reported_and_skipped(environment, tmp_path):
    broken = tmp_path / "broken-1.0.dist-info"
    broken.mkdir()
    (broken / "METADATA").write_text("Name: broken\nVersion: 1.0\n")
    (broken / "entry_points.txt").write_text("[flare.plugins]\nbroken = no_such_module\n")
    both = environment | {"PYTHONPATH": os.pathsep.join([str(tmp_path), environment["PYTHONPATH"]])}
    program = "from flare.models import MODELS; print('deep-sets' in MODELS.names())"
    done = subprocess.run([sys.executable, "-c", program], env=both, capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
    assert "no_such_module" in done.stderr

"""Public names: each is found, has a docstring, and its example runs."""

import doctest
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import flare

NAMES = [name for name in flare.__all__ if name != "__version__"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Working directory with the dataset `data/mine` and the run `runs/mine`, which examples use."""
    old = Path(__file__).parent / "fixtures" / "v1"
    shutil.copytree(old / "dataset", tmp_path / "data" / "mine")
    shutil.copytree(old / "run", tmp_path / "runs" / "mine")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_the_example_of_a_public_name_runs(name, folder):
    found = getattr(flare, name)
    text = (found.train if name == "train" else found).__doc__
    test = doctest.DocTestParser().get_doctest(text, {}, name, None, 0)
    assert test.examples
    assert doctest.DocTestRunner().run(test).failed == 0


def test_dir_lists_the_public_names():
    assert set(dir(flare)) == set(flare.__all__)
    with pytest.raises(AttributeError):
        _ = flare.no_such_name


def test_the_package_flare_train_stays_callable_after_its_modules_are_imported():
    program = "import flare, flare.train.config as c; assert flare.train.config is c; flare.train.__call__; flare.train"
    program += "; import inspect; assert 'epochs' in inspect.signature(flare.train).parameters"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0

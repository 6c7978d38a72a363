"""Fixtures for the tests of the kernel library: an empty cache, a script in place of the compiler, other processes."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

from flare import build_model
from flare.mixer import choose, mix
from flare.mixer.native import build, cache, library
from flare.utils.errors import ConfigError

ROOT = Path(__file__).parents[3]
SCRIPT = """#!/bin/sh
if [ "$1" = --version ]; then echo 1.0; exit; fi
for target; do :; done  # the last argument
case "$*" in *-shared*) echo >> '{folder}/links';; esac
{then}
"""


@pytest.fixture(scope="session")
def whole():
    """Path of a working library, built by a real compiler."""
    try:
        return find() or build.build(library.open_library)
    except cache.KernelsUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture
def folder(whole, tmp_path, monkeypatch):
    """Empty cache folder, in a process that has not loaded the kernels."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr(cache, "HERE", tmp_path / "package")
    monkeypatch.setattr(library, "_loaded", None)
    monkeypatch.setenv("FLARE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FLARE_NATIVE", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def compiler(folder, whole, tmp_path, monkeypatch):
    """Set CXX to a script that counts its link calls and runs `then`, by default a copy of a working library."""

    def install(then=f"cp '{whole}' \"$target\"", name="cxx"):
        script = tmp_path / name
        script.write_text(SCRIPT.format(folder=tmp_path, then=then))
        script.chmod(0o755)
        monkeypatch.setenv("CXX", str(script))

    install()
    return install


@pytest.fixture
def links(tmp_path):
    """Return the number of libraries linked so far."""
    return lambda: len((tmp_path / "links").read_text().splitlines()) if (tmp_path / "links").exists() else 0


@pytest.fixture
def no_compiler(folder, tmp_path, monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))


def as_new_process(monkeypatch):
    """Forget the loaded library, as a new process would."""
    monkeypatch.setattr(library, "_loaded", None)


def start(*arguments):
    """Start another Python process with the environment of this one."""
    command = [sys.executable, *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True, start_new_session=True)


def find():
    """Return the path of an intact library for this machine, or None."""
    return next(cache._intact(cache.folders()), None)


def libraries(folder):
    return sorted(folder.glob("kernels-*.so"))


def assert_works():
    """Check that the kernels load and give the right result."""
    assert library.why_not() is None
    q, k, v = torch.randn(2, 3, 4), torch.randn(1, 2, 9, 4), torch.randn(1, 2, 9, 4)
    torch.testing.assert_close(mix(q, k, v, backend="native"), mix(q, k, v, backend="reference"), rtol=0, atol=1e-5)


def assert_falls_back_to_sdpa():
    """Check that `auto` equals `sdpa`, and that `native` raises."""
    sizes = {"channels": 16, "blocks": 1, "heads": 4, "latents": 5}
    auto, sdpa = build_model("flare", 2, 1, **sizes), build_model("flare", 2, 1, **sizes, backend="sdpa")
    sdpa.load_state_dict(auto.state_dict())
    x = torch.randn(2, 30, 2)
    assert choose()[0] == "sdpa"
    assert torch.equal(auto(x), sdpa(x))
    with pytest.raises(ConfigError, match="native"):
        build_model("flare", 2, 1, **sizes, backend="native")(x)

"""For the tests of the kernels' library: an empty cache, a script that stands in for the compiler, other processes."""

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

ROOT = Path(__file__).parents[2]
SCRIPT = """#!/bin/sh
if [ "$1" = --version ]; then echo 1.0; exit; fi
for target; do :; done  # the last word
case "$*" in *-shared*) echo >> '{folder}/links';; esac
{then}
"""


@pytest.fixture(scope="session")
def whole():
    """A library that works, made by a real compiler."""
    try:
        return cache.find() or build.build(library.open_library)
    except cache.Unavailable as error:
        pytest.skip(str(error))


@pytest.fixture
def folder(whole, tmp_path, monkeypatch):
    """The empty cache of a user who has never run FLARE, in a process that has not asked for the kernels yet."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr(cache, "HERE", tmp_path / "package")
    monkeypatch.setattr(library, "_loaded", None)
    monkeypatch.setenv("FLARE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FLARE_NATIVE", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def compiler(folder, whole, tmp_path, monkeypatch):
    """Set CXX to a script that counts the libraries it links, and `then` does something else than make a good one."""

    def install(then=f"cp '{whole}' \"$target\"", name="cxx"):
        script = tmp_path / name
        script.write_text(SCRIPT.format(folder=tmp_path, then=then))
        script.chmod(0o755)
        monkeypatch.setenv("CXX", str(script))

    install()
    return install


@pytest.fixture
def links(tmp_path):
    """How many libraries were linked so far."""
    return lambda: len((tmp_path / "links").read_text().splitlines()) if (tmp_path / "links").exists() else 0


@pytest.fixture
def no_compiler(folder, tmp_path, monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))


def as_new_process(monkeypatch):
    monkeypatch.setattr(library, "_loaded", None)


def start(*arguments):
    """Another process, with the environment of this one."""
    command = [sys.executable, *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True, start_new_session=True)


def libraries(folder):
    return sorted(folder.glob("kernels-*.so"))


def works():
    """The kernels are loaded and right."""
    assert library.why_not() is None
    q, k, v = torch.randn(2, 3, 4), torch.randn(1, 2, 9, 4), torch.randn(1, 2, 9, 4)
    torch.testing.assert_close(mix(q, k, v, backend="native"), mix(q, k, v, backend="reference"), rtol=0, atol=1e-5)


def without_kernels_all_is_as_with_sdpa():
    sizes = {"channels": 16, "blocks": 1, "heads": 4, "latents": 5}
    auto, sdpa = build_model("flare", 2, 1, **sizes), build_model("flare", 2, 1, **sizes, backend="sdpa")
    sdpa.load_state_dict(auto.state_dict())
    x = torch.randn(2, 30, 2)
    assert choose()[0] == "sdpa"
    assert torch.equal(auto(x), sdpa(x))
    with pytest.raises(ConfigError, match="backend='native': "):
        build_model("flare", 2, 1, **sizes, backend="native")(x)

"""The kernel library: loaded or built on first use, or ahead of time; its absence never stops a program."""

import os
import platform
import subprocess
import sys
import zipfile

import pytest
import torch

from flare.cli.info import run as info
from flare.mixer import mix
from flare.mixer.native import cache, library
from flare.mixer.native.__main__ import main
from flare.utils.errors import ConfigError
from tests.mixer.native.conftest import as_new_process, assert_falls_back_to_sdpa, assert_works, find, libraries, start

# ---- disabled or unavailable -----------------------------------------------------------------------------------------


def test_disabled_kernels_are_not_built(compiler, links, monkeypatch):
    monkeypatch.setenv("FLARE_NATIVE", "0")
    assert "FLARE_NATIVE=0" in library.why_not()
    assert_falls_back_to_sdpa()
    assert links() == 0
    with pytest.raises(cache.KernelsUnavailable) as first:
        library.kernels()
    with pytest.raises(cache.KernelsUnavailable) as second:
        library.kernels()
    assert first.value is not second.value  # one exception, raised again, grows by a traceback each time


def test_invalid_switch_is_refused(compiler, monkeypatch):
    monkeypatch.setenv("FLARE_NATIVE", "maybe")
    with pytest.raises(ConfigError, match="FLARE_NATIVE=maybe"):
        mix(torch.randn(2, 3, 4), torch.randn(1, 2, 9, 4), torch.randn(1, 2, 9, 4))


def test_windows_falls_back_to_sdpa(folder, monkeypatch):
    monkeypatch.setattr(library.platform, "system", lambda: "Windows")
    monkeypatch.delattr(os, "getuid")
    assert_falls_back_to_sdpa()


# ---- on first use ----------------------------------------------------------------------------------------------------


def test_first_use_builds_with_one_log_line(compiler, folder, links, capsys, monkeypatch):
    assert_works()
    printed = capsys.readouterr()
    assert len(printed.err.splitlines()) == 1
    assert printed.out == ""
    as_new_process(monkeypatch)
    assert_works()
    assert capsys.readouterr().err == ""
    assert links() == 1
    assert [find()] == libraries(folder)
    assert {path.name for path in folder.iterdir()} == {find().name, "kernels.lock"}


# ---- ahead of time ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("into", [None, "."])
def test_module_builds_once_and_prints_path_and_instructions(
    into, compiler, folder, tmp_path, links, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        as_new_process(monkeypatch)
        assert main(["--into", into] if into else []) == 0
        (path,) = libraries(tmp_path if into else folder)
        out = capsys.readouterr().out
        assert out.startswith(f"{path} (")
        assert out.split("(")[1].startswith(("AVX", "NEON", "SSE"))
    assert links() == 1


def test_info_prints_the_path_of_the_library(compiler, folder, capsys):
    info([])
    (path,) = libraries(folder)
    assert str(path) in capsys.readouterr().out


def test_module_fails_with_one_message(no_compiler, tmp_path, capsys):
    assert main([]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    (tmp_path / "file").touch()
    assert main(["--into", str(tmp_path / "file" / "below")]) == 2
    assert str(tmp_path / "file") in capsys.readouterr().err


SOURCES = {f"flare/mixer/native/src/{path.name}" for path in cache.SOURCES.iterdir()}


def wheel(folder):
    """Build a wheel of this checkout; return its name, its files and its WHEEL file."""
    process = start("-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder))
    _, err = process.communicate()
    assert process.returncode == 0, err
    (path,) = folder.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        about = next(name for name in archive.namelist() if name.endswith("dist-info/WHEEL"))
        return path.name, set(archive.namelist()), archive.read(about).decode()


def test_wheel_is_plain_python_with_the_sources(compiler, tmp_path, links, monkeypatch):
    monkeypatch.delenv("FLARE_BUILD_NATIVE", raising=False)
    name, held, about = wheel(tmp_path / "dist")
    assert name.endswith("-py3-none-any.whl")
    assert held >= SOURCES
    assert not any(path.endswith(".so") for path in held)
    assert "Root-Is-Purelib: true" in about
    assert links() == 0


def test_wheel_with_kernels_contains_the_library(compiler, whole, tmp_path, links, monkeypatch):
    monkeypatch.setenv("FLARE_BUILD_NATIVE", "1")
    name, held, about = wheel(tmp_path / "dist")
    assert "-py3-none-" in name
    assert "any" not in name
    assert "Root-Is-Purelib: false" in about
    assert held >= SOURCES | {f"flare/mixer/native/{whole.name}"}
    assert not any(path.endswith(".lock") for path in held)
    assert links() == 1


@pytest.mark.slow
@pytest.mark.kernels
@pytest.mark.skipif(platform.machine() != "x86_64", reason="narrower vectors are chosen with x86 flags")
@pytest.mark.parametrize(("architecture", "name"), [("x86-64-v3", "AVX2"), ("x86-64-v2", "SSE")])
def test_narrower_vectors_pass_the_same_tests(architecture, name, tmp_path):
    settings = {"FLARE_CACHE": str(tmp_path), "FLARE_CXXFLAGS": f"-march={architecture}"}

    def run(*arguments):
        command = [sys.executable, "-m", *arguments]
        done = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert f"({name})" in run("flare.mixer.native")
    files = "tests/mixer/native/test_mixer_ops.py", "tests/models/test_fused.py"
    assert "skipped" not in run("pytest", "-q", "-m", "kernels and not slow", *files)

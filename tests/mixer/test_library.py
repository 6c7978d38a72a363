"""The kernels' library: loaded on first use or built before, never a reason to stop."""

import os
import threading
import zipfile

import pytest
import torch

from flare import build_model
from flare.cli.info import run as info
from flare.mixer import mix
from flare.mixer.native import cache, library
from flare.mixer.native.__main__ import main
from flare.utils.errors import ConfigError
from tests.mixer.conftest import as_new_process, libraries, start, without_kernels_all_is_as_with_sdpa, works

# ---- switched off, or impossible -------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["0", "off", "No", "false"])
def test_switched_off_nothing_is_built_and_the_reason_is_told(value, compiler, links, monkeypatch):
    monkeypatch.setenv("FLARE_NATIVE", value)
    assert library.why_not() == f"switched off by FLARE_NATIVE={value}"
    without_kernels_all_is_as_with_sdpa()
    assert links() == 0


@pytest.mark.parametrize("value", ["1", "on", "Yes", "true", ""])
def test_switched_on_is_the_default(value, compiler, monkeypatch):
    monkeypatch.setenv("FLARE_NATIVE", value)
    works()


def test_a_switch_that_is_neither_on_nor_off_is_refused(compiler, monkeypatch):
    monkeypatch.setenv("FLARE_NATIVE", "maybe")
    with pytest.raises(ConfigError, match="FLARE_NATIVE=maybe is neither 1"):
        mix(torch.randn(2, 3, 4), torch.randn(1, 2, 9, 4), torch.randn(1, 2, 9, 4))


def test_windows_gets_a_reason_not_a_crash(folder, monkeypatch):
    monkeypatch.setattr(library.platform, "system", lambda: "Windows")
    monkeypatch.delattr(os, "getuid")
    assert library.why_not() == "the kernels are for Linux and macOS"
    without_kernels_all_is_as_with_sdpa()


def test_a_reason_asked_for_a_million_times_costs_no_memory(folder, monkeypatch):
    monkeypatch.setenv("FLARE_NATIVE", "0")
    with pytest.raises(cache.Unavailable) as first:
        library.kernels()
    with pytest.raises(cache.Unavailable) as second:
        library.kernels()
    assert first.value is not second.value  # one exception, raised again, grows by a traceback each time


# ---- on first use ----------------------------------------------------------------------------------------------------


def test_the_first_use_builds_and_says_so_in_one_line(compiler, folder, links, capsys, monkeypatch):
    works()
    told = capsys.readouterr()
    assert told.err.splitlines() == ["Building FLARE's CPU kernels (once, about half a minute) ..."]
    assert told.out == ""
    as_new_process(monkeypatch)
    works()
    assert capsys.readouterr().err == ""
    assert links() == 1
    assert [cache.find()] == libraries(folder)
    assert {path.name for path in folder.iterdir()} == {cache.find().name, "kernels.lock"}


def test_two_threads_at_once_compile_once(compiler, whole, links):
    compiler(f"sleep 0.2; cp '{whole}' \"$target\"")
    reasons = []
    threads = [threading.Thread(target=lambda: reasons.append(library.why_not())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert reasons == [None] * 4
    assert links() == 1


def test_torch_compile_may_be_the_first_to_ask(compiler):
    model = build_model("flare", 2, 1, channels=16, blocks=1, heads=4, latents=5)
    x = torch.randn(1, 30, 2)
    y = torch.compile(model, backend="eager", fullgraph=True)(x)
    works()
    torch.testing.assert_close(y, model(x))
    torch.compiler.reset()


# ---- ahead of time ---------------------------------------------------------------------------------------------------


def test_the_module_builds_once_and_tells_where_and_for_what(compiler, folder, links):
    for _ in range(2):
        out, _ = start("-m", "flare.mixer.native").communicate()
        (path,) = libraries(folder)
        assert out.startswith(f"{path} (")
        assert out.split("(")[1].startswith(("AVX", "NEON", "SSE"))
    assert links() == 1


def test_info_tells_where_the_library_lies(compiler, folder, capsys):
    assert info([]) == 0
    (path,) = libraries(folder)
    assert f"kernels           {path} (" in capsys.readouterr().out


def test_info_tells_what_to_do_without_one(no_compiler, capsys):
    assert info([]) == 0
    told = capsys.readouterr().out
    assert "mixer             sdpa: " in told
    assert "no C++ compiler found; install one" in told


def test_the_module_builds_into_a_folder(compiler, tmp_path, links, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert main(["--into", "."]) == 0
        (path,) = libraries(tmp_path)
        assert capsys.readouterr().out.startswith(f"{path} (")
    assert links() == 1


def test_the_module_builds_into_the_named_cache_though_there_is_one_elsewhere(compiler, folder, tmp_path, monkeypatch):
    monkeypatch.setenv("FLARE_CACHE", str(tmp_path / "file"))
    (tmp_path / "file").write_text("no folder")
    works()  # by a library in the temporary folder
    monkeypatch.setenv("FLARE_CACHE", str(folder))
    assert main([]) == 0
    assert len(libraries(folder)) == 1


def test_the_module_tries_again_after_a_failure(compiler, folder, monkeypatch):
    compiler("exit 1")
    assert main([]) == 2
    compiler()
    as_new_process(monkeypatch)
    assert "could not be built" in library.why_not()
    assert main([]) == 0


def test_the_module_ends_with_one_message_where_it_cannot(no_compiler, tmp_path, capsys):
    assert main([]) == 2
    assert capsys.readouterr().err.startswith("No kernels: no C++ compiler found; install one")
    (tmp_path / "file").touch()
    assert main(["--into", str(tmp_path / "file" / "below")]) == 2
    assert capsys.readouterr().err.startswith("No kernels: ")


SOURCES = {f"flare/mixer/native/src/{path.name}" for path in cache.SOURCES.iterdir()}


def wheel(folder):
    """Build a wheel of this checkout: its name, what it holds, its WHEEL file."""
    process = start("-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder))
    _, err = process.communicate()
    assert process.returncode == 0, err
    (path,) = folder.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        about = next(name for name in archive.namelist() if name.endswith("dist-info/WHEEL"))
        return path.name, set(archive.namelist()), archive.read(about).decode()


def test_a_wheel_is_plain_python_with_the_sources(compiler, tmp_path, links, monkeypatch):
    monkeypatch.delenv("FLARE_BUILD_NATIVE", raising=False)
    name, held, about = wheel(tmp_path / "dist")
    assert name.endswith("-py3-none-any.whl")
    assert held >= SOURCES
    assert not any(path.endswith(".so") for path in held)
    assert "Root-Is-Purelib: true" in about
    assert links() == 0


def test_a_wheel_with_kernels_holds_this_machines_library(compiler, whole, tmp_path, links, monkeypatch):
    monkeypatch.setenv("FLARE_BUILD_NATIVE", "1")
    name, held, about = wheel(tmp_path / "dist")
    assert "-py3-none-" in name
    assert "any" not in name
    assert "Root-Is-Purelib: false" in about
    assert held >= SOURCES | {f"flare/mixer/native/{whole.name}"}
    assert not any(path.endswith(".lock") for path in held)
    assert links() == 1


def test_a_wheel_with_kernels_needs_torch_and_says_how(compiler, tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['torch'] = None")  # as in an isolated build
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("FLARE_BUILD_NATIVE", "1")
    process = start("-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path / "dist"))
    _, err = process.communicate()
    assert process.returncode == 1
    assert "pip wheel --no-build-isolation --no-deps ." in err
    assert not list(tmp_path.rglob("*.whl"))

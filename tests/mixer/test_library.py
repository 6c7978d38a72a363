"""The kernels' library: built once, whole or not there, never a reason to stop. A script stands in for the compiler."""

import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from pathlib import Path

import pytest
import torch

from flare import build_model
from flare.cli.info import run as info
from flare.errors import ConfigError
from flare.mixer import choose, mix
from flare.mixer.native import library
from flare.mixer.native.__main__ import main

ROOT = Path(__file__).parents[2]
SCRIPT = """#!/bin/sh
if [ "$1" = --version ]; then echo 1.0; exit; fi
for target; do :; done  # the last word
case "$*" in *-shared*) echo >> '{folder}/links';; esac
{then}
"""
FAIL = "echo 'In file included from a.cpp:' >&2; echo 'a.h:3: error: no such thing' >&2; exit 1"


@pytest.fixture(scope="session")
def whole():
    """A library that works, made by a real compiler."""
    try:
        return library.find() or library.build()
    except library.Unavailable as error:
        pytest.skip(str(error))


@pytest.fixture
def cache(whole, tmp_path, monkeypatch):
    """The empty cache of a user who has never run FLARE, in a process that has not asked for the kernels yet."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr(library, "HERE", tmp_path / "package")
    monkeypatch.setattr(library, "_loaded", None)
    monkeypatch.setenv("FLARE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FLARE_NATIVE", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def compiler(cache, whole, tmp_path, monkeypatch):
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
def no_compiler(cache, tmp_path, monkeypatch):
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


def test_without_a_compiler_the_reason_says_what_to_install(no_compiler):
    assert "no C++ compiler found; install one (Debian: apt install g++" in library.why_not()
    without_kernels_all_is_as_with_sdpa()


def test_a_compiler_that_is_not_there_is_named(cache, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler -O2")
    assert library.why_not().startswith("CXX=no-such-compiler -O2 is not a program; ")


def test_a_compiler_that_cannot_be_run_is_named(compiler, tmp_path):
    (tmp_path / "cxx").write_bytes(b"\x7fELF of another machine")
    assert "could not be built" in library.why_not()
    assert str(tmp_path / "cxx") in library.why_not()


def test_a_compiler_may_come_with_options(compiler, tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", f"env LANGUAGE=de {tmp_path / 'cxx'}")
    works()


def test_windows_gets_a_reason_not_a_crash(cache, monkeypatch):
    monkeypatch.setattr(library.platform, "system", lambda: "Windows")
    monkeypatch.delattr(os, "getuid")
    assert library.why_not() == "the kernels are for Linux and macOS"
    without_kernels_all_is_as_with_sdpa()


def test_a_reason_asked_for_a_million_times_costs_no_memory(cache, monkeypatch):
    monkeypatch.setenv("FLARE_NATIVE", "0")
    with pytest.raises(library.Unavailable) as first:
        library.kernels()
    with pytest.raises(library.Unavailable) as second:
        library.kernels()
    assert first.value is not second.value  # one exception, raised again, grows by a traceback each time


# ---- a compiler that fails -------------------------------------------------------------------------------------------


def test_a_failure_names_the_first_error_and_the_log(compiler, cache):
    compiler(FAIL)
    log = cache / f"kernels-{library.key()}.log"
    assert f"could not be built: a.h:3: error: no such thing. The whole log is {log}." in library.why_not()
    assert "In file included from a.cpp:" in log.read_text()
    assert "-march=native" in log.read_text() or "-mcpu=native" in log.read_text()
    assert not libraries(cache)
    without_kernels_all_is_as_with_sdpa()


def test_a_failure_is_not_repeated_by_the_next_process_but_another_compiler_is_tried(
    compiler, cache, links, capsys, monkeypatch
):
    compiler(f'case "$*" in *-shared*) {FAIL};; esac')
    first = library.why_not()
    as_new_process(monkeypatch)
    assert library.why_not() == first
    assert links() == 1
    assert capsys.readouterr().err.count("Building") == 1
    as_new_process(monkeypatch)
    compiler(name="another")
    works()
    assert not list(cache.glob("*.log"))


def test_a_failure_counts_for_a_day(compiler, cache, links, monkeypatch):
    compiler(f'case "$*" in *-shared*) {FAIL};; esac')
    library.why_not()
    long_ago = time.time() - 1.1 * library.DAY
    os.utime(next(cache.glob("*.log")), (long_ago, long_ago))
    as_new_process(monkeypatch)
    library.why_not()
    assert links() == 2


def test_a_compiler_that_was_stopped_is_no_compiler_that_fails(compiler, cache, monkeypatch):
    compiler("kill -TERM $$")
    assert "stopped by signal 15; the next program tries again" in library.why_not()
    as_new_process(monkeypatch)
    compiler()
    works()


def test_what_does_not_load_is_not_kept_nor_tried_again(compiler, cache, links, monkeypatch):
    compiler('echo "no library" > "$target"')
    assert "could not be built: the library does not load" in library.why_not()
    as_new_process(monkeypatch)
    assert "the library does not load" in library.why_not()
    assert links() == 1
    assert not libraries(cache)


# ---- once, and whole -------------------------------------------------------------------------------------------------


def test_the_first_use_builds_and_says_so_in_one_line(compiler, cache, links, capsys, monkeypatch):
    works()
    told = capsys.readouterr()
    assert told.err.splitlines() == ["Building FLARE's CPU kernels (once, about half a minute) ..."]
    assert told.out == ""
    as_new_process(monkeypatch)
    works()
    assert capsys.readouterr().err == ""
    assert links() == 1
    assert [library.find()] == libraries(cache)
    assert {path.name for path in cache.iterdir()} == {library.find().name, "kernels.lock"}


def test_two_processes_at_once_compile_once(compiler, cache, whole, links):
    compiler(f'case "$*" in *-shared*) sleep 2;; esac; cp \'{whole}\' "$target"')
    both = [start("-m", "flare.mixer.native") for _ in range(2)]
    (out_a, err_a), (out_b, err_b) = [process.communicate() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert links() == 1
    assert out_a == out_b
    assert sorted([err_a.count("Building"), err_b.count("Building")]) == [0, 1]


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


def test_a_folder_without_locks_will_do(compiler, monkeypatch):
    def no_locks(*_):
        raise OSError("No locks available")

    monkeypatch.setattr("fcntl.flock", no_locks)
    works()


def test_torch_compile_may_be_the_first_to_ask(compiler):
    model = build_model("flare", 2, 1, channels=16, blocks=1, heads=4, latents=5)
    x = torch.randn(1, 30, 2)
    y = torch.compile(model, backend="eager", fullgraph=True)(x)
    works()
    torch.testing.assert_close(y, model(x))
    torch.compiler.reset()


def test_a_kill_during_the_compile_leaves_nothing_that_is_taken_for_whole(
    compiler, cache, whole, tmp_path, monkeypatch
):
    half = f"head -c 400000 '{whole}' > \"$target\"; touch '{tmp_path}/half'; sleep 60"
    compiler(f'case "$*" in *-shared*) {half};; esac')
    process = start("-m", "flare.mixer.native")
    deadline = time.monotonic() + 30
    while not (tmp_path / "half").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert library.find() is None
    (left,) = cache.glob(".building-*")

    compiler()
    os.utime(left, (time.time() - 2 * library.HOUR,) * 2)
    works()
    assert not left.exists()


@pytest.mark.parametrize("damage", ["empty", "half", "one bit"])
def test_a_damaged_library_is_built_again(damage, compiler, cache, whole, links):
    good = whole.read_bytes()
    middle = len(good) // 2
    flipped = good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1 :]
    bad = {"empty": b"", "half": good[:middle], "one bit": flipped}[damage]
    cache.mkdir()
    (cache / whole.name).write_bytes(bad)
    assert library.find() is None
    works()
    assert links() == 1
    assert (cache / whole.name).read_bytes() == good


def test_a_damaged_library_in_the_package_is_passed_over(compiler, cache, whole):
    library.HERE.mkdir()
    (library.HERE / whole.name).write_bytes(b"half")
    works()
    assert library.find().parent == cache


def test_the_oldest_libraries_make_room(compiler, cache):
    cache.mkdir()
    for i in range(library.KEEP + 3):
        (cache / f"kernels-{i:016x}-0.so").touch()
        os.utime(cache / f"kernels-{i:016x}-0.so", (i, i))
    (cache / "mine.so").touch()
    works()
    kept = libraries(cache)
    assert len(kept) == library.KEEP
    assert library.find() in kept
    assert kept[0].name == f"kernels-{4:016x}-0.so"
    assert (cache / "mine.so").exists()


# ---- where it lies ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["cache", "package"])
def test_a_read_only_system_that_holds_the_library_loads_it(place, no_compiler, cache, whole, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "gettempdir", lambda: (_ for _ in ()).throw(FileNotFoundError("no usable folder")))
    folder = tmp_path / place
    folder.mkdir()
    shutil.copy(whole, folder)
    folder.chmod(0o555)
    works()
    assert [path.name for path in folder.iterdir()] == [whole.name]  # nothing was written, not even a lock
    folder.chmod(0o755)


def test_an_unwritable_cache_goes_to_the_temporary_folder(compiler, tmp_path, links, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("FLARE_CACHE", str(tmp_path / "file" / "below"))
    works()
    as_new_process(monkeypatch)
    works()
    assert links() == 1
    folder = library.find().parent
    assert folder.parent == tmp_path / "tmp"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_user_without_a_home_goes_to_the_temporary_folder(compiler, tmp_path, monkeypatch):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("FLARE_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    works()
    assert library.find().is_relative_to(tmp_path / "tmp")


def test_nowhere_to_write_is_a_reason_with_a_way_out(compiler, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("FLARE_CACHE", str(tmp_path / "file" / "below"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file"))
    assert library.why_not().startswith(f"cannot write to {tmp_path / 'file' / 'below'} or ")
    assert library.why_not().endswith("; set FLARE_CACHE to a folder of your own")


def test_what_somebody_else_put_into_the_temporary_folder_is_not_loaded(no_compiler, whole, tmp_path, monkeypatch):
    uid = os.getuid()
    planted = tmp_path / "tmp" / f"flare-engine-{uid + 1}"
    planted.mkdir()
    shutil.copy(whole, planted)
    if uid == 0:
        os.chown(planted, 12345, -1)
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    assert library.caches()[1] == planted
    assert library.find() is None


def test_a_cache_named_for_an_image_is_read_by_all_its_users(compiler, cache):
    before = os.umask(0o022)
    works()
    os.umask(before)
    assert stat.S_IMODE(cache.stat().st_mode) == 0o755
    assert stat.S_IMODE(library.find().stat().st_mode) & 0o444 == 0o444


def test_the_caches_folder_is_named_by_flare_cache_then_xdg_then_home(cache, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert library.caches()[0] == cache
    monkeypatch.delenv("FLARE_CACHE")
    assert library.caches()[0] == tmp_path / "xdg" / "flare-engine"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert library.caches()[0] == tmp_path / ".cache" / "flare-engine"


# ---- whose it is -----------------------------------------------------------------------------------------------------


def test_the_key_tells_all_apart_that_a_library_is_made_from(tmp_path, monkeypatch):
    shutil.copytree(library.SOURCES, tmp_path / "src")
    fresh_key = library.key.__wrapped__

    def key_with(name, value):
        with monkeypatch.context() as patch:
            patch.setattr(library, name, value)
            return fresh_key()

    keys = [fresh_key(), key_with("FLAGS", [*library.FLAGS, "-g"])]
    keys.append(key_with("_processor_features", lambda: ["fpu", "sse2"]))
    keys.append(key_with("openmp_runtime", lambda: Path("/a/libgomp-a34b3233.so.1")))  # a torch that ships another one
    keys.append(key_with("openmp_runtime", lambda: None))
    assert key_with("SOURCES", tmp_path / "src") == fresh_key() == library.key()
    (tmp_path / "src" / "mixer.cpp~").write_text("an editor's")
    assert key_with("SOURCES", tmp_path / "src") == fresh_key()
    with (tmp_path / "src" / "tile.h").open("a") as file:
        file.write(" ")
    keys.append(key_with("SOURCES", tmp_path / "src"))
    assert len(set(keys)) == len(keys)


def test_a_torch_that_moved_but_brings_the_same_runtime_keeps_its_library(monkeypatch):
    name = library.openmp_runtime().name
    monkeypatch.setattr(library, "openmp_runtime", lambda: Path("/another/place") / name)
    assert library.key.__wrapped__() == library.key()


def test_torchs_openmp_is_found_though_torch_does_not_ship_it(tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "__file__", str(tmp_path / "torch" / "__init__.py"))
    assert library.openmp_runtime().name.startswith(("libgomp", "libomp", "libiomp"))


# ---- ahead of time ---------------------------------------------------------------------------------------------------


def test_the_module_builds_once_and_tells_where_and_for_what(compiler, cache, links):
    for _ in range(2):
        out, _ = start("-m", "flare.mixer.native").communicate()
        (path,) = libraries(cache)
        assert out.startswith(f"{path} (")
        assert out.split("(")[1].startswith(("AVX", "NEON", "SSE"))
    assert links() == 1


def test_info_tells_where_the_library_lies(compiler, cache, capsys):
    assert info([]) == 0
    (path,) = libraries(cache)
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


def test_the_module_ends_with_one_message_where_it_cannot(no_compiler, tmp_path, capsys):
    assert main([]) == 2
    assert capsys.readouterr().err.startswith("No kernels: no C++ compiler found; install one")
    (tmp_path / "file").touch()
    assert main(["--into", str(tmp_path / "file" / "below")]) == 2
    assert capsys.readouterr().err.startswith("No kernels: ")


def wheel(folder):
    """Build a wheel of this checkout: its name, what it holds, its WHEEL file."""
    process = start("-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder))
    _, err = process.communicate()
    assert process.returncode == 0, err
    (path,) = folder.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        about = next(name for name in archive.namelist() if name.endswith("dist-info/WHEEL"))
        return path.name, set(archive.namelist()), archive.read(about).decode()


SOURCES = {f"flare/mixer/native/src/{path.name}" for path in library.SOURCES.iterdir()}


@pytest.mark.slow
def test_the_real_compiler_makes_a_library_that_works(cache):
    works()
    assert library.find().parent == cache


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

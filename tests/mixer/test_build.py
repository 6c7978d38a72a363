"""Building the kernels: once, whole or not at all, and with a reason where it fails."""

import os
import signal
import stat
import tempfile
import time
from pathlib import Path

import pytest

from flare.mixer.native import build, cache, library
from tests.mixer.conftest import as_new_process, libraries, start, without_kernels_all_is_as_with_sdpa, works

FAIL = "echo 'In file included from a.cpp:' >&2; echo 'a.h:3: error: no such thing' >&2; exit 1"


@pytest.mark.slow
def test_the_real_compiler_makes_a_library_that_works(folder):
    works()
    assert cache.find().parent == folder


# ---- which compiler --------------------------------------------------------------------------------------------------


def test_without_a_compiler_the_reason_says_what_to_install(no_compiler):
    assert "no C++ compiler found; install one (Debian: apt install g++" in library.why_not()
    without_kernels_all_is_as_with_sdpa()


def test_a_compiler_that_is_not_there_is_named(folder, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler -O2")
    assert library.why_not().startswith("CXX=no-such-compiler -O2 is not a program; ")


def test_a_compiler_that_cannot_be_run_is_named(compiler, tmp_path):
    (tmp_path / "cxx").write_bytes(b"\x7fELF of another machine")
    assert "could not be built" in library.why_not()
    assert str(tmp_path / "cxx") in library.why_not()


def test_a_compiler_may_come_with_options(compiler, tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", f"env LANGUAGE=de {tmp_path / 'cxx'}")
    works()


def test_flags_of_the_users_own_come_after_ours_and_make_another_library(
    compiler, folder, whole, links, tmp_path, monkeypatch
):
    commands = tmp_path / "commands"
    compiler(f"echo \"$*\" >> '{commands}'; cp '{whole}' \"$target\"")
    monkeypatch.delenv("FLARE_CXXFLAGS", raising=False)
    works()
    (first,) = libraries(folder)
    ours = " ".join(cache.flags())
    commands.unlink()

    monkeypatch.setenv("FLARE_CXXFLAGS", " -march=x86-64-v3  -g ")
    as_new_process(monkeypatch)
    works()
    *compiles, link = commands.read_text().splitlines()
    assert len(compiles) == len(list(cache.SOURCES.glob("*.cpp")))
    assert all(command.startswith(f"{ours} -march=x86-64-v3 -g ") for command in compiles)
    assert link.startswith("-shared -march=x86-64-v3 -g ")
    assert cache.find() != first
    assert set(libraries(folder)) == {first, cache.find()}

    monkeypatch.delenv("FLARE_CXXFLAGS")
    as_new_process(monkeypatch)
    works()
    assert cache.find() == first
    assert links() == 2


# ---- a compiler that fails -------------------------------------------------------------------------------------------


def test_a_failure_names_the_first_error_and_the_log(compiler, folder):
    compiler(FAIL)
    log = folder / f"kernels-{cache.key()}.log"
    assert f"could not be built: a.h:3: error: no such thing. The whole log is {log}." in library.why_not()
    assert "In file included from a.cpp:" in log.read_text()
    assert "-march=native" in log.read_text() or "-mcpu=native" in log.read_text()
    assert not libraries(folder)
    without_kernels_all_is_as_with_sdpa()


def test_a_failure_is_not_repeated_by_the_next_process_but_another_compiler_is_tried(
    compiler, folder, links, capsys, monkeypatch
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
    assert not list(folder.glob("*.log"))


def test_a_failure_counts_for_a_day(compiler, folder, links, monkeypatch):
    compiler(f'case "$*" in *-shared*) {FAIL};; esac')
    library.why_not()
    long_ago = time.time() - 1.1 * build.DAY
    os.utime(next(folder.glob("*.log")), (long_ago, long_ago))
    as_new_process(monkeypatch)
    library.why_not()
    assert links() == 2


def test_a_compiler_that_was_stopped_is_no_compiler_that_fails(compiler, folder, monkeypatch):
    compiler("kill -TERM $$")
    assert "stopped by signal 15; the next program tries again" in library.why_not()
    as_new_process(monkeypatch)
    compiler()
    works()


def test_what_does_not_load_is_not_kept_nor_tried_again(compiler, folder, links, monkeypatch):
    compiler('echo "no library" > "$target"')
    assert "could not be built: the library does not load" in library.why_not()
    as_new_process(monkeypatch)
    assert "the library does not load" in library.why_not()
    assert links() == 1
    assert not libraries(folder)


# ---- once, and whole -------------------------------------------------------------------------------------------------


def test_two_processes_at_once_compile_once(compiler, folder, whole, links):
    compiler(f'case "$*" in *-shared*) sleep 2;; esac; cp \'{whole}\' "$target"')
    both = [start("-m", "flare.mixer.native") for _ in range(2)]
    (out_a, err_a), (out_b, err_b) = [process.communicate() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert links() == 1
    assert out_a == out_b
    assert sorted([err_a.count("Building"), err_b.count("Building")]) == [0, 1]


def test_a_folder_without_locks_will_do(compiler, monkeypatch):
    def no_locks(*_):
        raise OSError("No locks available")

    monkeypatch.setattr("fcntl.flock", no_locks)
    works()


def test_a_kill_during_the_compile_leaves_nothing_that_is_taken_for_whole(
    compiler, folder, whole, tmp_path, monkeypatch
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
    assert cache.find() is None
    (left,) = folder.glob(".building-*")

    compiler()
    os.utime(left, (time.time() - 2 * cache.HOUR,) * 2)
    works()
    assert not left.exists()


# ---- into which folder -----------------------------------------------------------------------------------------------


def test_an_unwritable_cache_goes_to_the_temporary_folder(compiler, tmp_path, links, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("FLARE_CACHE", str(tmp_path / "file" / "below"))
    works()
    as_new_process(monkeypatch)
    works()
    assert links() == 1
    folder = cache.find().parent
    assert folder.parent == tmp_path / "tmp"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_user_without_a_home_goes_to_the_temporary_folder(compiler, tmp_path, monkeypatch):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("FLARE_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    works()
    assert cache.find().is_relative_to(tmp_path / "tmp")


def test_nowhere_to_write_is_a_reason_with_a_way_out(compiler, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("FLARE_CACHE", str(tmp_path / "file" / "below"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file"))
    assert library.why_not().startswith(f"cannot write to {tmp_path / 'file' / 'below'} or ")
    assert library.why_not().endswith("; set FLARE_CACHE to a folder of your own")


def test_a_cache_named_for_an_image_is_read_by_all_its_users(compiler, folder):
    before = os.umask(0o022)
    works()
    os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755
    assert stat.S_IMODE(cache.find().stat().st_mode) & 0o444 == 0o444

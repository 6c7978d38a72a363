"""Building the kernels: once, atomically, and with a reason if it fails."""

import os
import signal
import stat
import tempfile
import time

import pytest

from flare.mixer.native import cache, library
from tests.mixer.native.conftest import as_new_process, assert_falls_back_to_sdpa, assert_works, find, libraries, start

FAIL = "echo 'In file included from a.cpp:' >&2; echo 'a.h:3: error: no such thing' >&2; exit 1"


@pytest.mark.slow
def test_real_compiler_builds_working_library(folder):
    assert_works()
    assert find().parent == folder


# ---- which compiler --------------------------------------------------------------------------------------------------


def test_missing_compiler_is_reported_with_a_package_to_install(no_compiler):
    assert "g++" in library.why_not()
    assert_falls_back_to_sdpa()


def test_unknown_compiler_is_named(folder, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler -O2")
    assert "CXX=no-such-compiler -O2" in library.why_not()


def test_user_flags_come_last_and_give_another_library(compiler, folder, whole, links, tmp_path, monkeypatch):
    commands = tmp_path / "commands"
    compiler(f"echo \"$*\" >> '{commands}'; cp '{whole}' \"$target\"")
    monkeypatch.delenv("FLARE_CXXFLAGS", raising=False)
    assert_works()
    (first,) = libraries(folder)
    ours = " ".join(cache.flags())
    commands.unlink()

    monkeypatch.setenv("FLARE_CXXFLAGS", " -march=x86-64-v3  -g ")
    as_new_process(monkeypatch)
    assert_works()
    *compiles, link = commands.read_text().splitlines()
    assert len(compiles) == len(list(cache.SOURCES.glob("*.cpp")))
    assert all(command.startswith(f"{ours} -march=x86-64-v3 -g ") for command in compiles)
    assert link.startswith("-shared -march=x86-64-v3 -g ")
    assert find() != first
    assert set(libraries(folder)) == {first, find()}

    monkeypatch.delenv("FLARE_CXXFLAGS")
    as_new_process(monkeypatch)
    assert_works()
    assert find() == first
    assert links() == 2


# ---- a compiler that fails -------------------------------------------------------------------------------------------


def test_failure_names_the_first_error_and_is_tried_again_by_the_next_program(compiler, folder, monkeypatch):
    compiler(f'case "$*" in *-shared*) {FAIL};; esac')
    assert "a.h:3: error: no such thing" in library.why_not()
    assert not libraries(folder)
    assert_falls_back_to_sdpa()
    as_new_process(monkeypatch)
    compiler()
    assert_works()


def test_library_that_does_not_load_is_not_kept(compiler, folder):
    compiler('echo "no library" > "$target"')
    assert library.why_not()
    assert not libraries(folder)


# ---- once, and atomically --------------------------------------------------------------------------------------------


def test_two_processes_compile_once(compiler, folder, whole, links):
    compiler(f'case "$*" in *-shared*) sleep 2;; esac; cp \'{whole}\' "$target"')
    both = [start("-m", "flare.mixer.native") for _ in range(2)]
    (out_a, err_a), (out_b, err_b) = [process.communicate() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert links() == 1
    assert out_a == out_b
    assert sorted([err_a.count("Building"), err_b.count("Building")]) == [0, 1]


def test_killed_build_leaves_no_library(compiler, folder, whole, tmp_path, monkeypatch):
    half = f"head -c 400000 '{whole}' > \"$target\"; touch '{tmp_path}/half'; sleep 60"
    compiler(f'case "$*" in *-shared*) {half};; esac')
    process = start("-m", "flare.mixer.native")
    deadline = time.monotonic() + 30
    while not (tmp_path / "half").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert find() is None
    compiler()
    assert_works()


# ---- into which folder -----------------------------------------------------------------------------------------------


def test_unwritable_cache_falls_back_to_temporary_folder(compiler, tmp_path, links, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("FLARE_CACHE", str(tmp_path / "file" / "below"))
    assert_works()
    as_new_process(monkeypatch)
    assert_works()
    assert links() == 1
    folder = find().parent
    assert folder.parent == tmp_path / "tmp"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_no_writable_folder_is_reported_with_a_remedy(compiler, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("FLARE_CACHE", str(tmp_path / "file" / "below"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file"))
    assert str(tmp_path / "file" / "below") in library.why_not()
    assert "FLARE_CACHE" in library.why_not()

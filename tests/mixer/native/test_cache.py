"""The cache of the kernel library: only intact libraries of this machine and user are loaded."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest
import torch

from flare.mixer.native import cache
from tests.mixer.native.conftest import assert_works, find, libraries

# ---- folders ---------------------------------------------------------------------------------------------------------


def test_cache_is_flare_cache_then_xdg_then_home(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.caches()[0] == folder
    monkeypatch.delenv("FLARE_CACHE")
    assert cache.caches()[0] == tmp_path / "xdg" / "flare-engine"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.caches()[0] == tmp_path / ".cache" / "flare-engine"


@pytest.mark.parametrize("place", ["cache", "package"])
def test_library_loads_on_a_read_only_system(place, no_compiler, whole, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "gettempdir", lambda: (_ for _ in ()).throw(FileNotFoundError("no usable folder")))
    folder = tmp_path / place
    folder.mkdir()
    shutil.copy(whole, folder)
    folder.chmod(0o555)
    assert_works()
    assert [path.name for path in folder.iterdir()] == [whole.name]  # nothing was written, not even a lock
    folder.chmod(0o755)


def test_library_of_another_user_is_not_loaded(no_compiler, whole, tmp_path, monkeypatch):
    uid = os.getuid()
    planted = tmp_path / "tmp" / f"flare-engine-{uid + 1}"
    planted.mkdir()
    shutil.copy(whole, planted)
    if uid == 0:
        os.chown(planted, 12345, -1)
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    assert cache.caches()[1] == planted
    assert find() is None


def test_oldest_libraries_are_removed(compiler, folder):
    folder.mkdir()
    for i in range(cache.KEEP + 3):
        (folder / f"kernels-{i:016x}-0.so").touch()
        os.utime(folder / f"kernels-{i:016x}-0.so", (i, i))
    (folder / "mine.so").touch()
    assert_works()
    kept = libraries(folder)
    assert len(kept) == cache.KEEP
    assert find() in kept
    assert kept[0].name == f"kernels-{4:016x}-0.so"
    assert (folder / "mine.so").exists()


# ---- integrity -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["empty", "half", "one bit"])
def test_damaged_library_is_rebuilt(damage, compiler, folder, whole, links):
    good = whole.read_bytes()
    middle = len(good) // 2
    flipped = good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1 :]
    bad = {"empty": b"", "half": good[:middle], "one bit": flipped}[damage]
    folder.mkdir()
    (folder / whole.name).write_bytes(bad)
    assert find() is None
    assert_works()
    assert links() == 1
    assert (folder / whole.name).read_bytes() == good


# ---- key -------------------------------------------------------------------------------------------------------------


def test_key_depends_on_everything_a_library_is_built_from(tmp_path, monkeypatch):
    shutil.copytree(cache.SOURCES, tmp_path / "src")

    def fresh_key():
        return cache._key.__wrapped__(*cache.flags())

    def key_with(name, value):
        with monkeypatch.context() as patch:
            patch.setattr(cache, name, value)
            return fresh_key()

    keys = [fresh_key(), key_with("FLAGS", [*cache.FLAGS, "-g"])]
    keys.append(key_with("_processor_features", lambda: ["fpu", "sse2"]))
    keys.append(key_with("openmp_runtime", lambda: Path("/a/libgomp-a34b3233.so.1")))  # a torch that ships another one
    keys.append(key_with("openmp_runtime", lambda: None))
    assert key_with("SOURCES", tmp_path / "src") == fresh_key() == cache.key()
    (tmp_path / "src" / "mixer.cpp~").write_text("an editor's")
    assert key_with("SOURCES", tmp_path / "src") == fresh_key()
    with (tmp_path / "src" / "tile.h").open("a") as file:
        file.write(" ")
    keys.append(key_with("SOURCES", tmp_path / "src"))
    assert len(set(keys)) == len(keys)


def test_openmp_of_the_system_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "__file__", str(tmp_path / "torch" / "__init__.py"))
    assert cache.openmp_runtime().name.startswith(("libgomp", "libomp", "libiomp"))

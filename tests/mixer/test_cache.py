"""The cache of the kernels' library: what lies there is of this machine, whole and of this user, or is passed over."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest
import torch

from flare.mixer.native import cache
from tests.mixer.conftest import libraries, works

# ---- where it lies ---------------------------------------------------------------------------------------------------


def test_the_caches_folder_is_named_by_flare_cache_then_xdg_then_home(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.caches()[0] == folder
    monkeypatch.delenv("FLARE_CACHE")
    assert cache.caches()[0] == tmp_path / "xdg" / "flare-engine"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.caches()[0] == tmp_path / ".cache" / "flare-engine"


@pytest.mark.parametrize("place", ["cache", "package"])
def test_a_read_only_system_that_holds_the_library_loads_it(place, no_compiler, whole, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "gettempdir", lambda: (_ for _ in ()).throw(FileNotFoundError("no usable folder")))
    folder = tmp_path / place
    folder.mkdir()
    shutil.copy(whole, folder)
    folder.chmod(0o555)
    works()
    assert [path.name for path in folder.iterdir()] == [whole.name]  # nothing was written, not even a lock
    folder.chmod(0o755)


def test_what_somebody_else_put_into_the_temporary_folder_is_not_loaded(no_compiler, whole, tmp_path, monkeypatch):
    uid = os.getuid()
    planted = tmp_path / "tmp" / f"flare-engine-{uid + 1}"
    planted.mkdir()
    shutil.copy(whole, planted)
    if uid == 0:
        os.chown(planted, 12345, -1)
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    assert cache.caches()[1] == planted
    assert cache.find() is None


def test_the_oldest_libraries_make_room(compiler, folder):
    folder.mkdir()
    for i in range(cache.KEEP + 3):
        (folder / f"kernels-{i:016x}-0.so").touch()
        os.utime(folder / f"kernels-{i:016x}-0.so", (i, i))
    (folder / "mine.so").touch()
    works()
    kept = libraries(folder)
    assert len(kept) == cache.KEEP
    assert cache.find() in kept
    assert kept[0].name == f"kernels-{4:016x}-0.so"
    assert (folder / "mine.so").exists()


# ---- whole -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["empty", "half", "one bit"])
def test_a_damaged_library_is_built_again(damage, compiler, folder, whole, links):
    good = whole.read_bytes()
    middle = len(good) // 2
    flipped = good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1 :]
    bad = {"empty": b"", "half": good[:middle], "one bit": flipped}[damage]
    folder.mkdir()
    (folder / whole.name).write_bytes(bad)
    assert cache.find() is None
    works()
    assert links() == 1
    assert (folder / whole.name).read_bytes() == good


def test_a_damaged_library_in_the_package_is_passed_over(compiler, folder, whole):
    cache.HERE.mkdir()
    (cache.HERE / whole.name).write_bytes(b"half")
    works()
    assert cache.find().parent == folder


# ---- whose it is -----------------------------------------------------------------------------------------------------


def test_the_key_tells_all_apart_that_a_library_is_made_from(tmp_path, monkeypatch):
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


def test_a_torch_that_moved_but_brings_the_same_runtime_keeps_its_library(monkeypatch):
    name = cache.openmp_runtime().name
    monkeypatch.setattr(cache, "openmp_runtime", lambda: Path("/another/place") / name)
    assert cache._key.__wrapped__(*cache.flags()) == cache.key()


def test_torchs_openmp_is_found_though_torch_does_not_ship_it(tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "__file__", str(tmp_path / "torch" / "__init__.py"))
    assert cache.openmp_runtime().name.startswith(("libgomp", "libomp", "libiomp"))

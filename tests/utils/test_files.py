"""Atomic files, locks, error helpers and the environment record."""

import contextlib
import errno
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from flare.utils.environment import describe_environment, peak_memory_mb
from flare.utils.errors import DataError, first_difference, suggest_name
from flare.utils.files import (
    check_not_existing,
    create_file,
    create_folder,
    is_occupied,
    lock,
    replace_atomically,
    save_arrays,
    write_json,
)


def test_a_failed_write_leaves_the_old_file_only(tmp_path):
    write_json(tmp_path / "a.json", {"x": 1})

    def interrupted():
        with replace_atomically(tmp_path / "a.json") as temporary:
            temporary.write_text("{")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        interrupted()
    assert json.loads((tmp_path / "a.json").read_text()) == {"x": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_a_new_file_does_not_overwrite_one_that_appeared_meanwhile(tmp_path):
    def write(text):
        with create_file(tmp_path / "sub" / "a.vtu") as path:
            path.write_text(text)

    write("first")
    with pytest.raises(DataError, match=r"a\.vtu"):
        write("second")
    assert (tmp_path / "sub" / "a.vtu").read_text() == "first"
    assert [p.name for p in (tmp_path / "sub").iterdir()] == ["a.vtu"]


def test_one_of_many_concurrent_writers_wins_and_the_others_raise(tmp_path):
    together = threading.Barrier(8)

    def write(number):
        try:
            with create_file(tmp_path / "a.csv") as path:
                path.write_text(str(number))
                together.wait()
        except DataError:
            return None
        return number

    with ThreadPoolExecutor(8) as pool:
        (winner,) = [number for number in pool.map(write, range(8)) if number is not None]
    assert (tmp_path / "a.csv").read_text() == str(winner)
    assert [p.name for p in tmp_path.iterdir()] == ["a.csv"]


def test_new_files_on_a_file_system_without_links(tmp_path, monkeypatch):
    def no_links(*args):
        raise OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr(Path, "hardlink_to", no_links)
    for text in ("first", "second"):
        with contextlib.suppress(DataError), create_file(tmp_path / "a.csv") as path:
            path.write_text(text)
    assert (tmp_path / "a.csv").read_text() == "first"


def test_a_new_folder_replaces_only_an_empty_one(tmp_path):
    def write():
        with create_folder(tmp_path / "a") as folder:
            (folder / "x").touch()

    (tmp_path / "a").mkdir()
    write()
    with pytest.raises(DataError, match=str(tmp_path / "a")):
        write()
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_arrays_of_any_name_are_written(tmp_path):
    arrays = {name: np.arange(3) for name in ("file", "self", "allow_pickle", "x*")}
    save_arrays(tmp_path / "a.npz", arrays)
    with np.load(tmp_path / "a.npz") as read:
        assert {name: read[name].tolist() for name in read} == {name: [0, 1, 2] for name in arrays}


def test_files_and_nonempty_folders_must_not_be_overwritten(tmp_path):
    (tmp_path / "folder").mkdir()
    assert not is_occupied(tmp_path / "folder")
    assert not is_occupied(tmp_path / "nothing")
    (tmp_path / "file").touch()
    assert is_occupied(tmp_path / "file")
    with pytest.raises(DataError, match=str(tmp_path / "file")):
        check_not_existing(tmp_path / "file")


def test_a_lock_has_one_holder_until_it_is_released(tmp_path):
    with lock(tmp_path / ".lock", "busy"), pytest.raises(DataError, match="busy"), lock(tmp_path / ".lock", "busy"):
        pass
    with lock(tmp_path / ".lock", "busy"):
        assert (tmp_path / ".lock").exists()


def test_the_first_difference_of_nested_records():
    old, new = {"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 1, "c": 5}, "d": 3}
    assert first_difference(old, new) == ("a.c", 2, 5)
    assert first_difference(old, old) is None


def test_unknown_names_get_the_closest_one_or_all():
    assert "'flare'" in suggest_name("flair", ["flare", "lno"])
    assert "flare, lno" in suggest_name("xyz", ["flare", "lno"])


def test_the_environment_names_versions_and_hardware():
    facts = describe_environment()
    assert {"flare", "commit", "python", "torch", "numpy", "processor", "memory"} <= set(facts)
    assert all(isinstance(value, str) and value for value in facts.values())
    assert 10 < peak_memory_mb() < 1e6

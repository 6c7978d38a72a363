"""Files are whole or not there; locks are held by one; what is the user's stays."""

import contextlib
import errno
import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from flare.utils.environment import describe_environment, peak_memory_mb
from flare.utils.errors import DataError, first_difference, nearest
from flare.utils.files import filling, lock, making, refuse_existing, replacing, taken, write_json


def test_a_failed_write_leaves_the_old_file_and_no_debris(tmp_path):
    write_json(tmp_path / "a.json", {"x": 1})

    def interrupted():
        with replacing(tmp_path / "a.json") as temporary:
            temporary.write_text("{")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        interrupted()
    assert json.loads((tmp_path / "a.json").read_text()) == {"x": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_a_new_file_overwrites_nothing_that_appeared_meanwhile(tmp_path):
    def made(words):
        with making(tmp_path / "sub" / "a.vtu") as path:
            path.write_text(words)

    made("first")
    with pytest.raises(DataError, match=r"a\.vtu exists already; choose another name or remove it"):
        made("second")
    assert (tmp_path / "sub" / "a.vtu").read_text() == "first"
    assert [p.name for p in (tmp_path / "sub").iterdir()] == ["a.vtu"]


def test_of_many_that_end_at_once_one_wins_and_the_others_say_so(tmp_path):
    together = threading.Barrier(8)

    def made(number):
        try:
            with making(tmp_path / "a.csv") as path:
                path.write_text(str(number))
                together.wait()
        except DataError:
            return None
        return number

    with ThreadPoolExecutor(8) as pool:
        (winner,) = [number for number in pool.map(made, range(8)) if number is not None]
    assert (tmp_path / "a.csv").read_text() == str(winner)
    assert [p.name for p in tmp_path.iterdir()] == ["a.csv"]


def test_a_file_system_without_links_has_new_files_too(tmp_path, monkeypatch):
    def no_links(*args):
        raise OSError(errno.EOPNOTSUPP, "no links here")

    monkeypatch.setattr(Path, "hardlink_to", no_links)
    for words in ("first", "second"):
        with contextlib.suppress(DataError), making(tmp_path / "a.csv") as path:
            path.write_text(words)
    assert (tmp_path / "a.csv").read_text() == "first"


def test_a_new_folder_takes_the_place_of_nothing_but_an_empty_one(tmp_path):
    def made():
        with filling(tmp_path / "a") as folder:
            (folder / "x").touch()

    (tmp_path / "a").mkdir()
    made()
    with pytest.raises(DataError, match="a exists already"):
        made()
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_an_empty_folder_is_free_a_file_is_not(tmp_path):
    (tmp_path / "folder").mkdir()
    assert not taken(tmp_path / "folder")
    assert not taken(tmp_path / "nothing")
    (tmp_path / "file").touch()
    assert taken(tmp_path / "file")
    with pytest.raises(DataError, match="exists already"):
        refuse_existing(tmp_path / "file")


def test_a_lock_has_one_holder_and_lets_go(tmp_path):
    with lock(tmp_path / ".lock", "taken"), pytest.raises(DataError, match="taken"), lock(tmp_path / ".lock", "taken"):
        pass
    with lock(tmp_path / ".lock", "taken"):
        assert (tmp_path / ".lock").exists()


def test_the_first_difference_of_nested_records():
    old, new = {"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 1, "c": 5}, "d": 3}
    assert first_difference(old, new) == ("a.c", 2, 5)
    assert first_difference(old, old) is None


def test_the_nearest_name_or_all_of_them():
    assert nearest("flair", ["flare", "lno"]) == "did you mean 'flare'? (known: flare, lno)"
    assert nearest("xyz", ["flare", "lno"]) == "known: flare, lno"


def test_a_birth_certificate_names_versions_and_hardware():
    facts = describe_environment()
    assert {"flare", "commit", "python", "torch", "numpy", "processor", "memory"} <= set(facts)
    assert all(isinstance(value, str) and value for value in facts.values())
    assert re.search(r", (1 core|\d+ cores), (1 thread|([2-9]|\d\d+) threads) for torch$", facts["processor"])
    assert 10 < peak_memory_mb() < 1e6

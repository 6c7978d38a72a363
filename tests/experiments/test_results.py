"""What is committed under docs/results is what the committed records say, byte for byte."""

import shutil
import subprocess
from pathlib import Path

import pytest

from flare.cli import main
from flare.experiments.ledger import Ledger
from flare.experiments.names import ITEMS
from flare.experiments.pages import write_pages

ROOT = Path(__file__).parents[2]


def files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_committed_pages_come_out_of_the_committed_records(tmp_path):
    write_pages(Ledger(ROOT / "results" / "records"), tmp_path / "pages")
    assert files(tmp_path / "pages") == files(ROOT / "docs" / "results")


def test_a_fresh_clone_and_one_command_write_every_table_and_picture_again(tmp_path, monkeypatch):
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    git = ["git", "-c", "core.autocrlf=false", "-C", str(tmp_path)]
    subprocess.run([*git, "clone", "--quiet", "--depth", "1", f"file://{ROOT}", "clone"], check=True)
    clone = tmp_path / "clone"
    committed = files(clone / "docs" / "results")
    shutil.rmtree(clone / "docs" / "results")
    monkeypatch.chdir(clone)
    assert main(["reproduce", "pages"]) == 0
    assert files(clone / "docs" / "results") == committed


def test_every_remark_is_of_an_item():
    assert {path.stem for path in (ROOT / "results" / "notes").glob("*")} <= set(ITEMS)


def test_every_committed_record_is_shown_and_tells_of_no_machine(tmp_path):
    shown = set()

    class Watching(Ledger):
        def find(self, job):
            shown.add(self.path(job).name)
            return super().find(job)

    write_pages(Watching(ROOT / "results" / "records"), tmp_path / "pages")
    records = {path.name: path for path in (ROOT / "results" / "records").glob("*.json")}
    assert records
    assert set(records) <= shown, "a record that no page shows: its experiment has changed since"
    for name, path in records.items():
        assert '"/' not in path.read_text(), f"{name} has an absolute path"

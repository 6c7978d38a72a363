"""The committed pages in docs/results are those of the committed records: text by byte, pictures by pixel.

Pixels depend on the versions of the drawing libraries. With others than those of constraints.txt, only the sizes of
pictures are compared.
"""

import re
import shutil
import subprocess
from hashlib import sha256
from importlib.metadata import version
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from flare.cli import main
from flare.reproduce import ITEMS
from flare.reproduce.ledger import Ledger
from flare.reproduce.pages import _claim, write_pages

ROOT = Path(__file__).parents[2]


DRAWING = ("matplotlib", "numpy", "contourpy", "pillow")
PINNED = dict(re.findall(r"^(\S+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
SAME_PIXELS = all(version(name) == PINNED[name] for name in DRAWING)


def shown(path):
    """Return a hash of a text file, or the size and a hash of the pixels of a picture."""
    if path.suffix != ".png":
        return sha256(path.read_bytes()).hexdigest()
    with Image.open(BytesIO(path.read_bytes())) as picture:
        return picture.size, sha256(np.asarray(picture.convert("RGBA"))).hexdigest() if SAME_PIXELS else None


def files(folder):
    return {str(path.relative_to(folder)): shown(path) for path in folder.rglob("*") if path.is_file()}


def test_pictures_are_compared_by_pixels(tmp_path):
    same, other, signed = (tmp_path / name for name in ("same.png", "other.png", "signed.png"))
    picture, note = Image.new("RGB", (4, 3), "white"), PngInfo()
    note.add_text("Software", "another version")
    picture.save(same)
    picture.save(signed, pnginfo=note, compress_level=1)
    Image.new("RGB", (4, 3), "black").save(other)
    assert same.read_bytes() != signed.read_bytes()
    assert shown(same) == shown(signed)
    assert (shown(same) == shown(other)) == (not SAME_PIXELS)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The folder of the pages of the committed records, and the names of the records that were looked up for them."""
    pages, found = tmp_path_factory.mktemp("results") / "pages", set()

    class Watching(Ledger):
        def find(self, job):
            found.add(self.path(job).name)
            return super().find(job)

    write_pages(Watching(ROOT / "results" / "records"), pages)
    return pages, found


def test_the_committed_pages_come_out_of_the_committed_records(written):
    assert files(written[0]) == files(ROOT / "docs" / "results")


@pytest.mark.slow
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


def test_every_item_has_a_note():
    assert {path.stem for path in (ROOT / "results" / "notes").glob("*")} == {*ITEMS, "README"}


def test_every_claim_has_numbers_and_a_verdict():
    ledger = Ledger(ROOT / "results" / "records")
    claims = yaml.safe_load((ROOT / "results" / "claims.yaml").read_text(encoding="utf-8"))
    assert len(claims) > 10
    for claim in claims:
        title, holds, numbers, *_ = _claim(ledger, claim)
        assert holds.startswith(("✔", "✘", "inconclusive")), title
        assert len(numbers.split("; ")) == len(claim["numbers"]), title


def test_every_committed_record_is_shown_and_has_no_absolute_path(written):
    records = {path.name: path for path in (ROOT / "results" / "records").glob("*.json")}
    assert records
    assert set(records) <= written[1], "a record that no page shows"
    for name, path in records.items():
        assert '"/' not in path.read_text(), f"{name} has an absolute path"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_every_committed_table_is_set_by_latex_with_the_packages_it_names(tmp_path):
    tables = sorted((ROOT / "docs" / "results" / "tables").glob("*.tex"))
    assert len(tables) > 20
    needs = [path.read_text(encoding="utf-8").splitlines()[0].removeprefix("% needs ") for path in tables]
    assert set(needs) == {r"\usepackage{booktabs}", r"\usepackage{booktabs,longtable}"}
    body = [f"\\clearpage\\input{{{path.as_posix()}}}" for path in tables]
    lines = [r"\documentclass{article}", *sorted(set(needs)), r"\begin{document}", *body, r"\end{document}"]
    (tmp_path / "all.tex").write_text("\n".join(lines), encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace", check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    log = (tmp_path / "all.log").read_text(encoding="utf-8", errors="replace")
    assert "Missing character" not in log
    assert "Overfull \\vbox" not in log, "higher than a page"

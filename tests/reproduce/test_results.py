"""What is committed under docs/results is what the committed records say: text byte for byte, pictures pixel for pixel.

Pixels depend on the versions of the libraries that draw. With others than those of constraints.txt, pictures are asked
for their size alone.
"""

import re
import shutil
import subprocess
from importlib.metadata import version
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from flare.cli import main
from flare.reproduce.budgets import BUDGETS
from flare.reproduce.ledger import Ledger
from flare.reproduce.names import ITEMS
from flare.reproduce.pages import write_pages
from flare.reproduce.registry import item_named
from flare.reproduce.study import chosen, outcomes

ROOT = Path(__file__).parents[2]


DRAWING = ("matplotlib", "numpy", "contourpy", "pillow")
PINNED = dict(re.findall(r"^(\S+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
SAME_PIXELS = all(version(name) == PINNED[name] for name in DRAWING)


def shown(path):
    """What a reader sees of a file: the bytes of text; of a picture its size and pixels, whatever else is in it."""
    if path.suffix != ".png":
        return path.read_bytes()
    with Image.open(BytesIO(path.read_bytes())) as picture:
        return picture.size, np.asarray(picture.convert("RGBA")).tobytes() if SAME_PIXELS else None


def files(folder):
    return {str(path.relative_to(folder)): shown(path) for path in folder.rglob("*") if path.is_file()}


def test_a_picture_is_what_it_shows_and_not_what_is_said_in_it(tmp_path):
    same, other, signed = (tmp_path / name for name in ("same.png", "other.png", "signed.png"))
    picture, note = Image.new("RGB", (4, 3), "white"), PngInfo()
    note.add_text("Software", "another version")
    picture.save(same)
    picture.save(signed, pnginfo=note, compress_level=1)
    Image.new("RGB", (4, 3), "black").save(other)
    assert same.read_bytes() != signed.read_bytes()
    assert shown(same) == shown(signed)
    assert (shown(same) == shown(other)) == (not SAME_PIXELS)


def test_the_committed_pages_come_out_of_the_committed_records(tmp_path):
    write_pages(Ledger(ROOT / "results" / "records"), tmp_path / "pages")
    assert files(tmp_path / "pages") == files(ROOT / "docs" / "results")


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


def test_every_remark_is_of_an_item():
    assert {path.stem for path in (ROOT / "results" / "notes").glob("*")} <= set(ITEMS)


def test_what_the_remarks_on_table_1_say_of_the_training_mean_field_is_what_the_records_say():
    text = " ".join((ROOT / "results" / "notes" / "table1.md").read_text(encoding="utf-8").split())
    cells = chosen(item_named("table1").cells(BUDGETS["cpu"]), ["elasticity"])
    found = {o.cell.parts[1]: o for o in outcomes(Ledger(ROOT / "results" / "records"), cells)}
    part = {model: o.mean / min(o.values("rel_l2_mean_field")) for model, o in found.items()}
    assert "GNOT is no better than the training-mean field, and LNO and Transolver are a tenth better" in text
    assert part["gnot"] >= 1
    assert all(0.85 < part[model] < 0.95 for model in ("lno", "transolver"))
    raw = [f"elasticity/{model}-raw-points" for model in part]
    as_they_are = {
        o.cell.parts[1].removesuffix("-raw-points"): o
        for o in outcomes(Ledger(ROOT / "results" / "records"), chosen(item_named("table1").cells(BUDGETS["cpu"]), raw))
    }
    assert "it does favour FLARE: with points as they are" in text
    assert "more than twice as large and that of the transformer, which does not mind, is the lowest" in text
    assert as_they_are["flare"].mean > 2 * found["flare"].mean
    assert min(as_they_are, key=lambda model: as_they_are[model].mean) == "transformer"
    assert as_they_are["transformer"].mean == pytest.approx(found["transformer"].mean, rel=0.05)
    airfoil = outcomes(
        Ledger(ROOT / "results" / "records"), chosen(item_named("table1").cells(BUDGETS["cpu"]), ["airfoil"])
    )
    share = [o.mean / min(o.values("rel_l2_mean_field")) for o in airfoil]
    assert "three of the seven are where the training-mean field is, and the best is a sixth better" in text
    assert 1 - min(share) == pytest.approx(1 / 6, abs=0.02)
    assert sum(part >= 0.995 for part in share) == 3


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

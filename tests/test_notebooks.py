"""The notebooks run from top to bottom, and are saved with their outputs."""

import json
import re

import pytest

from tests.pages import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


LONG = {"quick-start"}
"""Notebooks that take more than 30 s on one core."""
RUNS = [pytest.param(path, id=path.stem, marks=[pytest.mark.slow] * (path.stem in LONG)) for path in NOTEBOOKS]


def code_cells(notebook):
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_a_notebook_is_saved_as_it_was_executed(notebook):
    cells = code_cells(notebook)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert all(output["output_type"] != "error" for output in outputs)
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not re.search(r"/(?:home|root|tmp|work)/", json.dumps(outputs)), "a path of some machine"
    assert notebook.stat().st_size < 500_000


@pytest.mark.parametrize("notebook", RUNS)
def test_a_notebook_runs_from_top_to_bottom(notebook, tmp_path, monkeypatch):
    nbclient = pytest.importorskip("nbclient", reason="the extra 'notebooks' is not installed")
    nbformat = pytest.importorskip("nbformat")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    pages = nbformat.read(notebook, as_version=4)
    nbclient.NotebookClient(pages, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()


def test_there_are_three_notebooks():
    assert [notebook.stem for notebook in NOTEBOOKS] == ["layer", "own-files", "quick-start"]

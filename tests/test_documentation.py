"""What README and docs show runs as shown; the examples do what they say; slowly: `make demo` keeps its promise."""

import importlib.util
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import flare
from flare.cli import main
from flare.data.store import Dataset
from tests.factory import elasticity_dataset

ROOT = Path(__file__).parents[1]


def python_blocks(page):
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def example(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    """A folder with what the pages take for granted: the demo's dataset and run, only smaller."""
    from flare.train.config import DataConfig, TrainConfig
    from flare.train.start import start

    folder = tmp_path_factory.mktemp("session")
    elasticity_dataset(folder / "data" / "elasticity-demo")
    model = {"name": "flare", "channels": 8, "blocks": 1, "heads": 2, "latents": 4, "kv_depth": 0, "ffn_depth": 0}
    data = DataConfig(path=str(folder / "data" / "elasticity-demo"), batch_size=8)
    start(TrainConfig(data=data, model=model, epochs=1, device="cpu"), folder / "runs" / "demo")
    return folder


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{p.name}" for p in sorted((ROOT / "docs").glob("*.md")))])
def test_python_on_the_pages_runs(page, session, monkeypatch):
    monkeypatch.chdir(session)
    x, mask = torch.randn(2, 30, 64), torch.ones(2, 30, dtype=torch.bool)
    names = {"points": np.random.default_rng(0).random((25, 2)), "x": x, "mask": mask}
    for block in python_blocks(page):
        exec(compile(block, page, "exec"), names)
    if page == "README.md":
        assert names["field"]["stress"].shape == (25,)
        assert names["y"].shape == x.shape
    if page == "docs/data.md":
        assert Dataset(session / "data" / "brackets").sizes.tolist() == [500 + 10 * i for i in range(40)]


SMALLER = {
    ("data", "make"): ["--samples=12", "--resolution=8", "--stride=1", "--workers=1"],
    ("train", "--preset"): [
        "--epochs=1",
        "--model.channels=8",
        "--model.blocks=1",
        "--model.heads=2",
        "--model.latents=4",
    ],
    ("train", "--data.path"): [
        "--epochs=1",
        "--model.channels=8",
        "--model.heads=2",
        "--model.latents=4",
        "--model.blocks=1",
    ],
}
"""What makes the commands of the README quick enough for a test."""


def test_the_commands_of_the_readme_run_as_printed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(compile(next(b for b in python_blocks("docs/data.md") if "DatasetWriter" in b), "docs/data.md", "exec"), {})
    (tmp_path / "points.csv").write_text("x,y,coefficient\n0.1,0.2,3\n0.5,0.5,12\n")
    (tmp_path / "part.csv").write_text("x,y,z,fx,fz\n1,2,3,10,20\n4,5,6,10,20\n")
    text = (ROOT / "README.md").read_text().split("## Use it")[1]
    commands = [line for line in text.splitlines() if line.startswith("flare ")]
    assert len(commands) >= 10
    for line in commands:
        words = shlex.split(line, comments=True)[1:]
        assert main([*words, *SMALLER.get((words[0], words[1]) if len(words) > 1 else (), [])]) == 0, line
    assert (tmp_path / "part_stress.csv").read_text().splitlines()[0].endswith("stress [MPa]")
    capsys.readouterr()


def test_links_between_pages_lead_somewhere():
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert target.startswith("http") or (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_layer_works_in_somebody_elses_network():
    assert example("layer_in_your_network").main(steps=60) > 0.9


def test_a_hole_is_optimised_at_constant_area(session, capsys):
    outcome = example("optimise_hole").optimise(str(session / "runs" / "demo"), steps=3)
    assert abs(outcome.area_change) < 1e-3
    assert outcome.predicted[1] < outcome.predicted[0]
    assert min(outcome.solved) > 100  # the traction that pulls


def test_a_run_is_a_function_of_points(session):
    assert 0 < example("predict_on_points").main(str(session / "runs" / "demo")) < 2


def test_the_citation_lists_the_papers_authors():
    citation = (ROOT / "CITATION.cff").read_text()
    families = re.findall(r"family-names: (.+)", citation)
    assert families == ["Puri", "Joglekar", "Bandreddi", "Ferguson", "Chen", "Zhang", "Kara"]
    assert f"version: {flare.__version__}" in citation


@pytest.mark.slow
def test_the_demo_beats_the_mean_field_five_times(tmp_path):
    """The commands of `make demo`, word for word, in another folder."""
    recipe = (ROOT / "Makefile").read_text().split("\ndemo:")[1].split("\n\n")[0]
    for line in re.findall(r"\$\(BIN\)/flare (.+)", recipe):
        subprocess.run([sys.executable, "-m", "flare", *shlex.split(line)], cwd=tmp_path, check=True)
    result = json.loads((tmp_path / "runs" / "demo" / "result.json").read_text())
    assert 5 * result["rel_l2"] < result["rel_l2_mean_field"]
    assert (tmp_path / "runs" / "demo" / "report.html").exists()

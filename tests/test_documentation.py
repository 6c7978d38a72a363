"""Links are valid and examples run as documented. Slow: `make demo` gives the documented result."""

import importlib.util
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import flare
from flare.cli import main
from tests.factory import ragged_dataset
from tests.shelf import Shelf
from tests.train.test_loop import TINY

ROOT = Path(__file__).parents[1]


def example(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The demo's, only smaller."""
    return str(Shelf(tmp_path_factory.mktemp("shelf")).get("runs/demo"))


def test_links_between_pages_lead_somewhere():
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert target.startswith("http") or (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_layer_works_in_somebody_elses_network():
    assert example("layer_in_your_network").main(steps=60) > 0.9


def test_a_hole_is_optimised_at_constant_area(run):
    outcome = example("optimise_hole").optimise(run, steps=3)
    assert abs(outcome.area_change) < 1e-3
    assert outcome.predicted[1] < outcome.predicted[0]
    assert min(outcome.solved) > 100  # the traction that pulls


@pytest.mark.parametrize("name", ["optimise_hole", "predict_on_points"])
def test_an_example_helps_and_refuses_in_one_message(name, tmp_path):
    words = [sys.executable, str(ROOT / "examples" / f"{name}.py")]
    assert "usage" in subprocess.run([*words, "--help"], capture_output=True, text=True, check=True).stdout
    refused = subprocess.run([*words, "none"], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert refused.returncode == 2
    assert "run none does not exist" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_run_is_a_function_of_points(run):
    assert 0 < example("predict_on_points").main(run) < 2


def test_the_citation_lists_the_papers_authors():
    citation = (ROOT / "CITATION.cff").read_text()
    families = re.findall(r"family-names: (.+)", citation)
    assert families == ["Puri", "Joglekar", "Bandreddi", "Ferguson", "Chen", "Zhang", "Kara"]
    assert f"version: {flare.__version__}" in citation


def first_calls(words):
    """Run a command and return every function of flare that it calls, in the order of the first calls."""
    found = {}

    def see(frame, event, _):
        found[f"{frame.f_globals.get('__name__')}.{frame.f_code.co_qualname}"] = None

    sys.setprofile(see)
    try:
        assert main(words) == 0
    finally:
        sys.setprofile(None)
    return list(found)


def test_the_lists_of_calls_in_contributing_are_true(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = ragged_dataset("data", [12, 9, 14, 8, 10, 12], test=2)
    point_data = {"thickness": data[5].values["thickness"]}
    mesh = flare.Mesh.from_cells(data[5].values["position"], {"triangle": data[5].cells}, point_data=point_data)
    mesh.save("in.vtu")
    text = (ROOT / "CONTRIBUTING.md").read_text()
    for words in (
        ["train", "data", "--out", "run", "--epochs", "1", "--device", "cpu", "--model", json.dumps(TINY)],
        ["predict", "run", "in.vtu", "--set", "speed=2", "--out", "out.vtu"],
    ):
        paragraph = text.split(f"through `flare {words[0]}`**")[1].split("\n\n")[0]
        hops = re.findall(r"`([\w.]+)`", paragraph)
        called = first_calls(words)
        places = {hop: [n for n, name in enumerate(called) if name.endswith(f".{hop}")][:1] for hop in hops}
        assert len(hops) > 14
        assert all(places.values()), places
        assert list(places.values()) == sorted(places.values())


@pytest.mark.slow
def test_the_demo_beats_the_mean_field_five_times(tmp_path):
    """The commands of `make demo`, word for word, in another folder."""
    recipe = (ROOT / "Makefile").read_text().split("\ndemo:")[1].split("\n\n")[0]
    for line in re.findall(r"\$\(BIN\)/flare (.+)", recipe):
        subprocess.run([sys.executable, "-m", "flare", *shlex.split(line)], cwd=tmp_path, check=True)
    result = json.loads((tmp_path / "runs" / "demo" / "result.json").read_text())
    assert 5 * result["rel_l2"] < result["rel_l2_mean_field"]
    assert (tmp_path / "runs" / "demo" / "report.html").exists()

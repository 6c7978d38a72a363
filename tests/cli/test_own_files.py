"""The session of a new user: from a folder of VTU files to a prediction opened with pyvista."""

import contextlib
import io
import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from flare.cli import main
from flare.mesh import read_mesh
from flare.view.runs import RunSource
from tests.cli.test_bad_input import fails
from tests.meshes import folder_of_plates, plate, pv, same

GUIDES = Path(__file__).parents[2] / "docs" / "how-to"
SMALLER = ["--model.channels=16", "--model.blocks=1", "--model.heads=4", "--model.latents=8", "--epochs=12"]
SMALLER += ["--model.kv_depth=0", "--model.ffn_depth=0", "--data.batch_size=4", "--optim.lr=3e-3", "--device=cpu"]
SMALLER += ["--no-report"]


def five_commands():
    """The first commands of the page, as printed."""
    block = re.search(r"```bash\n(flare data import.*?)```", (GUIDES / "import.md").read_text(), re.DOTALL)[1]
    return [line for line in block.splitlines() if line.startswith("flare ")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What the five commands of the page leave behind, and what they printed."""
    here = tmp_path_factory.mktemp("user")
    folder_of_plates(here / "results", 60)
    new = plate(77)
    new.point_data.remove("pressure")
    new.save(here / "part.vtu")
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.chdir(here)
        commands = five_commands()
        assert len(commands) == 5
        for line in commands:
            words = shlex.split(line, comments=True)[1:]
            assert main([*words, *(SMALLER if words[0] == "train" else [])]) == 0, line
    (here / "printed.txt").write_text(printed.getvalue())
    return here


def test_five_commands_lead_from_files_to_a_prediction(folder):
    before, after = pv.read(folder / "part.vtu"), pv.read(folder / "part_pred.vtu")
    same(before, after, added={"pressure_predicted", "pressure_bar", "familiarity_score", "units"})
    units = read_mesh(folder / "part_pred.vtu").units
    assert units == {"pressure_predicted": "Pa", "pressure_bar": "Pa", "points": "m"}
    field, bar = after.point_data["pressure_predicted"], after.point_data["pressure_bar"]
    assert set(after.point_data.keys()) - set(before.point_data.keys()) == {"pressure_predicted", "pressure_bar"}
    truth = plate(77).point_data["pressure"]
    assert np.linalg.norm(field - truth) < 0.8 * np.linalg.norm(truth - truth.mean())  # it has learnt something
    assert (bar > 0).all()
    text = (folder / "printed.txt").read_text()
    assert "part_pred.vtu: pressure," in text
    assert "100% instead of 90%" in text  # error bars of nine held-out samples


def test_the_other_predictions_of_the_page_run_as_printed(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "mine").symlink_to(folder / "runs" / "mine")
    (tmp_path / "part.vtu").write_bytes((folder / "part.vtu").read_bytes())
    pv.Plane(i_size=1.5, j_size=1.0).triangulate().save(tmp_path / "part.stl")
    np.savetxt(tmp_path / "points.csv", plate(5).points, delimiter=",", header="x,y,z", comments="", fmt="%.9g")
    wing = plate(6)
    wing.field_data.remove("speed")  # the page gives it on the command line
    wing.save(tmp_path / "wing.vtu")
    words = ["data", "import", str(folder_of_plates(tmp_path / "files", 12)), "--target", "pressure"]
    assert main([*words, "--input", "speed", "--out", "data/wings"]) == 0
    assert main(["train", "--data.path", "data/wings", *SMALLER, "--epochs=1", "--out", "runs/wings"]) == 0
    section = (GUIDES / "predict.md").read_text().split("## Predictions on parts")[1].split("\n## ")[0]
    commands = [line for line in section.splitlines() if line.startswith("flare ")]
    assert len(commands) == 4
    for line in commands:
        assert main(shlex.split(line)[1:]) == 0, f"{line}\n{capsys.readouterr().err}"
    made = {"part_pred.vtp", "part.png", "part.html", "wing_pred.vtu", "points_pred.vtu", "part_pred.csv"}
    assert made <= {path.name for path in tmp_path.iterdir()}


def test_samples_are_called_by_their_files_everywhere(folder, tmp_path, capsys):
    run = str(folder / "runs" / "mine")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["evaluate", run, "--device", "cpu", "--out", str(tmp_path / "e.json")]) == 0
        worst = re.search(r"\(sample (\d+) \((plate_\d+\.vtu)\)\)", capsys.readouterr().out)
        record = json.loads((tmp_path / "e.json").read_text())
        assert record["files"][record["rel_l2"].index(max(record["rel_l2"]))] == worst[2]
        shown = {s["id"]: s["name"] for s in RunSource(Path(run)).catalogue()["samples"]}
        assert shown[int(worst[1])] == f"{worst[1]} ({worst[2]})"


def predict(folder, *words):
    return main(["predict", str(folder / "runs" / "mine"), *map(str, words), "--device", "cpu"])


def test_a_known_field_is_compared(folder, tmp_path, capsys):
    plate(78).save(tmp_path / "known.vtu")
    assert predict(folder, tmp_path / "known.vtu", "--out", tmp_path / "out.vtu") == 0
    printed = re.search(r"error ([\d.]+)%", capsys.readouterr().out)
    mesh = pv.read(tmp_path / "out.vtu")
    truth, field = mesh.point_data["pressure"], mesh.point_data["pressure_predicted"]
    assert float(printed[1]) == pytest.approx(100 * np.linalg.norm(field - truth) / np.linalg.norm(truth), abs=0.01)
    same(
        plate(78), mesh, added={"pressure_predicted", "pressure_bar", "familiarity_score", "units"}
    )  # the truth among the rest


def test_a_bare_surface_is_sampled_as_densely_as_the_training(folder, tmp_path, capsys):
    coarse = pv.Plane(i_size=1.5, j_size=1.0, i_resolution=1, j_resolution=1).triangulate()
    coarse.save(tmp_path / "coarse.stl")
    assert predict(folder, tmp_path / "coarse.stl", "--out", tmp_path / "a.vtu") == 0
    points = pv.read(tmp_path / "a.vtu").points
    assert len(points) > 100
    assert np.abs(points[:, 2]).max() < 1e-6  # on the plane, and all over it
    quarters = [((points[:, 0] > 0) == a) & ((points[:, 1] > 0) == b) for a in (False, True) for b in (False, True)]
    assert min(q.sum() for q in quarters) > 0.8 * len(points) / 4
    assert predict(folder, tmp_path / "coarse.stl", "--place-points", "vertices", "--out", tmp_path / "b.vtp") == 0
    assert pv.read(tmp_path / "b.vtp").n_points == 4


def test_a_picture_and_a_page_on_request(folder, tmp_path):
    out = ["--out", tmp_path / "o.vtu", "--png", tmp_path / "o.png", "--html", tmp_path / "o.html"]
    assert predict(folder, folder / "part.vtu", *out) == 0
    assert (tmp_path / "o.png").read_bytes()[:4] == b"\x89PNG"
    page = (tmp_path / "o.html").read_text()
    assert "part.vtu" in page
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_an_ood_mesh_gets_a_warning(folder, tmp_path, capsys):
    mesh = plate(3)
    mesh.points *= 25.4  # somebody's inches
    mesh.save(tmp_path / "inch.vtu")
    out = ["--out", tmp_path / "o.vtu", "--png", tmp_path / "o.png", "--html", tmp_path / "o.html"]
    assert predict(folder, tmp_path / "inch.vtu", *out) == 0
    assert "WARNING" in capsys.readouterr().out
    assert pv.read(tmp_path / "o.vtu").field_data["familiarity_score"][0] > 1
    assert "WARNING" in (tmp_path / "o.html").read_text()


def test_a_dry_run_writes_nothing(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["data", "import", str(folder / "results"), "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "60 cases of 121 to 143 points" in shown
    assert re.search(r"pressure\s*│ points\s*│ 1\s*│ all", shown)
    assert re.search(r"region\s*│ cells\s*│ 1\s*│ all", shown)
    assert re.search(r"speed\s*│ whole", shown)
    assert list(tmp_path.iterdir()) == []


def test_bad_requests_are_one_message(folder, tmp_path, capsys):
    run, part = folder / "runs" / "mine", folder / "part.vtu"
    results = folder / "results"
    assert "--out" in fails(capsys, "data", "import", results, "--target", "pressure")
    words = ["data", "import", tmp_path / "no", "--target", "p", "--out", tmp_path / "d"]
    assert str(tmp_path / "no") in fails(capsys, *words)
    assert str(part) in fails(capsys, "predict", run, part, "--out", part)
    assert ".vtu" in fails(capsys, "predict", run, part, "--out", tmp_path / "a.stl")
    assert "none.vtu" in fails(capsys, "predict", run, tmp_path / "none.vtu", "--out", tmp_path / "a.vtu")
    assert "--set speed" in fails(capsys, "predict", run, part, "--out", tmp_path / "a.vtu", "--set", "speed")
    (tmp_path / "cut.vtu").write_bytes(part.read_bytes()[:500])
    assert "cut.vtu" in fails(capsys, "predict", run, tmp_path / "cut.vtu", "--out", tmp_path / "a.vtu")
    flat = plate(1)
    flat.point_data["pressure_predicted"] = np.zeros(flat.n_points)
    flat.save(tmp_path / "twice.vtu")
    message = fails(capsys, "predict", run, tmp_path / "twice.vtu", "--out", tmp_path / "a.vtu")
    assert "'pressure_predicted'" in message
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cut.vtu", "twice.vtu"]

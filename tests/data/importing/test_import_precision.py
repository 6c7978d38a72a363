"""What an import is made of: sound numbers, places that a dataset can tell apart, the same files when it goes on."""

import json

import numpy as np
import pytest

import flare.data.importing.importer as importing
from flare.cli import main
from flare.data.checks.precision import merged_by_rounding, steps_between
from flare.data.importing.importer import import_data, plan_import
from flare.utils.errors import DataError
from tests.cli.test_bad_input import fails

ROWS = "\n".join(f"{i}.npz,{i}" for i in range(8))


def write(folder, index, speed=None, moved=(0.0, 0.0), scale=1.0, kind=np.float64):
    folder.mkdir(exist_ok=True)
    points = np.random.default_rng(index).random((200, 2)) * scale
    heat, speed = points.sum(1) + index, float(index) if speed is None else speed
    np.savez(folder / f"{index}.npz", points=(points + moved).astype(kind), heat=heat, speed=speed)


def files(folder, count=8, **how):
    for index in range(count):
        write(folder, index, **how)
    return folder


@pytest.mark.parametrize("on_nan", ["refuse", "drop"])
def test_a_parameter_that_is_no_number_is_refused_before_anything_is_written(tmp_path, capsys, on_nan):
    files(tmp_path / "f")
    write(tmp_path / "f", 5, speed=np.nan)
    words = ["data", "import", tmp_path / "f", "--target", "heat", "--on-nan", on_nan, "--out", tmp_path / "d"]
    assert main([*map(str, words), "--dry-run"]) == 0  # it is not asked for
    capsys.readouterr()
    with pytest.raises(DataError, match=r"5\.npz: .*'speed'.*exclude=\"5\.npz"):
        import_data(tmp_path / "f", tmp_path / "d", targets="heat", inputs="speed", on_nan=on_nan, quiet=True)
    assert main([*map(str, words), "--input", "speed", "--dry-run"]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["f"]
    words = [*words, "--input", "speed", "--exclude", "5.npz"]
    assert main([*map(str, words)]) == 0


@pytest.fixture
def stopped(tmp_path, monkeypatch):
    """An import of three files out of eight."""
    files(tmp_path / "f")
    (tmp_path / "runs.csv").write_text("file,load\n" + ROWS)
    (tmp_path / "held.txt").write_text("1.npz\n2.npz")
    how = {"targets": "heat", "parameters": tmp_path / "runs.csv", "test": str(tmp_path / "held.txt"), "quiet": True}
    read, seen = importing.ImportPlan.sample, []

    def stops(self, place, *rest):
        seen.append(place)
        if len(seen) == 4:
            raise KeyboardInterrupt
        return read(self, place, *rest)

    monkeypatch.setattr(importing.ImportPlan, "sample", stops)
    with pytest.raises(KeyboardInterrupt):
        import_data(tmp_path / "f", tmp_path / "d", **how)
    monkeypatch.setattr(importing.ImportPlan, "sample", read)
    return tmp_path, how


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: write(folder / "f", 3, moved=(1.0, 0.0)), r"contents\.\S*3\.npz was"),
        (lambda folder: (folder / "runs.csv").write_text("file,load\n" + ROWS + "1"), r"choices\.parameters\.sha256"),
        (lambda folder: (folder / "held.txt").write_text("2.npz\n1.npz"), r"choices\.test\.sha256"),
        (lambda folder: {"seed": 3}, "choices.seed was 0, is now 3"),
        (lambda folder: {"calibration": 0.3}, "choices.calibration was 0.15, is now 0.3"),
        (lambda folder: {"test": 0.25}, "choices.test"),
        (lambda folder: {"exclude": "7.npz"}, "choices.exclude"),
    ],
)
def test_a_stopped_import_does_not_go_on_with_other_files_or_choices(stopped, change, message):
    folder, how = stopped
    other = change(folder)
    with pytest.raises(DataError, match=message):
        import_data(folder / "f", folder / "d", **how | (other if isinstance(other, dict) else {}))
    assert (folder / "d.partial" / "samples.jsonl").read_bytes().count(b"\n") == 3


def test_the_dataset_tells_how_to_make_it_again(stopped):
    folder, how = stopped
    import_data(folder / "f", folder / "d", **how)
    text = (folder / "d" / "dataset.json").read_text()
    provenance = json.loads(text)["provenance"]
    assert provenance["versions"].keys() == {"flare", "numpy"}
    assert provenance["choices"]["seed"] == 0
    assert provenance["choices"]["targets"] == ["heat"]
    assert provenance["choices"]["test"]["name"] == "held.txt"
    assert len(provenance["choices"]["parameters"]["sha256"]) == 64
    assert provenance["contents"].keys() == {*provenance["files"]}
    assert str(folder / "runs.csv") not in text


@pytest.mark.parametrize(("moved", "how"), [((5e6, 0.0), "x minus 5000000"), ((5e6, -7e6), "y minus -7000000")])
def test_points_that_collapse_in_single_precision_are_refused_with_what_to_subtract(tmp_path, capsys, moved, how):
    files(tmp_path / "f", moved=moved, scale=0.01)
    words = ["data", "import", tmp_path / "f", "--target", "heat", "--out", tmp_path / "d"]
    message = fails(capsys, *words)
    assert "8 files" in message
    assert f"0.npz: {0 if moved[1] == 0 else 199} of 200" in message
    assert f"{how}\n" in message
    assert [path.name for path in tmp_path.iterdir()] == ["f"]
    files(tmp_path / "f")
    assert main([*map(str, words)]) == 0


@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_few_digits_between_neighbors_are_noted(tmp_path, kind):
    plan = plan_import(files(tmp_path, moved=(3000.0, 0.0), kind=kind), targets="heat", quiet=True)
    assert any("steps" in r and "x minus 3000" in r for r in plan.notes)
    plan = plan_import(files(tmp_path, moved=(9.0, 0.0), kind=kind), targets="heat", quiet=True)
    assert not any("steps" in remark for remark in plan.notes)


def test_a_mesh_finer_than_single_precision_is_no_fault_of_the_origin(tmp_path):
    files(tmp_path)
    points = np.random.default_rng(0).random((200, 2))
    points[7] = points[3] + 1e-12
    np.savez(tmp_path / "0.npz", points=points, heat=points[:, 0], speed=0.0)
    plan = plan_import(tmp_path, targets="heat", quiet=True)
    assert any("0.npz)" in remark and "1 of 200" in remark for remark in plan.notes)


def test_lost_places_are_counted_exactly():
    rng = np.random.default_rng(0)
    for shift in (0.0, 1e3, 1e5, 5e6):
        points = np.concatenate([rng.random((3000, 3)), np.zeros((5, 3)), -np.zeros((5, 3))]) + shift
        points[:40] = points[40:80]  # there twice already: nothing is lost
        lost = len(np.unique(points, axis=0)) - len(np.unique(points.astype(np.float32), axis=0))
        assert merged_by_rounding(points) == lost
    assert merged_by_rounding(rng.random((50, 3)).astype(np.float32)) == 0
    line = np.arange(100.0)[:, None] + 2.0**23  # neighbours one step of single precision apart
    assert steps_between(line) == 1
    assert steps_between(line - 2.0**23) == np.inf


def test_an_unusual_name_of_the_coordinates_is_asked_for_only_where_it_can_be_given(tmp_path, capsys):
    for i in range(4):
        np.savez(tmp_path / f"{i}.npz", lieu=np.random.default_rng(i).random((30, 2)), heat=np.ones(30))
    words = ["data", "import", tmp_path, "--target", "heat", "--out", tmp_path / "d"]
    assert "--points NAME" in fails(capsys, *words)
    message = fails(capsys, "data", "check", tmp_path)
    assert "--points" not in message

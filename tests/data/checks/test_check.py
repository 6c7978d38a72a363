"""Data checks find what was planted, with place and count, and fix only what is safe to fix."""

from pathlib import Path

import numpy as np
import pytest

from flare.cli import main
from flare.data.checks.check import check_dataset, check_files
from flare.data.checks.copies import find_copies
from flare.data.checks.fixes import fix_dataset
from flare.data.checks.sample_checks import cell_sizes, find_broken_cells
from flare.data.dataset import Dataset
from flare.data.importing.importer import import_data
from flare.data.sample import Field, Sample, Schema
from flare.data.writer import DatasetWriter
from tests.cli.test_bad_input import fails
from tests.factory import content
from tests.meshes import plate, pv

CELLS = np.array([[i, i + 1, i + 2] for i in range(0, 36, 3)])


def healthy(index):
    """A bent plate of triangles: points, a load, a stress that follows."""
    rng = np.random.default_rng([3, index])
    points = rng.uniform(-1, 1, (40, 2)) * [2.0, 1.0]
    load = rng.uniform(1, 2)
    stress = (5 + load * np.sin(points[:, :1] + points[:, 1:]) + rng.uniform(0, 1)) * 10
    return Sample({"points": points, "load": np.array([load]), "stress": stress}, CELLS, {"file": f"part_{index}.vtu"})


def schema():
    fields = {
        "points": Field(role="points", components=("x", "y"), unit="m"),
        "load": Field(role="parameter", components=("load",), unit="N"),
        "stress": Field(role="target", components=("stress",), unit="MPa"),
    }
    return Schema(name="parts", fields=fields, cell_type="triangle")


def made(path, changes=(), count=12) -> Dataset:
    """A healthy dataset but for some samples, index -> what to do to its values and cells."""
    writer = DatasetWriter(path, schema(), {"kind": "user"})
    for index in range(count):
        sample = healthy(index)
        values, cells = {k: v.copy() for k, v in sample.values.items()}, CELLS.copy()
        for at, change in changes:
            if at == index:
                result = change(values, cells)
                cells = cells if result is None else result
        writer.append(Sample(values, cells, sample.notes))
    return writer.finish({"train": [(0, count - 4)], "test": [(count - 4, count)]})


def put(name, rows, value):
    def change(values, cells):
        values[name][rows] = value

    return change


def scaled(name, factor):
    def change(values, cells):
        values[name] *= factor

    return change


def copy_of(index):
    """Replace the values by those of another sample, with its points in another order."""

    def change(values, cells):
        order = np.random.default_rng(0).permutation(40)
        values.update({k: v if k == "load" else v[order] for k, v in healthy(index).values.items()})
        return np.argsort(order)[CELLS]

    return change


def twice(values, cells):
    for name in ("points", "stress"):
        values[name][7] = values[name][2]


def bent(cells_at, corners):
    def change(values, cells):
        cells[cells_at] = corners
        return cells

    return change


def facts(found, *, serious):
    """(place, count, first) of the serious findings, or of the notes."""
    return [(Path(f.where).name, f.count, f.first) for f in found if f.serious == serious]


def test_a_sound_dataset_has_no_findings(tmp_path):
    assert check_dataset(made(tmp_path / "d"), quiet=True) == []


@pytest.mark.parametrize(
    ("index", "change", "names", "serious", "count", "first"),
    [
        (3, put("stress", [5, 9], np.nan), "'stress'", True, 2, 5),
        (4, put("points", 6, np.inf), "'points'", True, 1, 6),
        (2, put("stress", slice(None), 0.0), "'stress'", True, 40, 0),
        (2, put("stress", slice(None), 7.5), "'stress' is 7.5", False, 40, 0),
        (5, put("stress", 11, 1e30), "1e+30", False, 1, 11),
        (6, twice, "same place and values", False, 1, 7),
        (1, bent(4, [3, 3, 5]), "no size", False, 1, 4),
        (0, scaled("points", 1000), "the extent", False, 1, 0),
        (7, scaled("stress", 1e-3), "'stress'", False, 1, 7),
        (11, copy_of(2), "sample 2 (part_2.vtu)", True, 1, 11),
    ],
)  # fmt: skip
def test_each_problem_is_found_with_file_count_and_first_index(tmp_path, index, change, names, serious, count, first):
    found = check_dataset(made(tmp_path / "d", [(index, change)]), quiet=True)
    hits = [f for f in found if (f.where, f.count, f.first) == (f"sample {index} (part_{index}.vtu)", count, first)]
    (hit,) = [f for f in hits if names in f.what and f.serious == serious]
    assert hit.fix


def test_copies_are_found_beside_contradicting_samples(tmp_path):
    """One geometry under several loads that are no input: samples 0 and 1; the copy of 1 is in the test split."""

    def answers(factor):
        def change(values, cells):
            values.update({k: v.copy() for k, v in healthy(0).values.items()})
            values["stress"] *= factor

        return change

    dataset = made(tmp_path / "d", [(1, answers(2)), (11, answers(2)), (5, answers(3))])
    found = check_dataset(dataset, quiet=True)
    assert facts(found, serious=True) == [("sample 11 (part_11.vtu)", 1, 11)]
    assert facts(found, serious=False) == [("sample 1 (part_1.vtu)", 1, 1), ("sample 5 (part_5.vtu)", 1, 5)]
    fixed, dropped = fix_dataset(dataset, tmp_path / "fixed", quiet=True)
    assert dropped["samples"] == 1
    assert {name: len(fixed.split(name)) for name in fixed.splits} == {"train": 8, "test": 3}
    assert not facts(check_dataset(fixed, quiet=True), serious=True)


def test_a_copy_that_no_split_uses_is_no_leak_and_hides_none(tmp_path):
    writer = DatasetWriter(tmp_path / "d", schema(), {"kind": "user"})
    for index in (0, 1, 2, 3, 4, 1, 5, 6, 1):
        writer.append(healthy(index))
    dataset = writer.finish({"train": [(2, 7)], "test": [(7, 9)]})
    assert find_copies(dataset) == ([(5, 8)], [])


def test_a_fixed_dataset_is_sound_and_the_rest_is_unchanged(tmp_path):
    changes = [(3, put("stress", [5, 9], np.nan)), (6, twice), (1, bent(4, [3, 3, 5])), (11, copy_of(2))]
    dataset = made(tmp_path / "d", changes)
    before = content(dataset.path)
    fixed, dropped = fix_dataset(dataset, tmp_path / "fixed", quiet=True)
    assert content(dataset.path) == before
    assert dropped["points"] == 3
    assert dropped["samples"] == 1
    assert check_dataset(fixed, quiet=True) == []
    assert {name: len(fixed.split(name)) for name in fixed.splits} == {"train": 8, "test": 3}
    np.testing.assert_array_equal(fixed[0].values["stress"], dataset[0].values["stress"])
    np.testing.assert_array_equal(fixed[0].cells, dataset[0].cells)
    keep = np.delete(np.arange(40), [5, 9])
    np.testing.assert_array_equal(fixed[3].values["points"], dataset[3].values["points"][keep])
    for i in range(len(fixed)):  # cells still join the same points
        whole, part = dataset[i], fixed[i]
        corners = {tuple(map(tuple, whole.values["points"][cell])) for cell in whole.cells}
        assert {tuple(map(tuple, part.values["points"][cell])) for cell in part.cells} <= corners


def test_volumes_and_areas_are_exact():
    cube = np.array([[x, y, z] for z in (0, 1) for y in (0, 1) for x in (0, 1)], dtype=float)[[0, 1, 3, 2, 4, 5, 7, 6]]
    assert cell_sizes("hexahedron", np.arange(8)[None], cube)[0] == pytest.approx(1)
    assert cell_sizes("tetra", np.array([[0, 1, 3, 4]]), cube)[0] == pytest.approx(1 / 6)
    assert cell_sizes("wedge", np.array([[0, 1, 3, 4, 5, 7]]), cube)[0] == pytest.approx(1 / 2)
    assert cell_sizes("pyramid", np.array([[0, 1, 2, 3, 4]]), cube)[0] == pytest.approx(1 / 3)
    assert cell_sizes("quad", np.array([[0, 1, 2, 3]]), cube)[0] == pytest.approx(1)
    (turned,) = find_broken_cells("a", "tetra", np.array([[1, 0, 3, 4], [0, 1, 3, 4]]), cube)
    assert (turned.count, turned.first) == (1, 0)
    thin = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1e-5]])
    assert not list(find_broken_cells("a", "tetra", np.array([[0, 1, 2, 3]]), thin))


def test_the_command_fixes(tmp_path, capsys):
    changes = [
        (3, put("stress", [38, 39], np.nan)),
        (1, bent(4, [3, 3, 5])),
        (11, copy_of(2)),
        (5, put("stress", 5, 1e30)),
    ]
    dataset = made(tmp_path / "d", changes)
    assert "--fix FOLDER" in fails(capsys, "data", "check", dataset.path)
    assert main(["data", "check", str(dataset.path), "--fix", str(tmp_path / "f")]) == 0
    assert "11 samples; dropped: 2 points, 1 cell, 1 sample\n" in capsys.readouterr().out
    assert main(["data", "check", str(tmp_path / "f")]) == 0
    assert "nothing serious; 2 notes" in capsys.readouterr().out
    assert str(tmp_path / "f") in fails(capsys, "data", "check", dataset.path, "--fix", tmp_path / "f")


def test_a_dataset_that_has_changed_or_would_lose_a_split_is_not_copied(tmp_path, capsys):
    empty = [(8 + i, copy_of(i)) for i in range(4)]
    for name, changes in (
        ("changed", ()),
        ("'test'", empty),
        ("'train'", [(i, put("load", 0, np.nan)) for i in range(8)]),
    ):
        dataset = made(tmp_path / name, changes)
        if not changes:
            np.save(dataset.path / "stress.npy", 1 + np.load(dataset.path / "stress.npy"))
        assert name in fails(capsys, "data", "check", dataset.path, "--fix", tmp_path / "f")
    assert {path.name for path in tmp_path.iterdir()} == {"changed", "'test'", "'train'"}


def test_findings_that_cannot_be_fixed_are_an_error(tmp_path, capsys):
    dataset = made(tmp_path / "d", [(3, put("stress", [5, 9], np.nan)), (4, scaled("stress", 0.0))])
    assert main(["data", "check", str(dataset.path), "--fix", str(tmp_path / "f")]) == 2
    printed = capsys.readouterr()
    assert "12 samples; dropped: 2 points, 2 cells\n" in printed.out
    assert f"{dataset.path}: 2 finding(s)" in printed.err
    assert f"{tmp_path / 'f'}: 1 finding(s)" in printed.err
    assert len(Dataset(tmp_path / "f")[3].values["stress"]) == 38


def seam(values, cells):
    values["points"][7] = values["points"][2]  # one place, two values


def flat(values, cells):
    values["points"][[0, 1, 2]] = [[0, 0], [1, 1], [2, 2]]


def test_a_fix_is_promised_only_where_it_fixes(tmp_path):
    dataset = made(tmp_path / "d", [(3, seam), (4, flat), (6, twice), (1, bent(4, [3, 3, 5]))])
    found = check_dataset(dataset, quiet=True)
    promised = {f.where for f in found if "--fix" in f.fix}
    assert promised == {f"sample {i} (part_{i}.vtu)" for i in (4, 6, 1)}
    fixed, dropped = fix_dataset(dataset, tmp_path / "f", quiet=True)
    assert dropped["cells"] >= 2
    assert facts(check_dataset(fixed, quiet=True), serious=False) == [("sample 3 (part_3.vtu)", 1, 7)]


def test_files_are_checked_before_they_are_imported(tmp_path, capsys):
    rng = np.random.default_rng(0)
    for i in range(8):
        points = rng.random((2000 if i == 5 else 40, 3))
        values = {"points": points, "heat": points.sum(1) + i, "speed": 1.0 + i, "area": np.full(len(points), 0.5)}
        if i == 1:
            values["heat"] = np.full(40, 7.0)
        if i == 2:
            values["heat"] = values["heat"] * 1000
        if i == 6:
            values["points"][4, 0] = np.nan
        if i == 7:
            values["speed"] = np.nan
        np.savez(tmp_path / f"{i}.npz", **values)
    (tmp_path / "8.npz").write_bytes((tmp_path / "0.npz").read_bytes())
    found = check_files(tmp_path, quiet=True)
    assert all(finding.fix for finding in found)
    assert not any("'area'" in finding.what for finding in found)  # the same in all files
    for file, names, count, first, serious in (
        ("6.npz", "'points'", 1, 4, True),
        ("7.npz", "'speed'", 1, 0, True),
        ("1.npz", "'heat' is 7", 40, 0, False),
        ("2.npz", "'heat'", 1, 2, False),
        ("8.npz", "0.npz", 1, 8, False),
        (tmp_path.name, "40 to 2,000", 9, 5, False),
    ):
        hits = [(Path(f.where).name, f.count, f.first, f.serious) for f in found if names in f.what]
        assert hits.count((file, count, first, serious)) == 1, (file, found)
    message = fails(capsys, "data", "check", tmp_path)
    assert "2 finding(s)" in message
    assert "--on-nan drop" in message  # the library names the argument on_nan
    fails(capsys, "data", "check", tmp_path, "--fix", tmp_path / "f")
    assert not (tmp_path / "f").exists()


def test_cells_and_places_of_fields_are_checked_in_files(tmp_path):
    for i in range(3):
        mesh = plate(i)
        mesh.cell_data["q"] = np.where(
            np.arange(mesh.n_cells) == (3 if i == 0 else -1), np.nan, np.arange(mesh.n_cells)
        )
        if i == 1:
            mesh.cell_data["pressure"] = np.zeros(mesh.n_cells)
            mesh.point_data.remove("pressure")
        mesh.save(tmp_path / f"{i}.vtu")
    assert {("0.vtu", 1, 3), ("1.vtu", 1, 1)} == {*facts(check_files(tmp_path, quiet=True), serious=True)}


def test_all_findings_are_shown_on_request_and_written_as_a_table(tmp_path, capsys):
    dataset = made(tmp_path / "d", [(i, put("stress", 5, np.nan)) for i in range(24)], count=28)
    short = fails(capsys, "data", "check", dataset.path, "--csv", tmp_path / "found.csv")
    assert "sample 23 (part_23.vtu)" not in short
    assert "sample 23 (part_23.vtu)" in fails(capsys, "data", "check", dataset.path, "--all")
    rows = (tmp_path / "found.csv").read_text().splitlines()
    assert rows[0] == "where,what,count,first,fix,serious"
    assert sum("part_" in row for row in rows) == len(rows) - 1 >= 24


def test_cells_without_size_are_as_many_in_files_as_in_their_dataset(tmp_path):
    """Hexahedra pressed flat in a plane that is not along the axes: what rounding leaves of them is no size."""
    turn = np.linalg.qr(np.random.default_rng(1).normal(size=(3, 3)))[0]
    for i in range(4):
        mesh = pv.ImageData(dimensions=(4, 4, 3), spacing=(0.1, 0.1, 0.1)).cast_to_unstructured_grid()
        points = np.array(mesh.points, dtype=np.float64)
        points[points[:, 2] > 0.15, 2] = 0.1  # the upper layer of nine has no height
        mesh.points = points @ turn.T + 1.0 + 0.01 * i
        mesh.point_data["heat"] = points[:, 0] * (1 + i) + points[:, 1] ** 2 + np.arange(48) % 5
        mesh.save(tmp_path / f"block_{i}.vtu")
    dataset = import_data(tmp_path, tmp_path / "d", targets="heat", calibration=0, test=0.25, quiet=True)
    for found in (check_files(f"{tmp_path}/*.vtu", quiet=True), check_dataset(dataset, quiet=True)):
        assert [(count, first) for _, count, first in facts(found, serious=False)].count((9, 9)) == 4

"""Data checks find what was planted, with place and count, and fix only what is safe to fix."""

import re
from pathlib import Path

import numpy as np
import pytest

from flare.cli import main
from flare.data.checks.check import check_dataset, check_files
from flare.data.checks.fixes import fix_dataset, merge_points
from flare.data.checks.near_duplicates import find_near_duplicates, group_copies, signature
from flare.data.checks.sample_checks import cell_sizes, find_broken_cells
from flare.data.dataset import Dataset
from flare.data.importing.importer import import_data
from flare.data.sample import Field, Sample, Schema
from flare.data.writer import DatasetWriter
from tests.cli.test_bad_input import fails
from tests.factory import content
from tests.meshes import folder_of_plates, plate, pv

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
        (6, twice, "points", False, 1, 7),
        (1, bent(4, [3, 3, 5]), "cells", False, 1, 4),
        (0, scaled("points", 1000), "mm for m", False, 1, 0),
        (7, scaled("stress", 1e-3), "'stress'", False, 1, 7),
        (11, copy_of(2), "sample 2 (part_2.vtu)", True, 1, 11),
    ],
)  # fmt: skip
def test_each_problem_is_found_with_file_count_and_first_index(tmp_path, index, change, names, serious, count, first):
    found = check_dataset(made(tmp_path / "d", [(index, change)]), quiet=True)
    hits = [f for f in found if (f.where, f.count, f.first) == (f"sample {index} (part_{index}.vtu)", count, first)]
    (hit,) = [f for f in hits if names in f.what and f.serious == serious]
    assert hit.fix


def test_equal_inputs_with_different_targets_are_a_note(tmp_path):
    def other_answer(values, cells):
        values.update({k: v.copy() for k, v in healthy(2).values.items()})
        values["stress"] = 2 * values["stress"]

    found = check_dataset(made(tmp_path / "d", [(5, other_answer)]), quiet=True)
    assert [f.first for f in found if "sample 2 (part_2.vtu)" in f.what and not f.serious] == [5]


def test_a_copy_is_found_beside_other_answers_to_the_same_inputs(tmp_path):
    """One geometry under several loads that are no input: samples 0 and 1; the copy of 1 is in the test split."""

    def answers(factor):
        def change(values, cells):
            values.update({k: v.copy() for k, v in healthy(0).values.items()})
            values["stress"] *= factor

        return change

    dataset = made(tmp_path / "d", [(1, answers(2)), (11, answers(2)), (5, answers(3))])
    alike = find_near_duplicates(dataset)
    assert alike.leaks == [(1, 11)]
    assert alike.contradictions == [(0, 1), (0, 5)]
    assert facts(check_dataset(dataset, quiet=True), serious=True) == [("sample 11 (part_11.vtu)", 1, 11)]
    fixed, dropped = fix_dataset(dataset, tmp_path / "fixed", quiet=True)
    assert dropped["samples"] == 1
    assert {name: len(fixed.split(name)) for name in fixed.splits} == {"train": 8, "test": 3}
    assert not find_near_duplicates(fixed).leaks


def test_a_copy_that_no_split_uses_is_no_leak_and_hides_none(tmp_path):
    writer = DatasetWriter(tmp_path / "d", schema(), {"kind": "user"})
    for index in (0, 1, 2, 3, 4, 1, 5, 6, 1):
        writer.append(healthy(index))
    dataset = writer.finish({"train": [(2, 7)], "test": [(7, 9)]})
    assert find_near_duplicates(dataset).leaks == [(5, 8)]


def test_mixed_sizes_are_worth_knowing(tmp_path):
    writer = DatasetWriter(tmp_path / "d", schema(), {"kind": "user"})
    for index, size in enumerate((40, 40, 2000, 40)):
        rng = np.random.default_rng(index)
        values = {"points": rng.random((size, 2)), "load": rng.random(1), "stress": rng.random((size, 1)) + index}
        writer.append(Sample(values, CELLS))
    found = check_dataset(writer.finish({"train": [(0, 3)], "test": [(3, 4)]}), quiet=True)
    assert any("40 to 2,000" in f.what and not f.serious for f in found)


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


def test_points_that_differ_in_a_field_are_not_merged():
    sample = healthy(0)
    values = {k: v.copy() for k, v in sample.values.items()}
    values["points"][7] = values["points"][2]  # a seam: one place, two values
    assert len(merge_points(schema(), Sample(values, CELLS)).values["points"]) == 40


def test_volumes_and_areas_are_exact():
    cube = np.array([[x, y, z] for z in (0, 1) for y in (0, 1) for x in (0, 1)], dtype=float)[[0, 1, 3, 2, 4, 5, 7, 6]]
    assert cell_sizes("hexahedron", np.arange(8)[None], cube)[0] == pytest.approx(1)
    assert cell_sizes("tetra", np.array([[0, 1, 3, 4]]), cube)[0] == pytest.approx(1 / 6)
    assert cell_sizes("wedge", np.array([[0, 1, 3, 4, 5, 7]]), cube)[0] == pytest.approx(1 / 2)
    assert cell_sizes("pyramid", np.array([[0, 1, 2, 3, 4]]), cube)[0] == pytest.approx(1 / 3)
    assert cell_sizes("quad", np.array([[0, 1, 2, 3]]), cube)[0] == pytest.approx(1)
    turned = np.array([[1, 0, 3, 4]])
    (finding,) = find_broken_cells("a", "tetra", np.concatenate([turned, [[0, 1, 3, 4]]]), cube)
    assert (finding.count, finding.first) == (1, 0)


def test_a_signature_knows_the_cloud_not_its_order():
    rng = np.random.default_rng(0)
    clouds = [rng.random((200, 3)) for _ in range(12)]
    again = clouds[4][rng.permutation(200)]
    near = clouds[7] + 1e-6
    marks = np.array([signature(c, np.zeros(3), np.ones(3)) for c in [*clouds, again, near]])
    assert group_copies(marks) == [[4, 12], [7, 13]]


def test_files_are_checked_before_they_are_imported(tmp_path, capsys):
    folder_of_plates(tmp_path, 5)
    nan, odd, inch = plate(5), plate(6), plate(7)
    nan.point_data["pressure"][4] = np.nan
    odd.cell_data["pressure"] = np.zeros(odd.n_cells)
    odd.point_data.remove("pressure")
    inch.points *= 25.4
    for i, mesh in enumerate((nan, odd, inch), start=5):
        mesh.save(tmp_path / f"plate_{i}.vtu")
    (tmp_path / "plate_8.vtu").write_bytes((tmp_path / "plate_0.vtu").read_bytes())
    found = check_files(tmp_path, quiet=True)
    assert {("plate_5.vtu", 1, 4), ("plate_6.vtu", 1, 6)} == {*facts(found, serious=True)}
    assert ("plate_8.vtu", 1, 8) in facts(found, serious=False)
    assert any("mm for inch" in f.what and f.first == 7 for f in found)
    message = fails(capsys, "data", "check", tmp_path)
    assert "2 finding(s)" in message
    assert "--on-nan drop" in message  # the library names the argument on_nan
    for folder in (tmp_path, tmp_path / "nowhere"):
        assert folder.name in fails(capsys, "data", "check", folder, "--fix", tmp_path / "f") or folder == tmp_path
    assert not (tmp_path / "f").exists()


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
    assert "11 samples, nothing serious; 2 notes" in capsys.readouterr().out
    assert str(tmp_path / "f") in fails(capsys, "data", "check", dataset.path, "--fix", tmp_path / "f")


def test_changed_files_are_not_copied(tmp_path, capsys):
    dataset = made(tmp_path / "d")
    stress = np.load(dataset.path / "stress.npy")
    stress[7] += 1
    np.save(dataset.path / "stress.npy", stress)
    assert "stress.npy" in fails(capsys, "data", "check", dataset.path, "--fix", tmp_path / "f")
    assert [path.name for path in tmp_path.iterdir()] == ["d"]


def test_findings_that_cannot_be_fixed_are_an_error(tmp_path, capsys):
    dataset = made(tmp_path / "d", [(3, put("stress", [5, 9], np.nan)), (4, scaled("stress", 0.0))])
    assert main(["data", "check", str(dataset.path), "--fix", str(tmp_path / "f")]) == 2
    printed = capsys.readouterr()
    assert "12 samples; dropped: 2 points, 2 cells\n" in printed.out
    assert f"{dataset.path}: 2 finding(s)" in printed.err
    assert f"{tmp_path / 'f'}: 1 finding(s)" in printed.err
    assert len(Dataset(tmp_path / "f")[3].values["stress"]) == 38


def test_a_dataset_without_a_sound_sample_is_not_copied(tmp_path, capsys):
    dataset = made(tmp_path / "d", [(i, put("stress", slice(None), np.nan)) for i in range(12)])
    assert str(dataset.path) in fails(capsys, "data", "check", dataset.path, "--fix", tmp_path / "f")
    assert [path.name for path in tmp_path.iterdir()] == ["d"]


def test_a_degenerate_cell_of_a_file_is_found(tmp_path):
    mesh = pv.UnstructuredGrid(np.array([4, 0, 1, 2, 3, 4, 0, 1, 2, 2]), [10, 10], np.eye(4, 3))
    mesh.save(tmp_path / "a.vtu")
    assert ("a.vtu", 1, 1) in facts(check_files(tmp_path, quiet=True), serious=False)


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


def test_files_are_checked_for_what_datasets_are(tmp_path):
    rng, last = np.random.default_rng(0), {}
    for i in range(8):
        points = rng.random((2000 if i == 5 else 40, 3))
        values = {"points": points, "heat": points.sum(1) + i, "speed": 1.0 + i, "area": np.full(len(points), 0.5)}
        if i == 1:
            values["heat"] = np.full(40, 7.0)
        if i == 2:
            values["heat"] = values["heat"] * 1000
        if i == 4:
            values = {**last, "points": last["points"] + 1e-9}
        if i == 6:
            values["points"][4, 0] = np.nan
        if i == 7:
            values["speed"] = np.nan
        np.savez(tmp_path / f"{i}.npz", **values)
        last = values
    found = check_files(tmp_path, quiet=True)
    assert all(finding.fix and ".npz" in finding.where for finding in found)
    for file, names, count, first in (
        ("6.npz", "'points'", 1, 4),
        ("7.npz", "'speed'", 1, 0),
        ("1.npz", "'heat' is 7", 40, 0),
        ("0.npz", "'area' is 0.5", 8, 0),
        ("2.npz", "'heat'", 1, 2),
        ("4.npz", "3.npz", 1, 4),
        ("5.npz", "40 to 2,000", 8, 5),
    ):
        hits = [f for f in found if (Path(f.where).name, f.count, f.first) == (file, count, first)]
        assert sum(names in f.what for f in hits) == 1, (file, found)


def test_nan_in_cell_data_is_found(tmp_path):
    mesh = plate(0)
    mesh.cell_data["q"] = np.where(np.arange(mesh.n_cells) == 3, np.nan, 1.0 * np.arange(mesh.n_cells))
    mesh.save(tmp_path / "a.vtu")
    (found,) = [f for f in check_files(tmp_path) if f.serious]
    assert (found.count, found.first) == (1, 3)
    assert "1 of 150 cells" in found.what


def test_all_findings_are_shown_on_request_and_written_as_a_table(tmp_path, capsys):
    dataset = made(tmp_path / "d", [(i, put("stress", 5, np.nan)) for i in range(24)], count=28)
    short = fails(capsys, "data", "check", dataset.path, "--csv", tmp_path / "found.csv")
    assert "sample 23 (part_23.vtu)" not in short
    assert "sample 23 (part_23.vtu)" in fails(capsys, "data", "check", dataset.path, "--all")
    rows = (tmp_path / "found.csv").read_text().splitlines()
    assert rows[0] == "where,what,count,first,fix,serious"
    assert sum("part_" in row for row in rows) == len(rows) - 1 >= 24


def test_numbers_of_nodes_do_not_hide_a_near_copy(tmp_path):
    rng = np.random.default_rng(0)
    for i in range(8):
        points = rng.random((60, 3))
        np.savez(tmp_path / f"{i}.npz", points=points, heat=points.sum(1) + i, node=np.arange(60))
    order = rng.permutation(60)
    with np.load(tmp_path / "3.npz") as file:
        np.savez(tmp_path / "8.npz", points=file["points"][order], heat=file["heat"][order], node=np.arange(60) + 1)
    assert any(f.first == 8 and "3.npz" in f.what for f in check_files(tmp_path))


def test_a_split_that_is_empty_once_fixed_is_an_error(tmp_path, capsys):
    dataset = made(tmp_path / "d", [(8 + i, copy_of(i)) for i in range(4)])
    assert main(["data", "check", str(dataset.path), "--fix", str(tmp_path / "f")]) == 2
    assert re.search(r"split 'test': .* 4 samples", capsys.readouterr().err)
    assert len(Dataset(tmp_path / "f")) == 8


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


def test_a_thin_cell_is_a_cell():
    thin = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1e-5]])
    assert not list(find_broken_cells("a", "tetra", np.array([[0, 1, 2, 3]]), thin))

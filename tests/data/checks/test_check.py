"""The doctor finds what was planted, says where, how much and what to do, and mends only what is safe to mend."""

import numpy as np
import pytest

from flare.cli import main
from flare.data.checks.check import check_dataset, check_files, find_alike
from flare.data.checks.fixes import merged_points, repair
from flare.data.checks.near_duplicates import copies, signature
from flare.data.checks.sample_checks import broken_cells, measure
from flare.data.dataset import Dataset
from flare.data.importing.importer import import_data, plan_import
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
    """The same part, with its points in another order."""

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


def serious(found):
    return [str(finding) for finding in found if finding.serious]


def notes(found):
    return [str(finding) for finding in found if not finding.serious]


def test_a_healthy_dataset_has_no_complaints(tmp_path):
    assert check_dataset(made(tmp_path / "d"), quiet=True) == []


@pytest.mark.parametrize(
    ("index", "change", "wanted", "is_serious", "first"),
    [
        (3, put("stress", [5, 9], np.nan), "'stress' has NaN or infinity at 2 of 40 points (first: 5)", True, 5),
        (4, put("points", 6, np.inf), "'points' has NaN or infinity at 1 of 40 points (first: 6)", True, 6),
        (2, put("stress", slice(None), 0.0), "'stress' is zero at every point", True, 0),
        (2, put("stress", slice(None), 7.5), "'stress' is 7.5 at all 40 points", False, 0),
        (5, put("stress", 11, 1e30), "'stress' leaves its range by far at 1 of 40 points (first: 11,", False, 11),
        (6, twice, "1 of 40 points lie on another one (first: 7)", False, 7),
        (1, bent(4, [3, 3, 5]), "1 of 12 cells have no size (first: 4)", False, 4),
        (0, scaled("points", 1000), "its extent is", False, 0),
        (7, scaled("stress", 1e-3), "'stress' is", False, 7),
        (11, copy_of(2), "it is in 'test' and nearly the same as sample 2 (part_2.vtu) in 'train'", True, 11),
    ],
)  # fmt: skip
def test_each_mistake_is_found_with_file_count_and_first_index(tmp_path, index, change, wanted, is_serious, first):
    found = check_dataset(made(tmp_path / "d", [(index, change)]), quiet=True)
    (hit,) = [finding for finding in found if f"sample {index} (part_{index}.vtu): {wanted}" in str(finding)]
    assert hit.serious == is_serious
    assert hit.first == first
    assert hit.fix


def test_units_are_guessed_from_the_factor(tmp_path):
    text = "\n".join(notes(check_dataset(made(tmp_path / "d", [(0, scaled("points", 1000))]), quiet=True)))
    assert "larger than usual: mm for m" in text


def test_equal_inputs_with_other_answers_ask_for_the_missing_input(tmp_path):
    def other_answer(values, cells):
        values.update({k: v.copy() for k, v in healthy(2).values.items()})
        values["stress"] = 2 * values["stress"]

    text = notes(check_dataset(made(tmp_path / "d", [(5, other_answer)]), quiet=True))
    assert any("its inputs are those of sample 2 (part_2.vtu), its targets are not" in line for line in text)


def test_a_copy_is_found_beside_other_answers_to_the_same_inputs(tmp_path):
    """One geometry under several loads that are no input: samples 0 and 1; the copy of 1 is in the test split."""

    def answers(factor):
        def change(values, cells):
            values.update({k: v.copy() for k, v in healthy(0).values.items()})
            values["stress"] *= factor

        return change

    dataset = made(tmp_path / "d", [(1, answers(2)), (11, answers(2)), (5, answers(3))])
    alike = find_alike(dataset)
    assert alike.leaks == [(1, 11)]
    assert alike.contradictions == [(0, 1), (0, 5)]
    (found,) = serious(check_dataset(dataset, quiet=True))
    assert "sample 11 (part_11.vtu): it is in 'test' and nearly the same as sample 1 (part_1.vtu) in 'train'" in found
    mended, left_out = repair(dataset, tmp_path / "fixed", quiet=True)
    assert left_out["samples"] == 1
    assert {name: len(mended.split(name)) for name in mended.splits} == {"train": 8, "test": 3}
    assert not find_alike(mended).leaks


def test_a_copy_that_no_split_uses_is_no_leak_and_hides_none(tmp_path):
    writer = DatasetWriter(tmp_path / "d", schema(), {"kind": "user"})
    for index in (0, 1, 2, 3, 4, 1, 5, 6, 1):
        writer.append(healthy(index))
    dataset = writer.finish({"train": [(2, 7)], "test": [(7, 9)]})
    assert find_alike(dataset).leaks == [(5, 8)]
    (found,) = serious(check_dataset(dataset, quiet=True))
    assert "in 'test' and nearly the same as sample 5 (part_1.vtu) in 'train'" in found


def test_mixed_sizes_are_worth_knowing(tmp_path):
    writer = DatasetWriter(tmp_path / "d", schema(), {"kind": "user"})
    for index, size in enumerate((40, 40, 2000, 40)):
        rng = np.random.default_rng(index)
        values = {"points": rng.random((size, 2)), "load": rng.random(1), "stress": rng.random((size, 1)) + index}
        writer.append(Sample(values, CELLS))
    found = check_dataset(writer.finish({"train": [(0, 3)], "test": [(3, 4)]}), quiet=True)
    assert any("samples have 40 to 2,000 points" in line for line in notes(found))


def test_what_is_mended_is_sound_and_the_rest_is_untouched(tmp_path):
    changes = [(3, put("stress", [5, 9], np.nan)), (6, twice), (1, bent(4, [3, 3, 5])), (11, copy_of(2))]
    dataset = made(tmp_path / "d", changes)
    before = content(dataset.path)
    mended, left_out = repair(dataset, tmp_path / "fixed", quiet=True)
    assert content(dataset.path) == before
    assert left_out["points"] == 3
    assert left_out["samples"] == 1
    assert check_dataset(mended, quiet=True) == []
    assert {name: len(mended.split(name)) for name in mended.splits} == {"train": 8, "test": 3}
    np.testing.assert_array_equal(mended[0].values["stress"], dataset[0].values["stress"])
    np.testing.assert_array_equal(mended[0].cells, dataset[0].cells)
    keep = np.delete(np.arange(40), [5, 9])
    np.testing.assert_array_equal(mended[3].values["points"], dataset[3].values["points"][keep])
    for i in range(len(mended)):  # cells still join the same places
        whole, part = dataset[i], mended[i]
        corners = {tuple(map(tuple, whole.values["points"][cell])) for cell in whole.cells}
        assert {tuple(map(tuple, part.values["points"][cell])) for cell in part.cells} <= corners


def test_points_that_differ_in_a_field_are_not_merged():
    sample = healthy(0)
    values = {k: v.copy() for k, v in sample.values.items()}
    values["points"][7] = values["points"][2]  # a seam: one place, two values
    assert len(merged_points(schema(), Sample(values, CELLS)).values["points"]) == 40


def test_volumes_and_areas_are_exact():
    cube = np.array([[x, y, z] for z in (0, 1) for y in (0, 1) for x in (0, 1)], dtype=float)[[0, 1, 3, 2, 4, 5, 7, 6]]
    assert measure("hexahedron", np.arange(8)[None], cube)[0] == pytest.approx(1)
    assert measure("tetra", np.array([[0, 1, 3, 4]]), cube)[0] == pytest.approx(1 / 6)
    assert measure("wedge", np.array([[0, 1, 3, 4, 5, 7]]), cube)[0] == pytest.approx(1 / 2)
    assert measure("pyramid", np.array([[0, 1, 2, 3, 4]]), cube)[0] == pytest.approx(1 / 3)
    assert measure("quad", np.array([[0, 1, 2, 3]]), cube)[0] == pytest.approx(1)
    turned = np.array([[1, 0, 3, 4]])
    (finding,) = broken_cells("a", "tetra", np.concatenate([turned, [[0, 1, 3, 4]]]), cube)
    assert finding.what == "1 of 2 cells are inside out (first: 0)"


def test_a_signature_knows_the_cloud_not_its_order():
    rng = np.random.default_rng(0)
    clouds = [rng.random((200, 3)) for _ in range(12)]
    again = clouds[4][rng.permutation(200)]
    near = clouds[7] + 1e-6
    marks = np.array([signature(c, np.zeros(3), np.ones(3)) for c in [*clouds, again, near]])
    assert copies(marks) == [[4, 12], [7, 13]]


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
    text = serious(found)
    assert any("plate_5.vtu: 'pressure' has NaN or infinity at 1 of" in line and "(first: 4)" in line for line in text)
    assert any("plate_6.vtu: 'pressure' is at points in 8 files, at cells in 1 files" in line for line in text)
    text = notes(found)
    assert any("plate_7.vtu: its extent is" in line and "mm for inch" in line for line in text)
    assert any("plate_8.vtu: holds exactly what" in line for line in text)
    assert "2 finding(s)" in fails(capsys, "data", "check", tmp_path)
    assert "import the files first" in fails(capsys, "data", "check", tmp_path, "--fix", tmp_path / "f")


def test_the_command_mends(tmp_path, capsys):
    dataset = made(tmp_path / "d", [(3, put("stress", [5, 9], np.nan))])
    assert "--fix FOLDER writes a dataset without them" in fails(capsys, "data", "check", dataset.path)
    assert main(["data", "check", str(dataset.path), "--fix", str(tmp_path / "f")]) == 0
    assert "12 samples; left out: 2 points" in capsys.readouterr().out
    assert main(["data", "check", str(tmp_path / "f")]) == 0
    assert "are sound" in capsys.readouterr().out
    assert "exists already" in fails(capsys, "data", "check", dataset.path, "--fix", tmp_path / "f")


def test_what_was_left_out_is_counted_in_words(tmp_path, capsys):
    dataset = made(tmp_path / "d", [(3, put("stress", 39, np.nan)), (1, bent(4, [3, 3, 5])), (11, copy_of(2))])
    assert main(["data", "check", str(dataset.path), "--fix", str(tmp_path / "f")]) == 0
    assert "f: 11 samples; left out: 1 point, 1 cell, 1 sample\n" in capsys.readouterr().out


def test_changed_data_is_not_copied_with_fresh_checksums(tmp_path, capsys):
    dataset = made(tmp_path / "d")
    stress = np.load(dataset.path / "stress.npy")
    stress[7] += 1
    np.save(dataset.path / "stress.npy", stress)
    message = fails(capsys, "data", "check", dataset.path, "--fix", tmp_path / "f")
    assert "is not copied, for it is not as it was written" in message
    assert "stress.npy: it has changed since it was written" in message
    assert [path.name for path in tmp_path.iterdir()] == ["d"]


def test_a_mended_dataset_that_is_not_sound_is_no_success(tmp_path, capsys):
    dataset = made(tmp_path / "d", [(3, put("stress", [5, 9], np.nan)), (4, scaled("stress", 0.0))])
    assert main(["data", "check", str(dataset.path), "--fix", str(tmp_path / "f")]) == 2
    said = capsys.readouterr()
    assert "12 samples; left out: 2 points, 2 cells\n" in said.out
    message = said.err
    assert "2 finding(s)" in message  # before
    assert "'stress' has NaN or infinity at 2 of 40 points" in message
    assert f"not all can be mended. {tmp_path / 'f'}: 1 finding(s)" in message  # afterwards
    assert "'stress' is zero at every point" in message
    assert len(Dataset(tmp_path / "f")[3].values["stress"]) == 38  # what can be mended is


def test_a_dataset_with_nothing_sound_in_it_is_not_mended(tmp_path, capsys):
    dataset = made(tmp_path / "d", [(i, put("stress", slice(None), np.nan)) for i in range(12)])
    assert "no sample would be left" in fails(capsys, "data", "check", dataset.path, "--fix", tmp_path / "f")
    assert [path.name for path in tmp_path.iterdir()] == ["d"]


def test_values_are_not_called_sound_beside_a_note_about_them(tmp_path, capsys):
    dataset = made(tmp_path / "d", [(3, put("stress", [5], 1e30))])
    assert main(["data", "check", str(dataset.path)]) == 0
    shown = capsys.readouterr().out
    assert "12 samples, nothing serious; " in shown
    assert "sound" not in shown


def test_a_mesh_with_a_hole_in_its_numbers_is_said(tmp_path):
    mesh = pv.UnstructuredGrid(np.array([4, 0, 1, 2, 3, 4, 0, 1, 2, 2]), [10, 10], np.eye(4, 3))
    mesh.save(tmp_path / "a.vtu")
    assert any("1 of 2 cells have no size (first: 1)" in line for line in notes(check_files(tmp_path, quiet=True)))


def seam(values, cells):
    values["points"][7] = values["points"][2]  # one place, two values


def flat(values, cells):
    values["points"][[0, 1, 2]] = [[0, 0], [1, 1], [2, 2]]


def test_a_fix_is_promised_only_where_it_fixes(tmp_path):
    dataset = made(tmp_path / "d", [(3, seam), (4, flat), (6, twice), (1, bent(4, [3, 3, 5]))])
    found = check_dataset(dataset, quiet=True)
    promised = {f.where for f in found if "--fix" in f.fix}
    assert promised == {f"sample {i} (part_{i}.vtu)" for i in (4, 6, 1)}
    mended, left_out = repair(dataset, tmp_path / "f", quiet=True)
    assert left_out["cells"] >= 2
    (left,) = check_dataset(mended, quiet=True)
    assert "1 of 40 points lie on another one that has other values (first: 7). Merge them in the mesh" in str(left)


def test_every_pass_counts_every_sample_once(tmp_path, capsys):
    check_dataset(made(tmp_path / "d"))
    lines = [line for line in capsys.readouterr().err.splitlines() if " samples" in line]
    assert [line.split("  ")[0] for line in lines] == [
        f"checking {tmp_path / 'd'}: 12/12 samples",
        "looking for near copies: 12/12 samples",
    ]


def test_notes_are_sentences(tmp_path):
    folder_of_plates(tmp_path, 5)
    poor, large = plate(5), plate(6)
    poor.point_data.remove("Wall Shear")
    large.points *= 1000
    poor.save(tmp_path / "plate_5.vtu")
    large.save(tmp_path / "plate_6.vtu")
    text = notes(check_files(tmp_path, quiet=True))
    assert any("has no 'Wall Shear'; 6 files have it. Harmless, unless" in line for line in text)
    assert any("or kPa for Pa? Convert it" in line for line in text)
    (tmp_path / "plate_7.vtu").write_bytes((tmp_path / "plate_0.vtu").read_bytes())
    remarks = plan_import(tmp_path, targets="pressure", quiet=True).remarks
    assert "1 file holds exactly what another holds; copies stay in one split" in remarks


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
    text = [str(finding).removeprefix(f"{tmp_path}/") for finding in found]
    for wanted in (
        "6.npz: 'points' has NaN or infinity at 1 of 40 points (first: 4)",
        "7.npz: the parameter 'speed' is no number",
        "1.npz: 'heat' is 7 at all 40 points",
        "0.npz: 'area' is 0.5 at all points, as in all 8 files",
        "2.npz: 'heat' is",
        f"4.npz: is nearly the same as {tmp_path}/3.npz",
        "5.npz: samples have 40 to 2,000 points",
    ):
        assert sum(line.startswith(wanted) for line in text) == 1, (wanted, text)


def test_cell_data_is_said_to_be_at_cells(tmp_path):
    mesh = plate(0)
    mesh.cell_data["q"] = np.where(np.arange(mesh.n_cells) == 3, np.nan, 1.0 * np.arange(mesh.n_cells))
    mesh.save(tmp_path / "a.vtu")
    assert any("'q' has NaN or infinity at 1 of 150 cells (first: 3)" in s for s in serious(check_files(tmp_path)))


def test_every_finding_can_be_had(tmp_path, capsys):
    dataset = made(tmp_path / "d", [(i, put("stress", 5, np.nan)) for i in range(24)], count=28)
    short = fails(capsys, "data", "check", dataset.path, "--csv", tmp_path / "found.csv")
    assert "... and 4 more; --all shows them" in short
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
    assert any("8.npz: is nearly the same as" in line and "3.npz" in line for line in notes(check_files(tmp_path)))


def test_a_split_that_is_empty_once_mended_is_serious(tmp_path, capsys):
    dataset = made(tmp_path / "d", [(8 + i, copy_of(i)) for i in range(4)])
    assert main(["data", "check", str(dataset.path), "--fix", str(tmp_path / "f")]) == 2
    assert "split 'test': nothing is left of its 4 samples" in capsys.readouterr().err
    assert len(Dataset(tmp_path / "f")) == 8


def test_what_does_not_exist_is_not_told_to_be_imported(tmp_path, capsys):
    assert "nowhere does not exist" in fails(capsys, "data", "check", tmp_path / "nowhere", "--fix", tmp_path / "f")


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
        assert sum("9 of 18 cells have no size (first: 9)" in line for line in notes(found)) == 4


def test_a_thin_cell_is_a_cell():
    thin = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1e-5]])
    assert not list(broken_cells("a", "tetra", np.array([[0, 1, 2, 3]]), thin))

"""Files become a dataset: every decision is noted, and inconsistent files are rejected."""

import json

import numpy as np
import pytest

import flare.data.importing.importer as importing
from flare.cli import main
from flare.data.dataset import Dataset
from flare.data.importing.importer import import_data, plan_import
from flare.data.splits import joined, split_cases
from flare.utils.errors import ConfigError, DataError
from tests.factory import content
from tests.meshes import folder_of_plates, plate, pv


@pytest.fixture(scope="module")
def plates(tmp_path_factory):
    return folder_of_plates(tmp_path_factory.mktemp("files") / "plates", 12)


def test_a_sample_has_the_numbers_of_its_file(plates, tmp_path):
    dataset = import_data(
        plates,
        tmp_path / "d",
        targets=["pressure", "Wall Shear"],
        inputs=["speed"],
        units={"pressure": "Pa", "points": "m"},
        quiet=True,
    )
    assert len(dataset) == 12
    fields = dataset.schema.fields
    assert {n: (f.role, f.unit) for n, f in fields.items()} == {
        "points": ("points", "m"),
        "speed": ("parameter", "1"),
        "pressure": ("target", "Pa"),
        "Wall_Shear": ("target", "1"),
    }
    assert fields["Wall_Shear"].components == ("x", "y", "z")
    for index, note in enumerate(dataset.notes()):
        mesh, sample = pv.read(note["file"]), dataset[index]
        np.testing.assert_array_equal(sample.values["points"], mesh.points.astype(np.float32))
        np.testing.assert_array_equal(sample.values["pressure"][:, 0], mesh.point_data["pressure"])
        np.testing.assert_array_equal(sample.values["speed"], np.float32(mesh.field_data["speed"]))
        # Quadrilaterals are two triangles each: as many corners in all, the same area.
        area = mesh.triangulate().compute_cell_sizes(volume=False)["Area"].sum()
        a, b, c = np.moveaxis(sample.values["points"][sample.cells], 1, 0)
        assert 0.5 * np.linalg.norm(np.cross(b - a, c - a), axis=1).sum() == pytest.approx(area, rel=1e-3)


def test_a_field_named_points_is_renamed_and_found_again(tmp_path):
    for index in range(12):
        mesh = plate(index)
        mesh.point_data["points"] = 2.0 * mesh.points
        mesh.save(tmp_path / f"{index}.vtu")
    how = {"targets": "pressure", "inputs": ["points"], "units": {"points": "m"}, "quiet": True}
    assert any("'f_points'" in note for note in plan_import(tmp_path, **how).notes)
    dataset = import_data(tmp_path, tmp_path / "d", **how)
    assert dataset.schema.fields["points"].unit == "m"
    assert dataset.schema.named("feature") == ["f_points"]
    values = dataset[0].values
    np.testing.assert_array_equal(values["f_points"], 2 * values["points"])


def test_splits_depend_on_the_seed_alone_and_never_overlap(plates, tmp_path):
    one, two = (plan_import(plates, targets="pressure", seed=3, quiet=True) for _ in range(2))
    assert one.places == two.places
    assert one.places != plan_import(plates, targets="pressure", seed=4, quiet=True).places
    assert sorted(one.places) == sorted({*one.places})
    assert {name: stop - start for name, (start, stop) in one.splits.items()} == {
        "train": 8,
        "calibration": 2,
        "test": 2,
    }


def test_cell_data_stays_at_centers_or_is_averaged_with_a_note(plates, tmp_path):
    centres = import_data(plates, tmp_path / "c", targets="region", quiet=True)
    mesh = pv.read(centres.notes()[0]["file"])
    assert centres.schema.points == "cell_centres"
    np.testing.assert_allclose(centres[0].values["cell_centres"], mesh.cell_centers().points, atol=1e-6)
    np.testing.assert_array_equal(centres[0].values["region"][:, 0], mesh.cell_data["region"])
    plan = plan_import(plates, targets="region", cell_data="points", quiet=True)
    assert "'region' is cell data: averaged to the points" in plan.notes
    averaged = import_data(plates, tmp_path / "p", targets="region", cell_data="points", quiet=True)
    mean = mesh.cell_data_to_point_data().point_data["region"]  # VTK's own average
    np.testing.assert_allclose(averaged[0].values["region"][:, 0], mean, rtol=1e-6)


def test_points_and_cells_are_never_mixed_silently(plates):
    with pytest.raises(ConfigError, match="cell_data="):
        plan_import(plates, targets="pressure", inputs="region", quiet=True)
    plan = plan_import(plates, targets="pressure", inputs="region", cell_data="centres", quiet=True)
    assert "'pressure' is point data: averaged to the cells" in plan.notes


def test_a_field_at_points_here_and_at_cells_there_is_refused(tmp_path):
    folder_of_plates(tmp_path, 4)
    odd = plate(9)
    odd.cell_data["pressure"] = np.zeros(odd.n_cells)
    odd.point_data.remove("pressure")
    odd.save(tmp_path / "plate_9.vtu")
    with pytest.raises(DataError, match=r"'pressure' .*points in 4 of 5 files.*plate_9"):
        plan_import(tmp_path, targets="pressure", quiet=True)


def test_a_field_at_points_and_at_cells_can_be_taken_from_either(tmp_path):
    for i in range(6):
        mesh = plate(i)
        mesh.cell_data["pressure"] = np.full(mesh.n_cells, -1.0)
        mesh.save(tmp_path / f"p{i}.vtu")
    plan = plan_import(tmp_path, targets="pressure", quiet=True)
    assert any("'pressure' is at points and at cells" in note for note in plan.notes)
    assert plan.sample(plan.places[0]).values["pressure"].min() > 0
    other = plan_import(tmp_path, targets="pressure", cell_data="centres", quiet=True)
    assert (other.sample(other.places[0]).values["pressure"] == -1).all()


def test_groups_that_share_a_copy_by_way_of_others_are_one():
    groups = joined(["A", "B", "C", "C", "D", "E"], ["d1", "d2", "d1", "d2", "d1", "d3"])
    assert groups == ["A", "A", "A", "A", "A", "E"]
    assert joined(["x", "y", "x"], ["1", "2", "3"]) == ["x", "y", "x"]


def test_files_of_two_and_of_three_coordinates_are_no_dataset(tmp_path):
    rng = np.random.default_rng(0)
    for i in range(4):
        np.savez(tmp_path / f"{i}.npz", points=rng.random((20, 2 if i == 1 else 3)), heat=rng.random(20))
    with pytest.raises(DataError, match=r"1\.npz has 2 .*0\.npz has 3"):
        plan_import(tmp_path, targets="heat", quiet=True)


def test_rows_of_the_table_are_matched_by_folder_and_never_shared_by_two_files(tmp_path):
    for folder in "ab":
        folder_of_plates(tmp_path / folder, 3)
    table, how = tmp_path / "runs.csv", {"targets": "pressure", "parameters": tmp_path / "runs.csv", "quiet": True}
    source = [tmp_path / "a", tmp_path / "b"]
    table.write_text("file,angle\n" + "\n".join(f"{f}/plate_{i},{10 * i + (f == 'b')}" for f in "ab" for i in range(3)))
    plan = plan_import(source, test=0.2, calibration=0, **how)
    for place in plan.places:
        wanted = 10 * int(place.path.stem[-1]) + (place.path.parent.name == "b")
        assert plan.table.values(place) == {"angle": [wanted]}
    table.write_text("file,angle\n" + "\n".join(f"plate_{i}.vtu,{i}" for i in range(3)))
    with pytest.raises(DataError, match=r"'plate_0.vtu' .*a/plate_0.vtu and .*b/plate_0.vtu"):
        plan_import(source, **how)
    table.write_text("file,angle\nplate_0.vtu,1\nplate_1.vtu,2\nplate_2.vtu,3\nplate_0.vtu,4")
    with pytest.raises(DataError, match=r"row 5 .*'plate_0.vtu'"):
        plan_import(tmp_path / "a", **how)


def test_arrays_as_long_as_the_cells_are_cell_data(tmp_path):
    rng = np.random.default_rng(0)
    for i in range(4):
        cells = np.stack([rng.permutation(20)[:3] for _ in range(33)])
        np.savez(
            tmp_path / f"{i}.npz",
            points=rng.random((20, 3)),
            triangles=cells,
            stress=rng.random(33),
            odd=rng.random(27),
        )
    plan = plan_import(tmp_path, targets="stress", quiet=True)
    assert any("'odd' of shape (27,)" in r and "20 points" in r and "33 cells" in r for r in plan.notes)
    values = plan.sample(plan.places[0]).values
    with np.load(plan.places[0].path) as arrays:
        np.testing.assert_array_equal(values["stress"][:, 0], arrays["stress"])
        centres = arrays["points"][arrays["triangles"]].mean(1)
    np.testing.assert_allclose(values["cell_centres"], centres)
    assert plan.schema.mesh_dimension == 2


def test_plane_meshes_have_two_coordinates(tmp_path):
    for i in range(4):
        mesh = plate(i)
        mesh.points[:, 2] = 0.5
        mesh.save(tmp_path / f"{i}.vtu")
    plan = plan_import(tmp_path, targets="pressure", quiet=True)
    assert plan.schema.fields["points"].components == ("x", "y")
    assert any("x and y" in note for note in plan.notes)


def test_parameters_and_groups_come_from_a_table(plates, tmp_path):
    rows = [f"plate_{i}.vtu,{10 * i},{'abcd'[i % 4]}" for i in range(12)]
    (tmp_path / "runs.csv").write_text("\n".join(["file,angle [deg],design", *rows]))
    how = {"targets": "pressure", "parameters": tmp_path / "runs.csv", "group": "design", "quiet": True}
    dataset = import_data(plates, tmp_path / "d", test=0.25, calibration=0.0, **how)
    assert dataset.schema.fields["angle"].unit == "deg"
    files = [note["file"].split("_")[-1].split(".")[0] for note in dataset.notes()]
    assert [float(dataset[i].values["angle"][0]) for i in range(12)] == [10.0 * int(f) for f in files]
    designs = {split: {int(files[i]) % 4 for i in dataset.split(split)} for split in dataset.splits}
    assert len(designs["test"]) == 1
    assert not designs["test"] & designs["train"]
    (tmp_path / "runs.csv").write_text("\n".join(["file;angle;design", *rows]).replace(",", ";"))
    with pytest.raises(DataError, match=r"runs\.csv is separated by semicolons"):
        plan_import(plates, **how)
    (tmp_path / "runs.csv").write_text("\n".join(["file,angle,design", *rows[1:]]))
    with pytest.raises(DataError, match=r"has no row for plate_0\.vtu"):
        plan_import(plates, **how)
    (tmp_path / "runs.csv").write_text("\n".join(["file,angle,design", *rows[:-1], "plate_11.vtu,steep,a"]))
    with pytest.raises(DataError, match=r"'angle' of plate_11\.vtu is 'steep'"):
        plan_import(plates, **how)


def test_files_can_be_excluded_even_unreadable_ones(tmp_path, capsys):
    folder_of_plates(tmp_path / "f", 12)
    (tmp_path / "f" / "junk.vtu").write_text("no mesh at all")
    with pytest.raises(DataError, match=r"junk\.vtu.*exclude=\"junk\.vtu"):
        plan_import(tmp_path / "f", targets="pressure", quiet=True)
    words = ["data", "import", str(tmp_path / "f"), "--target", "pressure", "--out", str(tmp_path / "d")]
    assert main([*words, "--exclude", "junk.vtu", "plate_3", "--exclude", "plate_1*"]) == 0
    kept = {f"plate_{i}.vtu" for i in range(12)} - {"plate_3.vtu", "plate_1.vtu", "plate_10.vtu", "plate_11.vtu"}
    assert {*Dataset(tmp_path / "d").files()} == kept
    with pytest.raises(DataError, match=r"exclude: .*'wing'"):
        plan_import(tmp_path / "f", targets="pressure", exclude=["junk", "wing"], quiet=True)
    with pytest.raises(DataError, match=r"exclude: \*"):
        plan_import(tmp_path / "f", targets="pressure", exclude="*", quiet=True)


def test_copies_of_a_file_stay_in_one_split(tmp_path):
    clouds(tmp_path, 6)
    for i in range(6):
        (tmp_path / f"copy_{i}.npz").write_bytes((tmp_path / f"{i}.npz").read_bytes())
    plan = plan_import(tmp_path, targets="heat", quiet=True)
    assert any("6 files" in note for note in plan.notes)
    of = {name: {p.path.stem[-1] for p in plan.places[a:b]} for name, (a, b) in plan.splits.items()}
    assert not of["train"] & (of["test"] | of["calibration"])


def test_test_cases_can_be_named(plates, tmp_path):
    plan = plan_import(plates, targets="pressure", test="plate_1*", quiet=True)
    start, stop = plan.splits["test"]
    assert [p.path.stem for p in plan.places[start:stop]] == ["plate_1", "plate_10", "plate_11"]
    (tmp_path / "held.txt").write_text("plate_3\nplate_4.vtu\n")
    plan = plan_import(plates, targets="pressure", test=str(tmp_path / "held.txt"), quiet=True)
    assert [p.path.stem for p in plan.places[-2:]] == ["plate_3", "plate_4"]
    with pytest.raises(DataError, match="'wing"):
        plan_import(plates, targets="pressure", test="wing*", quiet=True)


def test_named_test_cases_must_not_divide_a_group():
    names, groups = [f"plate_{i}.vtu" for i in range(12)], [f"wing {i // 4}" for i in range(12)]
    with pytest.raises(ConfigError, match=r"'wing 0': plate_0\.vtu .*5 cases"):
        split_cases(names, groups, test="plate_1*")
    assert split_cases(names, groups, test="plate_[4567]*")["test"] == [4, 5, 6, 7]


def test_shares_are_met_as_closely_as_groups_allow():
    groups = [str(i // 5) for i in range(100)]
    parts = split_cases([str(i) for i in range(100)], groups, test=0.2, calibration=0.1, seed=1)
    assert {name: len(part) for name, part in parts.items()} == {"train": 70, "calibration": 10, "test": 20}


def test_error_bars_get_enough_samples_or_a_note(plates):
    names, groups = [str(i) for i in range(60)], [str(i // 4) for i in range(60)]
    sizes = {n: len(p) for n, p in split_cases(names, groups, test=0.2, calibration=0.15).items()}
    assert sizes == {"train": 36, "calibration": 12, "test": 12}  # 8 would be nearer to the share
    assert "calibration" not in split_cases(names, groups)  # nobody asked for it
    few = split_cases(names[:20], groups[:20], test=0.2, calibration=0.15)
    assert len(few["calibration"]) == 4  # half of 20 shall train
    for files, share, held in ((60, 0.15, 9), (94, 0.15, 14), (95, 0.15, 19), (140, 0.15, 21), (140, 0.07, 10)):
        alone = [str(i) for i in range(files)]
        parts = split_cases(alone, alone, test=0.2, calibration=share)
        assert len(parts["calibration"]) == held  # 19 where the share is near that
    plan = plan_import(plates, targets="pressure", quiet=True)
    assert any("2 samples" in remark and "need 9" in remark for remark in plan.notes)


def test_nan_is_refused_with_its_place_or_dropped(tmp_path):
    folder_of_plates(tmp_path / "f", 4)
    mesh = plate(1)
    mesh.point_data["pressure"][[5, 7]] = np.nan
    mesh.save(tmp_path / "f" / "plate_1.vtu")
    with pytest.raises(DataError, match=r"plate_1\.vtu: 'pressure'.* 2 of \d+ points \(first: 5\)"):
        import_data(tmp_path / "f", tmp_path / "d", targets="pressure", quiet=True)
    assert [p.name for p in tmp_path.iterdir()] == ["f"]  # so that the same command with the remedy goes through
    dropped = import_data(tmp_path / "f", tmp_path / "d", targets="pressure", on_nan="drop", quiet=True)
    assert dropped.notes()[[*dropped.files()].index("plate_1.vtu")]["left_out"]["points"] == 2
    index = [note["file"][-5] for note in dropped.notes()].index("1")
    sample = dropped[index]
    assert len(sample.values["points"]) == mesh.n_points - 2
    kept = np.delete(mesh.points, [5, 7], axis=0).astype(np.float32)
    np.testing.assert_array_equal(sample.values["points"], kept)
    around = {tuple(sorted(c)) for c in dropped_cells(mesh)}
    assert {tuple(sorted(c)) for c in sample.cells.tolist()} == around


def test_a_point_with_nan_coordinates_is_refused_before_anything_is_written(tmp_path):
    folder_of_plates(tmp_path / "f", 6)
    for index in range(6):
        mesh = plate(index)
        mesh.point_data["unused"] = np.full(mesh.n_points, np.nan)  # of a field that nobody asks for
        mesh.points[3, 0] = np.nan if index == 4 else 0.0
        mesh.save(tmp_path / "f" / f"plate_{index}.vtu")
    with pytest.raises(DataError, match=r"plate_4\.vtu: 'points.x'.*\(first: 3\)"):
        import_data(tmp_path / "f", tmp_path / "d", targets="pressure", quiet=True)
    words = ["data", "import", str(tmp_path / "f"), "--target", "pressure", "--dry-run"]
    assert main(words) == 2  # what the import would refuse
    assert main([*words, "--on-nan", "drop"]) == 0
    assert [p.name for p in tmp_path.iterdir()] == ["f"]
    assert len(import_data(tmp_path / "f", tmp_path / "d", targets="pressure", on_nan="drop", quiet=True)) == 6


def dropped_cells(mesh):
    """Triangles of the mesh without points 5 and 7, by their new numbers."""
    number = np.cumsum(~np.isin(np.arange(mesh.n_points), [5, 7])) - 1
    by_kind = mesh.cells_dict
    quads = by_kind[np.uint8(9)]
    triangles = np.concatenate([by_kind[np.uint8(5)], quads[:, [0, 1, 2]], quads[:, [0, 2, 3]]])
    return number[triangles[~np.isin(triangles, [5, 7]).any(1)]].tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"targets": "presure"}, "'presure'.*'pressure'"),
        ({"targets": []}, "targets="),
        ({"targets": "speed"}, "'speed'"),
        ({"targets": "pressure", "units": {"presure": "Pa"}}, "'presure'"),
        ({"targets": "pressure", "inputs": "pressure"}, "'pressure'"),
        ({"targets": "pressure", "group": "design"}, "parameters="),
        ({"targets": "pressure", "test": 0.9, "calibration": 0.3}, "together below 1"),
        ({"targets": "pressure", "parameters": "none.csv"}, r"none\.csv"),
        ({"targets": "pressure", "dimensions": 2}, "plate_0"),
    ],
)
def test_inconsistent_arguments_are_rejected(plates, options, message):
    with pytest.raises((ConfigError, DataError), match=message):
        plan_import(plates, quiet=True, **options)


def clouds(folder, count=8, moved=(0.0, 0.0), scale=1.0, **more):
    """Small files of points with a field, a speed that varies and whatever else."""
    folder.mkdir(exist_ok=True)
    for i in range(count):
        points = np.random.default_rng(i).random((30, 2)) * scale
        np.savez(folder / f"{i}.npz", points=points + moved, **{"heat": points.sum(1) + i, "speed": 1.0 + i, **more})
    return folder


ROWS = "\n".join(f"{i}.npz,{i}" for i in range(8))


@pytest.mark.parametrize("on_nan", ["refuse", "drop"])
def test_a_nan_parameter_is_refused_before_anything_is_written(tmp_path, on_nan):
    clouds(tmp_path / "f", speed=np.nan)
    how = {"targets": "heat", "on_nan": on_nan, "quiet": True}
    with pytest.raises(DataError, match=r"npz: .*'speed'.*exclude="):
        import_data(tmp_path / "f", tmp_path / "d", inputs="speed", **how)
    assert [path.name for path in tmp_path.iterdir()] == ["f"]
    assert len(import_data(tmp_path / "f", tmp_path / "d", **how)) == 8  # it is not asked for


@pytest.fixture
def stopped(tmp_path, monkeypatch):
    """An import of three files out of eight."""
    clouds(tmp_path / "f")
    (tmp_path / "runs.csv").write_text("file,load\n" + ROWS)
    (tmp_path / "held.txt").write_text("1.npz\n2.npz")
    how = {"targets": "heat", "parameters": tmp_path / "runs.csv", "test": str(tmp_path / "held.txt"), "quiet": True}
    read, seen = importing.ImportPlan.sample, []

    def stops(self, place):
        seen.append(place)
        if len(seen) == 4:
            raise KeyboardInterrupt
        return read(self, place)

    with monkeypatch.context() as patch:
        patch.setattr(importing.ImportPlan, "sample", stops)
        with pytest.raises(KeyboardInterrupt):
            import_data(tmp_path / "f", tmp_path / "d", **how)
    return tmp_path, how


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: clouds(folder / "f", scale=2.0), r"contents\.\S*0\.npz was"),
        (lambda folder: (folder / "runs.csv").write_text("file,load\n" + ROWS + "1"), r"choices\.parameters\.sha256"),
        (lambda folder: {"seed": 3}, "choices.seed was 0, is now 3"),
        (lambda folder: {"test": 0.25}, "choices.test"),
    ],
)
def test_a_stopped_import_does_not_resume_with_other_files_or_choices(stopped, change, message):
    folder, how = stopped
    other = change(folder)
    with pytest.raises(DataError, match=message):
        import_data(folder / "f", folder / "d", **how | (other if isinstance(other, dict) else {}))
    assert (folder / "d.partial" / "samples.jsonl").read_bytes().count(b"\n") == 3


def test_a_resumed_import_has_the_same_bytes_and_full_provenance(stopped):
    folder, how = stopped
    import_data(folder / "f", folder / "d", **how)
    import_data(folder / "f", folder / "whole", **how)
    assert content(folder / "d") == content(folder / "whole")
    provenance = json.loads((folder / "d" / "dataset.json").read_text())["provenance"]
    assert provenance["versions"].keys() == {"flare", "numpy"}
    assert provenance["choices"]["targets"] == ["heat"]
    assert provenance["choices"]["test"]["name"] == "held.txt"
    assert len(provenance["choices"]["parameters"]["sha256"]) == 64
    assert provenance["contents"].keys() == {*provenance["files"]}
    assert str(folder / "runs.csv") not in json.dumps(provenance)


def test_points_that_collapse_in_single_precision_are_refused(tmp_path):
    clouds(tmp_path, moved=(5e6, 0.0), scale=0.01)
    with pytest.raises(DataError, match=r"0\.npz"):
        plan_import(tmp_path, targets="heat", quiet=True)
    clouds(tmp_path, moved=(5e3, 0.0))
    assert len(plan_import(tmp_path, targets="heat", quiet=True).places) == 8


def test_rows_without_a_file_and_parameters_that_are_not_used_are_noted(tmp_path):
    folder = clouds(tmp_path / "f", power=[0.0, 5.0])
    table = tmp_path / "runs.csv"
    table.write_text("\n".join(["file,angle", *(f"{i}.npz,{i}" for i in range(8)), "98.npz,1", "99.npz,1"]))
    how = {"targets": "heat", "parameters": table, "quiet": True}
    notes = plan_import(folder, inputs=["speed", "power"], **how).notes
    assert any("2 rows" in note and "'98.npz'" in note for note in notes)
    assert not any("'speed'" in note for note in notes)
    assert any("'speed'" in note and "'power'" not in note for note in plan_import(folder, **how).notes)


def test_a_copy_of_a_named_test_file_that_is_not_named_is_refused(tmp_path):
    folder = clouds(tmp_path)
    (folder / "twin.npz").write_bytes((folder / "0.npz").read_bytes())
    with pytest.raises(ConfigError, match=r"twin\.npz.*exclude"):
        plan_import(folder, targets="heat", test="0.npz", quiet=True)

"""What an import says of files that are sound but not as somebody may think."""

import json
import re

import numpy as np
import pytest

from flare.cli import main
from flare.data.importing.importer import import_data, plan_import
from flare.utils.errors import ConfigError, DataError
from tests.cli.test_bad_input import fails
from tests.meshes import folder_of_plates, plate


def clouds(folder, count=12, **more):
    """Small files of points with a field, a speed that varies and whatever else."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(3)
    for i in range(count):
        points = rng.random((30, 2))
        np.savez(folder / f"part_{i}.npz", points=points, heat=points.sum(1) + i, speed=1.0 + i, **more)
    return folder


def constant(plan, name):
    return any(f"'{name}' is" in note and "in all 12 files" in note for note in plan.notes)


def test_dropped_points_are_noted_and_recorded(tmp_path, capsys):
    folder_of_plates(tmp_path / "f", 6)
    for index, bad in ((1, [5, 7]), (4, [60])):
        mesh = plate(index)
        mesh.point_data["pressure"][bad] = np.nan
        mesh.point_data["Wall Shear"][0] = np.nan  # of a field that is not asked for
        mesh.save(tmp_path / "f" / f"plate_{index}.vtu")
    words = ["data", "import", str(tmp_path / "f"), "--target", "pressure", "--on-nan", "drop"]
    assert main([*words, "--out", str(tmp_path / "d")]) == 0
    said = capsys.readouterr().err
    dropped = json.loads((tmp_path / "d" / "dataset.json").read_text())["provenance"]["dropped"]
    one, four = (dropped[str(tmp_path / "f" / f"plate_{i}.vtu")] for i in (1, 4))
    assert (one["points"], four["points"], len(dropped)) == (2, 1, 2)
    cells = one["cells"] + four["cells"]
    assert cells > 4
    assert f"note: 3 points and {cells} cells of 2 files" in said
    assert "plate_1.vtu 2 points" in said
    assert main([*words, "--dry-run"]) == 0
    assert "3 points and" in capsys.readouterr().err


def test_rows_without_a_file_and_inputs_that_never_vary_are_noted(tmp_path):
    folder = clouds(tmp_path / "f", power=5.0, area=np.full(30, 0.5))
    rows = [f"part_{i}.npz,{i},2" for i in range(12)]
    table = tmp_path / "runs.csv"
    table.write_text("\n".join(["file,angle,load", *rows, "part_98.npz,1,3", "part_99.npz,1,4"]))
    plan = plan_import(folder, targets="heat", inputs=["speed", "power", "area"], parameters=table, quiet=True)
    assert any("2 rows" in note and "'part_98.npz'" in note for note in plan.notes)
    assert [name for name in ("speed", "power", "area", "load", "angle") if constant(plan, name)] == [
        "power",
        "area",
        "load",
    ]


def test_varying_parameters_that_are_not_inputs_are_noted(tmp_path, capsys):
    folder = clouds(tmp_path / "f", power=5.0)
    words = ["data", "import", str(folder)]
    for more in (["--dry-run"], ["--dry-run", "--target", "heat"], ["--target", "heat", "--out", str(tmp_path / "d")]):
        assert main([*words, *more]) == 0
        assert re.search("note: .*--input.*'speed'", capsys.readouterr().err)
        if "--dry-run" in more:
            assert main([*words, *more, "--input", "speed"]) == 0
            assert "--input" not in capsys.readouterr().err
    for i in range(12):
        mesh = plate(i)
        mesh.field_data["flow angle"] = np.array([float(i)])
        mesh.save(tmp_path / f"plate_{i}.vtu")
    plates = str(tmp_path / "*.vtu")
    several = plan_import(plates, targets="pressure", quiet=True).notes
    assert any("'speed', 'flow angle'" in note for note in several)
    used = plan_import(plates, targets="pressure", inputs=["flow_angle", "speed"], quiet=True).notes
    assert not any("'speed'" in note for note in used)


def test_a_constant_vector_parameter_is_noted(tmp_path):
    for i in range(12):
        mesh = plate(i)
        mesh.field_data["gravity"] = np.array([[0.0, 0.0, -9.81]])
        mesh.save(tmp_path / f"plate_{i}.vtu")
    plan = plan_import(tmp_path, targets="pressure", inputs=["gravity", "speed"], quiet=True)
    assert constant(plan, "gravity")
    assert not constant(plan, "speed")


def test_a_named_test_file_whose_copy_is_not_named_is_told_by_both_names(tmp_path):
    folder = clouds(tmp_path / "f")
    (folder / "part_0.npz").with_name("twin.npz").write_bytes((folder / "part_0.npz").read_bytes())
    with pytest.raises(ConfigError, match=r"part_0\.npz .*twin\.npz.*exclude"):
        plan_import(folder, targets="heat", test="part_0", quiet=True)


@pytest.mark.parametrize(("sign", "name"), [(";", "semicolons"), ("\t", "tabs")])
def test_another_separator_is_named_with_the_whole_first_line(sign, name, tmp_path):
    folder = clouds(tmp_path / "f")
    table = tmp_path / "runs.csv"
    table.write_text(f"file{sign}angle [deg]\n" + "\n".join(f"part_{i}.npz{sign}1,5" for i in range(12)))
    with pytest.raises(DataError, match=name) as told:
        plan_import(folder, targets="heat", parameters=table, quiet=True)
    assert repr(f"file{sign}angle [deg]") in str(told.value)
    points = tmp_path / "points.csv"
    points.write_text(f"x{sign}y{sign}p [Pa]\n0{sign}0{sign}1,5\n")
    with pytest.raises(DataError, match=name) as told:
        plan_import(points, targets="p", quiet=True)
    assert repr(f"x{sign}y{sign}p [Pa]") in str(told.value)


def test_an_interrupt_after_writing_reports_that_the_dataset_is_complete(tmp_path, monkeypatch, capsys):
    import flare.data.importing.importer as importing

    def stops(samples):
        raise KeyboardInterrupt

    folder = clouds(tmp_path / "f")
    monkeypatch.setattr(importing, "find_near_duplicates", stops)
    with pytest.raises(KeyboardInterrupt):
        import_data(folder, tmp_path / "d", targets="heat", quiet=True)
    said = capsys.readouterr().err
    assert f"{tmp_path / 'd'} is complete" in said
    assert f"flare data check {tmp_path / 'd'}" in said


def test_dimensions_are_explained_without_the_names_of_functions(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["data", "import", "--help"])
    said = capsys.readouterr().out
    assert "--dimensions {1,2,3}" in said
    assert "lambda" not in said
    message = fails(capsys, "data", "import", clouds(tmp_path / "f"), "--dry-run", "--dimensions", 4)
    assert "Expected one of [1, 2, 3]" in message
    words = ["data", "import", str(tmp_path / "f"), "--dry-run", "--target", "heat", "--dimensions", "2"]
    assert main(words) == 0

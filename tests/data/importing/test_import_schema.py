"""Which field is meant, in which unit, along which axes: an import takes what was asked for, or refuses it."""

import re

import numpy as np
import pytest

from flare.data.importing.cases import find_cases, read_case
from flare.data.importing.fields import extract_fields
from flare.data.importing.importer import plan_import
from flare.data.sample import Field, Schema
from flare.utils.errors import ConfigError, DataError
from tests.cli.test_bad_input import fails
from tests.meshes import pv


def arrays(folder, count=4, **more):
    """Files of points and fields; a field is a function of the points and the number of the file."""
    folder.mkdir(exist_ok=True)
    for i in range(count):
        points = np.random.default_rng(i).random((30, 2))
        np.savez(folder / f"{i}.npz", points=points, **{name: value(points, i) for name, value in more.items()})
    return folder


def table(path, titles):
    rows = np.random.default_rng(int(path.stem)).random((20, len(titles.split(","))))
    path.write_text(titles + "\n" + "\n".join(",".join(map(str, row)) for row in rows))


@pytest.mark.parametrize("names", [("Static Pressure (Pa)", "Static-Pressure_Pa"), ("T", "T*"), ("p+", "p-")])
@pytest.mark.parametrize("asked", [0, 1])
def test_names_that_a_dataset_would_spell_alike_are_refused(tmp_path, names, asked):
    fields = {name: lambda points, i, k=k: points.sum(1) + 100 * k for k, name in enumerate(names)}
    arrays(tmp_path, **fields, other=lambda points, i: points[:, 0])
    with pytest.raises(DataError, match=r" and ") as refused:
        plan_import(tmp_path, targets=names[asked], quiet=True)
    assert all(repr(name) in str(refused.value) for name in names)
    assert plan_import(tmp_path, targets="other", quiet=True).schema.named("target") == ["other"]  # not concerned


def test_a_field_of_a_schema_is_found_by_exact_or_unique_spelling(tmp_path):
    points, count = Field(role="points", components=("x", "y")), np.ones(30)
    schema = Schema(name="s", fields={"points": points, "T": Field(role="target", components=("T",))})

    def read(**fields):
        np.savez(tmp_path / "a.npz", points=np.random.default_rng(0).random((30, 2)), **fields)
        return extract_fields(read_case(find_cases(tmp_path / "a.npz")[0]), schema, ["T"])["T"][0, 0]

    assert read(**{"T*": 2 * count}) == 2
    assert read(**{"T*": 2 * count, "T": 3 * count}) == 3
    with pytest.raises(DataError, match=r"a\.npz: 'T\*' and 'T\+' .*'T'"):
        read(**{"T*": 2 * count, "T+": 3 * count})


def test_units_that_differ_between_files_are_refused_with_a_file_of_each(tmp_path):
    for i in range(12):
        table(tmp_path / f"{i}.csv", "x [m],y [m],p [kPa]" if i < 6 else "x [m],y [m],p [Pa]")
    with pytest.raises(DataError, match=r"'p' .*kPa in .*0\.csv, Pa in .*6\.csv"):
        plan_import(tmp_path, targets="p", quiet=True)


def test_a_requested_unit_does_not_override_the_files(tmp_path):
    for i in range(4):
        table(tmp_path / f"{i}.csv", "x [m],y [m],p [kPa],q")
    plan = plan_import(tmp_path, targets=["p", "q"], units={"q": "K", "p": "kPa"}, quiet=True)
    assert [field.unit for field in plan.schema.fields.values()] == ["m", "kPa", "K"]
    with pytest.raises(ConfigError, match=r"'p' .*bar.*0\.csv .*kPa"):
        plan_import(tmp_path, targets="p", units={"p": "bar"}, quiet=True)
    with pytest.raises(ConfigError, match=r"'points' .*mm.* m\b"):
        plan_import(tmp_path, targets="p", units={"points": "mm"}, quiet=True)


def test_a_unit_of_the_parameter_file_is_not_overridden(tmp_path):
    arrays(tmp_path / "f", heat=lambda points, i: points[:, 0])
    runs = tmp_path / "runs.csv"
    runs.write_text("file,speed [m/s]\n" + "\n".join(f"{i}.npz,{i}" for i in range(4)))
    how = {"targets": "heat", "parameters": runs, "quiet": True}
    assert plan_import(tmp_path / "f", **how).schema.fields["speed"].unit == "m/s"
    with pytest.raises(ConfigError, match=r"'speed' .*km/h.* m/s"):
        plan_import(tmp_path / "f", units={"speed": "km/h"}, **how)
    runs.write_text("file,speed,speed*\n" + "\n".join(f"{i}.npz,{i},{i}" for i in range(4)))
    with pytest.raises(DataError, match=r"2 columns .*'speed'"):
        plan_import(tmp_path / "f", **how)


def test_coordinates_in_two_units_are_refused(tmp_path):
    table(tmp_path / "0.csv", "x [m],y [mm],p")
    with pytest.raises(DataError, match="m and mm"):
        read_case(find_cases(tmp_path / "0.csv")[0])


def test_a_unit_is_not_empty(tmp_path, capsys):
    arrays(tmp_path / "f", T=lambda points, i: points[:, 0])
    words = ["data", "import", tmp_path / "f", "--target", "T", "--out", tmp_path / "d"]
    assert "'T'" in fails(capsys, *words, "--unit", "T=")
    assert "T:K" in fails(capsys, *words, "--unit", "T:K")
    assert not (tmp_path / "d").exists()


def solid(length, heights):
    """A box of hexahedra with its corners at these heights."""
    grid = pv.RectilinearGrid(np.linspace(0, length, 4), np.linspace(0, 1, 4), np.array(heights))
    mesh = grid.cast_to_unstructured_grid()
    mesh.point_data["p"] = mesh.points[:, 0] + 1
    mesh.cell_data["c"] = mesh.cell_centers().points[:, 0] + 1
    return mesh


def test_two_dimensions_of_a_solid_are_refused(tmp_path, capsys):
    for i in range(4):
        solid(1 + i, [0.0, 0.1]).save(tmp_path / f"{i}.vtu")
    message = fails(capsys, "data", "import", tmp_path, "--target", "p", "--dimensions", "2", "--out", tmp_path / "d")
    assert re.search(r"--dimensions 2.*0\.vtu", message)
    plan = plan_import(tmp_path, targets="c", dimensions=2, quiet=True)  # a layer of cells: its centres are plane
    assert plan.sample(plan.places[0]).values["cell_centres"].shape == (9, 2)


def test_two_dimensions_of_planes_at_several_heights(tmp_path):
    for i in range(4):
        mesh = pv.Plane(i_resolution=3, j_resolution=3).translate((0, 0, i))
        mesh.point_data["p"] = mesh.points[:, 0] + i
        mesh.save(tmp_path / f"{i}.vtp")
    plan = plan_import(tmp_path, targets="p", dimensions=2, quiet=True)
    assert plan.schema.fields["points"].components == ("x", "y")

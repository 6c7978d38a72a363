"""Tables of points: every column has one meaning, or the file is rejected."""

import numpy as np
import pytest

from flare.mesh import Mesh, read_mesh
from flare.mesh.io.arrays import ArrayLayout
from flare.mesh.io.tables import split_titles
from flare.utils.errors import DataError

LAYOUT = ArrayLayout(
    points_field="position",
    inputs={"position": ("x", "y"), "normal": ("x", "y"), "load": ("fx", "fz")},
    parameters=("load",),
    numeric=("position", "normal", "load"),
)
HEADER = "position.x,position.y,normal.x,normal.y,fx,load.fz\n"


def table(tmp_path, text):
    (tmp_path / "in.csv").write_text(text)
    return read_mesh(tmp_path / "in.csv", layout=LAYOUT)


def test_columns_are_grouped_by_the_fields_of_a_model(tmp_path):
    mesh = table(tmp_path, HEADER + "1,2,3,4,5,6\n7,8,9,10,5,6\n")
    np.testing.assert_array_equal(mesh.points, [[1, 2], [7, 8]])
    np.testing.assert_array_equal(mesh.point_data["normal"], [[3, 4], [9, 10]])
    np.testing.assert_array_equal(mesh.point_data["load"], [[5, 6], [5, 6]])


def test_a_bare_name_that_fits_two_fields_is_not_taken_for_either(tmp_path):
    assert list(table(tmp_path, "x,y,fx,fz\n1,2,5,6\n").point_data) == ["load"]


@pytest.mark.parametrize("end", ["\n", "\n\n\n", "  \n", ",,,,,\n\n"])
def test_blank_lines_are_not_rows(tmp_path, end):
    mesh = table(tmp_path, HEADER + "1,2,3,4,5,6\n\n7,8,9,10,5,6\n" + end)
    np.testing.assert_array_equal(mesh.points, [[1, 2], [7, 8]])
    mesh.with_data(point_data={"stress": np.array([1.5, 2.5])}, units={"stress": "MPa"}).save(tmp_path / "out.csv")
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert lines == [HEADER.strip() + ",stress [MPa]", "1,2,3,4,5,6,1.5", "7,8,9,10,5,6,2.5"]


@pytest.mark.parametrize(
    ("title", "name", "unit"),
    [
        ("x [mm]", "x", "mm"),
        ("x[mm]", "x", "mm"),
        ("rate[1/s]", "rate", "1/s"),
        ("ratio [1]", "ratio", "1"),
        ("velocity[0]", "velocity[0]", "1"),
        ("[mm]", "[mm]", "1"),
        ("x (mm)", "x (mm)", "1"),
    ],
)
def test_a_title_has_its_unit_in_square_brackets(title, name, unit):
    assert split_titles([title]) == ([name], [unit])


def test_a_table_without_coordinates_is_rejected(tmp_path):
    with pytest.raises(DataError, match=r"in\.csv .*x \(mm\)"):
        table(tmp_path, "x (mm),y (mm)\n1,2\n")


@pytest.mark.parametrize("suffix", [".csv", ".npz"])
def test_a_written_table_is_read_again_with_its_units(tmp_path, suffix):
    mesh = Mesh(
        np.array([[1.0, 2.0], [7.0, 8.0]]),
        point_data={"normal": np.array([[3.0, 4.0], [9.0, 10.0]]), "stress": np.array([[1.5], [2.5]])},
        field_data={"load": np.array([5.0, 6.0, 7.0])},
        units={"points": "mm", "load": "N", "stress": "MPa"},
        components={"load": ("fx", "fy", "fz")},
    )
    mesh.save(tmp_path / f"out{suffix}")
    again = read_mesh(tmp_path / f"out{suffix}")
    np.testing.assert_array_equal(again.points, mesh.points)
    np.testing.assert_array_equal(again.point_data["normal"], mesh.point_data["normal"])
    np.testing.assert_array_equal(again.point_data["stress"], [1.5, 2.5])
    if suffix == ".npz":
        np.testing.assert_array_equal(again.parameters["load"], [5.0, 6.0, 7.0])
        return
    first = (tmp_path / "out.csv").read_text().splitlines()[0]
    assert first == "points.x [mm],points.y [mm],normal.x,normal.y,stress [MPa],load.fx [N],load.fy [N],load.fz [N]"
    assert again.units["stress"] == "MPa"


@pytest.mark.parametrize("titles", ["x,y,p,p", "x,y,p [Pa],p [kPa]"])
def test_repeated_titles_are_rejected(tmp_path, titles):
    (tmp_path / "a.csv").write_text(titles + "\n1,2,3,4\n5,6,7,8\n")
    with pytest.raises(DataError, match=r"a\.csv: 2 columns .*'p'"):
        read_mesh(tmp_path / "a.csv")
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = [arrow.array([float(i), i + 1.0]) for i in range(4)]
    parquet.write_table(arrow.Table.from_arrays(columns, names=titles.split(",")), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet: 2 columns .*'p'"):
        read_mesh(tmp_path / "a.parquet")

"""Tables of points: every column has one meaning, or the file is refused."""

import numpy as np
import pytest

from flare.data.importing.cases import find_cases, only_case, read_case
from flare.data.importing.fields import fields_of
from flare.data.sample import INPUT_ROLES, Field, Schema
from flare.data.tables import append_columns, map_inputs, mapped_outputs, split_titles, write_outputs
from flare.utils.errors import DataError

SCHEMA = Schema(
    name="t",
    fields={
        "position": Field(role="points", components=("x", "y"), unit="mm"),
        "normal": Field(role="feature", components=("x", "y")),
        "load": Field(role="parameter", components=("fx", "fz"), unit="N"),
        "stress": Field(role="target", components=("s",), unit="MPa"),
    },
)
HEADER = "position.x,position.y,normal.x,normal.y,fx,load.fz\n"


def inputs(path):
    return fields_of(only_case(path, SCHEMA), SCHEMA, SCHEMA.named(*INPUT_ROLES))


def table(tmp_path, text):
    (tmp_path / "in.csv").write_text(text)
    return inputs(tmp_path / "in.csv")


def test_fields_and_parameters_by_their_names(tmp_path):
    fields = table(tmp_path, HEADER + "1,2,3,4,5,6\n7,8,9,10,5,6\n")
    np.testing.assert_array_equal(fields["position"], [[1, 2], [7, 8]])
    np.testing.assert_array_equal(fields["normal"], [[3, 4], [9, 10]])
    np.testing.assert_array_equal(fields["load"], [5, 6])


def test_a_bare_name_that_fits_two_fields_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"has no feature 'normal'"):
        table(tmp_path, "x,y,fx,fz\n1,2,5,6\n")


def test_a_parameter_that_varies_is_refused(tmp_path):
    with pytest.raises(DataError, match="'load' differs between rows"):
        table(tmp_path, HEADER + "1,2,3,4,5,6\n7,8,9,10,5,7\n")


@pytest.mark.parametrize("end", ["\n", "\n\n\n", "  \n", ",,,,,\n\n"])
def test_blank_lines_at_the_end_are_no_rows(tmp_path, end):
    text = HEADER + "1,2,3,4,5,6\n7,8,9,10,5,6\n"
    np.testing.assert_array_equal(table(tmp_path, text + end)["position"], [[1, 2], [7, 8]])
    append_columns(tmp_path / "in.csv", tmp_path / "out.csv", SCHEMA.fields, {"stress": np.array([1.5, 2.5])})
    assert (tmp_path / "out.csv").read_text().splitlines()[1:] == ["1,2,3,4,5,6,1.5", "7,8,9,10,5,6,2.5"]
    with pytest.raises(DataError, match="line 3 has 0 columns, the header has 6"):
        table(tmp_path, HEADER + "1,2,3,4,5,6\n\n7,8,9,10,5,6\n")


@pytest.mark.parametrize(
    ("title", "name", "unit"),
    [
        ("x [mm]", "x", "mm"),
        ("x[mm]", "x", "mm"),
        ("x  [ mm ]", "x", "mm"),
        ("rate[1/s]", "rate", "1/s"),
        ("ratio [1]", "ratio", "1"),
        ("ratio []", "ratio", "1"),
        ("velocity[0]", "velocity[0]", "1"),
        ("[mm]", "[mm]", "1"),
        ("x [mm", "x [mm", "1"),
        ("x (mm)", "x (mm)", "1"),
    ],
)
def test_a_heading_has_its_unit_in_square_brackets(title, name, unit):
    assert split_titles([title]) == ([name], [unit])


def test_units_in_other_brackets_are_told_the_form(tmp_path):
    with pytest.raises(DataError, match=r"no columns x, y .*x \(mm\), .*; a unit stands in square .* such as x \[mm\]"):
        table(tmp_path, "x (mm),y (mm)\n1,2\n")


@pytest.mark.parametrize("suffix", [".csv", ".npz"])
def test_what_is_written_can_be_read_again_with_its_units(tmp_path, suffix):
    fields = table(tmp_path, HEADER + "1,2,3,4,5,6\n7,8,9,10,5,6\n")
    write_outputs(tmp_path / f"out{suffix}", SCHEMA.fields, fields, {"stress": np.array([1.5, 2.5])})
    again = inputs(tmp_path / f"out{suffix}")
    for name, values in fields.items():
        np.testing.assert_array_equal(again[name], values)
    if suffix == ".csv":
        first = (tmp_path / "out.csv").read_text().splitlines()[0]
        assert first == "position.x [mm],position.y [mm],normal.x,normal.y,load.fx [N],load.fz [N],stress [MPa]"


def test_other_formats_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"cannot write .vtu; use .npz or .csv$"):
        write_outputs(tmp_path / "out.vtu", SCHEMA.fields, {}, {})
    (tmp_path / "x.npz").write_text("no")
    with pytest.raises(DataError, match=r"damaged or no \.npz"):
        inputs(tmp_path / "x.npz")


def test_a_damaged_array_is_never_advised_to_be_unpickled(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("position", "normal", "load"):
        (folder / f"{name}.npy").write_text("no")
    with pytest.raises(DataError, match=r"position\.npy is damaged.*2 bytes: it holds no plain numbers.*write it anew"):
        map_inputs(folder, SCHEMA)
    np.savez(tmp_path / "x.npz", position=np.array([{}]), normal=0, load=0)
    for read in (lambda: map_inputs(folder, SCHEMA), lambda: inputs(tmp_path / "x.npz")):
        with pytest.raises(DataError) as refused:
            read()
        assert "pickle" not in str(refused.value)


def test_one_number_a_point_has_one_shape_in_every_file(tmp_path):
    fields = table(tmp_path, HEADER + "1,2,3,4,5,6\n7,8,9,10,5,6\n")
    write_outputs(tmp_path / "out.npz", SCHEMA.fields, fields, {"stress": np.array([[1.5], [2.5]])}, {"more.one": 3})
    with mapped_outputs(tmp_path / "out", SCHEMA, 2) as rooms:
        assert rooms["stress"].shape == (2, 1)
        rooms["stress"][:] = [[1.5], [2.5]]
    archive = np.load(tmp_path / "out.npz")
    for stress in (archive["stress"], np.load(tmp_path / "out" / "stress.npy")):
        np.testing.assert_array_equal(stress, [1.5, 2.5])
        assert stress.shape == (2,)
    assert archive["position"].shape == (2, 2)
    assert int(archive["more.one"]) == 3


@pytest.mark.parametrize("titles", ["x,y,p,p", "x,y,p [Pa],p [kPa]"])
def test_titles_that_repeat_are_refused(tmp_path, titles):
    (tmp_path / "a.csv").write_text(titles + "\n1,2,3,4\n5,6,7,8\n")
    with pytest.raises(DataError, match=r"a\.csv: 2 columns are called 'p'; rename or remove all but one"):
        read_case(find_cases(tmp_path / "a.csv")[0])
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = [arrow.array([float(i), i + 1.0]) for i in range(4)]
    parquet.write_table(arrow.Table.from_arrays(columns, names=titles.split(",")), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet: 2 columns are called 'p'"):
        read_case(find_cases(tmp_path / "a.parquet")[0])

"""Tables of points: every column has one meaning, or the file is refused."""

import numpy as np
import pytest

from flare.data.sample import Field, Schema
from flare.data.tables import read_inputs, write_outputs
from flare.errors import DataError

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


def table(tmp_path, text):
    (tmp_path / "in.csv").write_text(text)
    return read_inputs(tmp_path / "in.csv", SCHEMA)


def test_fields_and_parameters_by_their_names(tmp_path):
    fields = table(tmp_path, HEADER + "1,2,3,4,5,6\n7,8,9,10,5,6\n")
    np.testing.assert_array_equal(fields["position"], [[1, 2], [7, 8]])
    np.testing.assert_array_equal(fields["normal"], [[3, 4], [9, 10]])
    np.testing.assert_array_equal(fields["load"], [5, 6])


def test_a_bare_name_that_fits_two_fields_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"has no column position.x; it has x, y, fx, fz"):
        table(tmp_path, "x,y,fx,fz\n1,2,5,6\n")


def test_a_parameter_that_varies_is_refused(tmp_path):
    with pytest.raises(DataError, match="'load' differs between rows"):
        table(tmp_path, HEADER + "1,2,3,4,5,6\n7,8,9,10,5,7\n")


@pytest.mark.parametrize("suffix", [".csv", ".npz"])
def test_what_is_written_can_be_read_again_with_its_units(tmp_path, suffix):
    fields = table(tmp_path, HEADER + "1,2,3,4,5,6\n7,8,9,10,5,6\n")
    write_outputs(tmp_path / f"out{suffix}", SCHEMA, fields, {"stress": np.array([1.5, 2.5])})
    again = read_inputs(tmp_path / f"out{suffix}", SCHEMA)
    for name, values in fields.items():
        np.testing.assert_array_equal(again[name], values)
    if suffix == ".csv":
        first = (tmp_path / "out.csv").read_text().splitlines()[0]
        assert first == "position.x [mm],position.y [mm],normal.x,normal.y,load.fx [N],load.fz [N],stress [MPa]"


def test_other_formats_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"cannot read .vtu; use .npz or .csv"):
        read_inputs(tmp_path / "part.vtu", SCHEMA)
    (tmp_path / "x.npz").write_text("no")
    with pytest.raises(DataError, match=r"damaged or not an \.npz"):
        read_inputs(tmp_path / "x.npz", SCHEMA)

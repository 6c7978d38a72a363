"""Other fields of a file are written with the prediction in every format, under distinct names."""

import csv

import numpy as np
import pytest
import pyvista as pv

from flare.data.sample import Field
from flare.inference.prediction import fields_without_rows, predict
from flare.mesh import read_mesh
from tests.inference import test_prediction


def made(points="points"):
    return test_prediction.made(2, points=points, wind=Field(role="feature", components=("w",)))


POINTS = np.random.default_rng(0).random((9, 3))
WIND = np.linspace(1, 2, 9)


def mesh(path, **fields):
    part = pv.PolyData(POINTS)
    for name, values in {"wind": WIND, **fields}.items():
        part.point_data[name] = values
    part.save(path)
    return path


def read(path):
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            return dict(arrays)
    if path.suffix == ".csv":
        with path.open(newline="") as file:
            titles, *rows = csv.reader(file)
        return dict(zip(titles, np.array(rows, float).T, strict=True))
    return {name: np.asarray(values) for name, values in pv.read(path).point_data.items()}


@pytest.mark.parametrize("suffix", [".csv", ".npz", ".vtu"])
@pytest.mark.parametrize("source", [".vtp", ".npz"])
def test_names_with_the_same_spelling_in_a_schema_stay_distinct(tmp_path, source, suffix):
    own = {"T": np.arange(9.0), "T*": np.arange(9.0) + 100, "wind*": np.arange(9.0) + 200, "Mach Number": np.ones(9)}
    path = tmp_path / f"a{source}"
    if source == ".npz":
        np.savez(path, points=POINTS, wind=WIND, **own)
    else:
        mesh(path, **own)
    predict(made(), path, parameters={"speed": 3.0}).save(tmp_path / f"out{suffix}")
    found = read(tmp_path / f"out{suffix}")
    for name in ("T", "T*", "wind*"):
        np.testing.assert_array_equal(found[name], own[name])
    np.testing.assert_allclose(found["wind"], WIND, rtol=1e-7)
    assert "Mach Number" in found or "Mach_Number" in found


def test_a_field_with_the_name_of_an_input_stays_in_meshes_only(tmp_path):
    path = mesh(tmp_path / "a.vtp", points=np.arange(9.0), speed=np.arange(9.0))
    prediction = predict(made(), path, parameters={"speed": 3.0})
    for suffix in (".csv", ".vtp"):
        prediction.save(tmp_path / f"out{suffix}")
    assert set(read(tmp_path / "out.csv")["speed [m/s]"]) == {3.0}
    np.testing.assert_array_equal(read(tmp_path / "out.vtp")["points"], np.arange(9.0))


def test_data_without_rows_in_a_table_is_listed(tmp_path):
    part = pv.Sphere(theta_resolution=4, phi_resolution=4)
    part.cell_data["strain"] = np.ones(part.n_cells)
    part.cell_data["wind"] = np.ones(part.n_cells)  # an input, averaged to the points
    part.point_data["depth"] = np.ones(part.n_points)
    part.save(tmp_path / "a.vtp")
    for points, names in (("points", "'strain'"), ("cell_centres", "'Normals', 'depth'")):
        (message,) = fields_without_rows(read_mesh(tmp_path / "a.vtp"), made(points).schema)
        assert message.endswith(names)


def stated(path, *units, **fields):
    part = pv.read(mesh(path, **fields))
    part.field_data["units"] = list(units)
    part.save(path)
    return path


def test_other_fields_have_the_units_that_the_file_states(tmp_path):
    words = ["heat=kW", "Mach Number=1", "T*=K", "Depth= "]
    own = {"heat": np.ones(9), "Mach Number": np.ones(9), "T": np.ones(9), "T*": np.ones(9), "Depth": np.ones(9)}
    path = stated(tmp_path / "a.vtp", *words, **own)
    prediction = predict(made(), path, parameters={"speed": 3.0})
    prediction.save(tmp_path / "out.csv")
    titles = {"heat [kW]", "Mach_Number", "T", "T* [K]", "Depth", "heat_predicted [W]"}
    assert set(list(read(tmp_path / "out.csv"))[5:]) == titles
    assert prediction.errors == {}, "kilowatts are no truth for watts"
    silent = predict(made(), mesh(tmp_path / "b.vtp", heat=np.ones(9)), parameters={"speed": 3.0})
    silent.save(tmp_path / "b.csv")
    assert list(read(tmp_path / "b.csv"))[5:] == ["heat", "heat_predicted [W]"]


def test_units_of_a_table_are_written_to_a_mesh_of_its_points(tmp_path):
    rows = np.column_stack([POINTS, WIND, np.ones(9), np.ones(9)])
    np.savetxt(tmp_path / "a.csv", rows, delimiter=",", header="x,y,z,wind,heat [kW],T [K]", comments="")
    predict(made(), tmp_path / "a.csv", parameters={"speed": 3.0}).save(tmp_path / "out.vtu")
    units = list(pv.read(tmp_path / "out.vtu").field_data["units"])
    assert units == ["heat=kW", "T=K", "heat_predicted=W", "speed=m/s"]


def test_a_field_of_other_components_than_the_models_is_kept_whole(tmp_path):
    path = mesh(tmp_path / "a.vtp", heat=np.ones((9, 2)))
    predict(made(), path, parameters={"speed": 3.0}).save(tmp_path / "out.csv")
    assert list(read(tmp_path / "out.csv"))[5:] == ["heat.x", "heat.y", "heat_predicted [W]"]

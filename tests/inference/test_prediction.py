"""Predictions on files: equal to those on arrays, and written with everything that the file had."""

from dataclasses import replace

import numpy as np
import pytest
import pyvista as pv

from flare.cli import main
from flare.data.sample import Field, Schema
from flare.inference.calibration.calibrate import Assessment
from flare.inference.chunked import empty_outputs, predict_into
from flare.inference.encoding import encode, load_encoding
from flare.inference.mesh_inputs import mesh_inputs
from flare.inference.prediction import predict
from flare.inference.surrogate import Surrogate
from flare.mesh import read_mesh
from flare.mesh.io.vtk_library import from_pyvista
from flare.utils.errors import ConfigError, DataError
from tests.factory import saved_run


@pytest.fixture
def part(tmp_path):
    fields = {
        "points": Field(role="points", components=("x", "y", "z")),
        "gravity": Field(role="parameter", components=("x", "y", "z")),
        "wind": Field(role="feature", components=("x", "y")),
        "rise": Field(role="target", components=("z",)),
    }
    model = {"name": "flare", "channels": 16, "blocks": 1, "heads": 2, "latents": 4}
    surrogate = Surrogate(model, Schema(name="bent", fields=fields)).eval()
    path = tmp_path / "part.vtp"
    pv.Sphere(theta_resolution=6, phi_resolution=6).save(path)
    return surrogate, path


def test_given_vectors_are_the_same_everywhere(part):
    surrogate, path = part
    gravity, wind = [0.0, 0.5, -9.81], [3.0, -1.0]
    predicted = predict(surrogate, path, parameters={"gravity": gravity}, features={"wind": wind}).fields["rise"]
    points = np.asarray(pv.read(path).points)
    features, parameters = {"wind": np.tile(wind, (len(points), 1))}, {"gravity": gravity}
    whole = surrogate.predict(points, features=features, parameters=parameters)["rise"]
    np.testing.assert_array_equal(predicted.ravel(), np.ravel(whole))
    turned = predict(surrogate, path, parameters={"gravity": gravity[::-1]}, features={"wind": wind}).fields["rise"]
    assert np.abs(turned - predicted).max() > 1e-4


def made(cell_dimension=None, *, points="points", components=("x", "y", "z"), unit="1", **more):
    fields = {
        points: Field(role="points", components=components, unit=unit),
        "speed": Field(role="parameter", components=("speed",), unit="m/s"),
        **more,
        "heat": Field(role="target", components=("heat",), unit="W"),
    }
    model = {"name": "flare", "channels": 16, "blocks": 2, "heads": 2, "latents": 4}
    return Surrogate(model, Schema(name="own", fields=fields, cell_dimension=cell_dimension)).eval()


@pytest.fixture
def cube(tmp_path):
    pv.Cube().triangulate().subdivide(3).save(tmp_path / "cube.stl")
    return tmp_path / "cube.stl"


def test_a_model_of_volumes_gets_a_filled_surface_without_a_known_cell_type(cube):
    for points in ("cell_centres", "points"):
        prediction = predict(made(3, points=points), cube, parameters={"speed": 1.0}, spacing=0.1)
        at = prediction.sample.values[points]
        assert len(at) == {"cell_centres": 10**3, "points": 11**3}[points]
        assert (np.abs(at).max(1) < 0.49).mean() > 0.5  # inside, and not on the skin


def test_a_model_of_surfaces_gets_surface_points_and_one_of_clouds_needs_a_choice(cube):
    at = predict(made(2, points="cell_centres"), cube, parameters={"speed": 1.0}).sample.values["cell_centres"]
    np.testing.assert_allclose(np.abs(at).max(1), 0.5, atol=1e-6)
    with pytest.raises(ConfigError, match="points="):
        predict(made(), cube, parameters={"speed": 1.0})
    assert len(predict(made(), cube, parameters={"speed": 1.0}, points="vertices").fields["heat"])


POINTS = np.random.default_rng(0).random((9, 2))


def table(path, titles, *more):
    columns = np.column_stack([POINTS, *more])
    np.savetxt(path, columns, delimiter=",", header=titles, comments="", fmt="%.9g")
    return path


def test_files_that_can_be_imported_can_be_predicted(tmp_path):
    surrogate = made(components=("x", "y"))
    wanted = surrogate.predict(POINTS, parameters={"speed": 3.0})["heat"]
    np.savez(tmp_path / "a.npz", pos=POINTS, heat=np.ones(9), speed=3.0)
    table(tmp_path / "b.csv", "Points:0,Points:1,speed", np.full(9, 3.0))  # as ParaView writes them
    table(tmp_path / "C.CSV", "x,y,speed [m/s]", np.full(9, 3.0))
    table(tmp_path / "d.csv", "points.x,points.y,speed", np.full(9, 3.0))
    for name in ("a.npz", "b.csv", "C.CSV", "d.csv"):
        np.testing.assert_allclose(predict(surrogate, tmp_path / name).fields["heat"], wanted, rtol=1e-5)
        np.testing.assert_allclose(mesh_inputs(surrogate, tmp_path / name).sample.values["speed"], [3.0])
    assert predict(surrogate, tmp_path / "a.npz").errors.keys() == {"heat"}
    given = predict(surrogate, table(tmp_path / "e.csv", "x,y"), parameters={"speed": 3.0}).fields["heat"]
    np.testing.assert_allclose(given, wanted, rtol=1e-5)
    with pytest.raises(DataError, match="'speed'"):
        predict(surrogate, table(tmp_path / "f.csv", "x,y,speed", np.arange(9.0)))


def test_tables_keep_their_columns_and_every_format_has_the_same_names(tmp_path):
    surrogate = made(components=("x", "y"))
    colour = np.arange(9.0)
    prediction = predict(surrogate, table(tmp_path / "a.csv", "x,y,speed,colour", np.full(9, 3.0), colour))
    for suffix in (".csv", ".npz", ".vtu"):
        prediction.save(tmp_path / f"out{suffix}")
    heat = prediction.fields["heat"]
    read = np.genfromtxt(tmp_path / "out.csv", delimiter=",", names=True)
    np.testing.assert_allclose(read["heat_predicted_W"], heat, rtol=1e-6)
    np.testing.assert_array_equal(read["colour"], colour)
    with np.load(tmp_path / "out.npz") as arrays:
        np.testing.assert_allclose(arrays["points"], POINTS, rtol=1e-8)  # as they were typed, not to seven digits
        np.testing.assert_array_equal(arrays["heat_predicted"], heat)
        np.testing.assert_array_equal(arrays["colour"], colour)
    mesh = pv.read(tmp_path / "out.vtu")
    np.testing.assert_array_equal(mesh.point_data["heat_predicted"], heat)
    np.testing.assert_array_equal(mesh.point_data["colour"], colour)


def test_a_prediction_in_chunks_returns_the_latents_of_the_encoding(tmp_path):
    surrogate = made(components=("x", "y"))
    sample = surrogate.sample(POINTS, {"speed": 3.0})
    latents = predict_into(surrogate, sample, empty_outputs(surrogate, 9), chunk=4)
    for mine, encoded in zip(latents, encode(surrogate, sample, chunk=4).latents, strict=True):
        np.testing.assert_array_equal(mine.numpy(), encoded.numpy())


def test_given_inputs_are_written_to_the_file_and_read_from_it(part, tmp_path):
    surrogate, path = part
    given = {"parameters": {"gravity": [0.0, 0.5, -9.81]}, "features": {"wind": [3.0, -1.0]}}
    prediction = predict(surrogate, read_mesh(path), **given)
    prediction.save(tmp_path / "out.vtp")
    written = pv.read(tmp_path / "out.vtp")
    assert set(written.point_data["wind"][:, 0]) == {3.0}
    assert set(written.point_data["wind"][:, 1]) == {-1.0}
    again = predict(surrogate, tmp_path / "out.vtp")
    np.testing.assert_array_equal(again.fields["rise"], prediction.fields["rise"])


def test_bad_inputs_are_refused(part, tmp_path, cube):
    surrogate, path = part
    given = {"parameters": {"gravity": [0.0, 0.0, 1.0]}, "features": {"wind": [3.0, -1.0]}}
    with pytest.raises(ConfigError, match=r"'gravty'.*'gravity'"):
        predict(surrogate, path, parameters={"gravty": [0.0, 0.0, 1.0]}, features={"wind": [3.0, -1.0]})
    mesh = pv.read(path)
    mesh.point_data["wind"] = np.linspace([1.0, 2.0], [3.0, 2.0], mesh.n_points)
    mesh.save(tmp_path / "windy.vtp")
    with pytest.raises(DataError, match=r"'wind' .*windy\.vtp"):
        mesh_inputs(surrogate, tmp_path / "windy.vtp", **given)
    with pytest.raises(DataError, match=r'cube\.stl .*parameters=\{"speed"'):
        predict(made(2), cube)
    with pytest.raises(DataError, match=r'a\.csv .*parameters=\{"speed"'):
        predict(made(components=("x", "y")), table(tmp_path / "a.csv", "x,y"))
    (tmp_path / "b.csv").write_text("x,y,speed\n0,0,1\nnan,1,1")
    with pytest.raises(DataError, match=r"b\.csv: 'points'"):
        predict(made(components=("x", "y")), tmp_path / "b.csv")


TRIANGLES = np.array([[0, 1, 2], [2, 1, 3], [2, 3, 4], [5, 6, 7], [7, 6, 8]])


def test_cells_of_a_file_of_arrays_are_written(tmp_path):
    surrogate, colour = made(components=("x", "y")), np.arange(9.0)
    np.savez(tmp_path / "a.npz", points=POINTS, cells=TRIANGLES, colour=colour, speed=np.full(9, 3.0))
    prediction = predict(surrogate, tmp_path / "a.npz")
    prediction.save(tmp_path / "out.vtu")
    mesh = pv.read(tmp_path / "out.vtu")
    np.testing.assert_array_equal(mesh.cells_dict[5], TRIANGLES)
    np.testing.assert_array_equal(mesh.points[:, :2], POINTS)
    np.testing.assert_array_equal(mesh.point_data["colour"], colour)
    np.testing.assert_array_equal(mesh.point_data["heat_predicted"], prediction.fields["heat"])
    prediction.save(tmp_path / "out.npz")
    again = predict(surrogate, tmp_path / "out.npz")
    np.testing.assert_array_equal(again.inputs.mesh.cells["triangle"], TRIANGLES)


def test_a_file_of_arrays_with_cells_has_cell_centers(tmp_path):
    surrogate = made(2, points="cell_centres", components=("x", "y"))
    np.savez(tmp_path / "a.npz", points=POINTS, cells=TRIANGLES)
    prediction = predict(surrogate, tmp_path / "a.npz", parameters={"speed": 3.0})
    np.testing.assert_allclose(prediction.sample.values["cell_centres"], POINTS[TRIANGLES].mean(1), rtol=1e-6)
    prediction.save(tmp_path / "out.vtu")
    mesh = pv.read(tmp_path / "out.vtu")
    np.testing.assert_array_equal(mesh.cells_dict[5], TRIANGLES)
    np.testing.assert_array_equal(mesh.cell_data["heat_predicted"], prediction.fields["heat"])


def test_a_surface_as_dense_as_the_training_data_keeps_its_cell_centers(cube):
    mesh = pv.read(cube)
    centres = mesh.cell_centers().points
    gaps = np.linalg.norm(centres[:, None] - centres[None], axis=2) + 9 * np.eye(len(centres))
    spacing = float(np.median(gaps.min(1)))
    surrogate = made(2, points="cell_centres")
    at = predict(surrogate, cube, parameters={"speed": 1.0}, spacing=spacing).sample.values["cell_centres"]
    np.testing.assert_allclose(at, centres, atol=1e-6)
    dense = predict(surrogate, cube, parameters={"speed": 1.0}, spacing=spacing / 3)
    assert len(dense.fields["heat"]) > 2 * len(centres)


def test_a_table_keeps_its_text_and_gets_columns(tmp_path):
    lines = ["x [m],y [m],p [Pa],speed"]
    lines += [f"{x:.17g},{y:.17g},1.50e+05,3.000" for x, y in POINTS]
    (tmp_path / "a.csv").write_text("\n".join(lines) + "\n")
    prediction = predict(made(components=("x", "y")), tmp_path / "a.csv")
    prediction.save(tmp_path / "b.csv")
    written = (tmp_path / "b.csv").read_text().splitlines()
    assert written[0] == lines[0] + ",heat_predicted [W]"
    assert [line.rpartition(",")[0] for line in written] == lines
    numbers = [float(line.rpartition(",")[2]) for line in written[1:]]
    np.testing.assert_allclose(numbers, prediction.fields["heat"], rtol=1e-7)
    given = predict(made(components=("x", "y")), table(tmp_path / "c.csv", "x,y"), parameters={"speed": 3.0})
    given.save(tmp_path / "d.csv")
    titles, *rows = (tmp_path / "d.csv").read_text().splitlines()
    assert titles == "x,y,heat_predicted [W],speed [m/s]"
    assert {row.rpartition(",")[2] for row in rows} == {"3"}
    np.testing.assert_allclose(predict(made(components=("x", "y")), tmp_path / "d.csv").sample.values["speed"], 3)


@pytest.mark.parametrize("suffix", [".vtu", ".vtk"])
def test_unit_texts_of_a_file_are_kept(tmp_path, suffix):
    part, words = pv.Sphere(theta_resolution=4, phi_resolution=4), ["SI", "lengths: mm", "colour=°C"]
    part = part.cast_to_unstructured_grid() if suffix == ".vtu" else part
    from_pyvista(part).with_data(field_data={"units": np.array(words)}).save(tmp_path / f"a{suffix}")
    predict(made(2), tmp_path / f"a{suffix}", parameters={"speed": 1.0}).save(tmp_path / f"b{suffix}")
    assert list(pv.read(tmp_path / f"b{suffix}").field_data["units"]) == [*words, "heat_predicted=W", "speed=m/s"]


def test_inputs_have_their_units_wherever_they_come_from(tmp_path):
    part = pv.Sphere(theta_resolution=4, phi_resolution=4)
    part.field_data["speed"] = np.array([3.0])
    for words, units in (
        ([], ["heat_predicted=W", "points=m", "speed=m/s"]),
        (["speed=m/s", "SI"], ["speed=m/s", "SI", "heat_predicted=W", "points=m"]),
    ):
        mesh = from_pyvista(part).with_data(field_data={"units": np.array(words)} if words else {})
        mesh.save(tmp_path / "a.vtp")
        predict(made(2, unit="m"), tmp_path / "a.vtp").save(tmp_path / "b.vtp")
        assert list(pv.read(tmp_path / "b.vtp").field_data["units"]) == units


def test_field_data_that_would_be_overwritten_is_refused(cube, tmp_path):
    for name in ("familiarity_score", "units"):
        part = pv.Sphere()
        part.field_data[name] = np.array([3.0])
        part.save(tmp_path / "a.vtp")
        prediction = predict(made(2), tmp_path / "a.vtp", parameters={"speed": 1.0})
        with pytest.raises(DataError, match=f"a.vtp .*'{name}'"):
            replace(prediction, assessment=Assessment(None, 0.5, 1)).save(tmp_path / "b.vtp")
        assert not (tmp_path / "b.vtp").exists()


def test_another_unit_than_the_models_is_refused(tmp_path):
    surrogate = made(components=("x", "y"), unit="m")
    for titles in ("x [mm],y [mm],speed", "Points:0 [mm],Points:1 [mm],speed", "x,y,speed [km/h]"):
        with pytest.raises(DataError, match=r"a\.csv: '(points' is in mm|speed' is in km/h)"):
            predict(surrogate, table(tmp_path / "a.csv", titles, np.full(9, 3.0)))
    same = table(tmp_path / "a.csv", "x [m],y [m],speed [m/s],heat [kW]", np.full(9, 3.0), np.ones(9))
    assert predict(surrogate, same).errors == {}, "kilowatts are no truth for watts"
    part = from_pyvista(pv.Sphere())
    part.with_data(field_data={"units": np.array(["points=mm"])}).save(tmp_path / "a.vtp")
    with pytest.raises(DataError, match="'points' is in mm"):
        predict(made(2, unit="m"), tmp_path / "a.vtp", parameters={"speed": 1.0})


@pytest.mark.parametrize(
    ("name", "how", "fact"),
    [
        ("a.vtp", {"points": "voxels"}, "voxels"),
        ("a.vtp", {"spacing": 0.1}, r"spacing=0\.1"),
        ("a.vtp", {"spacing": -3.0}, "spacing=-3"),
        ("cube.stl", {"points": "vertices", "spacing": 0.1}, r"spacing=0\.1"),
    ],
)
def test_points_and_spacing_are_for_bare_surfaces(tmp_path, cube, name, how, fact):
    pv.Sphere().save(tmp_path / "a.vtp")
    with pytest.raises(ConfigError, match=fact):
        mesh_inputs(made(2), tmp_path / name, parameters={"speed": 1.0}, **how)


@pytest.mark.parametrize("trained", [None, 1e-5])
def test_a_surface_in_another_unit_than_the_training_is_not_filled_with_points(cube, trained):
    how = {"training_spacing": trained} if trained else {"points": "surface", "spacing": 1e-5}
    with pytest.raises(DataError, match=r"cube\.stl .*6e\+10 points"):
        mesh_inputs(made(2), cube, parameters={"speed": 1.0}, **how)
    with pytest.raises(DataError, match=r"cube\.stl: .*1e\+15"):
        mesh_inputs(made(3), cube, parameters={"speed": 1.0}, spacing=1e-5)


def test_predict_encode_and_sensitivity_read_files_in_the_same_way(tmp_path, cube, capsys):
    surrogate, counts = made(3), []
    run = str(saved_run(surrogate, tmp_path / "run"))
    points = np.random.default_rng(1).random((9, 3))
    np.savetxt(tmp_path / "b.csv", points, delimiter=",", header="Points:0,Points:1,Points:2", comments="")
    for number, path in enumerate((cube, tmp_path / "b.csv")):
        more = ["--set", "speed=3"] + (["--spacing", "0.25"] if path == cube else [])
        names = {verb: str(tmp_path / f"{number}-{verb}.npz") for verb in ("predict", "encode", "sensitivity")}
        assert main(["predict", run, str(path), "--out", names["predict"], *more]) == 0
        assert main(["encode", run, str(path), "--out", names["encode"], *more]) == 0
        scalar = ["--of", "mean", "--field", "heat"]
        assert main(["sensitivity", run, str(path), *scalar, "--out", names["sensitivity"], *more]) == 0
        predicted, slopes = (np.load(names[verb]) for verb in ("predict", "sensitivity"))
        np.testing.assert_allclose(predicted["points"], slopes["points"], rtol=1e-6, atol=1e-7)
        code = load_encoding(names["encode"], surrogate)
        counts.append(code.points)
        at_points = code.query(predicted["points"])["heat"]
        np.testing.assert_allclose(at_points, predicted["heat_predicted"], rtol=1e-4, atol=1e-6)
    assert counts == [5**3, 9]

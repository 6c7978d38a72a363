"""Sources of the viewer show the values of their dataset, model or file."""

import json

import numpy as np
import pytest
import torch

import flare
from flare.inference.spectra import surrogate_eigenvectors, surrogate_spectra
from flare.mesh import Mesh
from flare.utils.errors import DataError
from flare.view import runs
from flare.view.cases import CaseSource
from flare.view.datasets import DatasetSource
from flare.view.runs import RunSource
from flare.view.source import NotThere
from tests.factory import ragged_dataset
from tests.view.sources import block_dataset, trained


def test_a_dataset_shows_every_channel_of_every_sample(tmp_path):
    dataset = ragged_dataset(tmp_path / "d")
    source = DatasetSource(dataset)
    catalogue = json.loads(json.dumps(source.catalogue()))
    assert [f["name"] for f in catalogue["fields"]] == ["force.x", "force.y", "heat", "thickness"]
    assert [f["unit"] for f in catalogue["fields"]] == ["N", "N", "W", "mm"]
    assert [(s["id"], s["split"], s["points"]) for s in catalogue["samples"]][-1] == (5, "test", 17)
    for index in range(6):
        values, shown = dataset[index].values, source.geometry(index)
        np.testing.assert_array_equal(shown["points"], values["position"])
        np.testing.assert_array_equal(shown["triangles"], dataset[index].cells)
        np.testing.assert_array_equal(shown["parameter/speed"], values["speed"])
        np.testing.assert_array_equal(source.field(index, "force.y")["truth"], values["force"][:, 1])
        np.testing.assert_array_equal(source.field(index, "thickness")["truth"], values["thickness"][:, 0])


def test_a_run_shows_what_its_model_predicts(plate):
    model, dataset = flare.load(plate.run), plate.dataset
    for index in (0, 4):
        predicted = model.predict_sample(dataset[index])
        np.testing.assert_array_equal(plate.field(index, "pressure")["prediction"], predicted["pressure"])
        np.testing.assert_array_equal(plate.field(index, "velocity.y")["prediction"], predicted["velocity"][:, 1])
        np.testing.assert_array_equal(
            plate.field(index, "velocity.y")["truth"], dataset[index].values["velocity"][:, 1]
        )


def test_the_errors_of_the_samples_are_those_of_the_run(plate):
    recorded = json.loads((plate.run / "test_errors.json").read_text())
    shown = {s["id"]: s["error"] for s in plate.catalogue()["samples"] if "error" in s}
    assert shown == dict(zip(recorded["samples"], recorded["rel_l2"], strict=True))
    assert plate.catalogue()["start"] == "test"


def test_spectra_and_modes_are_those_of_the_analysis(plate):
    shown = plate.spectra(3)
    expected = surrogate_spectra(plate.surrogate, plate.dataset, [3])
    np.testing.assert_array_equal(shown["eigenvalues"], expected.eigenvalues)
    np.testing.assert_array_equal(shown["effective_rank"], expected.effective_rank)
    values, vectors = surrogate_eigenvectors(plate.surrogate, plate.dataset, 3, count=3)[1]
    modes = plate.modes(3, 1, 2)
    np.testing.assert_array_equal(modes["eigenvalues"], values[2])
    np.testing.assert_array_equal(modes["eigenvectors"], vectors[2].T.to(torch.float32))


def test_hexahedra_are_shown_by_their_outer_faces(block):
    shown = block.geometry(0)
    corners = shown["points"][shown["triangles"]]
    area = np.linalg.norm(np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]), axis=1).sum() / 2
    assert area == pytest.approx(2 * (24 - 4) + (2 * 6 + 2 * 4) * 3 + 4 * 2 * 3)


def test_unknown_samples_fields_heads_and_splits_are_named(plate, tmp_path):
    with pytest.raises(NotThere, match="99"):
        plate.geometry(99)
    with pytest.raises(NotThere, match="'heat'"):
        plate.field(0, "heat")
    with pytest.raises(NotThere, match="head 4"):
        plate.modes(0, 0, 4)
    with pytest.raises(NotThere):
        DatasetSource(plate.dataset).modes(0, 0, 0)
    with pytest.raises(DataError, match="'validation'"):
        DatasetSource(plate.dataset, split="validation")


def test_spectra_that_need_too_much_memory_are_refused(plate, monkeypatch):
    monkeypatch.setattr(runs, "MAX_SPECTRA_BYTES", 1e3)
    with pytest.raises(DataError, match="63"):
        plate.spectra(0)


def test_another_model_has_no_spectra(tmp_path):
    model = {"name": "transformer", "channels": 8, "blocks": 1, "heads": 2}
    source = RunSource(trained(block_dataset(tmp_path / "d", samples=2), tmp_path / "r", model), device="cpu")
    assert source.catalogue()["spectra"] is None
    with pytest.raises(NotThere, match="transformer"):
        source.spectra(0)


def test_a_run_is_shown_on_another_dataset_of_its_fields_only(block, plate, tmp_path):
    other = block_dataset(tmp_path / "other", samples=2)
    source = RunSource(block.run, data=other.path, device="cpu")
    assert all("error" not in s for s in source.catalogue()["samples"])
    with pytest.raises(DataError, match=str(plate.dataset.path)):
        RunSource(block.run, data=plate.dataset.path, device="cpu")


def cube_vtu(path):
    points = np.array([[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0], [0, 0, 1], [1, 0, 1], [1, 1, 1], [0, 1, 1.0]])
    fields = {"pressure": np.arange(8.0) * np.pi, "velocity": np.arange(24.0).reshape(8, 3)}
    cells = {"hexahedron": np.arange(8)[None]}
    Mesh.from_cells(points, cells, point_data=fields, cell_data={"density": np.array([7.5])}).save(path)
    return points, fields


def test_a_mesh_file_shows_its_outside_and_its_fields(tmp_path):
    pytest.importorskip("pyvista", reason="the extra 'mesh' is not installed")
    points, fields = cube_vtu(tmp_path / "cube.vtu")
    source = CaseSource(tmp_path / "cube.vtu")
    catalogue, shown = source.catalogue(), source.geometry(0)
    np.testing.assert_array_equal(shown["points"], points)
    assert shown["triangles"].shape == (12, 3)
    assert [f["name"] for f in catalogue["fields"]] == ["pressure", "velocity.x", "velocity.y", "velocity.z", "density"]
    np.testing.assert_array_equal(source.field(0, "pressure")["truth"], fields["pressure"])
    np.testing.assert_array_equal(source.field(0, "velocity.z")["truth"], fields["velocity"][:, 2])
    np.testing.assert_allclose(source.field(0, "density")["truth"], 7.5)
    assert "density" in str(catalogue["facts"])


def test_a_table_of_points_shows_its_columns_with_units(tmp_path):
    (tmp_path / "part.csv").write_text("x [mm],y [mm],z [mm],stress [MPa]\n0,0,0,1.25\n1,0,0,2.5\n0,1,3,4\n")
    source = CaseSource(tmp_path / "part.csv")
    (field,) = source.catalogue()["fields"]
    assert (field["name"], field["unit"], source.catalogue()["length_unit"]) == ("stress", "MPa", "mm")
    assert source.geometry(0)["points"].shape == (3, 3)
    assert source.field(0, "stress")["truth"].tolist() == [1.25, 2.5, 4.0]


def test_arrays_of_an_npz_file_are_shown_by_component(tmp_path):
    rng = np.random.default_rng(0)
    points, force = rng.random((10, 2)), rng.random((10, 2)).astype(np.float32)
    np.savez(tmp_path / "part.npz", points=points, force=force, note=np.array("not a field"), speed=3.0)
    source = CaseSource(tmp_path / "part.npz")
    assert [f["name"] for f in source.catalogue()["fields"]] == ["force.x", "force.y"]
    np.testing.assert_array_equal(source.field(0, "force.y")["truth"], force[:, 1])
    assert source.catalogue()["parameters"] == [{"name": "speed", "unit": ""}]
    assert source.geometry(0)["parameter/speed"].tolist() == [3.0]


def test_a_prediction_beside_its_truth_is_compared(tmp_path):
    (tmp_path / "b10.csv").write_text("x,y,p,p_predicted,q_predicted\n0,0,1,1.5,3\n1,0,2,2.5,4\n")
    (tmp_path / "b9.csv").write_text("x,y,q_predicted\n0,0,7\n1,0,8\n")
    source = CaseSource(tmp_path)
    catalogue = source.catalogue()
    assert [s["name"] for s in catalogue["samples"]] == ["b9.csv", "b10.csv"]
    assert source.field(1, "p")["prediction"].tolist() == [1.5, 2.5]
    assert set(source.field(1, "q_predicted")) == {"truth"}
    alone = CaseSource(tmp_path / "b10.csv").catalogue()
    assert [(f["name"], f["compared"]) for f in alone["fields"]] == [("p", True), ("q_predicted", False)]
    with pytest.raises(NotThere, match="has no field 'p'"):
        source.field(0, "p")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("part.txt", "x", "cannot read .txt"),
        ("part.csv", "a,b\n1,2\n", "no columns x, y"),
        ("part.csv", "points\n1\n2\n", "header"),
        ("part.csv", "x,y\n1,nan\n", "not finite"),
        ("part.npz", "no archive", "part.npz"),
        ("part.stl", "no triangles", "part.stl"),
    ],
)
def test_a_file_that_cannot_be_shown_is_refused_with_its_name(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=message) as error:
        CaseSource(tmp_path / name)
    assert name in str(error.value)

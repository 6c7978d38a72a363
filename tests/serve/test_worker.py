"""Jobs of a worker, run in this process: results in every format, error bars and OOD score, progress, cell centers."""

import io
import json
from dataclasses import replace

import numpy as np
import pytest

import flare.inference.calibration.calibrate
import flare.inference.chunked
import flare.inference.encoding
from flare.data.normalization import Affine
from flare.data.sample import Field, Schema
from flare.inference.prediction import predict
from flare.inference.surrogate import Surrogate
from flare.mesh import Mesh, read_mesh
from flare.serve import worker
from flare.serve.limits import ServerLimits
from flare.serve.worker import ServedModel
from flare.view.standalone import find_recorded
from tests.inference.test_export import SMALL, surrogate
from tests.serve.uploads import HUGE, POINTS, SPEED, THICKNESS, csv, json_, npz, stl, vtu

HEXAHEDRA = np.array([[[x, y, z] for z in (0, 1) for x, y in ((0, 0), (1, 0), (1, 1), (0, 1))]], np.float32)


def sent(tmp_path, **fields):
    return vtu(tmp_path, fields={"thickness": THICKNESS, **fields})


def test_error_bars_and_ood_score_equal_those_of_flare_predict_in_every_format(served, do, tmp_path):
    pytest.importorskip("pyvista")
    (tmp_path / "part.vtu").write_bytes(sent(tmp_path))
    plain = predict(
        served.surrogate, tmp_path / "part.vtu", parameters={"speed": SPEED}, calibration=served.calibration
    )
    settings = {"speed": [SPEED]}
    last, _, result = do(served, "predict", "vtu", sent(tmp_path), "json", settings=settings)
    answer = json.loads(result.read_text())
    assert answer["familiarity"]["score"] == pytest.approx(plain.assessment.score, rel=1e-5)
    assert answer["familiarity"]["unlike"] is (plain.assessment.rank == 0)
    assert {**last["done"], "inputs": 0, "fields": 0} == {**answer, "inputs": 0, "fields": 0}
    assert answer["bars"]["level"] == 0.9
    assert answer["bars"]["hold"] is not answer["familiarity"]["unlike"]
    for name, bar in plain.assessment.error_bars.items():
        np.testing.assert_allclose(answer["fields"][name]["bar"], bar, rtol=1e-5)
    _, _, result = do(served, "predict", "vtu", sent(tmp_path), "vtu", settings=settings)
    back = read_mesh(result)
    assert set(plain.added) <= set(back.point_data)
    np.testing.assert_allclose(back.field_data["familiarity_score"], [plain.assessment.score], rtol=1e-5)
    _, _, result = do(served, "predict", "vtu", sent(tmp_path), "npz", settings=settings)
    arrays = np.load(io.BytesIO(result.read_bytes()), allow_pickle=False)
    assert {*plain.added, "position", "thickness", "speed", "triangle", "familiarity_score"} == set(arrays)
    np.testing.assert_allclose(arrays["heat_bar"], plain.assessment.error_bars["heat"], rtol=1e-5)


def test_a_mesh_out_of_distribution_gets_a_warning_in_every_task(served, do):
    far = json_(position=(POINTS * 50).tolist())
    last, _, _ = do(served, "predict", "json", far)
    assert last["done"]["familiarity"]["unlike"] is True
    assert last["done"]["familiarity"]["verdict"].startswith("WARNING: unlike the training set")
    assert last["done"]["bars"]["hold"] is False
    assert "all 10 held-out samples" in last["done"]["familiarity"]["verdict"]
    encoded, _, code = do(served, "encode", "json", far, "code")
    assert encoded["done"]["familiarity"] == last["done"]["familiarity"]
    asked, _, result = do(served, "query", "json", json_(speed=...), encoding=str(code))
    assert asked["done"]["familiarity"] == last["done"]["familiarity"]  # that of the encoding
    assert len(json.loads(result.read_text())["fields"]["heat"]["bar"]) == 5


def test_without_a_calibration_error_bars_and_ood_score_are_null(served, do):
    last, _, result = do(replace(served, calibration=None), "predict", "json", json_())
    assert (last["done"]["bars"], last["done"]["familiarity"]) == (None, None)
    assert json.loads(result.read_text())["fields"]["heat"]["bar"] is None


@pytest.mark.parametrize("task", ["predict", "encode", "query"])
def test_progress_of_a_large_mesh_is_reported_per_chunk(task, do, monkeypatch):
    model = surrogate(blocks=3)
    monkeypatch.setattr(flare.inference.chunked, "CHUNK", 1024)
    monkeypatch.setattr(worker, "PROGRESS_SECONDS", 0.0)
    points = np.random.default_rng(0).uniform(0, 1, (5000, 2))
    part = json_(position=points.tolist(), thickness=[1.0] * 5000)
    more = {}
    if task == "query":
        part = json_(position=points.tolist(), thickness=[1.0] * 5000, speed=...)
        more["encoding"] = str(do(ServedModel(model, None), "encode", "json", json_(), "code")[2])
    last, messages, _ = do(ServedModel(model, None), task, "json", part, "code" if task == "encode" else "json", **more)
    assert last["done"]["points"] == 5000
    reported = [message["progress"] for message in messages]
    passes = {"predict": 3, "encode": 2, "query": 1}[task]
    np.testing.assert_allclose(np.diff(reported, prepend=0) * passes * 5000, ([1024] * 4 + [904]) * passes)


@pytest.mark.parametrize("task", ["predict", "encode"])
def test_error_bars_do_not_hold_for_a_parameter_outside_the_training_range(task, served, do):
    narrow = replace(served.calibration, ranges={"speed": ([0.5], [1.5])})
    last, _, _ = do(
        ServedModel(served.surrogate, narrow), task, "json", json_(), "code" if task == "encode" else "json"
    )
    assert any("speed = 2 m/s lies outside the training's 0.5 to 1.5" in remark for remark in last["done"]["remarks"])
    assert last["done"]["bars"]["hold"] is False


@pytest.mark.parametrize("far", HUGE[:2])
@pytest.mark.parametrize("answer", ["json", "vtu", "view"])
def test_inputs_with_a_non_finite_prediction_are_refused_and_leave_no_result(far, answer, served, do):
    points = POINTS.tolist()
    points[1][0] = far
    _, _, code = do(served, "encode", "json", json_(), "code")
    for task, more in (("predict", {}), ("encode", {}), ("query", {"encoding": str(code)})):
        last, _, result = do(served, task, "json", json_(position=points), answer, **more)
        assert last["error"]["status"] == 422, last
        assert "not finite" in last["error"]["message"]
        assert not result.exists()


# ---- cell centers ----------------------------------------------------------------------------------------------------


def centers_model(**cells):
    fields = {
        "cell_centres": Field(role="points", components=("x", "y", "z")),
        "porosity": Field(role="feature", components=("p",)),
        "pressure": Field(role="target", components=("p",), unit="Pa"),
    }
    schema = Schema(name="duct", fields=fields, **cells)
    model = Surrogate({"name": "flare", **SMALL["flare"]}, schema, Affine([0.0] * 4, [1.0] * 4), Affine([0.0], [1.0]))
    return ServedModel(model.eval(), None)


def two_boxes(tmp_path):
    points = np.concatenate([HEXAHEDRA[0], HEXAHEDRA[0] + [1, 0, 0]]).astype(np.float32)
    data = {"porosity": np.array([0.2, 0.4]), "pressure": np.array([1.0, 2.0])}
    Mesh.from_cells(points, {"hexahedron": np.arange(16).reshape(2, 8)}, cell_data=data).save(tmp_path / "boxes.vtu")
    return (tmp_path / "boxes.vtu").read_bytes()


def test_a_model_at_cell_centers_gets_and_returns_cell_data(do, tmp_path):
    served = centers_model()
    last, _, result = do(served, "predict", "vtu", two_boxes(tmp_path), "vtu")
    assert last["done"]["points"] == 2, last
    back = read_mesh(result)
    centres = np.array([[0.5, 0.5, 0.5], [1.5, 0.5, 0.5]], np.float32)
    expected = served.surrogate.predict(centres, features={"porosity": np.array([0.2, 0.4])})["pressure"]
    np.testing.assert_allclose(back.cell_data["pressure_predicted"], expected, rtol=1e-6)
    assert back.cell_data["pressure"].tolist() == [1.0, 2.0]
    assert back.units == {"pressure_predicted": "Pa"}
    many, _, _ = do(served, "predict", "vtu", two_boxes(tmp_path), "vtu", limits=ServerLimits(points=1))
    assert many["error"]["status"] == 413
    assert not back.point_data
    last, _, view = do(served, "predict", "vtu", two_boxes(tmp_path), "view")
    assert "done" in last, last
    assert json.loads(find_recorded(view, "catalogue").read_text())["samples"][0]["points"] == 2


def test_a_model_of_triangles_predicts_a_surface_at_triangle_centers(served, do):
    model = centers_model(cell_type="triangle").surrogate
    known = ServedModel(model, replace(served.calibration, spacing=1.0, error_bars=None, ood=None, ranges={}))
    last, _, result = do(known, "predict", "stl", stl(), "vtu", settings={"porosity": [0.3]})
    assert (last["done"]["points"], read_mesh(result).cell_types.tolist()) == (4, [5] * 4)
    assert read_mesh(result).cell_data["pressure_predicted"].shape == (4,)
    assert "triangle centers" in last["done"]["remarks"][0]
    dense = ServedModel(model, replace(known.calibration, spacing=0.1))
    last, _, _ = do(dense, "predict", "stl", stl(), "vtu", settings={"porosity": [0.3]})
    assert last["done"]["points"] == 200


@pytest.mark.parametrize("kind", ["vtu", "json", "npz", "csv"])
def test_a_missing_input_is_named_with_its_query_parameter(kind, served, do, tmp_path):
    content = {
        "vtu": sent(tmp_path, pressure=THICKNESS),
        "json": json_(speed=...),
        "npz": npz(speed=None),
        "csv": csv().replace(b"speed", b"colour"),
    }
    last, _, _ = do(served, "predict", kind, content[kind])
    assert last["error"]["status"] == 422
    assert "&set=speed=VALUE" in last["error"]["message"]

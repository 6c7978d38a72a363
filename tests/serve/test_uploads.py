"""Uploads of every format: rows, inputs that are also set in the address, JSON results, queries of an encoding."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from flare.mesh import read_mesh
from flare.serve.limits import ServerLimits
from flare.view.standalone import find_recorded
from tests.serve.uploads import KINDS, MISSING, POINTS, SPEED, csv, good, json_, npz, vtu


def test_blank_lines_at_the_end_do_not_count_as_rows(served, do):
    last, _, _ = do(served, "predict", "csv", csv() + b"\n\n", limits=ServerLimits(points=5))
    assert last["done"]["points"] == 5
    last, _, _ = do(served, "predict", "csv", csv() + b"\n1,1,1,2\n", limits=ServerLimits(points=5))
    assert last["error"]["status"] == 413


@pytest.mark.parametrize("kind", ["vtu", "npz", "csv", "json"])
def test_an_input_that_is_in_the_upload_and_set_is_refused(kind, served, do, tmp_path):
    content = {"npz": npz(), "csv": csv(), "json": json_()}.get(kind)
    if kind == "vtu":
        vtu(tmp_path)
        read_mesh(tmp_path / "made.vtu").with_data(field_data={"speed": np.array([SPEED])}).save(tmp_path / "a.vtu")
        content = (tmp_path / "a.vtu").read_bytes()
    last, _, _ = do(served, "predict", kind, content, settings={"speed": [3.5]})
    assert last["error"]["status"] == 422
    assert all(fact in last["error"]["message"] for fact in ("speed", f"upload.{kind}"))
    _, _, code = do(served, "encode", kind, content, "code")
    asked, _, _ = do(served, "query", kind, content, encoding=str(code))
    assert "done" in asked, "a query may repeat the parameters of its encoding"
    _, _, other = do(served, "encode", "json", json_(speed=2.75), "code")
    asked, _, _ = do(served, "query", kind, content, encoding=str(other))
    assert all(fact in asked["error"]["message"] for fact in ("speed", f"upload.{kind}"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_json_result_contains_its_inputs_as_another_upload(kind, served, do, tmp_path):
    settings = {word.partition("=")[0]: [float(word.partition("=")[2])] for word in MISSING.get(kind, [])}
    _, _, result = do(served, "predict", kind, good(kind, tmp_path), settings=settings)
    answer = json.loads(result.read_text())
    inputs = answer["inputs"]
    if kind == "stl":  # the server chooses the points
        assert (np.array(inputs["position"]) <= POINTS.max(0)).all()
    else:
        assert inputs["position"] == POINTS.tolist()
    assert inputs["speed"] == SPEED
    assert len(inputs["position"]) == len(inputs["thickness"]) == answer["points"]
    _, _, again = do(served, "predict", "json", json.dumps(inputs).encode())  # they are an upload themselves
    same = json.loads(again.read_text())
    assert same["inputs"] == inputs
    for name, field in answer["fields"].items():
        np.testing.assert_allclose(same["fields"][name]["values"], field["values"], rtol=1e-6)


def test_a_view_contains_the_ood_score(served, do):
    last, _, view = do(served, "predict", "json", json_(), "view")
    score = load_file(find_recorded(view, "samples/0"))["parameter/familiarity_score"]
    np.testing.assert_allclose(score, [last["done"]["familiarity"]["score"]], rtol=1e-6)


def test_error_bars_do_not_hold_outside_the_box_of_an_encoding(served, do):
    _, _, code = do(served, "encode", "json", json_(), "code")
    inside, _, _ = do(served, "query", "json", json_(), encoding=str(code))
    far = POINTS.copy()
    far[3:] += 100
    asked, _, _ = do(served, "query", "json", json_(position=far.tolist()), encoding=str(code))
    assert inside["done"]["remarks"] == []
    assert "2 of 5 points are outside the encoded box (0,0 to 2,1)" in asked["done"]["remarks"][0]
    assert asked["done"]["bars"]["hold"] is False

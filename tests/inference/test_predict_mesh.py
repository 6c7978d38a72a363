"""`Surrogate.predict_mesh`: from a file to a mesh with fields and error bars."""

import numpy as np
import pyvista as pv

import flare
from tests.factory import ragged_dataset

SMALL = {"name": "flare", "channels": 8, "blocks": 1, "heads": 2, "latents": 4}


def test_a_trained_run_predicts_a_mesh_with_error_bars(tmp_path):
    data = ragged_dataset(tmp_path / "data", sizes=[12] * 40, test=20)
    run = flare.train(data, model=SMALL, epochs=1, out=tmp_path / "run", report=False)
    plane = pv.Plane(i_resolution=3, j_resolution=2).triangulate()
    plane.point_data["thickness"] = np.ones(plane.n_points)
    plane.save(tmp_path / "a.vtp")
    mesh = run.surrogate.predict_mesh(tmp_path / "a.vtp", parameters={"speed": 2.0})
    inputs = {"features": {"thickness": np.ones(plane.n_points)}, "parameters": {"speed": 2.0}}
    fields = run.surrogate.predict(np.asarray(plane.points)[:, :2], **inputs)
    np.testing.assert_array_equal(mesh.point_data["heat_predicted"], fields["heat"])
    assert (mesh.point_data["heat_bar"] > 0).all()
    given = run.surrogate.predict_mesh(plane, parameters={"speed": 2.0})
    np.testing.assert_array_equal(given.point_data["heat_predicted"], fields["heat"])
    inputs["features"]["thickness"] = 1.0
    same = run.surrogate.predict(np.asarray(plane.points)[:, :2], **inputs)
    np.testing.assert_array_equal(same["heat"], fields["heat"])
    assert repr(run).startswith(f"Run('{tmp_path / 'run'}': test rel_l2 ")
    assert len(repr(run).splitlines()) == 1
    mesh.save(tmp_path / "b.vtp")
    assert "heat_bar" in pv.read(tmp_path / "b.vtp").point_data

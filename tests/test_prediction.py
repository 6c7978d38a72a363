"""Predictions on files: what the command line gives is what the file could have had."""

import numpy as np
import pytest
import pyvista as pv

from flare.data.sample import Field, Schema
from flare.errors import DataError
from flare.prediction import predict_file
from flare.surrogate import Surrogate


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
    predicted = predict_file(surrogate, path, given={"gravity": gravity, "wind": wind}).fields["rise"]
    points = np.asarray(pv.read(path).points)
    features = {"gravity": np.array(gravity), "wind": np.tile(wind, (len(points), 1))}
    np.testing.assert_array_equal(predicted.ravel(), np.ravel(surrogate.predict(points, **features)["rise"]))
    turned = predict_file(surrogate, path, given={"gravity": gravity[::-1], "wind": wind}).fields["rise"]
    assert np.abs(turned - predicted).max() > 1e-4


def test_a_vector_with_a_number_missing_is_refused(part):
    surrogate, path = part
    with pytest.raises(DataError, match=r"'gravity' has shape \(1,\); expected \(3,\)"):
        predict_file(surrogate, path, given={"gravity": 9.81, "wind": [3.0, -1.0]})

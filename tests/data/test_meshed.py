"""A mesh that is read without VTK gives a model the same inputs as an import would."""

import numpy as np
import pytest

from flare.data.meshed import grid_inputs
from flare.data.sample import Field, Schema
from flare.errors import DataError
from flare.mesh.unstructured import surface_grid

POINTS = np.array([[0, 0, 3], [1, 0, 3], [0, 1, 3], [1, 1, 3]], np.float32)
FACES = np.array([[0, 1, 2], [1, 3, 2]])


def schema(points="points", axes=("x", "y")):
    fields = {
        points: Field(role="points", components=axes),
        "Wall_Shear": Field(role="feature", components=("s",)),
        "speed": Field(role="parameter", components=("speed",)),
        "heat": Field(role="target", components=("q",)),
    }
    return Schema(name="plate", fields=fields)


def grid():
    mesh = surface_grid(POINTS, FACES).with_fields({"Wall Shear": np.arange(4.0)})
    mesh.values["speed"] = np.array([[30.0]])
    return mesh


def test_names_and_axes_are_those_of_an_import():
    found = grid_inputs(grid(), schema(), "part.vtu")
    np.testing.assert_array_equal(found["points"], POINTS[:, :2])
    np.testing.assert_array_equal(found["Wall_Shear"], np.arange(4.0))
    assert found["speed"].tolist() == [30.0]
    upright = surface_grid(POINTS[:, [0, 2, 1]], FACES)
    np.testing.assert_array_equal(grid_inputs(upright, schema(axes=("x", "z")), "flat")["points"], POINTS[:, :2])


def test_a_mesh_in_space_is_refused_by_a_model_of_the_plane():
    bent = surface_grid(POINTS * [1, 1, 0] + [[0, 0, 0], [0, 0, 1], [0, 0, 0], [0, 0, 0]], FACES)
    with pytest.raises(DataError, match=r"part.vtu is not plane: z goes from 0 to 1"):
        grid_inputs(bent, schema(), "part.vtu")


def test_points_are_never_taken_for_cell_centres():
    with pytest.raises(DataError, match="fields at cell centres"):
        grid_inputs(grid(), schema("cell_centres"), "part.vtu")


def test_an_empty_mesh_has_no_points():
    empty = surface_grid(np.zeros((0, 3), np.float32), np.zeros((0, 3), np.int64))
    assert grid_inputs(empty, schema(), "part.vtu")["points"].shape == (0, 2)

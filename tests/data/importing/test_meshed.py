"""A mesh that is read without VTK gives a model the same inputs as an import would."""

from dataclasses import replace

import numpy as np
import pytest

from flare.data.importing.fields import fields_of
from flare.data.importing.meshed import grid_case
from flare.data.sample import INPUT_ROLES, Field, Schema
from flare.mesh.file import mesh_of
from flare.mesh.unstructured import surface_grid
from flare.utils.errors import DataError

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


def grid(**cell_fields):
    mesh = surface_grid(POINTS, FACES)
    return mesh.with_fields(
        {} if cell_fields else {"Wall Shear": np.arange(4.0)},
        cell_fields=cell_fields,
        values={"speed": np.array([[30.0]])},
    )


def grid_inputs(grid, schema, name, told=None):
    told = [] if told is None else told
    return fields_of(grid_case(grid, name), schema, schema.named(*INPUT_ROLES), told=told.append)


def test_names_and_axes_are_those_of_an_import():
    found = grid_inputs(grid(), schema(), "part.vtu")
    np.testing.assert_array_equal(found["points"], POINTS[:, :2])
    np.testing.assert_array_equal(found["Wall_Shear"][:, 0], np.arange(4.0))
    assert found["speed"].tolist() == [30.0]
    upright = replace(grid(), points=POINTS[:, [0, 2, 1]])
    np.testing.assert_array_equal(grid_inputs(upright, schema(axes=("x", "z")), "flat")["points"], POINTS[:, :2])


def test_a_mesh_in_space_is_refused_by_a_model_of_the_plane():
    bent = surface_grid(POINTS * [1, 1, 0] + [[0, 0, 0], [0, 0, 1], [0, 0, 0], [0, 0, 0]], FACES)
    with pytest.raises(DataError, match=r"part.vtu is not plane: z goes from 0 to 1"):
        grid_inputs(bent, schema(), "part.vtu")


def test_a_model_at_cell_centres_gets_them_and_the_cells_own_fields():
    told = []
    found = grid_inputs(grid(**{"Wall Shear": np.array([5.0, 7.0])}), schema("cell_centres"), "part.vtu", told)
    np.testing.assert_allclose(found["cell_centres"], [[1 / 3, 1 / 3], [2 / 3, 2 / 3]], rtol=1e-6)
    assert found["Wall_Shear"][:, 0].tolist() == [5.0, 7.0]
    assert told == []
    averaged = grid_inputs(grid(), schema("cell_centres"), "part.vtu", told)
    np.testing.assert_allclose(averaged["Wall_Shear"][:, 0], [1.0, 2.0])
    assert told == ["'Wall Shear' is point data: averaged to the cells"]


def test_without_vtk_centres_and_averages_are_those_of_vtk():
    pyvista = pytest.importorskip("pyvista")
    mine = grid()
    other = mesh_of(pyvista.PolyData(POINTS, np.insert(FACES, 0, 3, axis=1).ravel()))
    np.testing.assert_array_equal(mine.centres(), other.centres())
    np.testing.assert_array_equal(mine.averaged_to_points(np.array([5.0, 7.0])), [5.0, 6.0, 6.0, 7.0])
    np.testing.assert_array_equal(
        mine.averaged_to_points(np.array([5.0, 7.0])), other.averaged_to_points(np.array([5.0, 7.0]))
    )
    lone = surface_grid(POINTS, FACES[:1])
    with pytest.raises(DataError, match=r"1 of 4 points \(first: 3\) belong to no cell"):
        lone.averaged_to_points(np.ones(1))


def test_an_empty_mesh_has_no_points():
    empty = surface_grid(np.zeros((0, 3), np.float32), np.zeros((0, 3), np.int64))
    assert fields_of(grid_case(empty, "part.vtu"), schema(), ["points"])["points"].shape == (0, 2)

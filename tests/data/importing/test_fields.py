"""Fields of a schema are found in a mesh by name, at points or cells."""

from dataclasses import replace

import numpy as np
import pytest

from flare.data.importing.fields import extract_fields
from flare.data.sample import INPUT_ROLES, Field, Schema
from flare.mesh import Mesh
from flare.mesh.io.vtk_library import from_pyvista
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


def plate(points=POINTS, faces=FACES, **data):
    return Mesh.from_cells(points, {"triangle": faces}, name="part.vtu", **data)


def grid(**cell_data):
    point_data = {} if cell_data else {"Wall Shear": np.arange(4.0)}
    return plate(point_data=point_data, cell_data=cell_data, field_data={"speed": np.array([[30.0]])})


def inputs(mesh, schema, log=None):
    log = [] if log is None else log
    return extract_fields(mesh, schema, schema.named(*INPUT_ROLES), log=log.append)


def test_names_and_axes_are_those_of_an_import():
    found = inputs(grid(), schema())
    np.testing.assert_array_equal(found["points"], POINTS[:, :2])
    np.testing.assert_array_equal(found["Wall_Shear"][:, 0], np.arange(4.0))
    assert found["speed"].tolist() == [30.0]
    upright = replace(grid(), points=POINTS[:, [0, 2, 1]])
    np.testing.assert_array_equal(inputs(upright, schema(axes=("x", "z")))["points"], POINTS[:, :2])


def test_a_curved_mesh_is_rejected_by_a_planar_model():
    bent = plate(POINTS * [1, 1, 0] + [[0, 0, 0], [0, 0, 1], [0, 0, 0], [0, 0, 0]])
    with pytest.raises(DataError, match=r"part\.vtu .*z, .*0 to 1"):
        inputs(bent, schema())


def test_a_schema_at_cell_centers_gets_cell_data():
    logged = []
    found = inputs(grid(**{"Wall Shear": np.array([5.0, 7.0])}), schema("cell_centres"), logged)
    np.testing.assert_allclose(found["cell_centres"], [[1 / 3, 1 / 3], [2 / 3, 2 / 3]], rtol=1e-6)
    assert found["Wall_Shear"][:, 0].tolist() == [5.0, 7.0]
    assert logged == []
    averaged = inputs(grid(), schema("cell_centres"), logged)
    np.testing.assert_allclose(averaged["Wall_Shear"][:, 0], [1.0, 2.0])
    assert ["'Wall Shear'" in message for message in logged] == [True]


def test_centers_and_averages_equal_those_of_a_vtk_mesh():
    pyvista = pytest.importorskip("pyvista")
    mine = grid()
    other = from_pyvista(pyvista.PolyData(POINTS, np.insert(FACES, 0, 3, axis=1).ravel()))
    np.testing.assert_array_equal(mine.cell_centers(), other.cell_centers())
    np.testing.assert_array_equal(mine.to_points(np.array([5.0, 7.0])), [5.0, 6.0, 6.0, 7.0])
    np.testing.assert_array_equal(mine.to_points(np.array([5.0, 7.0])), other.to_points(np.array([5.0, 7.0])))
    lone = plate(faces=FACES[:1])
    with pytest.raises(DataError, match=r"1 of 4 points \(first: 3\)"):
        lone.to_points(np.ones(1))


def test_an_empty_mesh_has_no_points():
    empty = plate(np.zeros((0, 3), np.float32), np.zeros((0, 3), np.int64))
    assert extract_fields(empty, schema(), ["points"])["points"].shape == (0, 2)

"""Meshes from plain arrays, and to and from pyvista."""

import numpy as np
import pytest
import pyvista as pv

from flare import Mesh
from flare.utils.errors import DataError

CORNERS = [[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]


def test_lists_are_accepted_for_arrays():
    mesh = Mesh.from_cells(CORNERS, {"triangle": [[0, 1, 2]]}, point_data={"heat": [1, 2, 3]})
    warm = mesh.with_data(cell_data={"region": [7]})
    assert warm.points.shape == (3, 3)
    assert warm.point_data["heat"].tolist() == [1, 2, 3]
    assert warm.cell_data["region"].tolist() == [7]


def test_an_unknown_type_of_cells_is_refused_with_the_known_names():
    with pytest.raises(DataError, match=r"'tet'.*tetra"):
        Mesh.from_cells(CORNERS, {"tet": [[0, 1, 2, 0]]})


def test_a_mesh_prints_as_one_line():
    mesh = Mesh.from_cells(CORNERS, {"triangle": [[0, 1, 2]]}, point_data={"heat": [1, 2, 3]}, name="a.vtu")
    assert repr(mesh) == "Mesh('a.vtu': 3 points, 1 cell, data 'heat')"


@pytest.mark.parametrize("corners", [CORNERS, [*CORNERS, [0.0, 0.0, 1.0]]], ids=["surface", "solid"])
def test_a_mesh_comes_back_from_pyvista(corners):
    kind = {3: "triangle", 4: "tetra"}[len(corners)]
    data = {"point_data": {"heat": np.arange(len(corners))}, "cell_data": {"region": [7]}, "units": {"heat": "K"}}
    mesh = Mesh.from_cells(corners, {kind: [range(len(corners))]}, **data)
    grid = mesh.to_pyvista()
    assert isinstance(grid, pv.PolyData if kind == "triangle" else pv.UnstructuredGrid)
    back = Mesh.from_pyvista(grid)
    np.testing.assert_array_equal(back.points, corners)
    np.testing.assert_array_equal(back.cells[kind], mesh.cells[kind])
    np.testing.assert_array_equal(back.point_data["heat"], mesh.point_data["heat"])
    assert back.cell_data["region"].tolist() == [7]
    assert back.units["heat"] == "K"


def test_what_is_not_a_mesh_is_refused():
    with pytest.raises(DataError, match="ndarray"):
        Mesh.from_pyvista(np.zeros((3, 3)))

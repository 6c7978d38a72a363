"""The outside of a mesh: closed, turned outwards, and nothing of the inside."""

import numpy as np
import pytest

from flare.mesh.octree import merged
from flare.mesh.topology import FACES, NONE, grid_triangles, outer_faces, surface_triangles
from flare.mesh.voxels import Voxels
from flare.utils.errors import DataError

CELLS = {
    "tetra": ([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]], 1 / 6),
    "pyramid": ([[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0], [0.5, 0.5, 1]], 1 / 3),
    "wedge": ([[0, 0, 0], [0, 1, 0], [1, 0, 0], [0, 0, 1], [0, 1, 1], [1, 0, 1]], 1 / 2),
    "hexahedron": ([[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0], [0, 0, 1], [1, 0, 1], [1, 1, 1], [0, 1, 1]], 1),
}
"""One cell of each type in VTK's order, and its volume."""


def volume(points, triangles):
    """By the divergence theorem: right only for a closed surface turned outwards."""
    a, b, c = np.moveaxis(points[triangles], 1, 0)
    return np.einsum("ij,ij->", a, np.cross(b, c)) / 6


def block(*shape):
    return merged(Voxels(np.ones(shape, bool), (1.0, 1.0, 1.0), (0.0, 0.0, 0.0)), levels=0)


@pytest.mark.parametrize("cell_type", CELLS)
def test_one_cell_is_all_outside_and_its_surface_holds_its_volume(cell_type):
    points, size = CELLS[cell_type]
    moved = np.array(points) + np.array([3.0, -2.0, 5.0])
    cells = np.arange(len(points))[None]
    faces, owner = outer_faces(cells, cell_type)
    assert len(faces) == len(FACES[cell_type])
    assert set(owner) == {0}
    assert volume(moved, surface_triangles(cells, cell_type)) == pytest.approx(size)


def test_outer_faces_of_a_block_are_its_sides():
    mesh = block(4, 3, 2)
    faces, owner = outer_faces(mesh.hexahedra)
    assert len(faces) == 2 * (4 * 3 + 3 * 2 + 4 * 2)
    corners = mesh.points[faces]
    normal = np.cross(corners[:, 2] - corners[:, 0], corners[:, 3] - corners[:, 1]) / 2
    outwards = corners.mean(1) - mesh.points[mesh.hexahedra[owner]].mean(1)
    np.testing.assert_allclose(np.einsum("ij,ij->i", normal, outwards), 0.5)
    assert volume(mesh.points, surface_triangles(mesh.hexahedra, "hexahedron")) == pytest.approx(24)


def test_a_shared_triangle_is_inside():
    faces, owner = outer_faces([[0, 1, 2, 3], [1, 2, 3, 4]], "tetra")
    assert len(faces) == 6
    assert (faces[:, 3] == NONE).all()
    assert sorted(owner) == [0, 0, 0, 1, 1, 1]
    assert not any(set(face[:3]) == {1, 2, 3} for face in faces)


def test_numbers_beyond_two_million_points_do_not_overflow():
    cells = block(3, 3, 3).hexahedra
    shift = 40_000_000
    np.testing.assert_array_equal(outer_faces(cells + shift)[0], outer_faces(cells)[0] + shift)


def test_no_cells_have_no_faces():
    assert outer_faces(np.zeros((0, 8), int))[0].shape == (0, 4)


def test_a_grid_is_covered_once_by_its_triangles():
    x, y = np.meshgrid(np.linspace(0, 2, 5), np.linspace(0, 1, 4), indexing="ij")
    points = np.stack([x, y], -1).reshape(-1, 2)
    a, b, c = np.moveaxis(points[grid_triangles(5, 4)], 1, 0)
    areas = np.cross(b - a, c - a) / 2
    assert abs(areas.sum()) == pytest.approx(2)
    assert np.ptp(areas) < 1e-12


def test_surface_cells_are_split_into_triangles_and_lines_have_none():
    assert surface_triangles([[0, 1, 2]], "triangle").tolist() == [[0, 1, 2]]
    assert surface_triangles([[0, 1, 2, 3]], "quad").tolist() == [[0, 1, 2], [0, 2, 3]]
    assert surface_triangles([[0, 1]], "line") is None
    with pytest.raises(DataError, match="hexahedron"):
        outer_faces([[0, 1, 2]], "hexahedra")

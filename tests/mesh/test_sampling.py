"""Points on surfaces are even, and voxels fill solids."""

import numpy as np
import pytest

from flare.mesh import read_mesh
from flare.mesh.io.vtk_library import from_pyvista
from flare.mesh.sampling import fill_with_voxels, points_on_surface
from flare.utils.errors import TooLarge
from tests.meshes import pv


def ball(tmp_path):
    pv.Sphere(radius=10.0, theta_resolution=40, phi_resolution=40).triangulate().save(tmp_path / "ball.stl")
    return tmp_path / "ball.stl"


def test_points_on_a_surface_are_even_and_as_many_as_the_spacing_asks():
    cube = from_pyvista(pv.Cube(x_length=2, y_length=2, z_length=2).triangulate())
    points = points_on_surface(cube, 0.1).points
    assert len(points) == 2400
    assert np.allclose(np.abs(points).max(1), 1, atol=1e-6)
    sides = [(points[:, axis] * sign > 1 - 1e-6).sum() for axis in range(3) for sign in (-1, 1)]
    assert min(sides) >= 398  # of 400 each: even, not drawn one by one
    assert np.abs(points.mean(0)).max() < 0.03
    np.testing.assert_array_equal(points, points_on_surface(cube, 0.1).points)


def test_voxels_fill_a_solid(tmp_path):
    mesh = fill_with_voxels(read_mesh(ball(tmp_path)), 1.0)
    assert list(mesh.cells) == ["hexahedron"]
    assert len(mesh.cells["hexahedron"]) == pytest.approx(4 / 3 * np.pi * 1000, rel=0.03)
    assert np.linalg.norm(mesh.cell_centers(), axis=1).max() < 10.0


def test_limits_on_points_are_checked_before_they_are_made(tmp_path):
    mesh = read_mesh(ball(tmp_path))
    with pytest.raises(TooLarge, match=r"ball\.stl"):
        points_on_surface(mesh, 0.1, max_points=1000)
    with pytest.raises(TooLarge, match=r"ball\.stl"):
        fill_with_voxels(mesh, 0.1, max_points=1000)

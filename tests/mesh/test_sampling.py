"""A bare surface gets points like those of the training: as dense, on it or all through it."""

import numpy as np
import pytest

from flare.data.sample import Field, Schema
from flare.mesh.file import mesh_of
from flare.mesh.sampling import filled, median_edge, on_surface, surface_of
from flare.part import surface_points
from flare.utils.errors import ConfigError
from tests.meshes import pv


def ball(tmp_path):
    pv.Sphere(radius=10.0, theta_resolution=40, phi_resolution=40).triangulate().save(tmp_path / "ball.stl")
    return tmp_path / "ball.stl"


def test_points_on_a_surface_are_even_and_as_many_as_the_spacing_asks():
    cube = mesh_of(pv.Cube(x_length=2, y_length=2, z_length=2).triangulate())
    points = on_surface(cube, 0.1).points
    assert len(points) == 2400
    assert np.allclose(np.abs(points).max(1), 1, atol=1e-6)
    sides = [(points[:, axis] * sign > 1 - 1e-6).sum() for axis in range(3) for sign in (-1, 1)]
    assert min(sides) >= 398  # of 400 each: even, not drawn one by one
    assert np.abs(points.mean(0)).max() < 0.03
    np.testing.assert_array_equal(points, on_surface(cube, 0.1).points)


def test_voxels_fill_a_solid(tmp_path):
    mesh = filled(ball(tmp_path), 1.0)
    assert list(mesh.cells) == ["hexahedron"]
    assert len(mesh.cells["hexahedron"]) == pytest.approx(4 / 3 * np.pi * 1000, rel=0.03)
    assert np.linalg.norm(mesh.centres(), axis=1).max() < 10.0


def schema(cell_type):
    fields = {
        "points": Field(role="points", components=("x", "y", "z")),
        "p": Field(role="target", components=("p",)),
    }
    return Schema(name="parts", fields=fields, cell_type=cell_type)


def test_a_model_of_solids_gets_a_solid_and_one_of_surfaces_a_surface(tmp_path, capsys):
    path = ball(tmp_path)
    assert list(surface_points(schema("tetra"), path, "auto", 1.5, None)[0].cells) == ["hexahedron"]
    own = pv.read(path)
    edge = median_edge(surface_of(mesh_of(own)))
    assert len(surface_points(schema("triangle"), path, "auto", edge, None)[0].points) == own.n_points
    assert capsys.readouterr().err == ""
    dense, what = surface_points(schema("triangle"), path, "auto", None, edge / 4)
    assert what == f"points {edge / 4:.3g} apart are all over the surface"
    assert len(dense.points) > 4 * own.n_points
    said = (
        "points are put all over its surface, none on its edges; a mesh as fine as the training's may be more familiar"
    )
    assert said in capsys.readouterr().err
    with pytest.raises(ConfigError, match="say it with --spacing, or run:  flare calibrate"):
        surface_points(schema("tetra"), path, "auto", None, None)

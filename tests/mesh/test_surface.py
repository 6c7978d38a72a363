"""Gradients along a surface, and points scattered over one."""

import numpy as np
import pytest

from flare.mesh.sampling import scatter
from flare.mesh.surface import Surface, surface_gradient, vertex_normals
from flare.physics.cars.exact import ellipsoid
from flare.utils.errors import ConfigError, DataError
from tests.physics.helpers import icosphere, rms


def grid(n, height):
    x, y = (axis.ravel() for axis in np.meshgrid(np.linspace(-1, 1, n), np.linspace(-1, 1, n), indexing="ij"))
    corner = (np.arange(n - 1)[:, None] * n + np.arange(n - 1)).ravel()
    faces = np.concatenate([corner[:, None] + [0, n, n + 1], corner[:, None] + [0, n + 1, 1]])
    return Surface(np.stack([x, y, height(x, y)], axis=1), faces)


def test_a_linear_field_on_a_plane_is_exact():
    plane = grid(6, lambda x, y: 0.5 * x - 0.2 * y)
    field = plane.vertices @ [1.0, 2.0, 3.0]
    normal = np.array([-0.5, 0.2, 1.0]) / np.linalg.norm([-0.5, 0.2, 1.0])
    along = np.array([1.0, 2.0, 3.0])
    np.testing.assert_allclose(surface_gradient(plane, field), [along - normal * (normal @ along)] * 36, atol=1e-10)


@pytest.mark.parametrize("axes", [(1.0, 1.0, 1.0), (2.0, 1.0, 0.6)])
def test_the_gradient_converges_to_second_order_and_is_tangent(axes):
    errors = []
    for n in (2, 3, 4):
        body = ellipsoid(axes, n)
        x, y, z = body.vertices.T
        normal = body.vertices / np.square(axes)
        normal /= np.linalg.norm(normal, axis=1)[:, None]
        whole = np.stack([y + 2 * x, x, np.cos(z)], axis=1)  # of x y + x² + sin z
        exact = whole - normal * (whole * normal).sum(axis=1)[:, None]
        found = surface_gradient(body, x * y + x * x + np.sin(z))
        errors.append(rms(found - exact))
        assert rms((found * normal).sum(axis=1)) < 2 * errors[-1]
    assert errors[0] > 3.5 * errors[1] > 12 * errors[2], errors


def test_too_few_neighbors_are_refused():
    corner = icosphere(0)  # each vertex has five neighbors, and all others in two rings
    assert np.isfinite(surface_gradient(corner, corner.vertices[:, 0])).all()
    with pytest.raises(DataError, match="5"):
        surface_gradient(Surface(np.eye(3), np.array([[0, 1, 2]])), np.zeros(3))
    with pytest.raises(DataError, match=r"\(3,\)"):
        surface_gradient(corner, np.zeros(3))


def test_normals_of_a_sphere_point_outwards():
    sphere = icosphere(3)
    assert vertex_normals(sphere) == pytest.approx(sphere.vertices, abs=0.02)


def test_scattered_points_fall_on_faces_by_their_areas():
    square = Surface(
        np.array([[0, 0, 0], [3, 0, 0], [3, 1, 0], [0, 1, 0], [1, 0, 0.0]]), np.array([[0, 4, 3], [4, 1, 2]])
    )
    faces, weights = scatter(square, 40_000, np.random.default_rng(0))
    assert (faces == 1).mean() == pytest.approx(2 / 3, abs=0.01)
    assert weights.min() >= 0
    assert weights.sum(axis=1) == pytest.approx(1)
    # Even within a triangle: each corner has a third in the mean, with the variance of an even spread, 1/18.
    assert weights.mean(axis=0) == pytest.approx(1 / 3, abs=0.01)
    assert weights.var(axis=0) == pytest.approx(1 / 18, rel=0.05)


def test_a_face_without_area_gets_no_point():
    flat = Surface(
        np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [2, 0, 0.0]]), np.array([[0, 1, 3], [0, 1, 2], [0, 1, 3]])
    )
    assert (scatter(flat, 500, np.random.default_rng(0))[0] == 1).all()
    with pytest.raises(DataError, match="area"):
        scatter(Surface(flat.vertices, flat.faces[:1]), 5, np.random.default_rng(0))
    with pytest.raises(ConfigError, match="count=0"):
        scatter(flat, 0, np.random.default_rng(0))

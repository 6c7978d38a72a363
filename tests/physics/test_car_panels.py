"""Source panels: closed forms against quadrature, exact flows past spheres and ellipsoids, ground, symmetry."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import dblquad

from flare.mesh.surface import Surface
from flare.physics.cars.exact import ellipsoid, ellipsoid_cp
from flare.physics.cars.flow import force_coefficients, pressure_coefficient
from flare.physics.cars.panels import Panels, solve
from flare.physics.cars.shape import ROAD, Car, mirror
from flare.physics.cars.triangle import potential, solid_angle, velocity
from flare.utils.errors import ConfigError, DataError
from tests.physics.helpers import icosphere, moved, rms

TRIANGLE = np.array([[0.1, -0.2, 0.3], [1.2, 0.1, 0.0], [0.3, 0.9, 0.4]])


def normal_of(corners):
    n = np.cross(corners[1] - corners[0], corners[2] - corners[0])
    return n / np.linalg.norm(n), np.linalg.norm(n) / 2


def by_quadrature(p, corners, kernel):
    _, area = normal_of(corners)

    def integrand(v, u):
        away = p - (corners[0] + u * (corners[1] - corners[0]) + v * (corners[2] - corners[0]))
        return kernel(away, np.linalg.norm(away))

    return 2 * area * dblquad(integrand, 0, 1, 0, lambda u: 1 - u, epsabs=1e-10)[0]


def velocity_at(p, corners):
    n, _ = normal_of(corners)
    out = np.zeros(3)
    velocity(p, corners, n, solid_angle(p, corners, (p - corners[0]) @ n), out)
    return out


def cp_error(body, exact):
    return rms(pressure_coefficient(body, solve(body).potential) - exact(body.vertices))


# One panel


@pytest.mark.parametrize("p", [[0.5, 0.3, -0.4], [3.0, -2.0, 1.0]])
def test_the_closed_forms_are_the_integrals(p):
    p = np.array(p)
    n, _ = normal_of(TRIANGLE)
    assert potential(p, TRIANGLE, n) == pytest.approx(by_quadrature(p, TRIANGLE, lambda d, r: 1 / r), rel=1e-8)
    for k in range(3):
        integral = by_quadrature(p, TRIANGLE, lambda d, r, k=k: d[k] / r**3) / (4 * np.pi)
        assert velocity_at(p, TRIANGLE)[k] == pytest.approx(integral, rel=1e-7, abs=1e-10)


def test_half_of_the_source_leaves_to_either_side():
    n, _ = normal_of(TRIANGLE)
    inside = TRIANGLE.mean(axis=0)
    for side in (1, -1):
        assert velocity_at(inside + side * 1e-9 * n, TRIANGLE) @ n == pytest.approx(side / 2, abs=1e-7)


def test_the_potential_is_finite_and_continuous_at_corners_and_edges():
    n, _ = normal_of(TRIANGLE)
    for p in (TRIANGLE[0], TRIANGLE[2], TRIANGLE[:2].mean(axis=0), TRIANGLE.mean(axis=0)):
        nearby = [potential(p + 1e-9 * step, TRIANGLE, n) for step in np.eye(3)]
        assert nearby == pytest.approx([potential(p, TRIANGLE, n)] * 3, abs=1e-7)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-3, 3), min_size=3, max_size=3))
def test_the_velocity_is_the_gradient_of_the_potential(place):
    p = np.add(place, [0, 0, 4])
    n, _ = normal_of(TRIANGLE)
    h = 1e-5
    slope = [(potential(p + h * e, TRIANGLE, n) - potential(p - h * e, TRIANGLE, n)) / (2 * h) for e in np.eye(3)]
    assert -np.array(slope) / (4 * np.pi) == pytest.approx(velocity_at(p, TRIANGLE), abs=1e-8)


# Bodies


@pytest.mark.parametrize(
    ("axes", "subdivisions", "limit"),
    [
        ((1.0, 1.0, 1.0), (2, 3), 0.01),
        ((2.0, 1.0, 0.6), (2, 3), 0.012),
        pytest.param((1.0, 1.0, 1.0), (3, 4), 0.002, marks=pytest.mark.slow),
    ],
)
def test_ellipsoids_converge_to_lambs_flow_with_nearly_second_order(axes, subdivisions, limit):
    coarse, fine = (cp_error(ellipsoid(axes, n), lambda x: ellipsoid_cp(axes, x)) for n in subdivisions)
    assert coarse > 3 * fine
    assert fine < limit


def test_the_exact_flow_past_a_sphere_is_the_textbook_one():
    points = np.array([[1.0, 0, 0], [0, 1, 0], [0.6, 0, 0.8]])
    assert ellipsoid_cp((1.0, 1.0, 1.0), points) == pytest.approx(1 - 2.25 * (1 - points[:, 0] ** 2))


def test_no_source_is_left_over_and_no_force_on_a_body_without_symmetry():
    def bent(n):
        body = ellipsoid((1.5, 1.0, 0.8), n)
        x, y, z = body.vertices.T
        return Surface(np.stack([x + 0.2 * z**2, y + 0.15 * x * z, z + 0.2 * x**2], axis=1), body.faces)

    forces = []
    for n in (2, 3):
        flow = solve(bent(n))
        assert abs(flow.sources @ flow.panels.areas) < 1e-10
        forces.append(np.abs(force_coefficients(bent(n), pressure_coefficient(bent(n), flow.potential))).max())
    assert forces[1] < 0.01
    assert forces[0] > 2.5 * forces[1]


# Ground and symmetry


def test_nothing_flows_through_the_ground():
    flow = solve(moved(icosphere(2), (0, 0, 1.3)), ground=0.0)
    x, y = np.meshgrid(np.linspace(-4, 4, 9), np.linspace(-3, 3, 7))
    velocities = flow.velocity(np.stack([x.ravel(), y.ravel(), np.zeros(x.size)], axis=1))
    assert np.abs(velocities[:, 2]).max() < 1e-12
    assert velocities[:, 0].max() > 1.2, "it is faster in the gap"


def test_the_ground_is_the_body_with_its_mirror_image():
    above = moved(icosphere(2), (0, 0, 1.3))
    count, below = len(above.vertices), above.transformed(np.diag([1, 1, -1]))
    pair = Surface(np.concatenate([above.vertices, below.vertices]), np.concatenate([above.faces, below.faces + count]))
    one, two = solve(above, ground=0.0), solve(pair)
    assert two.potential[:count] == pytest.approx(one.potential, abs=1e-7)
    shifted = solve(moved(above, (0, 0, -2.0)), ground=-2.0)
    assert shifted.potential == pytest.approx(one.potential, abs=1e-9)


def test_half_of_a_symmetric_body_gives_the_flow_past_the_whole():
    half = Car().half(0.25)
    whole, same = mirror(half)
    both = solve(whole, ground=ROAD)
    assert both.potential == pytest.approx(solve(half, ground=ROAD, symmetric=True).potential[same], abs=1e-7)


def test_quadrature_of_distant_panels_agrees_with_the_closed_form():
    panels = Panels(Car().half(0.25), ROAD, True)
    fast, exact = panels.normal_velocities(), panels.normal_velocities(exact=True)
    assert fast == pytest.approx(exact, abs=1e-7)
    sources = np.sin(np.arange(len(fast)))
    points = panels.surface.vertices
    quick = panels.potentials(sources, points)
    panels.__dict__["reaches"] = np.full(len(fast), np.inf)  # no panel is far enough for the quadrature
    assert quick == pytest.approx(panels.potentials(sources, points), abs=1e-7)


# Invalid input


@pytest.mark.parametrize(
    ("surface", "options", "error", "fact"),
    [
        (icosphere(1), {"ground": 0.0}, DataError, "1 below"),
        (moved(icosphere(1), (0, 0, 2)), {"ground": 0.0, "stream": (1.0, 0.0, 0.1)}, ConfigError, "stream="),
        (icosphere(1), {"symmetric": True}, DataError, "symmetric"),
        (Surface(icosphere(1).vertices, icosphere(1).faces[1:]), {}, DataError, "3 edges"),
        (Surface(icosphere(1).vertices, icosphere(1).faces[:, ::-1]), {}, DataError, "inwards"),
    ],
)
def test_invalid_surfaces_and_streams_raise(surface, options, error, fact):
    with pytest.raises(error, match=fact):
        solve(surface, **options)


def test_potential_is_proportional_to_the_stream():
    body = icosphere(1)
    assert solve(body, stream=(2.0, 0.0, 0.0)).potential == pytest.approx(2 * solve(body).potential, abs=1e-9)

"""The finite-volume scheme of the airfoil solver, on any mesh: closure, conservation, exact flows, accuracy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import brentq

from flare.physics.airfoil.dual import dual_mesh, structured_cells
from flare.physics.airfoil.euler import (
    GAMMA,
    _roe_flux,
    _roe_flux_derivatives,
    add_first_order_jacobian,
    conserved,
    free_stream,
    mach_number,
    primitive,
    residual,
    wave_speeds,
)
from flare.physics.airfoil.newton import SOFTNESS, block_pattern, factorize, gmres, solve_factorized, steady_flow
from flare.utils.errors import DataError, NotConverged

UNLIMITED = 1e6


def mesh_of(x, y, wall=None):
    """Return the node numbers and the dual mesh of a grid with x along its first index and y along its second."""
    numbers = np.arange(x.size).reshape(x.shape)
    solid = np.zeros(x.size, dtype=bool) if wall is None else wall.ravel()
    return numbers, dual_mesh(np.stack([x.ravel(), y.ravel()], axis=-1), structured_cells(numbers.T), solid)


def wavy_grid(cells, half_width=1.0, amplitude=0.05):
    """Return a square whose inner nodes are moved smoothly."""
    s = np.linspace(-half_width, half_width, cells + 1)
    x, y = np.meshgrid(s, s, indexing="ij")
    bump = amplitude * half_width * np.sin(np.pi * x / half_width) * np.sin(np.pi * y / half_width)
    return x + bump, y - bump


def smooth_flow(points):
    x, y = points.T
    w = [1 + 0.2 * np.sin(x + y), 0.5 + 0.3 * np.cos(y), 0.2 * np.sin(2 * x), 1 + 0.1 * np.cos(x - y)]
    return np.stack(w, axis=-1)


def states(rng, count=20):
    return [(*rng.uniform([0.3, -2, -2, 0.3], [2, 2, 2, 2]),) for _ in range(count)]


def flux(w, nx, ny):
    """Evaluate F · n by definition."""
    rho, u, v, p = w
    normal_speed = u * nx + v * ny
    energy = p / (GAMMA - 1) + rho * (u**2 + v**2) / 2
    return normal_speed * np.array([rho, rho * u, rho * v, energy + p]) + p * np.array([0, nx, ny, 0])


# Geometry


def test_the_faces_of_every_dual_volume_close_and_volumes_fill_the_mesh():
    rng = np.random.default_rng(0)
    x, y = wavy_grid(12)
    x[1:-1, 1:-1] += rng.uniform(-0.02, 0.02, (11, 11))
    wall = y == -1
    _, mesh = mesh_of(x, y, wall)
    gap = np.zeros_like(mesh.points)
    np.add.at(gap, mesh.edges[:, 0], mesh.normals)
    np.add.at(gap, mesh.edges[:, 1], -mesh.normals)
    np.add.at(gap, mesh.wall, mesh.wall_normals)
    np.add.at(gap, mesh.far, mesh.far_normals)
    assert np.abs(gap).max() < 1e-15
    assert mesh.volumes.sum() == pytest.approx(4.0, rel=1e-14)
    assert len(mesh.wall) == 2 * 12
    np.testing.assert_allclose(mesh.wall_normals.sum(axis=0), [0, -2], atol=1e-15)
    np.testing.assert_allclose(mesh.far_normals.sum(axis=0), [0, 2], atol=1e-15)


def test_folded_cells_are_counted_in_the_error():
    x, y = wavy_grid(8)
    x[3, 4] += 0.6
    with pytest.raises(DataError, match=r"\d of 64 "):
        mesh_of(x, y)
    with pytest.raises(DataError, match="64 of 64 "):
        mesh_of(-x, y)


# Flux


def test_primitive_and_conserved_values_are_inverse():
    w = np.array(states(np.random.default_rng(0)))
    np.testing.assert_allclose(primitive(conserved(w)), w, rtol=1e-13, atol=1e-13)
    assert mach_number(free_stream(0.8, 30.0)) == pytest.approx(0.8, rel=1e-15)


def test_roes_flux_is_consistent_and_conservative_and_upwind_in_supersonic_flow():
    rng = np.random.default_rng(2)
    for left, right in zip(states(rng), states(rng), strict=True):
        nx, ny = rng.uniform(-2, 2, 2)
        np.testing.assert_allclose(_roe_flux(left, left, nx, ny), flux(left, nx, ny), rtol=1e-13, atol=1e-13)
        there, back = _roe_flux(left, right, 0.6, -0.3), _roe_flux(right, left, -0.6, 0.3)
        np.testing.assert_allclose(there, -np.array(back), rtol=1e-12, atol=1e-13)
    fast, faster = (1.0, 3.0, 0.2, 1.0), (0.8, 3.5, 0.1, 1.2)
    np.testing.assert_allclose(_roe_flux(fast, faster, 1.0, 0.0), flux(fast, 1.0, 0.0), rtol=1e-13)


def test_an_expansion_shock_is_not_steady():
    """It satisfies the Rankine-Hugoniot conditions; the entropy fix rules it out."""
    mach = 2.0
    fast = (1.0, mach * np.sqrt(GAMMA), 0.0, 1.0)
    ratio = (GAMMA + 1) * mach**2 / ((GAMMA - 1) * mach**2 + 2)
    slow = (ratio, fast[1] / ratio, 0.0, 1 + 2 * GAMMA / (GAMMA + 1) * (mach**2 - 1))
    np.testing.assert_allclose(flux(fast, 1, 0), flux(slow, 1, 0), rtol=1e-13)
    assert np.abs(_roe_flux(slow, fast, 1.0, 0.0) - flux(slow, 1, 0)).max() > 0.01


def test_flux_derivatives_agree_with_difference_quotients():
    rng = np.random.default_rng(3)
    for w in states(rng):
        nx, ny = rng.uniform(-2, 2, 2)
        by_left, by_right = np.empty((4, 4)), np.empty((4, 4))
        _roe_flux_derivatives(by_left, by_right, w, w, nx, ny)
        q = conserved(np.array(w))
        for k, h in enumerate(1e-6 * np.eye(4)):
            quotient = (flux(primitive(q + h), nx, ny) - flux(primitive(q - h), nx, ny)) / 2e-6
            np.testing.assert_allclose((by_left + by_right)[:, k], quotient, rtol=1e-6, atol=1e-7)
        length, normal_speed = np.hypot(nx, ny), w[1] * nx + w[2] * ny
        sound = np.sqrt(GAMMA * w[3] / w[0]) * length
        waves = np.abs([normal_speed - sound, normal_speed, normal_speed, normal_speed + sound])
        if waves.min() > 0.06 * sound:  # outside the entropy fix
            np.testing.assert_allclose(np.sort(np.linalg.eigvals(by_left - by_right).real), np.sort(waves), rtol=1e-10)


# Residual


@pytest.mark.parametrize("mach", [0.8, 2.0])
def test_uniform_flow_is_preserved(mach):
    far = free_stream(mach, 17.0)
    _, mesh = mesh_of(*wavy_grid(20))
    assert np.abs(residual(mesh, far, SOFTNESS, np.tile(conserved(far), (441, 1)))).max() < 1e-14


def test_the_scheme_is_conservative():
    """Inside a closed box only pressure acts, on the walls."""
    x, y = wavy_grid(10)
    _, mesh = mesh_of(x, y, np.ones_like(x, dtype=bool))
    w = smooth_flow(mesh.points)
    total = residual(mesh, free_stream(0.5), SOFTNESS, conserved(w)).sum(axis=0)
    np.testing.assert_allclose(total[[0, 3]], 0, atol=1e-13)
    np.testing.assert_allclose(total[1:3], w[mesh.wall, 3] @ mesh.wall_normals, atol=1e-13)


def test_the_residual_is_equivariant_under_rotations():
    angle = 0.7
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    x, y = wavy_grid(10)
    wall = y == -1
    numbers, mesh = mesh_of(x, y, wall)
    turned = dual_mesh(mesh.points @ turn.T, structured_cells(numbers.T), wall.ravel())
    w, far = smooth_flow(mesh.points), free_stream(0.5)
    w_turned, far_turned = (np.concatenate([a[..., :1], a[..., 1:3] @ turn.T, a[..., 3:]], axis=-1) for a in (w, far))
    here = residual(mesh, far, UNLIMITED, conserved(w))
    there = residual(turned, far_turned, UNLIMITED, conserved(w_turned))
    np.testing.assert_allclose(there[:, [0, 3]], here[:, [0, 3]], atol=1e-14)
    np.testing.assert_allclose(there[:, 1:3], here[:, 1:3] @ turn.T, atol=1e-14)


def test_the_first_order_jacobian_is_the_derivative_at_uniform_flow():
    """There |A| multiplies no difference. Zero slopes make the residual first order."""
    x, y = wavy_grid(6)
    _, mesh = mesh_of(x, y, y == -1)
    mesh = mesh._replace(slopes=np.zeros_like(mesh.slopes))
    far, rng = free_stream(0.6, 20.0), np.random.default_rng(0)
    q = np.tile(conserved(far), (49, 1))
    pattern = block_pattern(49, mesh.edges)
    blocks = np.zeros((len(pattern.column), 4, 4))
    add_first_order_jacobian(mesh, far, q, blocks, pattern.diagonal, pattern.slots)
    v, h = rng.standard_normal((49, 4)), 1e-5
    quotient = (residual(mesh, far, 1.0, q + h * v) - residual(mesh, far, 1.0, q - h * v)) / (2 * h)
    product = np.zeros_like(v)
    row = np.repeat(np.arange(49), np.diff(pattern.start))
    np.add.at(product, row, np.einsum("bij,bj->bi", blocks, v[pattern.column]))
    np.testing.assert_allclose(product, quotient, atol=3e-6)


@pytest.mark.parametrize("softness", [UNLIMITED, SOFTNESS])
def test_an_isentropic_vortex_is_carried_with_second_order(softness):
    """In L2 on a smoothly deformed mesh, and at every node."""
    errors = np.array([vortex_errors(cells, softness) for cells in (25, 50)])
    orders = np.log2(errors[:-1] / errors[1:])
    assert (orders[:, 0] > 1.95).all()
    assert (orders[:, 1] > 1.95).all()


def vortex_errors(cells, softness, time=1.0, strength=5.0):
    """Return the L2 and largest error after the vortex moved with the flow, with third-order time steps."""
    _, mesh = mesh_of(*wavy_grid(cells, half_width=5.0))
    far = free_stream(0.5, 30.0)

    def exact(t):
        x, y = (mesh.points - far[1:3] * t).T
        swirl = strength / (2 * np.pi) * np.exp((1 - x**2 - y**2) / 2)
        density = (1 - (GAMMA - 1) / (2 * GAMMA) * swirl**2) ** (1 / (GAMMA - 1))
        return np.stack([density, far[1] - y * swirl, far[2] + x * swirl, density**GAMMA], axis=-1)

    def rate(q):
        return -residual(mesh, far, softness, q) / mesh.volumes[:, None]

    q = conserved(exact(0.0))
    steps = int(np.ceil(time / (0.8 * (mesh.volumes / wave_speeds(mesh, q)).min())))
    dt = time / steps
    for _ in range(steps):
        first = q + dt * rate(q)
        second = (3 * q + first + dt * rate(first)) / 4
        q = (q + 2 * (second + dt * rate(second))) / 3
    error = primitive(q) - exact(time)
    return np.sqrt((mesh.volumes[:, None] * error**2).sum()), np.abs(error).max()


# Linear algebra


def test_factors_are_exact_where_there_is_no_fill():
    """A chain of nodes has a block tridiagonal matrix."""
    rng, nodes = np.random.default_rng(0), 30
    pattern = block_pattern(nodes, np.stack([np.arange(nodes - 1), np.arange(1, nodes)], axis=1))
    blocks = rng.standard_normal((len(pattern.column), 4, 4))
    blocks[pattern.diagonal] += 12 * np.eye(4)
    dense = dense_matrix(pattern, blocks)
    b = rng.standard_normal((nodes, 4))
    factorize(pattern, blocks)
    x = solve_factorized(pattern, blocks, b)
    np.testing.assert_allclose(dense @ x.ravel(), b.ravel(), rtol=1e-12, atol=1e-12)


def test_gmres_with_incomplete_factors_solves_and_needs_fewer_iterations():
    _, mesh = mesh_of(*wavy_grid(8))
    rng, nodes = np.random.default_rng(1), 81
    pattern = block_pattern(nodes, mesh.edges)
    blocks = rng.standard_normal((len(pattern.column), 4, 4))
    blocks[pattern.diagonal] += 9 * np.eye(4)
    dense, b = dense_matrix(pattern, blocks), rng.standard_normal((nodes, 4))
    factors = blocks.copy()
    factorize(pattern, factors)

    def apply(v):
        return (dense @ v.ravel()).reshape(v.shape)

    def precondition(v):
        return solve_factorized(pattern, factors, v)

    x, iterations = gmres(apply, precondition, b, reduction=1e-10, max_iterations=100)
    plain, more = gmres(apply, lambda v: v, b, reduction=1e-10, max_iterations=100)
    truth = np.linalg.solve(dense, b.ravel()).reshape(b.shape)
    np.testing.assert_allclose(x, truth, atol=1e-9)
    np.testing.assert_allclose(plain, truth, atol=1e-9)
    assert iterations < more / 2
    assert np.linalg.norm(apply(x) - b) <= 1.001e-10 * np.linalg.norm(b)


def dense_matrix(pattern, blocks):
    nodes = len(pattern.diagonal)
    dense = np.zeros((nodes, 4, nodes, 4))
    row = np.repeat(np.arange(nodes), np.diff(pattern.start))
    dense[row, :, pattern.column, :] = blocks
    return dense.reshape(4 * nodes, 4 * nodes)


# Steady flow


def test_supersonic_flow_over_a_wedge_has_the_exact_oblique_shock():
    mach, angle = 2.0, np.deg2rad(8.0)

    def turning(beta):
        return 2 / np.tan(beta) * (mach**2 * np.sin(beta) ** 2 - 1) / (mach**2 * (GAMMA + np.cos(2 * beta)) + 2)

    beta = brentq(lambda b: turning(b) - np.tan(angle), 0.55, 0.8)
    ratio = 1 + 2 * GAMMA / (GAMMA + 1) * (mach**2 * np.sin(beta) ** 2 - 1)
    assert np.rad2deg(beta) == pytest.approx(37.2, abs=0.05)
    assert ratio == pytest.approx(1.54, abs=0.005)

    x, t = np.meshgrid(np.linspace(-0.3, 1, 66), np.linspace(0, 1, 51), indexing="ij")
    floor = np.maximum(x, 0) * np.tan(angle)
    y = floor + t * (1 - floor)
    numbers, mesh = mesh_of(x, y, t == 0)
    pressure = steady_flow(mesh, free_stream(mach)).w[numbers, 3]

    middle = (1 + ratio) / 2
    columns = [i for i in range(66) if 0.4 < x[i, 0] < 0.9]
    height = [np.interp(-middle, -pressure[i], y[i]) for i in columns]
    slope, offset = np.polyfit(x[columns, 0], height, 1)
    assert np.rad2deg(np.arctan(slope)) == pytest.approx(np.rad2deg(beta), abs=0.05)
    assert offset == pytest.approx(0, abs=0.002)  # it begins at the corner
    np.testing.assert_allclose(pressure[x[:, 0] > 0.3, 0], ratio, rtol=1e-3)
    np.testing.assert_allclose(pressure[x[:, 0] < -0.05], 1, rtol=1e-3)


def test_a_flow_that_does_not_converge_raises_with_its_residual():
    x, y = wavy_grid(10)
    _, mesh = mesh_of(x, y, y == -1)
    with pytest.raises(NotConverged, match=r"residual \d.* 2 "):
        steady_flow(mesh, free_stream(0.8), max_steps=2)

"""Plastic flow: a closed-form uniaxial path, the consistent tangent, and bodies that yield."""

from __future__ import annotations

import numpy as np
import pytest

from flare.physics.lpbf.grid import Hierarchy
from flare.physics.lpbf.mechanics import Body, elastic_equilibrium, von_mises_3d
from flare.physics.lpbf.plasticity import PlasticState, plastic_equilibrium, return_to_yield_surface

YOUNG, POISSON, YIELD, HARDENING = 104_000.0, 0.34, 800.0, 2_000.0


def state(plastic, accumulated, yield_stress=YIELD):
    ones = np.ones(len(plastic))
    return PlasticState(plastic, accumulated, YOUNG * ones, POISSON, yield_stress * ones, HARDENING)


def law(strain, plastic, accumulated):
    return return_to_yield_surface(strain, state(plastic, accumulated))


def make_body():
    solid = np.ones((3, 2, 2), bool)
    hierarchy = Hierarchy(solid, (1.0, 1.2, 0.9), (0.0, 0.0), plate=None, young=YOUNG, poisson=POISSON)
    return hierarchy, hierarchy.levels[0], Body(hierarchy, np.zeros((12, 8, 3)))


def equilibrium(body, eigenstrain, start, plastic, accumulated, yield_stress=YIELD, **options):
    return plastic_equilibrium(body, eigenstrain, start, state(plastic, accumulated, yield_stress), **options)


def test_a_cyclic_uniaxial_path_follows_the_closed_form():
    """A bar pulled by an axial eigenstrain between fixed ends, free to thin, has uniaxial stress."""
    hierarchy, level, _ = make_body()
    position = level.positions
    level.fixed[:, 0] = np.isclose(position[:, 0], 0) | np.isclose(position[:, 0], 3)
    level.fixed[:, 1], level.fixed[:, 2] = np.isclose(position[:, 1], 0), np.isclose(position[:, 2], 0)
    body = Body(hierarchy, np.zeros((12, 8, 3)))  # with these supports
    del hierarchy.levels[1:]  # the coarse levels do not have these supports: solve directly
    plastic, accumulated, u = np.zeros((12, 6)), np.zeros(12), np.zeros(position.shape)
    stress, flowed, total, last = 0.0, 0.0, 0.0, 0.0
    for strain in (0.004, 0.012, 0.020, 0.010, -0.004, -0.010, 0.0, 0.015):
        # closed form of linear isotropic hardening
        trial = stress + YOUNG * (strain - last)
        excess = abs(trial) - (YIELD + HARDENING * total)
        if excess > 0:
            step = excess / (YOUNG + HARDENING)
            total += step
            flowed += step * np.sign(trial)
            trial -= YOUNG * step * np.sign(trial)
        stress, last = trial, strain
        eigenstrain = np.zeros((12, 6))
        eigenstrain[:, 0] = -strain
        found, returned = equilibrium(body, eigenstrain, u, plastic, accumulated, tolerance=1e-11)
        plastic, accumulated, u = returned.plastic_strain, returned.accumulated, found.displacement
        assert found.stress[:, 0] == pytest.approx(stress, rel=1e-8)
        assert np.abs(found.stress[:, 1:]).max() < 1e-6 * YIELD
        assert plastic[:, 0] == pytest.approx(flowed, abs=1e-10)
        assert plastic[:, 1] == pytest.approx(-flowed / 2, abs=1e-10)
        assert accumulated == pytest.approx(total, abs=1e-10)
    assert total > 0.03, "the path yields"


def random_states(count=50):
    rng = np.random.default_rng(0)
    return rng.standard_normal((count, 6)) * 0.01, rng.standard_normal((count, 6)) * 1e-4, rng.random(count) * 0.01


def test_returned_stress_lies_on_the_yield_surface_and_flow_keeps_the_volume():
    strain, plastic, accumulated = random_states()
    found = law(strain, plastic, accumulated)
    on = found.yielding
    assert len(on) > 20
    limit = YIELD + HARDENING * found.accumulated
    assert von_mises_3d(found.stress[on]) == pytest.approx(limit[on], rel=1e-12)
    assert (von_mises_3d(found.stress) <= limit * (1 + 1e-12)).all()
    assert np.abs((found.plastic_strain - plastic)[:, :3].sum(1)).max() < 1e-16
    off = np.setdiff1d(np.arange(len(strain)), on)
    assert np.array_equal(found.plastic_strain[off], plastic[off])


def test_tangent_is_the_derivative_of_the_stress():
    strain, plastic, accumulated = random_states()
    found = law(strain, plastic, accumulated)
    step = 1e-7
    for component in range(6):
        change = step * np.eye(6)[component]
        high, low = law(strain + change, plastic, accumulated), law(strain - change, plastic, accumulated)
        slope = (high.stress - low.stress)[found.yielding] / (2 * step)
        assert np.abs(slope - found.tangent[:, :, component]).max() < 1e-6 * YOUNG


def test_a_material_that_never_yields_is_linear():
    _, level, body = make_body()
    eigenstrain = np.random.default_rng(1).standard_normal((12, 6)) * 1e-3
    start = np.zeros(level.positions.shape)
    linear = elastic_equilibrium(body, eigenstrain, start, tolerance=1e-10)
    other, _ = equilibrium(body, eigenstrain, start, np.zeros((12, 6)), np.zeros(12), np.inf, tolerance=1e-10)
    assert np.abs(linear.displacement - other.displacement).max() < 1e-8 * np.abs(linear.displacement).max()
    assert np.abs(linear.stress - other.stress).max() < 1e-7 * np.abs(linear.stress).max()

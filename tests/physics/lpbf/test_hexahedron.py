"""The box element: patch tests, constrained and free bodies, bending of strips."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import coo_array
from scipy.sparse.linalg import spsolve

from flare.physics.lpbf.grid import Hierarchy
from flare.physics.lpbf.hexahedron import CORNERS, elasticity_matrix, stiffness, strain_matrix
from flare.physics.lpbf.mechanics import Body, von_mises_3d

SIZE = (0.7, 1.3, 0.9)
YOUNG, POISSON = 104_000.0, 0.34


def direct_equilibrium(count, size, eigenstrain, held, *, young=YOUNG, poisson=POISSON, incompatible=True):
    """Compute the displacement of a box of voxels by a sparse direct solve.

    `eigenstrain(centers)` returns (E, 6), `held(positions)` returns (N, 3) bool.
    """
    hierarchy = Hierarchy(
        np.ones(count, bool), size, (0.0, 0.0), plate=None, young=young, poisson=poisson, incompatible=incompatible
    )
    level = hierarchy.levels[0]
    body = Body(hierarchy, np.zeros((len(level.cells), 8, 3)))
    strain = eigenstrain(level.positions[level.cells].mean(1))
    load = body.at_nodes(body.forces_of_stress(strain @ body.elasticity))
    dofs = (3 * level.cells[:, :, None] + np.arange(3)).reshape(-1, 24)
    rows, columns = np.repeat(dofs, 24, axis=1), np.tile(dofs, (1, 24))
    values = level.matrices[level.kinds].reshape(-1, 576)
    matrix = coo_array((values.ravel(), (rows.ravel(), columns.ravel()))).tocsc()
    free = np.nonzero(~held(level.positions).ravel())[0]
    u = np.zeros(load.size)
    u[free] = spsolve(matrix[free][:, free], load.ravel()[free])
    u = u.reshape(-1, 3)
    return level.positions, u, (body.strain(u) - strain) @ body.elasticity


def uniform(*strain):
    return lambda centers: np.tile(np.array(strain, float), (len(centers), 1))


def test_stiffness_is_symmetric_with_six_rigid_motions_and_no_other_soft_mode():
    values = np.linalg.eigvalsh(stiffness(SIZE, YOUNG, POISSON))
    assert np.abs(values[:6]).max() < 1e-10 * values[-1]
    assert values[6] > 1e-2 * values[-1]


def test_uniform_strain_gives_the_same_force_with_and_without_incompatible_modes():
    gradient = np.random.default_rng(0).standard_normal((3, 3)) * 1e-3
    u = (CORNERS * SIZE @ gradient.T).ravel()
    strain = strain_matrix(SIZE) @ u
    expected = np.prod(SIZE) * strain_matrix(SIZE).T @ elasticity_matrix(YOUNG, POISSON) @ strain
    for incompatible in (True, False):
        force = stiffness(SIZE, YOUNG, POISSON, incompatible=incompatible) @ u
        assert np.abs(force - expected).max() < 1e-12 * np.abs(expected).max()


def test_one_layer_held_at_its_sides_and_bottom_has_the_biaxial_stress():
    def held(p):
        sides = np.zeros(p.shape, bool)
        sides[:, 0] = np.isclose(p[:, 0], 0) | np.isclose(p[:, 0], 4 * SIZE[0])
        sides[:, 1] = np.isclose(p[:, 1], 0) | np.isclose(p[:, 1], 4 * SIZE[1])
        sides[:, 2] = np.isclose(p[:, 2], 0)
        return sides

    _, _, stress = direct_equilibrium((4, 4, 1), SIZE, uniform(-0.008, -0.008, 0, 0, 0, 0), held)
    expected = YOUNG * 0.008 / (1 - POISSON)
    assert np.abs(stress[:, :2] / expected - 1).max() < 1e-12
    assert np.abs(stress[:, 2:]).max() < 1e-9 * expected
    assert np.allclose(von_mises_3d(stress), expected, rtol=1e-12)


def timoshenko_curvature(strain, film, substrate):
    """Return the curvature of a strip of two layers of one material, one of which shrinks."""
    m, h = film / substrate, film + substrate
    return 6 * strain * (1 + m) ** 2 / (h * (3 * (1 + m) ** 2 + (1 + m) * (m**2 + 1 / m)))


def strip_tip(along, *, through=2, film=1, thickness=2.4, incompatible=True):
    """Return the lift of the end of a 48 mm strip whose upper layers shrink by 0.008; the other end is a symmetry
    plane."""

    def held(p):
        fixed = np.zeros(p.shape, bool)
        fixed[:, 0] = np.isclose(p[:, 0], 0)
        fixed[:, 1] = np.isclose(p[:, 1], 0)
        fixed[:, 2] = np.isclose(p[:, 0], 0) & np.isclose(p[:, 2], 0)
        return fixed

    size = (48 / along, 1.0, thickness / through)
    split = thickness * (1 - film / through)

    def shrink(centers):
        return np.where(centers[:, 2] > split, -0.008, 0.0)[:, None] * [1.0, 0, 0, 0, 0, 0]

    p, u, _ = direct_equilibrium((along, 1, through), size, shrink, held, poisson=0.0, incompatible=incompatible)
    end = np.isclose(p[:, 0], 48) & np.isclose(p[:, 2], 0)
    return float(u[end, 2].mean())


def test_bimetal_strip_curls_as_timoshenko_says():
    exact = timoshenko_curvature(0.008, 1.2, 1.2) * 48**2 / 2
    assert exact == pytest.approx(5.76, abs=1e-12)
    for along in (10, 40):
        assert strip_tip(along) == pytest.approx(exact, rel=1e-8)


@pytest.mark.parametrize(("along", "tip"), [(40, 5.12), (160, 5.71)])
def test_plain_boxes_are_too_stiff_by_the_known_amount(along, tip):
    assert strip_tip(along, incompatible=False) == pytest.approx(tip, abs=0.01)


def test_thin_film_tends_to_stoney():
    layers = (12, 24)
    errors = []
    for through in layers:
        film, substrate = 2.4 / through, 2.4 * (1 - 1 / through)
        tip = strip_tip(40, through=through)
        assert tip == pytest.approx(timoshenko_curvature(0.008, film, substrate) * 48**2 / 2, rel=0.01)
        errors.append(abs(tip / (6 * film * 0.008 / substrate**2 * 48**2 / 2) - 1))
    assert errors[1] < 0.6 * errors[0] < 0.2

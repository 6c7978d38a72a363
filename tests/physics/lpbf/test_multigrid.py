"""The nested grid and its solver: exact Galerkin coarsening, bounded iterations, the same bytes at any number of
threads."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from flare.physics.lpbf.grid import Hierarchy, coarse_lines, plate_depths
from flare.physics.lpbf.loops import numba_threads
from flare.physics.lpbf.mechanics import Body, elastic_equilibrium
from flare.physics.lpbf.multigrid import Multigrid, Operator, conjugate_gradients

SHRINK = np.array([-0.008, -0.008, 0, 0, 0, 0])


def hierarchy_of(solid, size=(1.0, 1.0, 1.0), *, plate=True, thickness=25.0):
    plate = plate_depths(thickness, size[2]) if plate else None
    return Hierarchy(solid, size, (0.0, 0.0), plate=plate, young=1e5, poisson=0.34)


def ragged(shape=(11, 7, 6), seed=0):
    """Return a part with holes, full in its lowest layer."""
    solid = np.random.default_rng(seed).random(shape) < 0.7
    solid[:, :, 0] = True
    return solid


def shrunk(hierarchy, **options):
    level = hierarchy.levels[0]
    body = Body(hierarchy, np.zeros((len(level.cells) - level.plate_cells, 8, 3)))
    strain = np.zeros((len(level.cells), 6))
    strain[level.plate_cells :] = SHRINK
    return elastic_equilibrium(body, strain, np.zeros(level.positions.shape), **options)


def test_coarse_lines_are_symmetric_and_halve():
    for count in range(1, 40):
        lines = coarse_lines(count)
        assert (lines[0], lines[-1]) == (0, count)
        assert np.array_equal(lines, count - lines[::-1])
        assert set(np.diff(lines)) <= ({2} if count % 2 == 0 else {1, 2, 3})


@pytest.mark.parametrize("plate", [True, False])
def test_every_level_is_the_galerkin_product_of_the_finer_one(plate):
    rng = np.random.default_rng(1)
    levels = hierarchy_of(ragged(), (0.8, 1.1, 1.0), plate=plate).levels
    for fine, coarse in pairwise(levels):
        x = rng.standard_normal(coarse.positions.shape) * ~coarse.fixed
        interpolated = np.einsum("nk,nkc->nc", fine.parent_weights, x[fine.parent_nodes])
        assert not interpolated[fine.fixed].any()
        force, restricted = Operator(fine, np.float64)(interpolated), np.zeros_like(x)
        np.add.at(restricted, fine.parent_nodes, fine.parent_weights[:, :, None] * force[:, None])
        restricted[coarse.fixed] = 0
        assert np.abs(restricted - Operator(coarse, np.float64)(x)).max() < 1e-13 * np.abs(force).max()


@pytest.mark.parametrize("plate", [True, False])
def test_interpolation_reproduces_linear_fields_on_every_level(plate):
    levels = hierarchy_of(ragged(), (0.8, 1.1, 1.0), plate=plate).levels
    for fine, coarse in pairwise(levels):
        found = np.einsum("nk,nkc->nc", fine.parent_weights, coarse.positions[fine.parent_nodes])
        assert np.abs(found - fine.positions).max() < 1e-12


def test_conjugate_gradients_agree_with_a_direct_solve():
    level = hierarchy_of(ragged((5, 4, 3))).levels[0]
    dofs = (3 * level.cells[:, :, None] + np.arange(3)).reshape(-1, 24)
    matrix = np.zeros((level.fixed.size,) * 2)
    np.add.at(matrix, (dofs[:, :, None], dofs[:, None, :]), level.matrices[level.kinds])
    b = np.random.default_rng(2).standard_normal(level.fixed.shape) * ~level.fixed
    free = np.nonzero(~level.fixed.ravel())[0]
    exact = np.zeros(level.fixed.size)
    exact[free] = np.linalg.solve(matrix[np.ix_(free, free)], b.ravel()[free])
    preconditioner = Multigrid(hierarchy_of(ragged((5, 4, 3))))
    x = conjugate_gradients(Operator(level, np.float64), b, np.zeros_like(b), preconditioner, tolerance=1e-12).x
    assert np.abs(x.ravel() - exact).max() < 1e-9 * np.abs(exact).max()


def test_iterations_stay_bounded_as_the_mesh_is_refined():
    def steps(n, inside):
        x, y, z = np.meshgrid(*[(np.arange(m) + 0.5) / n for m in (n, n, n // 2)], indexing="ij")
        return shrunk(hierarchy_of(np.broadcast_to(inside(x, y, z), x.shape), (24 / n,) * 3)).iterations

    def block(x, y, z):
        return x == x

    def table(x, y, z):  # a deck on four legs
        return (z > 0.25) | ((np.abs(x - 0.5) > 0.25) & (np.abs(y - 0.5) > 0.25))

    for shape, most in ((block, 12), (table, 20)):
        counts = [steps(n, shape) for n in (8, 16, 24)]
        assert max(counts) <= most
        assert counts[-1] <= counts[0] + 4


def test_a_thin_plate_under_a_wide_part_is_solved():
    """Few layers give a coarsest level of many nodes, which is factorized."""
    thin = hierarchy_of(np.ones((60, 60, 3), bool), thickness=4.0)
    assert len(thin.levels[-1].positions) > 400
    assert shrunk(thin).iterations <= 12


def test_two_threads_give_the_bytes_of_one():
    results = []
    for count in (1, 2):
        with numba_threads(count):
            results.append(shrunk(hierarchy_of(np.ones((40, 40, 20), bool))).displacement.tobytes())
    assert results[0] == results[1]

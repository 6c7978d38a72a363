"""The merged mesh: exact volume, cover and balance, picked fields, the counts of the benchmark's mesher."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.ndimage import uniform_filter

from flare.mesh.octree import merged
from flare.mesh.voxels import Voxels
from flare.utils.errors import DataError

SIZE, ORIGIN = (0.5, 0.4, 0.6), (-3.0, -2.0, 0.0)


def blob(seed, shape=(21, 18, 15), smooth=5):
    """A random solid with flat and ragged places."""
    noise = uniform_filter(np.random.default_rng(seed).standard_normal(shape), smooth)
    solid = noise > np.quantile(noise, 0.4)
    solid[4:16, 3:14, :7] = True
    return Voxels(solid, SIZE, ORIGIN)


def low_corners(mesh):
    return mesh.corners[mesh.hexahedra[:, 0]]


def cover(mesh, shape):
    """How many elements cover each voxel, and the number of one that does."""
    times, element = np.zeros(shape, dtype=int), np.full(shape, -1)
    for n, ((i, j, k), s) in enumerate(zip(low_corners(mesh), mesh.sizes, strict=True)):
        times[i : i + s, j : j + s, k : k + s] += 1
        element[i : i + s, j : j + s, k : k + s] = n
    return times, element


@settings(max_examples=12)
@given(st.integers(0, 10**6), st.integers(0, 3))
def test_every_voxel_is_covered_once_and_volume_is_kept(seed, levels):
    voxels = blob(seed)
    mesh = merged(voxels, levels=levels)
    times, _ = cover(mesh, voxels.solid.shape)
    np.testing.assert_array_equal(times, voxels.solid.astype(int))
    assert (mesh.sizes**3).sum() == voxels.count
    assert mesh.volume == pytest.approx(voxels.volume, rel=1e-12)
    assert set(np.unique(mesh.sizes)) <= {2**n for n in range(levels + 1)}
    np.testing.assert_array_equal(low_corners(mesh) % mesh.sizes[:, None], 0)  # aligned: no group boundary is crossed


@settings(max_examples=12)
@given(st.integers(0, 10**6), st.integers(1, 3))
def test_elements_that_share_a_face_or_an_edge_differ_by_two_at_most(seed, levels):
    voxels = blob(seed, smooth=7)
    mesh = merged(voxels, levels=levels)
    _, element = cover(mesh, voxels.solid.shape)
    size = np.where(element < 0, 0, mesh.sizes[element])
    for step in np.ndindex(3, 3, 3):
        step = np.array(step) - 1
        if not 0 < abs(step).sum() < 3:
            continue
        a = tuple(slice(max(0, -s), n - max(0, s)) for s, n in zip(step, size.shape, strict=True))
        b = tuple(slice(max(0, s), n - max(0, -s)) for s, n in zip(step, size.shape, strict=True))
        both = (size[a] > 0) & (size[b] > 0)
        assert (size[a][both] <= 2 * size[b][both]).all()


@pytest.mark.parametrize(
    ("bite", "sizes"),
    [
        (None, [0, 0, 0, 0, 32]),
        # The block with the bite: 7 voxels and 7 blocks of two. Its neighbors stay: the bite is in its far corner.
        ((15, 15, 7), [0, 7, 7, 0, 31]),
        # The bite is in a corner where three other blocks of four touch it by faces and edges, so they split.
        ((8, 8, 7), [0, 7, 7 + 8 * 3, 0, 28]),
    ],
)
def test_a_bite_refines_its_block_and_the_blocks_it_touches(bite, sizes):
    solid = np.ones((16, 16, 8), dtype=bool)
    if bite:
        solid[bite] = False
    assert np.bincount(merged(Voxels(solid, SIZE, ORIGIN)).sizes).tolist() == sizes


def test_nodes_are_corners_of_the_grid_and_hexahedra_are_in_vtk_order():
    voxels = blob(3)
    mesh = merged(voxels)
    np.testing.assert_allclose(mesh.points, np.array(ORIGIN) + mesh.corners * SIZE, rtol=0, atol=1e-12)
    assert len(np.unique(mesh.corners, axis=0)) == len(mesh.points)
    np.testing.assert_array_equal(np.unique(mesh.hexahedra), np.arange(len(mesh.points)))  # no node without an element
    offset = mesh.corners[mesh.hexahedra] - low_corners(mesh)[:, None]
    assert (offset[:, [1, 2, 5, 6], 0] == mesh.sizes[:, None]).all()
    assert (offset[:, [2, 3, 6, 7], 1] == mesh.sizes[:, None]).all()
    assert (offset[:, [4, 5, 6, 7], 2] == mesh.sizes[:, None]).all()
    assert (offset[:, [0, 3, 4, 7], 0] == 0).all()
    assert (np.diff(mesh.points[:, 2]) >= 0).all()
    assert (np.diff(mesh.points[mesh.hexahedra[:, 0], 2]) >= 0).all()


def test_a_field_on_the_grid_is_picked_at_the_nodes():
    voxels = blob(1)
    mesh = merged(voxels)
    axes = [o + h * np.arange(n + 1) for o, h, n in zip(ORIGIN, SIZE, voxels.solid.shape, strict=True)]
    np.testing.assert_array_equal(mesh.pick(np.stack(np.meshgrid(*axes, indexing="ij"), -1)), mesh.points)


def test_edges_are_those_of_a_loop_over_the_elements():
    mesh = merged(blob(2))
    edges = mesh.edges()
    expected = set()
    for h in mesh.hexahedra:
        for a, b in zip([0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3], [1, 2, 3, 0, 5, 6, 7, 4, 4, 5, 6, 7], strict=True):
            expected |= {(h[a], h[b]), (h[b], h[a])}
    assert edges.shape == (2, len(expected))
    assert set(zip(*edges, strict=True)) == expected
    cube = merged(Voxels(np.ones((1, 1, 1), dtype=bool), SIZE, ORIGIN))
    assert cube.edges().shape == (2, 24)


def test_a_dome_meshes_as_the_public_example_does():
    # 20 mm across; mean cross-sections of its three groups as in the example's log. The example: 5160 voxels, 1408
    # elements (1000, 392 and 16 by size), 3227 nodes. Its shape is not known beyond the log.
    areas, heights = [290.765, 180.851, 41.575], np.array([0, 3.2, 6.4, 8.8])
    rows = [[1, -(a + b) / 2, -(b**3 - a**3) / (3 * (b - a))] for a, b in itertools.pairwise(heights)]
    a, b, c = np.linalg.solve(rows, np.array(areas) / np.pi)
    x, z = (np.arange(32) + 0.5) * 0.625 - 10, (np.arange(11) + 0.5) * 0.8
    solid = x[:, None, None] ** 2 + x[:, None] ** 2 < a - b * z - c * z**2
    mesh = merged(Voxels(solid, (0.625, 0.625, 0.8), (-10.0, -10.0, 0.0)))
    assert solid.sum() == pytest.approx(5160, rel=0.01)
    assert np.count_nonzero(mesh.sizes == 4) == 16
    assert np.count_nonzero(mesh.sizes == 2) == pytest.approx(392, rel=0.08)
    assert len(mesh.points) / len(mesh.sizes) == pytest.approx(3227 / 1408, rel=0.001)


def test_nothing_to_mesh_is_refused():
    with pytest.raises(DataError, match="no solid voxel"):
        merged(Voxels(np.zeros((2, 2, 2), dtype=bool), SIZE, ORIGIN))

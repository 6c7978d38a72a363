"""Voxelising: closed forms, rays through edges and vertices, the benchmark's grid, placement, pieces, refusals."""

from __future__ import annotations

import numpy as np
import pytest
import trimesh
from hypothesis import given
from hypothesis import strategies as st

from flare.mesh.surface import UP, Surface, placed
from flare.mesh.voxelization import benchmark_size, divisions, voxelize, winding_numbers
from flare.mesh.voxels import Voxels, one_piece_on_plate, pieces
from flare.utils.errors import ConfigError, DataError

TETRAHEDRON = Surface(
    np.array([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]]), np.array([[0, 2, 1], [0, 1, 3], [0, 3, 2], [1, 2, 3]])
)


def box(*extents):
    return Surface.of(trimesh.creation.box(extents))


def moved(surface, by):
    return Surface(surface.vertices + np.asarray(by, dtype=float), surface.faces)


def joined(*surfaces):
    before = np.cumsum([0, *(len(s.vertices) for s in surfaces)])
    faces = [s.faces + n for s, n in zip(surfaces, before, strict=False)]
    return Surface(np.concatenate([s.vertices for s in surfaces]), np.concatenate(faces))


def centers(voxels):
    grid = zip(voxels.origin, voxels.solid.shape, voxels.size, strict=True)
    axes = [origin + (np.arange(count) + 0.5) * edge for origin, count, edge in grid]
    return np.stack(np.meshgrid(*axes, indexing="ij"), -1)


@pytest.mark.parametrize(
    ("mesh", "volume"),
    [
        (trimesh.creation.box((20, 14, 9)), 20 * 14 * 9),
        (trimesh.creation.icosphere(subdivisions=5, radius=10), 4 / 3 * np.pi * 1000),
        (trimesh.creation.cylinder(radius=10, height=12, sections=256), np.pi * 1200),
        (trimesh.creation.annulus(r_min=5, r_max=10, height=12, sections=256), np.pi * 75 * 12),
        (trimesh.creation.cone(radius=10, height=15, sections=256), np.pi * 500),
        (
            trimesh.creation.torus(major_radius=10, minor_radius=4, major_sections=256, minor_sections=128),
            320 * np.pi**2,
        ),
    ],
    ids=["box", "sphere", "cylinder", "annulus", "cone", "torus"],
)
def test_volumes_tend_to_the_closed_forms(mesh, volume):
    rotated = Surface.of(mesh.apply_transform(trimesh.transformations.euler_matrix(0.3, 0.5, 0.7)))
    assert rotated.volume == pytest.approx(volume, rel=1.5e-3)  # the mesh itself is that far from the smooth shape
    voxels = voxelize(rotated, 0.25)
    assert abs(voxels.volume / rotated.volume - 1) < 6e-4
    assert abs(voxels.volume / volume - 1) < 2e-3


def test_volume_error_is_of_second_order():
    # Voxel centers are a quadrature rule for the indicator function. Rotations and sizes are random: a grid centerd
    # about a symmetric body is a biased sample. Measured: order 2.1.
    shape, rng = trimesh.creation.icosphere(subdivisions=2, radius=10), np.random.default_rng(0)
    sizes, errors = np.array([2.0, 1.4, 1.0, 0.7, 0.5, 0.35]), np.zeros((40, 6))
    for row in errors:
        turn = trimesh.transformations.random_rotation_matrix(rng.random(3))
        surface = Surface.of(shape.copy().apply_transform(turn))
        row[:] = [voxelize(surface, h * rng.uniform(0.9, 1.1)).volume / surface.volume - 1 for h in sizes]
    assert np.polyfit(np.log(sizes), np.log(np.sqrt(np.square(errors).mean(0))), 1)[0] > 1.9


def test_voxels_of_a_convex_body_are_those_inside_its_half_spaces():
    mesh = trimesh.creation.icosphere(subdivisions=2, radius=10)
    mesh.apply_transform(trimesh.transformations.euler_matrix(0.1, 0.2, 0.3))
    voxels = voxelize(Surface.of(mesh), 0.5)
    heights = (mesh.face_normals * mesh.triangles[:, 0]).sum(1)
    beyond = (centers(voxels).reshape(-1, 3) @ mesh.face_normals.T - heights).max(1)
    assert (abs(beyond) > 1e-6).all()
    np.testing.assert_array_equal(voxels.solid.ravel(), beyond < 0)


@given(st.tuples(*[st.integers(1, 11)] * 3))
def test_solids_that_share_all_their_faces_fill_space_once(inner):
    # A cube cut into tetrahedra around a point, all vertices on the lattice of half voxels: each voxel center, however
    # many faces, edges and vertices it lies on, is in exactly one of them.
    cube = trimesh.creation.box((6, 6, 6))
    vertices = np.concatenate([cube.vertices + 3, [np.array(inner) / 2]])
    no_area = np.array([[0, 7, 0]])  # opposite corners: every tetrahedron gets the grid of the cube
    np.testing.assert_array_equal(vertices[no_area[0, :2]], [[0, 0, 0], [6, 6, 6]])
    total = np.zeros((6, 6, 6), dtype=int)
    for a, b, c in cube.faces:
        tetrahedron = np.array([[a, b, c], [b, a, 8], [c, b, 8], [a, c, 8]])
        numbers, _, _ = winding_numbers(Surface(vertices, np.concatenate([tetrahedron, no_area])), 1.0)
        assert set(np.unique(numbers)) <= {0, 1}
        total += numbers
    assert (total == 1).all()


def test_faces_through_voxel_centers_count_on_the_low_side():
    assert voxelize(box(4, 3, 2), 1.0).count == 24
    hollow = voxelize(joined(box(8, 8, 8), box(3, 3, 3)), 1.0)  # the inner faces, at ±1.5, pass through voxel centers
    empty = np.argwhere(~hollow.solid)
    assert len(empty) == 27
    np.testing.assert_array_equal([empty.min(0), empty.max(0)], [[2, 2, 2], [4, 4, 4]])


def test_mirror_images_and_quarter_turns_give_the_same_voxels_turned():
    bracket = joined(box(10, 4, 2), moved(box(3, 3, 5), (-2.13, 0.1, 3.51)))
    solid = voxelize(bracket, 0.37).solid
    turn = np.array([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]])
    turned = voxelize(bracket.transformed(turn), 0.37).solid
    np.testing.assert_array_equal(turned, np.rot90(solid, axes=(0, 1)))
    mirrored = bracket.transformed(np.diag([-1.0, 1, 1]))
    assert mirrored.volume == pytest.approx(bracket.volume, rel=1e-12)
    np.testing.assert_array_equal(voxelize(mirrored, 0.37).solid, solid[::-1])


def test_winding_numbers_distinguish_overlap_inside_and_inside_out():
    numbers, _, _ = winding_numbers(joined(box(4, 4, 4), moved(box(4, 4, 4), (2, 2, 0))), 1.0)
    assert np.bincount(numbers.ravel()).tolist() == [32, 96, 16]
    right, _, _ = winding_numbers(TETRAHEDRON, 0.1)
    flipped, _, _ = winding_numbers(Surface(TETRAHEDRON.vertices, TETRAHEDRON.faces[:, ::-1]), 0.1)
    assert set(np.unique(right)) == {0, 1}
    np.testing.assert_array_equal(flipped, -right)


@pytest.mark.parametrize(
    ("length", "dx", "ratio"), [(60, 0.46875, 1.28), (12, 0.375, 1.6), (10, 0.3125, 1.92), (7.5, 0.234375, 2.56)]
)
def test_voxels_are_those_of_the_benchmarks_mesher(length, dx, ratio):
    x, y, z = benchmark_size((length, 60, 5))
    assert (x, y, z) == pytest.approx((dx, 0.46875, 0.6), rel=1e-12)
    assert z / min(x, y) == pytest.approx(ratio, rel=1e-12)


def test_a_length_in_inches_of_single_precision_needs_no_further_voxel():
    lengths = np.arange(1, 400) * 2.4
    read = np.float32(lengths / 25.4).astype(np.float64) * 25.4
    assert (np.ceil(read / 2.4 - 1e-9) > lengths / 2.4 + 0.5).any(), "plain division would add one"
    assert [divisions(length, 2.4) for length in read] == list(range(1, 400))
    assert divisions(60.001, 2.4) == 26


def test_the_benchmarks_grid_fits_the_part_exactly():
    part = placed(box(60, 37, 6))
    voxels = voxelize(part, benchmark_size(part.extents))
    assert voxels.solid.shape == (128, 64, 10)
    assert voxels.solid.all()
    assert voxels.origin == pytest.approx((-30, -18.5, 0))
    assert voxels.volume == pytest.approx(60 * 37 * 6, rel=1e-12)


def test_the_grid_ends_with_the_last_solid_layer():
    for height, layers in ((4.9, 8), (5.0, 8), (5.11, 9)):  # the center of the ninth layer is at 5.1
        solid = voxelize(placed(box(60, 37, height)), (0.5, 0.5, 0.6)).solid
        assert solid.shape[2] == layers
        assert solid[:, :, -1].any()


@pytest.mark.parametrize("up", UP)
def test_a_placed_part_rests_on_the_plate_centered_with_its_longest_edge_60(up):
    part = moved(joined(box(10, 4, 2), moved(box(3, 3, 5), (-2, 0.1, 3.5))), (100, -7, 12))
    upright = placed(part, up=up)
    low, high = upright.bounds
    np.testing.assert_allclose([low[0] + high[0], low[1] + high[1], low[2]], 0, atol=1e-12)
    assert upright.extents.max() == pytest.approx(60)
    assert upright.volume == pytest.approx(part.volume * (60 / 10) ** 3)  # turned, never mirrored
    axis = "xyz".index(up[1])
    assert upright.extents[2] == pytest.approx(part.extents[axis] * 6)
    assert placed(part, up=up, longest=None).extents.max() == pytest.approx(10)


def test_only_small_fragments_beside_the_largest_piece_are_dropped():
    solid = np.zeros((10, 10, 10), dtype=bool)
    solid[:, :, :5] = True
    solid[9, 9, 9] = True
    voxels = Voxels(solid, (1.0, 1.0, 1.0), (0.0, 0.0, 0.0))
    assert pieces(solid)[1].tolist() == [499, 500, 1]
    assert one_piece_on_plate(voxels).solid.shape == (10, 10, 5)
    assert one_piece_on_plate(voxels).count == 500
    with pytest.raises(DataError, match=r"2 .*500 of 501"):
        one_piece_on_plate(voxels, max_fragments=0.0)
    with pytest.raises(DataError, match="5 mm"):
        one_piece_on_plate(Voxels(solid[:, :, ::-1] & (np.arange(10) > 2), (1.0, 1.0, 1.0), (0.0, 0.0, 0.0)))
    with pytest.raises(DataError):
        one_piece_on_plate(Voxels(np.zeros((2, 2, 2), dtype=bool), (1.0, 1.0, 1.0), (0.0, 0.0, 0.0)))


def test_open_surfaces_bad_sizes_and_thin_sheets_are_refused():
    cube = box(4, 4, 4)
    lid = (cube.vertices[cube.faces][:, :, 2] == 2).all(1)
    for error, fact, call in (
        (DataError, r"x = -1\.5, y = -1\.5", lambda: voxelize(Surface(cube.vertices, cube.faces[~lid]), 1.0)),
        (ConfigError, "voxel size -1", lambda: voxelize(cube, -1)),
        (DataError, r"4 × 4 × 0\.1", lambda: voxelize(box(4, 4, 0.1), 1.0)),
        (DataError, r"4e\+04", lambda: voxelize(box(4e4, 4e4, 4e4), 0.5)),
        (DataError, "60 × 0 × 5", lambda: benchmark_size((60, 0, 5))),
        (ConfigError, "layers=0", lambda: benchmark_size((60, 60, 5), layers=0)),
        (ConfigError, "up='z'", lambda: placed(cube, up="z")),
        (ConfigError, "longest=0", lambda: placed(cube, longest=0)),
    ):
        with pytest.raises(error, match=fact):
            call()

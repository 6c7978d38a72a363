"""Solids by formulas: closed-form volumes, set algebra, placement, agreement with surfaces, and their skin."""

from __future__ import annotations

import numpy as np
import pytest
import trimesh

from flare.mesh.csg import Box, Cylinder, Placed, Prism, on_plate
from flare.mesh.surface import Surface
from flare.mesh.voxelization import voxelize
from flare.mesh.voxels import Voxels, skin
from flare.utils.errors import ConfigError, DataError

BLOCK = Box((-3.0, -4.0, 1.0), (5.0, 2.0, 6.0))
ROD = Cylinder(axis=1, centre=(1.0, 3.0), radius=2.0, low=-5.0, high=4.0)
WEDGE = Prism(axis=0, polygon=((0.0, 0.0), (4.0, 0.0), (0.0, 3.0)), low=-1.0, high=2.0)


def random_points(solid, count=100_000):
    low, high = solid.bounds
    return np.random.default_rng(0).uniform(low - 1, high + 1, (count, 3)).T


@pytest.mark.parametrize(
    ("solid", "volume"), [(BLOCK, 240.0), (ROD, 36 * np.pi), (WEDGE, 18.0), (BLOCK - ROD, 240 - 6 * 4 * np.pi)]
)
def test_volumes_are_the_closed_forms(solid, volume):
    assert voxelize(solid, 0.05).volume == pytest.approx(volume, rel=6e-4)


def test_joining_and_cutting_are_set_algebra():
    points = random_points(BLOCK | ROD)
    a, b = BLOCK.inside(*points), ROD.inside(*points)
    np.testing.assert_array_equal((BLOCK | ROD).inside(*points), a | b)
    np.testing.assert_array_equal((BLOCK - ROD).inside(*points), a & ~b)
    assert a.any()
    assert b.any()


@pytest.mark.parametrize(
    "solid", [BLOCK, ROD, WEDGE, BLOCK | ROD, Placed(solid=WEDGE, axes=(2, 0, 1), signs=(1, -1, -1))]
)
def test_bounds_are_tight(solid):
    points = random_points(solid, 1_000_000)
    inside = points[:, solid.inside(*points)]
    low, high = solid.bounds
    np.testing.assert_allclose(inside.min(1), low, atol=0.15)
    np.testing.assert_allclose(inside.max(1), high, atol=0.15)
    assert (inside.min(1) >= low).all()
    assert (inside.max(1) <= high).all()


def test_solids_that_share_a_face_fill_space_once():
    points = np.stack(np.meshgrid(*[np.arange(-1, 6) * 1.0] * 3, indexing="ij")).reshape(3, -1)  # all on faces
    square = ((0.0, 0.0), (4.0, 0.0), (4.0, 4.0), (0.0, 4.0))
    whole = Prism(axis=2, polygon=square, low=0.0, high=4.0).inside(*points)
    halves = [Prism(axis=2, polygon=(square[n], square[n + 1], square[(n + 2) % 4]), low=0.0, high=4.0) for n in (0, 2)]
    count = sum(half.inside(*points).astype(int) for half in halves)
    np.testing.assert_array_equal(count, whole.astype(int))
    np.testing.assert_array_equal(whole, Box((0.0, 0.0, 0.0), (4.0, 4.0, 4.0)).inside(*points))


def test_a_polygon_may_have_either_orientation():
    points = random_points(WEDGE)
    other = Prism(axis=0, polygon=WEDGE.polygon[::-1], low=-1.0, high=2.0)
    np.testing.assert_array_equal(WEDGE.inside(*points), other.inside(*points))


def test_a_placed_solid_is_where_it_was_put():
    part = on_plate(Placed(solid=BLOCK - ROD, axes=(2, 1, 0), signs=(1, 1, -1)))
    np.testing.assert_allclose(part.bounds, [[-18.75, -22.5, 0], [18.75, 22.5, 60]])
    # Its top was the low x of the block: at that end the rod, about x = 1, leaves it whole.
    assert part.inside(np.array([0.0]), np.array([0.0]), np.array([59.0])).all()
    assert not part.inside(np.array([-3.75]), np.array([0.0]), np.array([30.0])).any()
    assert on_plate(BLOCK, longest=None).extents == pytest.approx([8, 6, 5])


def test_a_solid_and_its_surface_have_the_same_voxels():
    tilted = Prism(axis=2, polygon=((0.0, 0.0), (7.3, 1.1), (5.9, 6.2), (1.3, 4.7)), low=0.0, high=5.0)
    corners = np.array(tilted.polygon)
    vertices = np.concatenate([np.insert(corners, 2, z, axis=1) for z in (0.0, 5.0)])
    ends = [[0, 2, 1], [0, 3, 2], [4, 5, 6], [4, 6, 7]]
    sides = [f for n, m in ((0, 1), (1, 2), (2, 3), (3, 0)) for f in ([n, m, n + 4], [m, m + 4, n + 4])]
    surface = Surface(vertices, np.array(ends + sides))
    np.testing.assert_array_equal(voxelize(tilted, 0.21).solid, voxelize(surface, 0.21).solid)


def test_the_skin_of_voxels_gives_the_voxels_back():
    rng = np.random.default_rng(0)
    solid = rng.random((9, 8, 7)) < 0.5
    solid[[0, -1], :, :] = solid[:, [0, -1], :] = True
    solid[:, :, [0, -1]] = True
    voxels = Voxels(solid, (0.5, 0.4, 0.6), (-2.25, -1.6, 0.0))
    surface = skin(voxels)
    assert surface.volume == pytest.approx(voxels.volume, rel=1e-12)
    again = voxelize(surface, voxels.size)
    np.testing.assert_array_equal(again.solid, solid)
    assert again.origin == pytest.approx(voxels.origin, abs=1e-12)
    edges = np.sort(surface.faces[:, [[0, 1], [1, 2], [2, 0]]].reshape(-1, 2), axis=1)
    assert (np.unique(edges, axis=0, return_counts=True)[1] % 2 == 0).all()  # closed: every edge on 2 or 4 faces


def test_an_stl_file_holds_the_surface(tmp_path):
    surface = skin(voxelize(BLOCK - ROD, 0.5))
    surface.to_mesh().save(tmp_path / "part.stl")
    mesh = trimesh.load_mesh(tmp_path / "part.stl")
    assert mesh.is_winding_consistent
    assert mesh.volume == pytest.approx(surface.volume, rel=1e-6)
    assert (mesh.face_normals * trimesh.triangles.normals(mesh.triangles)[0]).sum(1) == pytest.approx(1)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["part.stl"]


def test_shapes_without_volume_are_refused():
    for make in (
        lambda: Box((0.0, 0.0, 0.0), (1.0, 0.0, 1.0)),
        lambda: Cylinder(axis=0, centre=(0.0, 0.0), radius=0.0, low=0.0, high=1.0),
        lambda: Prism(axis=0, polygon=((0.0, 0.0), (1.0, 1.0), (2.0, 2.0)), low=0.0, high=1.0),
        lambda: Prism(axis=0, polygon=((0.0, 0.0), (4.0, 0.0), (1.0, 1.0), (0.0, 4.0)), low=0.0, high=1.0),
    ):
        with pytest.raises(ConfigError):
            make()
    with pytest.raises(DataError, match="no surface"):
        skin(Voxels(np.zeros((2, 2, 2), dtype=bool), (1.0, 1.0, 1.0), (0.0, 0.0, 0.0)))

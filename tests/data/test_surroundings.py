"""What a node has around it: by hand on a table, the same in every mirror, the same from merged and unmerged meshes."""

from __future__ import annotations

import numpy as np
import pytest

from flare.data.surroundings import FIELDS, columns, surroundings
from flare.mesh.octree import merged, unmerged
from flare.mesh.voxels import Voxels
from flare.utils.errors import DataError


def table(size=(1.0, 1.0, 1.0)):
    """A leg of 2 × 2 × 4 under one end of a top of 8 × 2 × 2."""
    solid = np.zeros((8, 2, 6), dtype=bool)
    solid[:2, :, :4] = True
    solid[:, :, 4:] = True
    return Voxels(solid, size, (-4.0, -1.0, 0.0))


def at(mesh, values, *point):
    return float(values[np.argmin(np.linalg.norm(mesh.points - point, axis=1)), 0])


def test_the_voxels_of_a_merged_mesh_are_found_again():
    solid = np.pad(table().solid, ((0, 0), (0, 0), (0, 1)))
    solid[0, 0, 6] = True  # alone on top, it stays a voxel and determines the grid
    voxels = Voxels(solid, (0.6, 0.59, 0.61), (-4.0, -1.0, 0.0))
    mesh = merged(voxels)
    assert mesh.sizes.max() == 2
    again, corners = unmerged(mesh.points.astype(np.float32), mesh.hexahedra)
    np.testing.assert_array_equal(again.solid, voxels.solid)
    np.testing.assert_allclose(again.size, voxels.size, rtol=1e-5)
    np.testing.assert_array_equal(corners, mesh.corners)


def test_nodes_off_the_grid_are_refused():
    mesh = merged(table(), levels=0)
    bent = mesh.points + np.array([0.3, 0, 0]) * (mesh.points[:, 2:] == 2)
    with pytest.raises(DataError, match="grid"):
        unmerged(bent, mesh.hexahedra)


def test_columns_are_counted_from_the_plate_and_from_gaps():
    below, above, gap = columns(np.array([[1, 1, 0, 0, 1, 1], [0, 1, 1, 0, 1, 0]], dtype=bool))
    assert below.tolist() == [[1, 2, 0, 0, 1, 2], [0, 1, 2, 0, 1, 0]]
    assert above.tolist() == [[2, 1, 0, 0, 2, 1], [0, 2, 1, 0, 1, 0]]
    assert gap.tolist() == [[0, 0, 0, 0, 2, 2], [0, 1, 1, 0, 1, 0]]


def test_gaps_are_measured_under_overhangs_only():
    mesh = merged(table(), levels=0)
    around = surroundings(mesh.points, mesh.hexahedra)
    assert at(mesh, around["gap"], -4, 0, 6) == 0
    assert at(mesh, around["gap"], 4, 0, 6) == 4
    assert at(mesh, around["below"], -4, 0, 6) == 6
    assert at(mesh, around["below"], 4, 0, 6) == 2
    assert at(mesh, around["above"], -4, 0, 0) == 6
    assert at(mesh, around["wall"], -4, 0, 6) == 1
    assert at(mesh, around["slope_5"], -3, 0, 0) > 0 > at(mesh, around["slope_5"], -3, 0, 6)
    assert at(mesh, around["fill_2"], -3, 0, 5) > at(mesh, around["fill_2"], 4, 0, 6)


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
def test_mirror_images_have_the_same_surroundings(axes):
    voxels = table(size=(0.6, 0.6, 0.6))
    image = Voxels(np.flip(voxels.solid, axes), voxels.size, voxels.origin)
    mesh, seen = merged(voxels, levels=0), merged(image, levels=0)
    last = np.array(voxels.solid.shape)
    corners = np.where(np.isin(np.arange(3), axes), last - seen.corners, seen.corners)
    place = {tuple(corner): n for n, corner in enumerate(mesh.corners.tolist())}
    same = [place[tuple(corner)] for corner in corners.tolist()]
    here = surroundings(mesh.points, mesh.hexahedra)
    there = surroundings(seen.points, seen.hexahedra)
    for name in FIELDS:
        np.testing.assert_allclose(there[name], here[name][same], rtol=1e-5, atol=1e-6)


def test_merging_changes_nothing():
    solid = np.zeros((9, 8, 8), dtype=bool)
    solid[:8] = True
    solid[8, 0, 0] = True  # alone, it stays a voxel and tells the grid
    voxels = Voxels(solid, (0.6, 0.6, 0.6), (0.0, 0.0, 0.0))
    fine, coarse = merged(voxels, levels=0), merged(voxels, levels=1)
    everywhere = surroundings(fine.points, fine.hexahedra)
    here = surroundings(coarse.points, coarse.hexahedra)
    place = {tuple(corner): n for n, corner in enumerate(fine.corners.tolist())}
    same = [place[tuple(corner)] for corner in coarse.corners.tolist()]
    assert len(same) < len(fine.points)
    for name in FIELDS:
        np.testing.assert_allclose(here[name], everywhere[name][same], rtol=1e-4, atol=1e-5)

"""Fields on points: what is drawn is what was given, on every kind of mesh."""

import numpy as np
import pytest
from matplotlib.collections import PathCollection, QuadMesh
from matplotlib.figure import Figure
from matplotlib.tri import Triangulation

from flare.report.fields import color_bar, draw_field, field_axes, symmetric_range, value_range


def drawn(points, values, **options):
    figure = Figure()
    axes = field_axes(figure, figure.add_gridspec(1, 1)[0], np.shape(points)[1])
    axes.set_title("heading")
    mappable = draw_field(axes, points, values, **options)
    figure.draw_without_rendering()
    return axes, mappable


def grid(rows=4, columns=5, bend=0.0):
    i, j = np.meshgrid(np.linspace(0, 2, rows), np.linspace(0, 1, columns), indexing="ij")
    return np.stack([i, j + bend * i**2], -1).reshape(-1, 2)


@pytest.mark.parametrize("swap", [False, True])
def test_a_straight_grid_has_one_pixel_per_point_about_the_point(swap):
    points, values = grid()[:, ::-1] if swap else grid(), np.arange(20.0)
    axes, mesh = drawn(points, values, grid=(4, 5))
    assert isinstance(mesh, QuadMesh)
    corners = mesh.get_coordinates()
    centres = (corners[:-1, :-1] + corners[1:, 1:]) / 2
    np.testing.assert_allclose(centres.reshape(-1, 2), points, atol=1e-12)
    np.testing.assert_array_equal(np.ravel(mesh.get_array()), values)
    assert axes.get_aspect() == 1


def test_a_curved_grid_has_its_corners_on_the_points():
    points, values = grid(bend=0.3), np.arange(20.0)
    _, mesh = drawn(points, values, grid=(4, 5))
    np.testing.assert_array_equal(mesh.get_coordinates().reshape(-1, 2), points)
    np.testing.assert_array_equal(np.ravel(mesh.get_array()), values)


def test_triangles_carry_the_values_at_their_corners():
    points = np.random.default_rng(0).random((30, 2))
    cells = Triangulation(*points.T).triangles
    _, mesh = drawn(points, np.arange(30.0), cells=cells)
    np.testing.assert_array_equal(mesh.get_array(), np.arange(30.0))
    np.testing.assert_array_equal(mesh._triangulation.triangles, cells)


def test_a_quadrilateral_is_two_triangles_that_cover_it():
    square = np.array([[0, 0], [1, 0], [1, 1], [0, 1.0]])
    _, mesh = drawn(square, np.arange(4.0), cells=[[0, 1, 2, 3]])
    find = mesh._triangulation.get_trifinder()
    assert set(find([0.7, 0.3], [0.3, 0.7])) == {0, 1}
    assert (find([0.3, 0.9, 0.1, 0.5], [0.1, 0.6, 0.4, 0.9]) >= 0).all()


def test_a_cloud_in_the_plane_has_smaller_markers_the_denser_it_is():
    sizes = []
    for n in (100, 1000, 10_000):
        points = np.random.default_rng(0).random((n, 2))
        _, cloud = drawn(points, points[:, 0])
        assert isinstance(cloud, PathCollection)
        np.testing.assert_array_equal(cloud.get_offsets(), points)
        sizes.append(cloud.get_sizes()[0])
    assert sizes[1] == pytest.approx(sizes[2] * 10, rel=0.1)
    assert sizes[0] > sizes[1]


def test_a_small_cloud_in_space_is_drawn_completely():
    points = np.random.default_rng(0).random((500, 3)) * [3, 1, 0.5]
    axes, cloud = drawn(points, points[:, 0])
    assert len(cloud.get_array()) == 500
    assert axes.get_title() == "heading"
    box = np.asarray(axes._box_aspect)
    np.testing.assert_allclose(box / box[0], np.ptp(points, 0) / np.ptp(points[:, 0]))


def test_a_large_cloud_in_space_shows_a_fixed_subset_and_its_size():
    points = np.random.default_rng(0).random((30_000, 3))
    (axes, first), (_, second) = drawn(points, points[:, 0]), drawn(points, points[:, 0])
    assert axes.get_title() == "heading\n20,000 of 30,000 points"
    assert len(first.get_array()) == 20_000
    np.testing.assert_array_equal(first.get_array(), second.get_array())


def test_a_flat_cloud_in_space_can_be_drawn():
    points = np.random.default_rng(0).random((10, 3)) * [1, 1, 0]
    axes, cloud = drawn(points, np.ones(10))
    assert len(cloud.get_array()) == 10
    assert len(axes.get_zticks()) == 0, "a side without length has no labels"


def test_limits_are_those_given_or_those_of_the_field():
    values = np.array([1.0, np.nan, -2.0, 5.0])
    assert drawn(grid(2, 2), values, grid=(2, 2))[1].get_clim() == (-2, 5)
    assert drawn(grid(2, 2), values, grid=(2, 2), limits=(0, 1))[1].get_clim() == (0, 1)


@pytest.mark.parametrize(
    ("values", "plain", "symmetric"),
    [([1, -4, 2], (-4, 2), (-4, 4)), ([0, 0], (-1, 1), (-1, 1)), ([np.nan, 3, np.inf, 1], (1, 3), (-3, 3))],
)
def test_ranges(values, plain, symmetric):
    assert value_range(values) == plain
    assert symmetric_range(values) == symmetric


def test_the_range_of_a_constant_contains_it():
    low, high = value_range([5.0, 5.0])
    assert low < 5 < high


@pytest.mark.parametrize(
    ("values", "extend"),
    [([0.0, 1.0], "neither"), ([-0.1, 1.0], "min"), ([0.0, 1.1], "max"), ([-1, 2.0], "both"), ([np.nan, 1], "neither")],
)
def test_a_color_bar_has_the_height_of_its_axes_and_pointed_ends_for_outliers(values, extend):
    axes, mesh = drawn(grid(9, 2), np.linspace(0, 1, 18), grid=(9, 2))
    color_bar(axes, mesh, "pressure [Pa]", values)
    axes.figure.draw_without_rendering()
    assert mesh.colorbar.extend == extend
    assert mesh.colorbar.ax.get_ylabel() == "pressure [Pa]"
    bar, panel = mesh.colorbar.ax.get_window_extent(), axes.get_window_extent()
    if extend == "neither":
        assert (bar.y0, bar.y1) == pytest.approx((panel.y0, panel.y1), abs=0.5)

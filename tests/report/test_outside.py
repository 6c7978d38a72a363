"""Meshes in pictures: faces in the colors of the field, wherever it is."""

import numpy as np
import pytest

from flare.mesh import Mesh
from flare.mesh.io.vtk_library import from_pyvista
from flare.report.fields import color_bar, field_axes, slender
from flare.report.outside import draw_outside, outside
from flare.report.style import new_figure

pv = pytest.importorskip("pyvista")


def test_a_plane_is_drawn_in_the_plane_and_a_cloud_has_no_outside():
    shown = outside(from_pyvista(pv.Plane(i_resolution=3, j_resolution=2)))
    assert shown.points.shape == (12, 2)
    assert len(shown.triangles) == 12
    assert outside(Mesh(np.eye(3))) is None
    assert outside(None) is None


WIDTH = {"plane": 4, "solid": 8}


@pytest.mark.parametrize("root", WIDTH)
def test_every_triangle_has_the_value_of_its_cell(root):
    roots = {"plane": pv.Plane(i_resolution=3, j_resolution=2), "solid": pv.ImageData(dimensions=(3, 3, 3))}
    mesh = from_pyvista(roots[root])
    shown, values = outside(mesh), np.arange(mesh.cell_count, dtype=float)
    figure = new_figure(3, 3)
    axes = field_axes(figure, figure.add_gridspec(1, 1)[0, 0], shown.points.shape[1])
    drawn = draw_outside(axes, shown, values, at_cells=True, limits=(0, 9), colors="viridis")
    np.testing.assert_array_equal(drawn.get_array(), values[shown.owners])
    for triangle, cell in zip(shown.triangles, shown.owners, strict=True):
        assert set(triangle) <= set(mesh.connectivity[mesh.offsets[cell] - WIDTH[root] : mesh.offsets[cell]])
    figure.canvas.draw()


def test_labels_of_a_slender_part_do_not_overlap():
    mesh = from_pyvista(pv.Plane(i_size=6, j_size=0.3, i_resolution=60, j_resolution=6))
    shown, values = outside(mesh), np.linspace(0, 3e4, len(mesh.points))
    figure = new_figure(4.2, 1.2)
    axes = field_axes(figure, figure.add_gridspec(1, 1)[0, 0], 2)
    drawn = draw_outside(axes, shown, values, at_cells=False, limits=(0, 3e4), colors="viridis")
    color_bar(axes, drawn, "pressure [Pa]", values, below=slender(shown.points))
    figure.canvas.draw()
    texts = [
        t for a in figure.axes for t in (*a.get_xticklabels(), *a.get_yticklabels(), a.xaxis.label) if t.get_text()
    ]
    inside = [t.get_window_extent() for t in texts if t.get_visible()]
    assert len(inside) > 4
    for i, one in enumerate(inside):
        assert not any(one.overlaps(other) for other in inside[i + 1 :]), texts[i]

"""Pictures of hexahedra: what is in front hides what is behind."""

import numpy as np
import pytest
from matplotlib import colormaps
from matplotlib.backends.backend_agg import FigureCanvasAgg

from flare.mesh.octree import merged
from flare.mesh.voxels import Voxels
from flare.report.hexahedra import BELOW, draw_hexahedra, height_to_width
from flare.report.style import new_figure


def block(*shape):
    return merged(Voxels(np.ones(shape, bool), (1.0, 1.0, 1.0), (0.0, 0.0, 0.0)), levels=0)


@pytest.mark.parametrize("azimuth", [-90.0, 90.0, 0.0, 180.0])
@pytest.mark.parametrize("elevation", [20.0, -20.0])
def test_front_faces_hide_faces_behind(azimuth, elevation):
    """Four upright plates around the middle, each with its own value; seen is the one towards the viewer."""
    solid = np.zeros((9, 9, 20), bool)
    solid[[0, 8], 1:-1] = solid[1:-1, [0, 8]] = True
    mesh = merged(Voxels(solid, (1.0, 1.0, 1.0), (-4.5, -4.5, -10.0)), levels=0)
    a, e = np.deg2rad([azimuth, elevation])
    towards, across = np.array([np.cos(a), np.sin(a), 0]), np.array([-np.sin(a), np.cos(a), 0])
    depth = mesh.points @ towards
    figure = new_figure(4, 4)
    canvas, axes = FigureCanvasAgg(figure), figure.add_subplot()
    draw_hexahedra(axes, mesh.points, mesh.hexahedra, depth > 3, limits=(0, 1), view=(azimuth, elevation))
    canvas.draw()
    image = np.asarray(canvas.buffer_rgba())[..., :3] / 255
    place = 4.5 * towards
    x, y = axes.transData.transform((place @ across, place[2] * np.cos(e) - place @ towards * np.sin(e)))
    pixel, wanted = image[image.shape[0] - 1 - int(y), int(x)], np.array(colormaps["viridis"](1.0)[:3])
    brightness = pixel @ wanted / (wanted @ wanted)
    assert 0.6 < brightness <= 1.01
    np.testing.assert_allclose(pixel, brightness * wanted, atol=0.02)


def test_a_tall_part_makes_a_tall_picture():
    assert height_to_width(block(2, 2, 8).points, BELOW) > 2 > height_to_width(block(8, 2, 2).points)

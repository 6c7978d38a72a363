"""Draw the outer faces of hexahedra in perspective order, colored by a field and shaded."""

from __future__ import annotations

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PolyCollection
from matplotlib.colors import Normalize
from numpy.typing import ArrayLike, NDArray

from flare.mesh.topology import outer_faces
from flare.report.style import GREY, SMALL

Array = NDArray[np.float64]

ABOVE, BELOW = (-55.0, 28.0), (-55.0, -28.0)
"""Views: azimuth and elevation of the viewer in degrees."""


def draw_hexahedra(
    axes: Axes,
    points: ArrayLike,
    cells: ArrayLike,
    values: ArrayLike,
    *,
    limits: tuple[float, float],
    displacement: ArrayLike = 0.0,
    colors: str = "viridis",
    view: tuple[float, float] = ABOVE,
) -> ScalarMappable:
    """Draw the outside of a body.

    Faces are drawn from back to front by the distance of their undeformed hexahedra. This order is exact for boxes of
    one grid, and small deformations hardly change it.

    Args:
        axes: Two-dimensional axes.
        points: Nodes, shape (N, 3).
        cells: Hexahedra, shape (E, 8), in the order of VTK.
        values: Field at the nodes, shape (N,). A face has the mean of its corners.
        limits: Values at the two ends of the colors.
        displacement: Displacement of the nodes, shape (N, 3), small compared with the body.
        colors: Name of a color map.
        view: Azimuth and elevation of the viewer in degrees; the projection is orthographic.

    Returns:
        A mappable for `color_bar`.
    """
    x, u, v = (np.asarray(array, dtype=np.float64) for array in (points, displacement, values))
    faces, owner = outer_faces(np.asarray(cells))
    across, upward, towards = _camera(*view)
    quads = (x + u)[faces]
    normal = np.cross(quads[:, 2] - quads[:, 0], quads[:, 3] - quads[:, 1])
    normal /= np.maximum(np.linalg.norm(normal, axis=1, keepdims=True), 1e-300)
    seen = normal @ towards > 0
    depth = (x @ towards)[np.asarray(cells)[owner[seen]]].mean(1)
    order = np.flatnonzero(seen)[np.argsort(depth, kind="stable")]

    norm, scale = Normalize(*limits), colormaps[colors]
    rgb = scale(norm(v[faces[order]].mean(1)))[:, :3]
    light = towards + np.array([0.0, 0.0, np.sign(view[1])]) - 0.35 * across  # from behind the viewer
    brightness = 0.62 + 0.38 * np.clip(normal[order] @ (light / np.linalg.norm(light)), 0, 1)
    flat = np.stack([quads[order] @ across, quads[order] @ upward], -1)
    body = PolyCollection(
        list(flat), facecolors=rgb * brightness[:, None], edgecolors="face", linewidths=0.2, rasterized=True
    )
    axes.add_collection(body)
    _draw_axes(axes, flat, across, upward)
    axes.set_aspect("equal")
    axes.axis("off")
    axes.autoscale_view()
    return ScalarMappable(norm=norm, cmap=scale)


def height_to_width(points: Array, view: tuple[float, float] = ABOVE) -> float:
    """Return height / width of the projected points."""
    across, upward, _ = _camera(*view)
    return float(np.ptp(points @ upward) / np.ptp(points @ across))


def _camera(azimuth: float, elevation: float) -> tuple[Array, Array, Array]:
    """Return the directions to the right and up in the picture, and towards the viewer."""
    a, e = np.deg2rad([azimuth, elevation])
    towards = np.array([np.cos(e) * np.cos(a), np.cos(e) * np.sin(a), np.sin(e)])
    across = np.array([-np.sin(a), np.cos(a), 0.0])
    return across, np.cross(towards, across), towards


def _draw_axes(axes: Axes, flat: Array, across: Array, upward: Array) -> None:
    """Draw x, y and z as short lines in the lower left corner."""
    low, high = flat.reshape(-1, 2).min(0), flat.reshape(-1, 2).max(0)
    length = 0.1 * float((high - low).max())
    start = low - np.array([0.6, 0.9]) * length
    for name, direction in zip("xyz", np.eye(3), strict=True):
        end = start + length * np.array([direction @ across, direction @ upward])
        axes.plot(*np.stack([start, end], 1), color=GREY, linewidth=1.2)
        x, y = start + 1.3 * (end - start)
        axes.text(x, y, name, color=GREY, fontsize=SMALL, ha="center", va="center")

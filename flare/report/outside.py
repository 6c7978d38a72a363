"""Fields on the outside of a mesh: its triangles in their colours, where dots would hide what is between points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PolyCollection
from mpl_toolkits.mplot3d.art3d import Poly3DCollection  # type: ignore[import-untyped]

from flare.report.fields import draw_field

if TYPE_CHECKING:
    from flare.mesh.file import MeshFile

MOST_TRIANGLES = 100_000
"""More take long to draw in space, and dots lie as close then."""


@dataclass(frozen=True)
class Outside:
    points: np.ndarray
    """(N, 2), or (N, 3) where they are not in one plane."""
    triangles: np.ndarray
    """(T, 3)."""
    owners: np.ndarray
    """(T,): the cell that each triangle is of."""


def outside(mesh: MeshFile | None) -> Outside | None:
    """What is seen of a mesh; None where it has no faces, or more than can be drawn."""
    if mesh is None or mesh.dimension < 2:
        return None
    surface = mesh.grid.extract_surface(pass_pointid=True, pass_cellid=True, algorithm="dataset_surface").triangulate()
    corners = np.asarray(surface.faces).reshape(-1, 4)[:, 1:]
    if not 0 < len(corners) <= MOST_TRIANGLES:
        return None
    triangles = np.asarray(surface.point_data["vtkOriginalPointIds"])[corners]
    points = np.asarray(mesh.points, dtype=float)
    flat = np.ptp(points[:, 2]) <= 1e-6 * np.ptp(points, axis=0).max()
    return Outside(points[:, :2] if flat else points, triangles, np.asarray(surface.cell_data["vtkOriginalCellIds"]))


def draw_outside(
    axes: Any, shown: Outside, values: np.ndarray, *, at_cells: bool, limits: tuple[float, float], colours: str
) -> ScalarMappable:
    """Colour the triangles by a field at the points or at the cells. Returns what a colour bar is made of."""
    flat = shown.points.shape[1] == 2
    if flat and not at_cells:
        return draw_field(axes, shown.points, values, cells=shown.triangles, limits=limits, colours=colours)
    # Dots that are not seen set the axes, as for any other field.
    at_points = np.zeros(len(shown.points))
    dots: Any = draw_field(axes, shown.points, at_points, limits=limits, colours=colours)
    dots.set_visible(False)
    faces = values[shown.owners] if at_cells else values[shown.triangles].mean(axis=1)
    kind = PolyCollection if flat else Poly3DCollection
    # Smoothed edges would let the paper shine through between neighbours.
    drawn = kind(shown.points[shown.triangles], cmap=colours, linewidths=0, antialiased=False, rasterized=True)
    drawn.set_array(faces)
    drawn.set_clim(*limits)
    axes.add_collection(drawn)
    return drawn

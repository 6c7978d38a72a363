"""Draw fields on the outer surface of a mesh as colored triangles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PolyCollection
from mpl_toolkits.mplot3d.art3d import Poly3DCollection  # type: ignore[import-untyped]

from flare.mesh.mesh import in_space
from flare.mesh.topology import outer_triangles
from flare.report.fields import draw_field

if TYPE_CHECKING:
    from flare.mesh import Mesh

MOST_TRIANGLES = 100_000
"""Most triangles to draw. Larger meshes are drawn as points."""


@dataclass(frozen=True)
class Outside:
    """The outer surface of a mesh."""

    points: np.ndarray
    """Shape (N, 2) for points in a plane z = const, otherwise (N, 3)."""
    triangles: np.ndarray
    """Shape (T, 3)."""
    owners: np.ndarray
    """Cell of each triangle, shape (T,)."""


def outside(mesh: Mesh | None) -> Outside | None:
    """Return the outer surface of a mesh; None if it has no faces, or more than can be drawn."""
    found = outer_triangles(mesh) if mesh is not None else None
    if mesh is None or found is None or len(found[0]) > MOST_TRIANGLES:
        return None
    triangles, owners = found
    points = in_space(np.asarray(mesh.points, dtype=float))
    flat = np.ptp(points[:, 2]) <= 1e-6 * np.ptp(points, axis=0).max()
    return Outside(points[:, :2] if flat else points, triangles, owners)


def draw_outside(
    axes: Any, shown: Outside, values: np.ndarray, *, at_cells: bool, limits: tuple[float, float], colors: str
) -> ScalarMappable:
    """Draw the triangles colored by a field at points or at cells, and return the artist for `color_bar`."""
    flat = shown.points.shape[1] == 2
    if flat and not at_cells:
        return draw_field(axes, shown.points, values, cells=shown.triangles, limits=limits, colors=colors)
    # Invisible points set the axes as for any other field.
    at_points = np.zeros(len(shown.points))
    dots: Any = draw_field(axes, shown.points, at_points, limits=limits, colors=colors)
    dots.set_visible(False)
    faces = values[shown.owners] if at_cells else values[shown.triangles].mean(axis=1)
    kind = PolyCollection if flat else Poly3DCollection
    # Antialiased edges would show gaps between triangles.
    drawn = kind(shown.points[shown.triangles], cmap=colors, linewidths=0, antialiased=False, rasterized=True)
    drawn.set_array(faces)
    drawn.set_clim(*limits)
    axes.add_collection(drawn)
    return drawn

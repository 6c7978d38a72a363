"""Draw scalar fields on structured grids, meshes and point clouds in two and three dimensions."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from matplotlib.gridspec import SubplotSpec
from matplotlib.ticker import NullLocator, ScalarFormatter
from matplotlib.tri import Triangulation
from numpy.typing import ArrayLike, NDArray

from flare.report.style import GREY, INK, PALE, SMALL, TEXT, round_ticks

Floats = NDArray[np.floating]

MOST_POINTS_3D = 20_000
"""Most points of a 3-D scatter plot. More take long and show nothing more."""


SLENDER = 0.25
"""Aspect ratio below which labels need another place."""


def field_axes(figure: Figure, place: SubplotSpec, dimension: int) -> Axes:
    """Add axes for `draw_field` with points of 2 or 3 dimensions at one place of a grid."""
    return figure.add_subplot(place, projection="3d" if dimension == 3 else None)


def panel_size(points: ArrayLike) -> tuple[float, float]:
    """Return width and height in inches of a panel for the points, at most 2.7 × 3.4."""
    x = np.asarray(points, dtype=float)
    if x.shape[1] == 3:
        return 2.7, 2.7
    width, height = np.maximum(np.ptp(x, axis=0), 1e-12)
    scale = min(2.7 / width, 3.4 / height)
    return max(1.4, float(scale * width)), max(0.5, float(scale * height))


def draw_field(
    axes: Axes,
    points: ArrayLike,
    values: ArrayLike,
    *,
    grid: tuple[int, int] | None = None,
    cells: ArrayLike | None = None,
    limits: tuple[float, float] | None = None,
    colors: str = "viridis",
) -> ScalarMappable:
    """Draw a scalar field with equal aspect.

    Args:
        axes: Axes from `field_axes`. If only some of the points are drawn, their number is added to the title.
        points: Points, shape (N, 2) or (N, 3).
        values: Field, shape (N,).
        grid: (rows, columns) of 2-D points that form a structured grid, row by row.
        cells: Triangles (K, 3) or quadrilaterals (K, 4) between 2-D points. Cells between 3-D points are not drawn.
        limits: Values at the two ends of the colors. None: those of the field.
        colors: Name of a color map.

    Returns:
        The artist, for `color_bar`.
    """
    x, v = np.asarray(points, dtype=float), np.asarray(values, dtype=float)
    low, high = value_range(v) if limits is None else limits
    look: dict[str, Any] = {"cmap": colors, "vmin": low, "vmax": high, "rasterized": True}
    if x.shape[1] == 3:
        return _draw_cloud(axes, x, v, look)
    axes.set_aspect("equal")
    axes.set_facecolor(PALE)  # a hole must not look like a field of zero
    axes.tick_params(labelsize=SMALL, colors=INK, length=2.5)
    for spine in axes.spines.values():
        spine.set(color=GREY, linewidth=0.6)
    extent = np.ptp(x, axis=0)
    for axis, length in zip((axes.xaxis, axes.yaxis), extent, strict=True):
        # Labels of a side much shorter than the other would overlap.
        room = length / max(extent.max(), 1e-300)
        axis.set_major_locator(round_ticks(4) if room > SLENDER else round_ticks(2) if room > 0.12 else NullLocator())
    if grid is not None:
        return _draw_grid(axes, x, v, grid, look)
    if cells is not None:
        return axes.tripcolor(Triangulation(x[:, 0], x[:, 1], _triangles(cells)), v, shading="gouraud", **look)
    return axes.scatter(x[:, 0], x[:, 1], c=v, s=_marker_area(axes, x), linewidths=0, **look)


def slender(points: ArrayLike) -> bool:
    """Return whether a picture of the points is too low for the labels of a color bar at its side."""
    extent = np.ptp(np.asarray(points, dtype=float), axis=0)
    return len(extent) == 2 and bool(extent[1] < SLENDER * extent[0])


def color_bar(axes: Axes, drawn: ScalarMappable, label: str, values: ArrayLike, *, below: bool = False) -> None:
    """Add a color bar beside the axes, with pointed ends where `values` exceed its range, or one `below` them."""
    figure: Any = axes.get_figure()
    if below:
        bar, ticks = figure.colorbar(drawn, ax=axes, location="bottom", aspect=30), 4
        axis = bar.ax.xaxis
    else:
        low, high = drawn.get_clim()
        v = np.asarray(values, dtype=float)
        under, over = bool((v < low).any()), bool((v > high).any())
        place = axes.inset_axes((1.2, 0.15, 0.05, 0.7) if axes.name == "3d" else (1.04, 0.0, 0.05, 1.0))
        extend = "both" if under and over else "min" if under else "max" if over else "neither"
        bar = figure.colorbar(drawn, cax=place, extend=extend, extendfrac=0.04)
        axis, ticks = bar.ax.yaxis, round(3 * place.get_window_extent().height / place.figure.dpi)
        axis.set_offset_position("left")  # growing to the right, away from the title of the axes
    form = ScalarFormatter(useMathText=True)
    form.set_powerlimits((-2, 4))
    axis.set_major_locator(round_ticks(ticks))
    axis.set_major_formatter(form)
    axis.get_offset_text().set(fontsize=SMALL, color=INK)
    bar.ax.tick_params(labelsize=SMALL, colors=INK, length=2.5)
    bar.outline.set(color=GREY, linewidth=0.6)
    bar.set_label(label, fontsize=SMALL, color=INK)


def value_range(values: ArrayLike) -> tuple[float, float]:
    """Return the smallest and largest finite value, moved apart if they are equal."""
    v = np.asarray(values, dtype=float)
    v = v[np.isfinite(v)]
    low, high = (float(v.min()), float(v.max())) if v.size else (0.0, 0.0)
    gap = 0.05 * abs(low) or 1.0
    return (low, high) if high > low else (low - gap, high + gap)


def robust_range(values: ArrayLike, percentiles: tuple[float, float]) -> tuple[float, float]:
    """Return two percentiles of the finite values, or the whole range if they are equal."""
    v = np.asarray(values, dtype=float)
    v = v[np.isfinite(v)]
    low, high = map(float, np.percentile(v, percentiles)) if v.size else (0.0, 0.0)
    return (low, high) if high > low else value_range(v)


def symmetric_range(values: ArrayLike) -> tuple[float, float]:
    """Return the smallest range symmetric about zero that contains every finite value."""
    most = max(map(abs, value_range(values)))
    return -most, most


def _draw_grid(axes: Axes, x: Floats, v: Floats, grid: tuple[int, int], look: dict[str, Any]) -> ScalarMappable:
    a, b = x[:, 0].reshape(grid), x[:, 1].reshape(grid)
    slack = 1e-5 * float(np.ptp(x, axis=0).max())
    bends = [np.abs(s - s[:1]).max() + np.abs(t - t[:, :1]).max() for s, t in ((a, b), (b, a))]
    # One pixel per point on straight lines; interpolation between curved lines.
    return axes.pcolormesh(a, b, v.reshape(grid), shading="nearest" if min(bends) <= slack else "gouraud", **look)


def _draw_cloud(axes: Any, x: Floats, v: Floats, look: dict[str, Any]) -> ScalarMappable:
    if len(x) > MOST_POINTS_3D:
        shown = np.sort(np.random.default_rng(0).choice(len(x), MOST_POINTS_3D, replace=False))
        note = f"{MOST_POINTS_3D:,} of {len(x):,} points"
        axes.set_title("\n".join(filter(None, [axes.get_title(), note])), fontsize=TEXT, color=INK)
        x, v = x[shown], v[shown]
    extent = np.ptp(x, axis=0)
    axes.set_box_aspect(np.maximum(extent, 0.02 * extent.max() or 1.0))
    axes.tick_params(labelsize=SMALL, colors=INK, pad=-2)
    for axis, length in zip((axes.xaxis, axes.yaxis, axes.zaxis), extent, strict=True):
        # Labels of a side much shorter than the others would overlap.
        axis.set_major_locator(round_ticks(3) if length > 0.3 * extent.max() else NullLocator())
        axis.set_pane_color(PALE)
    area = float(np.clip(30_000 / len(x), 2, 60))
    return axes.scatter(*x.T, c=v, s=area, linewidths=0, depthshade=False, **look)


def _triangles(cells: ArrayLike) -> NDArray[np.integer]:
    c = np.asarray(cells)
    return c if c.shape[1] == 3 else np.concatenate([c[:, [0, 1, 2]], c[:, [0, 2, 3]]])


def _marker_area(axes: Axes, x: Floats) -> float:
    """Return the area in points² of a marker that touches its neighbors if points are spread evenly."""
    box = axes.get_window_extent()
    extent = np.maximum(np.ptp(x, axis=0), 1e-12)
    scale = min(box.width / extent[0], box.height / extent[1]) * 72 / axes.figure.dpi
    return float(np.clip(1.3 * extent.prod() * scale**2 / len(x), 0.5, 120))

"""Truth, prediction and error side by side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from flare.report.fields import Floats, color_bar, draw_field, field_axes, panel_size, symmetric_range, value_range
from flare.report.style import INK, TEXT, new_figure


def triptych(
    points: ArrayLike,
    truth: ArrayLike,
    prediction: ArrayLike,
    *,
    names: Sequence[str],
    units: Sequence[str],
    grid: tuple[int, int] | None = None,
    cells: ArrayLike | None = None,
    title: str = "",
) -> Figure:
    """Draw truth, prediction and prediction − truth of one sample, one row per component.

    Args:
        points: Points, shape (N, 2) or (N, 3).
        truth: Fields, shape (N, F). They set the color range of truth and prediction; that of the error is
            symmetric about zero.
        prediction: Like `truth`. If it exceeds the range of the truth, the color bar has a pointed end.
        names: Name of each component.
        units: Unit of each component; empty for none.
        grid: See `draw_field`.
        cells: See `draw_field`.
        title: Title, to which the relative L2 error of all components is added.
    """
    x, t, p = (np.asarray(values, dtype=float) for values in (points, truth, prediction))
    labels = [f"{name} [{unit}]" if unit else name for name, unit in zip(names, units, strict=True)]
    width, height = panel_size(x)
    figure = new_figure(3 * width + 2.4, (height + 0.25) * t.shape[1] + 0.75)
    places = figure.add_gridspec(t.shape[1], 3)
    figure.suptitle(f"{title} · {_relative_l2(p, t)}".lstrip(" ·"), fontsize=TEXT + 1, color=INK)
    for row, label in enumerate(labels):
        error, shared = p[:, row] - t[:, row], value_range(t[:, row])
        panels = [
            ("Truth", t[:, row], shared, "viridis", None),
            ("Prediction", p[:, row], shared, "viridis", label),
            ("Prediction − truth", error, symmetric_range(error), "RdBu_r", f"error of {label}"),
        ]
        for column, (heading, values, limits, colors, bar) in enumerate(panels):
            axes = field_axes(figure, places[row, column], x.shape[1])
            axes.set_title(heading if row == 0 else "", fontsize=TEXT, color=INK)
            drawn = draw_field(axes, x, values, grid=grid, cells=cells, limits=limits, colors=colors)
            if x.shape[1] == 2:
                axes.tick_params(labelleft=column == 0, labelbottom=row == len(labels) - 1)
            if bar is not None:
                color_bar(axes, drawn, bar, values)
    return figure


def _relative_l2(prediction: Floats, truth: Floats) -> str:
    size = np.linalg.norm(truth)
    if size == 0:
        return "relative L2 error undefined: the truth is zero"
    return f"relative L2 error {np.linalg.norm(prediction - truth) / size:.3g}"

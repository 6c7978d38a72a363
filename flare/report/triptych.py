"""Truth, prediction and error side by side, in a picture that does not flatter."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from flare.report.fields import Floats, colour_bar, draw_field, field_axes, panel_size, symmetric_range, value_range
from flare.report.style import INK, TEXT, new_figure
from flare.utils.errors import DataError


def triptych(
    points: ArrayLike,
    truth: ArrayLike,
    prediction: ArrayLike,
    *,
    name: str | Sequence[str],
    unit: str | Sequence[str] = "",
    grid: tuple[int, int] | None = None,
    cells: ArrayLike | None = None,
    title: str = "",
) -> Figure:
    """Truth, prediction, and prediction − truth of one sample; one row per component of the field.

    Args:
        points: [N, 2 or 3].
        truth: [N] or [N, F]. Gives each row the colour range of its first two panels; the error's is symmetric
            about zero.
        prediction: like `truth`. Where it leaves the range of the truth, the colour bar has a pointed end.
        name: of the field, or one for each component.
        unit: of the field, or one for each component; empty for none.
        grid: see `draw_field`.
        cells: see `draw_field`.
        title: which sample this is. Its relative L2 error, over all components, is added.
    """
    x, t, p = np.asarray(points, dtype=float), _columns(truth), _columns(prediction)
    if t.shape != p.shape or len(t) != len(x):
        raise DataError(f"{len(x)} points, but truth of shape {t.shape} and prediction of shape {p.shape}")
    labels = _labels(name, unit, t.shape[1])
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
        for column, (heading, values, limits, colours, bar) in enumerate(panels):
            axes = field_axes(figure, places[row, column], x.shape[1])
            axes.set_title(heading if row == 0 else "", fontsize=TEXT, color=INK)
            drawn = draw_field(axes, x, values, grid=grid, cells=cells, limits=limits, colours=colours)
            if x.shape[1] == 2:
                axes.tick_params(labelleft=column == 0, labelbottom=row == len(labels) - 1)
            if bar is not None:
                colour_bar(axes, drawn, bar, values)
    return figure


def _columns(values: ArrayLike) -> Floats:
    v = np.asarray(values, dtype=float)
    return v[:, None] if v.ndim == 1 else v


def _labels(name: str | Sequence[str], unit: str | Sequence[str], components: int) -> list[str]:
    """'name [unit]' of each component; a single name is numbered, a single unit serves all."""
    if isinstance(name, str):
        name = [name] if components == 1 else [f"{name} {i + 1}" for i in range(components)]
    units = [unit] * components if isinstance(unit, str) else unit
    if not len(name) == len(units) == components:
        raise DataError(f"{components} components, but names {list(name)} and units {list(units)}")
    return [f"{n} [{u}]" if u else n for n, u in zip(name, units, strict=True)]


def _relative_l2(prediction: Floats, truth: Floats) -> str:
    size = np.linalg.norm(truth)
    if size == 0:
        return "relative L2 error undefined: the truth is zero"
    return f"relative L2 error {np.linalg.norm(prediction - truth) / size:.3g}"

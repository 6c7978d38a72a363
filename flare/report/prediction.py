"""Figure and page of one prediction: fields and error bars on the mesh."""

from __future__ import annotations

from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from flare.data.importing.fields import CENTRES
from flare.report.fields import color_bar, draw_field, field_axes, panel_size, slender, value_range
from flare.report.outside import draw_outside, outside
from flare.report.page import write_page
from flare.report.style import INK, TEXT, new_figure
from flare.utils import __version__
from flare.utils.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flare.inference.prediction import Prediction


LETTERS = 13
"""Characters of a warning per inch."""
ALARM = "#b42318"


def prediction_figure(prediction: Prediction) -> Figure:
    """Draw one row per channel: the field, and the half width of its error bar if there are error bars."""
    schema = prediction.schema
    shown = outside(prediction.inputs.mesh)
    points = shown.points if shown else np.asarray(prediction.sample.values[schema.points], dtype=float)
    if points.shape[1] not in (2, 3):
        raise DataError(f"points have {points.shape[1]} dimensions; only 2 or 3 can be drawn")
    bars = prediction.assessment.error_bars if prediction.assessment else None
    rows, widths = _columns(prediction.fields), _columns(bars or {})
    width, height = panel_size(points)
    columns = 2 if bars else 1
    figure = new_figure((width + 1.5) * columns, (height + 0.7) * len(rows))
    if prediction.warning:
        inches = float(figure.get_figwidth())
        text = "\n".join(wrap(prediction.warning, int(LETTERS * inches)))
        figure.set_figheight(figure.get_figheight() + 0.2 * (text.count("\n") + 1))
        figure.suptitle(text, fontsize=TEXT, color=ALARM)
    places = figure.add_gridspec(len(rows), columns, wspace=0.2, hspace=0.35)
    for row, (label, values) in enumerate(rows.items()):
        unit = schema.fields[label.split(".")[0]].unit
        title = label if unit == "1" else f"{label} [{unit}]"
        panels = [("Prediction", values, "viridis", title)]
        if bars:
            panels.append(("Error bar, ±", widths[label], "magma", f"± {title}"))
        for column, (heading, field, colors, name) in enumerate(panels):
            axes = field_axes(figure, places[row, column], points.shape[1])
            axes.set_title(heading if row == 0 else "", fontsize=TEXT, color=INK)
            look: Any = {"limits": value_range(field), "colors": colors}
            if shown:
                drawn = draw_outside(axes, shown, field, at_cells=schema.points == CENTRES, **look)
            else:
                drawn = draw_field(axes, points, field, **look)
            color_bar(axes, drawn, name, field, below=slender(points))
    return figure


def write_prediction_page(path: str | Path, prediction: Prediction, lines: Sequence[str]) -> None:
    """Write a prediction as one self-contained HTML file.

    Args:
        path: File to write.
        prediction: Prediction to show.
        lines: Notes on the prediction. Warnings come first.
    """
    schema, assessment = prediction.schema, prediction.assessment
    summary = [("points", f"{len(prediction.sample.values[schema.points]):,}")]
    if assessment and assessment.score is not None:
        verdict = ": unlike the training set, error bars do not hold" if assessment.rank == 0 else ""
        summary.insert(0, ("OOD score", f"{assessment.score:.2f}{verdict}"))
    summary += [(f"error of {name}", f"{error:.2%}") for name, error in prediction.errors.items()]
    ranges = [
        (label, f"{values.min():.6g} to {values.max():.6g} {schema.fields[label.split('.')[0]].unit}")
        for label, values in _columns(prediction.fields).items()
    ]
    write_page(
        path,
        title=f"Prediction for {Path(prediction.name).name}",
        summary=summary,
        notes=sorted(lines, key=lambda line: "WARNING" not in line),  # a warning is read first
        figures=[("Fields", "Predicted fields in physical units.", prediction_figure(prediction))],
        tables=[("Ranges", ranges)],
        footer=f"Written by flare {__version__}.",
    )


def _columns(fields: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Split fields into channels of shape (N,)."""
    return {
        name if values.ndim == 1 else f"{name}.{i}": column
        for name, values in fields.items()
        for i, column in enumerate(values.reshape(len(values), -1).T)
    }

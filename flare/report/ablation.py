"""Errors over one size of a model or over epochs, a curve for every value of another, beside the paper's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

from flare.report.style import GREY, SMALL, log_ticks, new_figure, plain, round_ticks

FEW = 8
"""Values of the abscissa that each get a tick."""


@dataclass
class Series:
    """Points of a curve, in any order."""

    x: list[float] = field(default_factory=list)
    y: list[float] = field(default_factory=list)
    spread: list[float] = field(default_factory=list)
    """Standard deviation over seeds; 0 for one seed."""
    paper: list[float | None] = field(default_factory=list)


def error_curves(
    lines: Mapping[str, Series], *, axis: str, log: bool = True, mean_field: float | None = None
) -> Figure:
    """Relative errors: ours solid with bars of the spread, the paper's dashed and hollow in the same colour.

    Args:
        lines: label -> curve.
        axis: name of the abscissa.
        log: whether the abscissa is logarithmic; the ordinate is.
        mean_field: error of the mean field of the training set, a thin dashed line. None: not drawn.
    """
    figure = new_figure(6.2, 3.6)
    axes = figure.subplots()
    colours = matplotlib.colormaps["viridis"](np.linspace(0.05, 0.85, len(lines)))
    for colour, (label, line) in zip(colours, lines.items(), strict=True):
        order = np.argsort(line.x)
        x, y, spread = (np.asarray(values)[order] for values in (line.x, line.y, line.spread))
        look: Any = {"color": colour, "marker": "o", "markersize": 3.5, "linewidth": 1.3, "label": label}
        if spread.any():
            axes.errorbar(x, y, yerr=np.where(spread > 0, spread, np.nan), capsize=2, **look)
        else:  # a legend with bars would promise what one seed has not
            axes.plot(x, y, **look)
        theirs = [(line.x[i], value) for i in order if (value := line.paper[i]) is not None]
        if theirs:
            axes.plot(  # with marks: of one point there is no line
                *zip(*theirs, strict=True),
                color=colour,
                linestyle="--",
                linewidth=1.0,
                marker="o",
                markersize=4.5,
                markerfacecolor="white",
                label=f"{label}, paper",
            )
    if mean_field is not None:
        axes.axhline(mean_field, color=GREY, linestyle="--", linewidth=0.8, label="mean field")
    plain(axes, x=axis, y="relative L2 error")
    axes.set_yscale("log")
    if log:
        axes.set_xscale("log")
    ticks = sorted({value for line in lines.values() for value in line.x})
    axes.xaxis.set_major_locator(FixedLocator(ticks) if len(ticks) <= FEW else round_ticks(FEW))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    log_ticks(axes.yaxis)
    figure.legend(loc="outside right center", fontsize=SMALL, frameon=False)
    return figure

"""Errors over one size of a model or over epochs, a curve for every value of another, beside the paper's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

from flare.report.style import GREY, SMALL, Look, log_ticks, new_figure, ordered_looks, plain, round_ticks

FEW = 8
"""Values of the abscissa that each get a tick."""


@dataclass
class Series:
    """Points of a curve, in any order."""

    x: list[float] = field(default_factory=list)
    y: list[float] = field(default_factory=list)
    """nan where only the paper has one."""
    spread: list[float] = field(default_factory=list)
    """Standard deviation over seeds; 0 for one seed."""
    paper: list[float | None] = field(default_factory=list)


def error_curves(
    lines: Mapping[str, Series],
    *,
    axis: str,
    log: bool = True,
    mean_field: float | None = None,
    looks: Mapping[str, Look] | None = None,
) -> Figure:
    """Relative errors, with bars of the spread where there is one; the paper's, where it has some, in a panel of its
    own: its level is so much lower that on one axis neither could be read.

    Args:
        lines: label -> curve.
        axis: name of the abscissa.
        log: whether the abscissa is logarithmic; the ordinate is.
        mean_field: error of the mean field of the training set, a thin dashed line. None: not drawn.
        looks: label -> look. None: for labels that are values of a number.
    """
    looks = looks or dict(zip(lines, ordered_looks(len(lines)), strict=True))
    theirs = {label: found for label, line in lines.items() if (found := _of_the_paper(line)).x}
    panels = {"ours": lines, "the paper's": theirs} if theirs else {"": lines}
    figure = new_figure(2.0 + 4.2 * len(panels), 3.6)
    ticks = sorted({value for line in lines.values() for value in line.x})
    for axes, (title, drawn) in zip(
        figure.subplots(1, len(panels), sharex=True, squeeze=False)[0], panels.items(), strict=True
    ):
        for label, line in drawn.items():
            _draw(axes, line, label, looks[label])
        if mean_field is not None and drawn is lines:
            axes.axhline(mean_field, color=GREY, linestyle="--", linewidth=0.8, label="mean field")
        plain(axes, x=axis, y="relative L2 error" if drawn is lines else "", title=title)
        axes.set_yscale("log")
        if log:
            axes.set_xscale("log")
        axes.xaxis.set_major_locator(FixedLocator(ticks) if len(ticks) <= FEW else round_ticks(FEW))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        log_ticks(axes.yaxis)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", fontsize=SMALL, frameon=False)
    return figure


def _of_the_paper(line: Series) -> Series:
    found = [(x, value) for x, value in zip(line.x, line.paper, strict=True) if value is not None]
    return Series([x for x, _ in found], [value for _, value in found], [0.0] * len(found))


def _draw(axes: Axes, line: Series, label: str, look: Look) -> None:
    """With marks: of one point there is no line. Bars, and bars in the legend, only where there is a spread."""
    order = [i for i in np.argsort(line.x) if not np.isnan(line.y[i])]
    x, y, spread = (np.asarray(values)[order] for values in (line.x, line.y, line.spread))
    if spread.any():
        axes.errorbar(
            x,
            y,
            yerr=np.where(spread > 0, spread, np.nan),
            capsize=look.size / 2 + 1.5,
            capthick=1.0,
            elinewidth=1.0,
            label=label,
            **look.of_line(),
        )
    else:
        axes.plot(x, y, label=label, **look.of_line())

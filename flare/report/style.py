"""One look for every picture. Sizes are set on each artist: no pyplot, no global state, safe in a server's thread."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter

TEXT, SMALL = 10.0, 8.5
"""Font sizes in points, of titles and of everything else; a report shows pictures near their true size."""
FEWEST = 3
"""Ticks that an axis is read by."""
INK, GREY, PALE, ACCENT = "#1f2933", "#8b95a1", "#dde2e7", "#c2410c"


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of that many inches, which lays itself out when drawn."""
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    figure.get_layout_engine().set(w_pad=0.06, h_pad=0.06)  # type: ignore[union-attr, call-arg]
    return figure


def plain(axes: Axes, *, x: str = "", y: str = "", title: str = "") -> None:
    """Axes for curves: labels, a light grid behind, no box."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, which="major", color="#e4e7eb", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(which="both", labelsize=SMALL, colors=INK)
    axes.set_xlabel(x, fontsize=SMALL, color=INK)
    axes.set_ylabel(y, fontsize=SMALL, color=INK)
    axes.set_title(title, fontsize=TEXT, color=INK)


def round_ticks(count: int, *, integer: bool = False) -> MaxNLocator:
    """At most `count` intervals between ticks at round numbers."""
    return MaxNLocator(max(count, 2), steps=[1, 2, 5, 10], integer=integer)


def log_ticks(axis: Axis) -> None:
    """Ticks of a logarithmic axis as plain numbers: 0.01, 0.02, 0.05 on a short one, powers of ten on a long one, and
    evenly spaced numbers where it is so short that hardly one of these would be seen."""
    low, high = axis.get_view_interval()
    decades = np.log10(high / low)
    if decades < 3:
        coarse = [LogLocator(subs=(1.0, 2.0, 5.0))] if decades > 0.7 else []
        locators = [*coarse, LogLocator(subs=range(1, 10)), round_ticks(5)]
        seen = (sum(low <= tick <= high for tick in locator.tick_values(low, high)) for locator in locators)
        axis.set_major_locator(next((l for l, n in zip(locators, seen, strict=True) if n >= FEWEST), locators[-1]))
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(NullFormatter())

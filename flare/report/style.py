"""Style of all figures. It is set on each artist, without pyplot and global state, and is safe in threads."""

from __future__ import annotations

from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter

TEXT, SMALL = 10.0, 8.5
"""Font sizes in points of titles and of other text."""
FEWEST = 3
"""Fewest ticks of an axis."""
INK, GREY, PALE, ACCENT = "#1f2933", "#8b95a1", "#dde2e7", "#c2410c"


class Look(NamedTuple):
    """Color, marker and sizes of a curve."""

    color: str
    marker: str
    width: float = 1.3
    """Width of the line in points."""
    size: float = 5.0
    """Size of the marker in points."""

    def of_line(self) -> dict[str, Any]:
        """Return keyword arguments for matplotlib."""
        drawn = {"color": self.color, "linewidth": self.width, "marker": self.marker, "markersize": self.size}
        # A white rim separates overlapping markers. A cross has only edges.
        rim = {} if self.marker == "x" else {"markeredgecolor": "white", "markeredgewidth": 0.4}
        return {**drawn, **rim}


MODELS = {
    "flare": Look("#d55e00", "o"),
    "transolver": Look("#009e73", "s"),
    "transolver-conv": Look("#e69f00", "P", size=7.0),
    "transformer": Look("#000000", "D"),
    "perceiver": Look("#56b4e9", "^"),
    "gnot": Look("#cc79a7", "v"),
    "lno": Look("#0072b2", "X", size=7.0),
}
"""Model -> look in every figure, with the color-blind safe palette of Okabe and Ito."""
MARKERS = "osD^vPX*"


def look_of_model(name: str) -> Look:
    """Return the look of a model. A variant such as `perceiver-self` has a star, an unknown model a grey cross."""
    known = name.lower()
    if known in MODELS:
        return MODELS[known]
    of = max((model for model in MODELS if known.startswith(f"{model}-")), key=len, default=None)
    return Look(GREY, "x") if of is None else MODELS[of]._replace(marker="*", size=8.0)


def ordered_looks(count: int) -> list[Look]:
    """Return looks for ascending values: dark to light, and thick to thin, so that overlapping curves show."""
    colors = matplotlib.colormaps["viridis"](np.linspace(0.05, 0.85, count))
    sizes = np.linspace(1.0, 0.0, count) if count > 1 else [0.0]
    return [
        Look(to_hex(color), MARKERS[i % len(MARKERS)], width=1.3 + 1.7 * float(more), size=4.5 + 4.5 * float(more))
        for i, (color, more) in enumerate(zip(colors, sizes, strict=True))
    ]


def new_figure(width: float, height: float) -> Figure:
    """Create an empty figure with constrained layout, sizes in inches."""
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    figure.get_layout_engine().set(w_pad=0.06, h_pad=0.06)  # type: ignore[union-attr, call-arg]
    return figure


def plain(axes: Axes, *, x: str = "", y: str = "", title: str = "") -> None:
    """Style axes for curves: labels, a light grid, no box."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, which="major", color="#e4e7eb", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(which="both", labelsize=SMALL, colors=INK)
    axes.set_xlabel(x, fontsize=SMALL, color=INK)
    axes.set_ylabel(y, fontsize=SMALL, color=INK)
    axes.set_title(title, fontsize=TEXT, color=INK)


def round_ticks(count: int, *, integer: bool = False) -> MaxNLocator:
    """Return a locator with at most `count` intervals between round numbers."""
    return MaxNLocator(max(count, 2), steps=[1, 2, 5, 10], integer=integer)


def log_ticks(axis: Axis) -> None:
    """Set ticks of a logarithmic axis with plain numbers.

    A long axis has powers of ten, a short one also 2 and 5 times these, and a very short one evenly spaced numbers.
    """
    low, high = axis.get_view_interval()
    decades = np.log10(high / low)
    if decades < 3:
        coarse = [LogLocator(subs=(1.0, 2.0, 5.0))] if decades > 0.7 else []
        locators = [*coarse, LogLocator(subs=range(1, 10)), round_ticks(5)]
        seen = (sum(low <= tick <= high for tick in locator.tick_values(low, high)) for locator in locators)
        axis.set_major_locator(next((l for l, n in zip(locators, seen, strict=True) if n >= FEWEST), locators[-1]))
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(NullFormatter())

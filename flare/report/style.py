"""One look for every picture. Sizes are set on each artist: no pyplot, no global state, safe in a server's thread."""

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
"""Font sizes in points, of titles and of everything else; a report shows pictures near their true size."""
FEWEST = 3
"""Ticks that an axis is read by."""
INK, GREY, PALE, ACCENT = "#1f2933", "#8b95a1", "#dde2e7", "#c2410c"


class Look(NamedTuple):
    """Of a curve."""

    colour: str
    marker: str
    width: float = 1.3
    """Of the line, in points."""
    size: float = 5.0
    """Of the marker, in points."""

    def of_line(self) -> dict[str, Any]:
        """As matplotlib has it."""
        drawn = {"color": self.colour, "linewidth": self.width, "marker": self.marker, "markersize": self.size}
        # A rim, by which marks upon marks are seen; a cross has nothing but its edge.
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
"""Model -> its look in every picture. Colours of Okabe and Ito, whom colour-blind people can follow, too."""
MARKERS = "osD^vPX*"


def look_of_model(name: str) -> Look:
    """Its own; of a variant, such as `perceiver-self`, the model's with a star; of a stranger a grey cross."""
    known = name.lower()
    if known in MODELS:
        return MODELS[known]
    of = max((model for model in MODELS if known.startswith(f"{model}-")), key=len, default=None)
    return Look(GREY, "x") if of is None else MODELS[of]._replace(marker="*", size=8.0)


def ordered_looks(count: int) -> list[Look]:
    """Of the values of a number, from small to large: dark to light, and thick to thin, so that a curve that lies on
    an earlier one leaves its rim to be seen."""
    colours = matplotlib.colormaps["viridis"](np.linspace(0.05, 0.85, count))
    sizes = np.linspace(1.0, 0.0, count) if count > 1 else [0.0]
    return [
        Look(to_hex(colour), MARKERS[i % len(MARKERS)], width=1.3 + 1.7 * float(more), size=4.5 + 4.5 * float(more))
        for i, (colour, more) in enumerate(zip(colours, sizes, strict=True))
    ]


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

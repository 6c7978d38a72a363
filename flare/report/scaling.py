"""Time and memory of a layer against the number of points, on logarithmic axes; what was extrapolated is dashed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure

from flare.report.style import SMALL, Look, look_of_model, new_figure, plain
from flare.utils.environment import gigabytes

PANELS = {"seconds": "seconds, forward + backward", "peak_mb": "GB at the peak"}
MODEL_OF = {"softmax": "transformer", "flare": "flare", "physics": "transolver"}
"""Kind of a layer -> the model it is of, whose look it has."""


def scaling_figure(record: Mapping[str, Any]) -> Figure:
    """Of a record's `layers` and `rows`; what a row has as None is not drawn."""
    figure = new_figure(9.5, 4.0)
    names = list(record["layers"])
    for axes, (key, label) in zip(figure.subplots(1, 2), PANELS.items(), strict=True):
        for name in names:
            known = (r for r in record["rows"] if r["layer"] == name and r[key] is not None)
            rows = sorted(known, key=lambda r: r["points"])
            if not rows:
                continue
            about = record["layers"][name]
            x, y = [r["points"] for r in rows], [_shown(key, r[key]) for r in rows]
            look = _look(name, names)
            axes.plot(x, y, label=name, **look.of_line())
            if about["extrapolated"] and np.isfinite(about[f"{key}_at_largest"]):
                ends = [y[-1], _shown(key, about[f"{key}_at_largest"])]
                axes.plot([x[-1], record["largest"]], ends, linestyle="--", color=look.colour, linewidth=look.width)
        axes.set_xscale("log")
        axes.set_yscale("log" if axes.lines else "linear")  # a logarithm of nothing cannot be drawn
        plain(axes, x="points", y=label)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    guessed = any(about["extrapolated"] for about in record["layers"].values())
    title = "dashed: extrapolated" if guessed else None
    figure.legend(
        handles, labels, loc="outside right center", fontsize=SMALL, frameon=False, title=title, title_fontsize=SMALL
    )
    return figure


def _shown(key: str, value: float) -> float:
    """In the unit of the panel."""
    return gigabytes(value) if key == "peak_mb" else value


def _look(name: str, names: list[str]) -> Look:
    """Of the model that has the layer; darker and thinner for more latents."""
    kind = name.split()[0]
    look = look_of_model(MODEL_OF[kind])
    alike = [other for other in names if other.split()[0] == kind]
    place = alike.index(name) + 1
    share = 0.4 + 0.6 * place / len(alike)
    red, green, blue = (1 - share * (1 - part) for part in to_rgb(look.colour))
    return look._replace(
        colour=to_hex((red, green, blue)), width=1.3 + 0.7 * (len(alike) - place), size=4.0 + (len(alike) - place)
    )

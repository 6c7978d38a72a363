"""Error, time and memory of models with more and more blocks, a curve for each number of latents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

from flare.report.style import SMALL, log_ticks, new_figure, ordered_looks, plain
from flare.utils.environment import gigabytes

PANELS = {"rel_l2": "relative L2 error", "seconds": "seconds a step", "peak_mb": "GB at the peak"}


def million_figure(record: Mapping[str, Any]) -> Figure:
    figure = new_figure(10.5, 3.6)
    latents = sorted({row["latents"] for row in record["rows"]})
    blocks = sorted({row["blocks"] for row in record["rows"]})
    for axes, (key, label) in zip(figure.subplots(1, 3), PANELS.items(), strict=True):
        for m, look in zip(latents, ordered_looks(len(latents)), strict=True):
            rows = sorted((row for row in record["rows"] if row["latents"] == m), key=lambda row: row["blocks"])
            x, y = [row["blocks"] for row in rows], [_shown(key, row[key]) for row in rows]
            axes.plot(x, y, label=f"{m:,}", **look.of_line())
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.xaxis.set_major_locator(FixedLocator(blocks))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        log_ticks(axes.yaxis)
        plain(axes, x="blocks", y=label)
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside right center",
        fontsize=SMALL,
        frameon=False,
        title="latents",
        title_fontsize=SMALL,
    )
    return figure


def _shown(key: str, value: float) -> float:
    """In the unit of the panel."""
    return gigabytes(value) if key == "peak_mb" else value

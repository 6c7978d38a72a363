"""Draw docs/images/kernels.png from the records that `native.py` and `memory.py` keep; nothing else is drawn.

.venv/bin/python benchmarks/plot.py
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, NullFormatter, StrMethodFormatter

from flare.report.style import ACCENT, GREY, INK, SMALL, new_figure, plain
from flare.utils.files import replace_atomically
from measure import IMAGES, RESULTS, gigabytes, load

PICTURE = IMAGES / "kernels.png"
COLOURS = {"compiled": GREY, "native": ACCENT}
NAMES = {"compiled": "torch.compile", "native": "native"}
MODES = {"inference": "Whole model, inference", "training step": "Whole model, training step"}
Record = dict[str, Any]


def kernels_figure(native: Record, memory: Record | None) -> Figure:
    """Speed of the whole model; beside it, where there is a record, how a training step grows with N."""
    figure = new_figure(10.5 if memory else 7.0, 4.2)
    left, *right = figure.subfigures(1, 2, width_ratios=[2, 1.1]) if memory else [figure]
    panels = left.subplots(1, 2, sharey=True)
    rows = [row for row in native["rows"] if row["level"] == "model" and "ratio" in row]
    for axes, (mode, title) in zip(panels, MODES.items(), strict=True):
        ratios(axes, [row for row in rows if row["mode"] == mode])
        plain(axes, y="times as fast as eager PyTorch" if axes is panels[0] else "", title=title)
        axes.grid(False, axis="x")
    if rows:
        panels[0].set_ylim(0, 1.25 * max(row["ratio"] for row in rows))  # with room for the legend
        panels[0].legend(fontsize=SMALL, frameon=False, labelcolor=INK, loc="upper left", reverse=True)
    if memory:
        growth(right[0].subplots(2, 1, sharex=True), memory)
    return figure


def ratios(axes: Axes, rows: list[Record]) -> None:
    """Bars for the wall time of two threads, marks for the CPU time of one, a line for eager."""
    sizes = list(dict.fromkeys(row["size"] for row in rows))
    axes.axhline(1, color=INK, linewidth=1)
    axes.set_xticks(range(len(sizes)), sizes)
    for contender, offset in (("compiled", -0.2), ("native", 0.2)):
        x, y = _series(rows, sizes, contender, threads=2)
        if y:
            label = f"{NAMES[contender]}, wall time of 2 threads"
            bars = axes.bar([at + offset for at in x], y, 0.36, color=COLOURS[contender], label=label)
            axes.bar_label(bars, fmt="%.1f", fontsize=SMALL, color="white", label_type="center")
        x, y = _series(rows, sizes, contender, threads=1)
        label = "the same, CPU time of 1 thread" if contender == "native" else None
        axes.plot([at + offset for at in x], y, "D", markersize=4, color="white", mec=INK, label=label)


def _series(rows: list[Record], sizes: list[str], contender: str, threads: int) -> tuple[list[int], list[float]]:
    mine = [row for row in rows if row["contender"] == contender and row["threads"] == threads]
    return [sizes.index(row["size"]) for row in mine], [row["ratio"] for row in mine]


def growth(panels: Sequence[Axes], memory: Record) -> None:
    """Time and memory of the native training step against N, with eager's memory where it was measured."""
    upper, lower = panels
    points = [row["points"] for row in memory["scaling"]]
    line: dict[str, Any] = {"marker": "o", "markersize": 3.5, "color": ACCENT, "linewidth": 1.3}
    label = f"native, N$^{{{memory['exponent']:.2f}}}$"
    upper.plot(points, [row["seconds"] for row in memory["scaling"]], **line, label=label)
    lower.plot(points, [gigabytes(row["peak_mb"]) for row in memory["scaling"]], **line, label="native")
    for row in memory["steps"]:
        if (row["level"], row["contender"], row["size"]) == ("model", "eager", "100k"):  # the same model
            lower.plot(row["points"], gigabytes(row["peak_mb"]), "s", markersize=5, color=INK, label="eager")
    limit = memory["limit_gb"]
    lower.axhline(limit, color=GREY, linewidth=1, linestyle="--", label=f"{limit} GB")
    for axes in panels:
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.legend(fontsize=SMALL, frameon=False, labelcolor=INK)
    lower.xaxis.set_major_formatter(EngFormatter(sep=""))
    lower.xaxis.set_minor_formatter(NullFormatter())
    plain(upper, y="seconds", title="One training step, 8 blocks, 2 threads")
    plain(lower, x="points N", y="peak memory, GB")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=Path, default=RESULTS, help="folder of native.json and memory.json")
    parser.add_argument("--out", type=Path, default=PICTURE, help="the picture")
    chosen = parser.parse_args(arguments)
    native = load("native", chosen.records)
    if native is None:
        raise SystemExit(f"no {chosen.records / 'native.json'}; run benchmarks/native.py first")
    with replace_atomically(chosen.out) as temporary:
        figure = kernels_figure(native, load("memory", chosen.records))
        figure.savefig(temporary, dpi=150, metadata={"Software": None})
    print(f"Drawn in {chosen.out}")


if __name__ == "__main__":
    main()

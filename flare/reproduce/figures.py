"""Figures of results pages: errors over sizes, epochs or CPU minutes, and costs of layers and models."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

from flare.report.page import png
from flare.report.style import (
    GREY,
    SMALL,
    Look,
    log_ticks,
    look_of_model,
    new_figure,
    ordered_looks,
    plain,
    round_ticks,
)
from flare.reproduce.ledger import Record
from flare.reproduce.study import Cell, Outcome, Picture, labels
from flare.utils.environment import gigabytes

FEW_TICKS = 8
"""Up to this many values of the abscissa get a tick each."""
MODEL_OF = {"softmax": "transformer", "flare": "flare", "physics": "transolver"}
"""Kind of layer -> model whose look it has."""
FEWEST_EVALUATIONS = 4
"""Evaluations that a learning curve needs."""


def grid_curves(
    name: str,
    wanted: Sequence[Cell],
    found: Sequence[Outcome],
    *,
    axis: str,
    by: str,
    caption: str,
    log: bool = True,
) -> list[Picture]:
    """Draw the error over the second part of cells, one curve per third part, with the paper's in a second panel.

    Args:
        name: Name of the picture.
        wanted: All cells of the grid. Without a record, only the paper's number is drawn.
        found: Outcomes of the cells.
        axis: Label of the abscissa.
        by: Name of the third part in the legend.
        caption: Caption of the picture.
        log: Whether the abscissa is logarithmic.

    Returns:
        One picture; none if fewer than two cells have a number.
    """
    of = {outcome.cell.parts: outcome for outcome in found if outcome.values()}
    if len(of) < 2:
        return []
    lines: dict[str, Series] = {}
    for cell in wanted:
        outcome = of.get(cell.parts)
        if outcome is None and cell.paper is None:
            continue
        _, x, label = labels(cell)
        line = lines.setdefault(f"{by} {label}".strip(), Series())
        line.x.append(float(x))
        line.y.append(outcome.mean if outcome is not None else math.nan)
        line.spread.append((outcome.spread or 0.0) if outcome is not None else 0.0)
        line.paper.append(cell.paper)
    return [Picture(name, caption, png(error_curves(lines, axis=axis, log=log)))]


def learning_curves(name: str, caption: str, records: Mapping[str, Record]) -> list[Picture]:
    """Draw the test error over epochs.

    Args:
        name: Name of the picture.
        caption: Its caption.
        records: Label -> record of a training. Those with few evaluations are left out.

    Returns:
        One picture; none if no record has enough evaluations.
    """
    curves = {label: record.result.get("curve", []) for label, record in records.items()}
    curves = {label: curve for label, curve in curves.items() if len(curve) >= FEWEST_EVALUATIONS}
    # The mean field depends on the data alone. Records of unfinished trainings do not have it.
    mean_field = next((m for label in curves if (m := records[label].result.get("rel_l2_mean_field"))), None)
    looks = {label: look_of_model(label) for label in curves}
    return _single_runs(name, caption, curves, axis="epoch", mean_field=mean_field, looks=looks)


def cpu_curves(
    name: str, caption: str, curves: Mapping[str, Sequence[tuple[float, float]]], looks: Mapping[str, Look]
) -> list[Picture]:
    """Draw errors over CPU minutes.

    Args:
        name: Name of the picture.
        caption: Its caption.
        curves: Label -> pairs of CPU seconds and error.
        looks: Label -> look of the curve.

    Returns:
        One picture; none if no curve has two points.
    """
    minutes = {label: [(s / 60, e) for s, e in curve] for label, curve in curves.items() if len(curve) > 1}
    return _single_runs(name, caption, minutes, axis="CPU minutes", looks=looks)


def _single_runs(
    name: str, caption: str, curves: Mapping[str, Sequence[tuple[float, float]]], **how: Any
) -> list[Picture]:
    """Draw curves of (x, error) without spread; nothing if there are none."""
    lines = {}
    for label, curve in curves.items():
        x, y = zip(*curve, strict=True)
        lines[label] = Series([float(value) for value in x], list(y), [0.0] * len(x), [None] * len(x))
    return [Picture(name, caption, png(error_curves(lines, log=False, **how)))] if lines else []


@dataclass
class Series:
    """Points of a curve, in any order."""

    x: list[float] = field(default_factory=list)
    y: list[float] = field(default_factory=list)
    """NaN where only the paper has a value."""
    spread: list[float] = field(default_factory=list)
    """Standard deviation over seeds, 0 for one seed."""
    paper: list[float | None] = field(default_factory=list)


def error_curves(
    lines: Mapping[str, Series],
    *,
    axis: str,
    log: bool = True,
    mean_field: float | None = None,
    looks: Mapping[str, Look] | None = None,
) -> Figure:
    """Draw relative errors with their spread. The paper's have a panel of their own, because they are much lower.

    Args:
        lines: Label -> curve.
        axis: Label of the abscissa.
        log: Whether the abscissa is logarithmic. The ordinate always is.
        mean_field: Error of the training-mean field, drawn as a dashed line. None: not drawn.
        looks: Label -> look. None: looks of labels that are values of a number.
    """
    looks = looks or dict(zip(lines, ordered_looks(len(lines)), strict=True))
    theirs = {label: found for label, line in lines.items() if (found := _papers_series(line)).x}
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
        _number_ticks(axes, FixedLocator(ticks) if len(ticks) <= FEW_TICKS else round_ticks(FEW_TICKS))
    _legend(figure)
    return figure


def _papers_series(line: Series) -> Series:
    found = [(x, value) for x, value in zip(line.x, line.paper, strict=True) if value is not None]
    return Series([x for x, _ in found], [value for _, value in found], [0.0] * len(found))


def _draw(axes: Axes, line: Series, label: str, look: Look) -> None:
    """Draw a curve with markers, and with error bars if there is a spread."""
    order = [i for i in np.argsort(line.x) if not np.isnan(line.y[i])]
    x, y, spread = (np.asarray(values)[order] for values in (line.x, line.y, line.spread))
    if spread.any():
        bars: dict[str, Any] = {"capsize": look.size / 2 + 1.5, "capthick": 1.0, "elinewidth": 1.0}
        axes.errorbar(x, y, yerr=np.where(spread > 0, spread, np.nan), label=label, **bars, **look.of_line())
    else:
        axes.plot(x, y, label=label, **look.of_line())


def _number_ticks(axes: Axes, locator: Any) -> None:
    """Label the ticks with plain numbers."""
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    log_ticks(axes.yaxis)


def _legend(figure: Figure, title: str | None = None) -> None:
    handles, names = figure.axes[0].get_legend_handles_labels()
    how: dict[str, Any] = {"loc": "outside right center", "fontsize": SMALL, "frameon": False}
    figure.legend(handles, names, title=title, title_fontsize=SMALL, **how)


def million_figure(record: Mapping[str, Any]) -> Figure:
    """Draw error, time and memory over blocks, one curve per number of latents."""
    figure = new_figure(10.5, 3.6)
    latents = sorted({row["latents"] for row in record["rows"]})
    blocks = sorted({row["blocks"] for row in record["rows"]})
    panels = {"rel_l2": "relative L2 error", "seconds": "seconds per step", "peak_mb": "peak GB"}
    for axes, (key, label) in zip(figure.subplots(1, 3), panels.items(), strict=True):
        for m, look in zip(latents, ordered_looks(len(latents)), strict=True):
            rows = sorted((row for row in record["rows"] if row["latents"] == m), key=lambda row: row["blocks"])
            x, y = [row["blocks"] for row in rows], [_in_unit(key, row[key]) for row in rows]
            axes.plot(x, y, label=f"{m:,}", **look.of_line())
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        _number_ticks(axes, FixedLocator(blocks))
        plain(axes, x="blocks", y=label)
    _legend(figure, "latents")
    return figure


def scaling_figure(record: Mapping[str, Any]) -> Figure:
    """Draw time and memory of layers over the number of points. Extrapolated values are dashed.

    Args:
        record: Record with `layers` and `rows`. Values that are None are not drawn.
    """
    figure = new_figure(9.5, 4.0)
    names = list(record["layers"])
    panels = {"seconds": "seconds, forward + backward", "peak_mb": "peak GB"}
    for axes, (key, label) in zip(figure.subplots(1, 2), panels.items(), strict=True):
        for name in names:
            known = (r for r in record["rows"] if r["layer"] == name and r[key] is not None)
            rows = sorted(known, key=lambda r: r["points"])
            if not rows:
                continue
            about, look = record["layers"][name], _layer_look(name, names)
            x, y = [r["points"] for r in rows], [_in_unit(key, r[key]) for r in rows]
            axes.plot(x, y, label=name, **look.of_line())
            if about["extrapolated"] and np.isfinite(about[f"{key}_at_largest"]):
                ends = [y[-1], _in_unit(key, about[f"{key}_at_largest"])]
                axes.plot([x[-1], record["largest"]], ends, linestyle="--", color=look.color, linewidth=look.width)
        axes.set_xscale("log")
        axes.set_yscale("log" if axes.lines else "linear")  # an empty axis has no logarithm
        plain(axes, x="points", y=label)
    extrapolated = any(about["extrapolated"] for about in record["layers"].values())
    _legend(figure, "dashed: extrapolated" if extrapolated else None)
    return figure


def _in_unit(key: str, value: float) -> float:
    """Convert a value to the unit of its panel."""
    return gigabytes(value) if key == "peak_mb" else value


def _layer_look(name: str, names: Sequence[str]) -> Look:
    """Return the look of the model that has the layer, darker and thinner for more latents."""
    kind = name.split()[0]
    look = look_of_model(MODEL_OF[kind])
    alike = [other for other in names if other.split()[0] == kind]
    place = alike.index(name) + 1
    share = 0.4 + 0.6 * place / len(alike)
    red, green, blue = (1 - share * (1 - part) for part in to_rgb(look.color))
    return look._replace(
        color=to_hex((red, green, blue)), width=1.3 + 0.7 * (len(alike) - place), size=4.0 + (len(alike) - place)
    )

"""Training curves and the distribution of test errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from flare.report.fields import Floats
from flare.report.style import ACCENT, GREY, INK, SMALL, log_ticks, new_figure, plain, round_ticks

MetricsRecord = Mapping[str, Any]
SPLIT_COLORS = ("#c2410c", "#0f766e", "#7c3aed", "#a16207")


def loss_curves(records: Sequence[MetricsRecord]) -> Figure:
    """Draw training loss and test errors over steps, with the learning rate below.

    Args:
        records: Lines of `metrics.jsonl`; those of kind `train` and `evaluate` are drawn. If a resumed run has several
            records of a step, the last one counts.
    """
    steps, losses = _series(records, "loss", kind="train")
    splits = sorted({str(r["split"]) for r in records if r.get("kind") == "evaluate"})
    figure = new_figure(7.5, 4.6)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3.5, 1])
    upper.plot(steps, losses, **_line(losses), color=GREY, linewidth=0.8, label="training loss")
    for split, color in zip(splits, cycle(SPLIT_COLORS)):
        for key, dashes, note in (("rel_l2", "-", ""), ("rel_l2_ema", "--", ", averaged weights")):
            x, y = _series(records, key, kind="evaluate", split=split)
            if len(x):
                label = f"{split}: relative L2{note}"
                upper.plot(x, y, dashes, marker="o", markersize=3.5, color=color, linewidth=1.3, label=label)
    rate_steps, rates = _series(records, "lr", kind="train")
    lower.plot(rate_steps, rates, **_line(rates), color=INK, linewidth=1)
    _log_if_positive(upper)
    plain(upper, y="loss, relative L2 error")
    plain(lower, x="step", y="learning rate")
    upper.legend(fontsize=SMALL, frameon=False, labelcolor=INK, loc="upper right")
    lower.ticklabel_format(axis="y", scilimits=(-2, 3), useMathText=True)
    lower.yaxis.get_offset_text().set_fontsize(SMALL)
    lower.xaxis.set_major_locator(round_ticks(8, integer=True))
    return figure


def error_histogram(errors: ArrayLike, baseline: float | None = None) -> Figure:
    """Draw a histogram of the relative L2 errors of single samples, with median and mean.

    Args:
        errors: One error per test sample.
        baseline: Error of the training-mean field. None: not drawn.
    """
    e = np.asarray(errors, dtype=float).ravel()
    e = e[np.isfinite(e)]
    everything = e if baseline is None else np.append(e, baseline)
    low, high = everything.min(), everything.max()
    logarithmic = bool(low > 0 and high > 10 * low)
    figure = new_figure(7.5, 3.4)
    axes = figure.add_subplot()
    axes.hist(e, bins=list(_bins(e, logarithmic)), color="#94a3b8", edgecolor="white", linewidth=0.6)
    marks = [("median", float(np.quantile(e, 0.5, method="higher")), INK, "-"), ("mean", float(e.mean()), INK, "--")]
    marks += [] if baseline is None else [("mean-field baseline", float(baseline), ACCENT, "-")]
    for label, value, color, dashes in marks:
        axes.axvline(value, color=color, linestyle=dashes, linewidth=1.3, label=f"{label} {value:.3g}")
    if logarithmic:
        axes.set_xscale("log")
        log_ticks(axes.xaxis)
    axes.yaxis.set_major_locator(round_ticks(6, integer=True))
    plain(axes, x="relative L2 error of a sample", y=f"samples, of {e.size}")
    axes.legend(fontsize=SMALL, frameon=False, labelcolor=INK)
    return figure


def _series(records: Sequence[MetricsRecord], key: str, **wanted: str) -> tuple[Floats, Floats]:
    """Return steps and values of `key` in the records that have it and match `wanted`."""
    found = {
        int(record["step"]): float(record[key])
        for record in records
        if record.get(key) is not None and all(record.get(k) == v for k, v in wanted.items())
    }
    steps = sorted(found)
    return np.array(steps, dtype=float), np.array([found[step] for step in steps], dtype=float)


def _line(values: Floats) -> dict[str, Any]:
    """Return a marker for a line of one point."""
    return {"marker": "o", "markersize": 3.5} if len(values) == 1 else {}


def _log_if_positive(axes: Axes) -> None:
    drawn = np.concatenate([np.asarray(line.get_ydata(), dtype=float) for line in axes.lines])
    if (drawn[np.isfinite(drawn)] > 0).any():
        axes.set_yscale("log")
        log_ticks(axes.yaxis)


def _bins(errors: Floats, logarithmic: bool) -> Floats:
    count = int(np.clip(2 * errors.size**0.5, 5, 40))
    low, high = float(errors.min()), float(errors.max())
    if high <= low:
        low, high = (0.9 * low, 1.1 * high) if low else (-0.5, 0.5)
    return np.geomspace(low, high, count + 1) if logarithmic else np.linspace(low, high, count + 1)

"""Time and memory of one layer over the number of points (Figures 2 and 8): FLARE, softmax and physics attention.

Sizes that would exceed the limits are not measured but extrapolated with the fitted exponent of the layer.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from math import isnan
from pathlib import Path
from typing import Any

from flare.report.page import png
from flare.reproduce.analyses import Experiment
from flare.reproduce.budgets import Budget
from flare.reproduce.figures import scaling_figure
from flare.reproduce.items.layer_costs import (
    CALLS,
    KEYS,
    LATENTS,
    POINTS,
    SIZES,
    Row,
    Sizes,
    layers,
    measure_layer,
    speedup_where_measured,
    stays_within,
    summary,
    with_known_memory,
    with_summary,
)
from flare.reproduce.study import READ_OFF, Block, Cell, Item, Outcome, Picture
from flare.reproduce.tables import Table, facts_table
from flare.train.profiling import run_isolated
from flare.utils.environment import gigabytes
from flare.utils.files import write_json

logger = logging.getLogger(__name__)

PAPERS_POINTS = (1_000, 100_000, 500_000, 1_000_000)
"""Numbers of points at which the paper's curves were read off."""
_OOM = "out of memory"
_FLARE_GB = ("", 0.95, 4.46, 8.85)
PAPER: dict[str, tuple[Sequence[float | str], Sequence[float | str]]] = {
    "softmax": ((0.70, 187, 4_630, 18_500), ("", 0.61, 2.76, 5.45)),
    "flare 128": ((2.6, 8.9, 37, 72), _FLARE_GB),
    "flare 512": ((2.6, 10.0, 42, 81), _FLARE_GB),
    "flare 2048": ((2.6, 14.0, 63, 123), _FLARE_GB),
    "physics 128": ((2.2, 10.1, 69, 145), ("", 2.5, 12.2, 24.3)),
    "physics 512": ((2.3, 34.5, 267, f"{_OOM} (747 at 800,000)"), ("", 9.0, 44.1, f"{_OOM} (71.2 at 800,000)")),
    "physics 2048": ((3.0, 133, f"{_OOM} (789 at 200,000)", _OOM), ("", 34.7, f"{_OOM} (69.4 at 200,000)", _OOM)),
}
"""Layer -> milliseconds and GiB on an H100 in float16 at `PAPERS_POINTS`. At 1,000 points the memory is not legible."""
FACTORS = {"flare 128": "255×", "flare 512": "228×", "flare 2048": "150×", "physics 128": f"{18_500 / 145:.0f}×"}
"""Layer -> speed relative to softmax at a million points; that of `physics 128` is computed from the times."""


def run(
    folder: Path,
    *,
    points: Sequence[int] = POINTS,
    latents: Sequence[int] = LATENTS,
    limit_seconds: float = 600.0,
    limit_gb: float = 16.0,
    precision: str = "32",
    sizes: Sizes = SIZES,
    backend: str = "auto",
) -> dict[str, Any]:
    """Measure all layers, or resume: each finished row is stored at once in `scaling.json`.

    Args:
        folder: Run folder.
        points: Numbers of points.
        latents: Latents of FLARE and slices of physics attention.
        limit_seconds: Longest time of a call. Larger sizes are extrapolated.
        limit_gb: Largest memory of a call. Larger sizes are extrapolated.
        precision: `32`, or `bf16` or `16` under autocast.
        sizes: Kind of layer -> channels, heads and width of a head.
        backend: Mixer backend of FLARE.

    Returns:
        The settings, the rows and their summary.
    """
    path = folder / "scaling.json"
    rows: list[Row] = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
    for name in layers(latents):
        for n in sorted(points):
            mine = [row for row in rows if row["layer"] == name]
            if any(row["points"] == n for row in mine) or not stays_within(mine, name, n, limit_seconds, limit_gb):
                continue
            row = run_isolated(measure_layer, name, n, precision, sizes, backend)
            logger.info("%s, %s points: %.4g s, %.0f MiB", name, f"{n:,}", row["seconds"], row["peak_mb"])
            rows.append(row)
            write_json(path, {"rows": rows})
    about = {"limit_seconds": limit_seconds, "limit_gb": limit_gb, "threads": 1, "precision": precision}
    about |= {"sizes": {kind: list(of) for kind, of in sizes.items()}, "backend": backend, "rows": rows}
    return about | summary(rows, names=layers(latents), largest=max(points))


def scaling_table(record: Mapping[str, Any], others: Mapping[str, Mapping[str, str]] | None = None) -> Table:
    """Build a table with one row per layer. Extrapolated values are in italics.

    Args:
        record: A record with its summary.
        others: Further columns of factors: title -> layer -> factor.
    """
    largest = f"{record['largest']:,}"
    head = [
        *("layer", "time ~ N^", "memory ~ N^", "measured up to", f"seconds at {largest}", f"GB at {largest}"),
        *(f"faster than softmax at {largest}", "faster than softmax, both measured", "at points"),
        *(others or {}),
    ]
    rows, factors = [], _factors(record)
    for name, about in record["layers"].items():
        powers = ["–" if about[f"{key}_exponent"] is None else f"{about[f'{key}_exponent']:.2f}" for key in KEYS]
        at_largest = about["seconds_at_largest"], gigabytes(about["peak_mb_at_largest"])
        values = ["–" if isnan(value) else f"{value:,.4g}" for value in at_largest]
        if about["extrapolated"]:
            values = [value if value == "–" else f"*{value}*" for value in values]
        both = speedup_where_measured(record, name)
        measured = ["–", "–"] if both is None else [_factor(both[1]), f"{both[0]:,}"]
        theirs = [column.get(name, "") for column in (others or {}).values()]
        rows.append([name, *powers, f"{about['measured_to']:,}", *values, factors[name], *measured, *theirs])
    return Table(head, rows)


def _factors(record: Mapping[str, Any], start: str = "") -> dict[str, str]:
    """Return layer -> speed relative to softmax at the largest size, for layers whose names begin with `start`."""
    layers = record["layers"]
    found = {name: _factor(about["faster_than_softmax"]) for name, about in layers.items() if name.startswith(start)}
    unmeasured = {name for name, about in layers.items() if about["extrapolated"]}
    return {
        name: f"*{text}*" if name != "softmax" and {name, "softmax"} & unmeasured else text
        for name, text in found.items()
    }


def _factor(ratio: float) -> str:
    """Format a factor with three digits, and all digits before the point."""
    return f"{ratio:,.0f}×" if ratio >= 100 else f"{ratio:.3g}×"


def _settings(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a study."""
    sizes = {f"channels, heads, head width of {kind}": f"{c}, {h}, {d}" for kind, (c, h, d) in record["sizes"].items()}
    used = {row["mixer"] for row in record["rows"] if "mixer" in row} or {record.get("backend", "auto")}
    return {
        **sizes,
        "precision": record["precision"],
        "threads": record["threads"],
        "mixer backend of FLARE": ", ".join(sorted(used)),
        "calls per measurement (median), at most": CALLS,
        "limit of a measurement": f"{record['limit_seconds']:g} s, {record['limit_gb']:g} GB",
    }


BUDGET_SETTINGS: dict[str, dict[str, Any]] = {
    "smoke": {"points": (64, 128), "latents": (4,)},
    "cpu": {"limit_seconds": 300.0, "limit_gb": 12.0},
}
"""Budget -> arguments of `run`, in either precision."""
PAPERS_STUDIES: dict[str, dict[str, Any]] = {
    "32": {
        "points": tuple(range(1_000, 50_001, 4_900)),
        "latents": (64, 128, 256),
        "sizes": {"softmax": (96, 6, 16), "flare": (64, 8, 8), "physics": (128, 8, 8)},
        "limit_gb": 80.0,
    },
    "16": {"points": (1_000, *range(100_000, 1_000_001, 100_000)), "limit_gb": 80.0},
}
"""Precision -> arguments of the paper's two studies. No numbers were read off the figure of the first."""
SECONDS = {"smoke": 30.0, "cpu": 2000.0, "paper": 4000.0}
"""Budget -> estimated core seconds."""
FP32, BY_PYTORCH = "fp32-study", "fp32-study-by-pytorch"
"""The paper's float32 study on a CPU, with the kernels of this package and with PyTorch alone."""


def cells(budget: Budget) -> list[Cell]:
    """List a float32 and a mixed-precision study; in budget `cpu` also the paper's float32 study."""
    mixed = "16" if budget.name == "paper" else "bf16"  # not every processor has bfloat16
    found = [
        Cell(
            (f"precision={precision}",),
            Experiment("scaling", _arguments(budget, precision), SECONDS[budget.name]),
            extra=budget.name != "paper" and precision != "32",
        )
        for precision in ("32", mixed)
    ]
    if budget.name == "cpu":
        how = PAPERS_STUDIES["32"] | BUDGET_SETTINGS["cpu"] | {"precision": "32"}
        found.append(Cell((FP32,), Experiment("scaling", how, SECONDS["cpu"]), extra=True))
        without = how | {"backend": "sdpa", "limit_seconds": 20.0}
        found.append(Cell((BY_PYTORCH,), Experiment("scaling", without, SECONDS["cpu"] / 3), extra=True))
    return found


def _arguments(budget: Budget, precision: str) -> dict[str, Any]:
    how = PAPERS_STUDIES[precision] if budget.name == "paper" else BUDGET_SETTINGS[budget.name]
    return how | {"precision": precision}


def report(found: Sequence[Outcome], budget: Budget) -> list[Block]:
    blocks: list[Block] = []
    studies = {outcome.cell.name: with_summary(outcome.result) for outcome in found if outcome.result}
    for name, record in studies.items():
        comparable = _is_mixed_study(record)
        others = {READ_OFF: FACTORS} if comparable else {}
        if name == FP32 and BY_PYTORCH in studies:
            others[f"FLARE by PyTorch alone at {record['largest']:,}"] = _factors(studies[BY_PYTORCH], "flare")
        blocks += [f"{name}, extrapolated values in italics:", scaling_table(record, others)]
        blocks += [f"{name}, settings:", facts_table(_settings(record))]
        if comparable:
            blocks += [f"{name}, beside the paper's H100 in float16:", papers_table(record)]
        caption = f"{name}: time and memory of one layer."
        drawn = scaling_figure({**record, "rows": with_known_memory(record["rows"])})
        blocks.append(Picture(name.replace("=", "-"), caption, png(drawn)))
    return blocks


def _is_mixed_study(record: Mapping[str, Any]) -> bool:
    """Return whether a record has the layers and the largest number of points of the paper's mixed study."""
    usual = {kind: list(of) for kind, of in SIZES.items()}
    return record["largest"] == PAPERS_STUDIES["16"]["points"][-1] and record["sizes"] == usual


def papers_table(record: Mapping[str, Any]) -> Table:
    """Build a table of milliseconds and GB, ours and the paper's, one row per layer and number of points."""
    ours = {(row["layer"], row["points"]): row for row in with_known_memory(record["rows"])}
    lines = []
    for layer, columns in PAPER.items():
        for points, *theirs in zip(PAPERS_POINTS, *columns, strict=True):
            row = ours.get((layer, points))
            time = "" if row is None else _milliseconds(row["seconds"])
            memory = "" if row is None or row["peak_mb"] is None else f"{gigabytes(row['peak_mb']):.3g}"
            paper = (value if isinstance(value, str) else f"{value:,g}" for value in theirs)
            lines.append((layer, f"{points:,}", time, memory, *paper))
    return Table(("layer", "points", "ms", "GB", "paper, H100: ms", "paper, H100: GB"), lines)


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.0f}" if seconds >= 1 else f"{1e3 * seconds:.3g}"


ITEM = Item("scaling", "Time and memory of one layer over the number of points", cells, report, "Figures 2 and 8")

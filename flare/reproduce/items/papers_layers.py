"""What the paper measured of one layer on its GPU, read off its figure, beside what was measured here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flare.reproduce.tables import Table
from flare.utils.environment import gigabytes

POINTS = (1_000, 100_000, 500_000, 1_000_000)
"""Sizes of which the curves were read."""
GONE = "out of memory"


@dataclass(frozen=True)
class Curve:
    """Of one layer, forward and backward, for each of POINTS."""

    milliseconds: Sequence[float | str]
    gigabytes: Sequence[float | str]
    """At a thousand points the curves cannot be told from zero, and the cell is empty."""


def _flare(*milliseconds: float) -> Curve:
    """Memory is the same for any number of latents."""
    return Curve(milliseconds, ("", 0.95, 4.46, 8.85))


PAPER = {
    "softmax": Curve((0.70, 187, 4_630, 18_500), ("", 0.61, 2.76, 5.45)),
    "flare 128": _flare(2.6, 8.9, 37, 72),
    "flare 512": _flare(2.6, 10.0, 42, 81),
    "flare 2048": _flare(2.6, 14.0, 63, 123),
    "physics 128": Curve((2.2, 10.1, 69, 145), ("", 2.5, 12.2, 24.3)),
    "physics 512": Curve((2.3, 34.5, 267, f"{GONE} (747 at 800,000)"), ("", 9.0, 44.1, f"{GONE} (71.2 at 800,000)")),
    "physics 2048": Curve((3.0, 133, f"{GONE} (789 at 200,000)", GONE), ("", 34.7, f"{GONE} (69.4 at 200,000)", GONE)),
}
"""Layer -> its curves; FLARE's times at 1,000 points cannot be told apart."""
COMPUTED = f"{18_500 / 145:.0f}× (computed: 18,500 ms / 145 ms)"
FACTORS = {"flare 128": "255×", "flare 512": "228×", "flare 2048": "150×", "physics 128": COMPUTED}
"""Times as fast as softmax attention at a million points."""
WORDS = (
    "The paper's columns are of one H100 with 80 GB, float16 under autocast, read off its figure to about a hundredth; "
    "its code divides bytes by 2³⁰ and its figure says GB. Its memory is all that was allocated at the peak, ours what "
    "a step needs beyond input, target and weights. Ours are empty where nothing was measured:"
)


def papers_memory(layer: str) -> float:
    """Times that of softmax attention, at a million points."""
    ours, softmax = (float(PAPER[name].gigabytes[-1]) for name in (layer, "softmax"))
    return ours / softmax


def papers_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """A line a layer and size: milliseconds and GB measured here, and the paper's."""
    ours = {(row["layer"], row["points"]): row for row in rows}
    lines = []
    for layer, curve in PAPER.items():
        for points, time, memory in zip(POINTS, curve.milliseconds, curve.gigabytes, strict=True):
            row = ours.get((layer, points))
            here = ("", "") if row is None else (_milliseconds(row["seconds"]), _memory(row))
            lines.append((layer, f"{points:,}", *here, _plain(time), _plain(memory)))
    return Table(("layer", "points", "ms", "GB", "paper, H100: ms", "paper, H100: GB"), lines)


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.0f}" if seconds >= 1 else f"{1e3 * seconds:.3g}"


def _memory(row: Mapping[str, Any]) -> str:
    return "" if row["peak_mb"] is None else f"{gigabytes(row['peak_mb']):.3g}"


def _plain(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:,g}"

"""Time and memory of one layer, forward and backward, from a thousand points to a million: FLARE, softmax attention,
and physics attention with as many slices as FLARE has latents.

Each number comes from a process of its own. What would take longer, or more memory, than the limits is not measured: it
is extrapolated from the last measurements with their fitted exponent, and shown as such.
"""

# N points, M latents or slices, C channels, H heads

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from flare.environment import describe_environment
from flare.files import write_json
from flare.measure import alone, exponent, median_seconds, peak_above, threads

CHANNELS, HEADS = 128, 8
POINTS = (1_000, 3_162, 10_000, 31_623, 100_000, 316_228, 1_000_000)
LATENTS = (128, 512, 2048)
ASYMPTOTIC = 10_000
"""Points from which exponents are fitted: below, fixed costs show."""
POWERS = {"softmax": (2, 1), "flare": (1, 1), "physics": (1, 1)}
"""Kind -> powers of N of its time and memory; they tell whether the next size stays within the limits."""
BEGIN, END = "<!-- scaling table -->", "<!-- end of scaling -->"
Row = dict[str, Any]


def layers(latents: Sequence[int] = LATENTS) -> list[str]:
    """`softmax`, `flare 128`, `physics 128`, …"""
    return ["softmax", *(f"{kind} {m}" for kind in ("flare", "physics") for m in latents)]


def make_layer(name: str) -> nn.Module:
    """With its projections, without norm or pointwise MLP."""
    from flare.models.attention import SelfAttention
    from flare.models.flare import FLARE
    from flare.models.transolver import PhysicsAttention

    kind, _, size = name.partition(" ")
    if kind == "softmax":
        return SelfAttention(CHANNELS, HEADS)
    if kind == "flare":
        return FLARE(CHANNELS, HEADS, int(size))
    return PhysicsAttention(CHANNELS, HEADS, int(size), None)


def measure_layer(name: str, points: int, thread_count: int) -> Row:
    """Seconds and MiB of a forward and backward of the squared error, gradients of input and weights. Alone, please."""
    torch.manual_seed(0)
    with threads(thread_count):
        layer = make_layer(name)

        def step(x: torch.Tensor, target: torch.Tensor) -> None:
            torch.autograd.grad((layer(x) - target).square().mean(), [x, *layer.parameters()])

        def data(count: int) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.randn(1, count, CHANNELS, requires_grad=True), torch.randn(1, count, CHANNELS)

        step(*data(1024))
        x, target = data(points)
        peak = peak_above(lambda: step(x, target))
        seconds = median_seconds(lambda: step(x, target), max(1, min(5, 100_000 // points)))
    return {"layer": name, "points": points, "seconds": seconds, "peak_mb": peak, "threads": thread_count}


def run(
    out: Path,
    *,
    points: Sequence[int] = POINTS,
    latents: Sequence[int] = LATENTS,
    limit_seconds: float = 600.0,
    limit_gb: float = 16.0,
    thread_count: int = 1,
    tell: Callable[[str], None] = print,
) -> str:
    """Measure what is not measured yet, every row kept at once in `scaling.json`. Returns the table as Markdown."""
    path = out / "scaling.json"
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"rows": []}
    record |= {"limit_seconds": limit_seconds, "limit_gb": limit_gb, "threads": thread_count}
    record["rows"] = [row for row in record["rows"] if row["threads"] == thread_count]
    for name in layers(latents):
        for n in sorted(points):
            mine = [r for r in record["rows"] if r["layer"] == name]
            if any(r["points"] == n for r in mine) or not _within(mine, name, n, limit_seconds, limit_gb):
                continue
            row = alone(measure_layer, name, n, thread_count)
            tell(f"{name}, {n:,} points: {row['seconds']:.4g} s, {row['peak_mb']:,.0f} MiB")
            record["rows"].append(row)
            record["environment"] = describe_environment()
            write_json(path, record)
    record |= summary(record["rows"], names=layers(latents), largest=max(points))
    write_json(path, record)
    from flare.report.scaling import scaling_figure

    scaling_figure(record).savefig(out / "scaling.png", dpi=150)
    text = table(record)
    (out / "scaling.md").write_text(text, encoding="utf-8")
    return text


def _within(rows: Sequence[Row], name: str, points: int, limit_seconds: float, limit_gb: float) -> bool:
    """Whether the next size will stay within the limits, judged by the largest that was measured."""
    smaller = [r for r in rows if r["points"] < points]
    if not smaller:
        return True
    last = max(smaller, key=lambda r: r["points"])
    growth = points / last["points"]
    time, memory = POWERS[name.split()[0]]
    fits = last["peak_mb"] * growth**memory <= limit_gb * 1e9 / 2**20
    return fits and last["seconds"] * growth**time <= limit_seconds


def summary(rows: Sequence[Row], *, names: Sequence[str], largest: int) -> dict[str, Any]:
    """Exponents of time and memory of each layer, both at the largest N, and how much faster than softmax it is."""
    layers_: dict[str, Any] = {}
    for name in names:
        mine = sorted((r for r in rows if r["layer"] == name), key=lambda r: r["points"])
        if not mine:
            continue
        fitted = [r for r in mine if r["points"] >= ASYMPTOTIC]
        fitted = fitted if len(fitted) > 1 else mine
        last = mine[-1]
        about: dict[str, Any] = {"measured_to": last["points"], "extrapolated": last["points"] < largest}
        for key in ("seconds", "peak_mb"):
            power = None
            if len(fitted) > 1:
                power = exponent([r["points"] for r in fitted], [max(r[key], 1e-9) for r in fitted])
            about[f"{key}_exponent"] = power
            growth = (largest / last["points"]) ** power if power is not None else float("nan")
            about[f"{key}_at_largest"] = last[key] * growth if about["extrapolated"] else last[key]
        layers_[name] = about
    if "softmax" in layers_:
        for about in layers_.values():
            about["faster_than_softmax"] = layers_["softmax"]["seconds_at_largest"] / about["seconds_at_largest"]
    return {"largest": largest, "layers": layers_}


def table(record: Mapping[str, Any]) -> str:
    """Markdown; what was not measured stands in italics."""
    head = [
        "layer",
        "time ~ N^",
        "memory ~ N^",
        f"seconds at {record['largest']:,}",
        "MiB there",
        "faster than softmax",
    ]
    lines = [f"| {' | '.join(head)} |", f"|---{'|---:' * (len(head) - 1)}|"]
    for name, about in record["layers"].items():
        powers = ["–" if about[f"{key}_exponent"] is None else f"{about[f'{key}_exponent']:.2f}" for key in KEYS]
        values = [f"{about[f'{key}_at_largest']:,.4g}" for key in KEYS]
        if about["extrapolated"]:
            values = [f"*{value}*" for value in values]
        ratio = about.get("faster_than_softmax")
        lines.append(f"| {name} | {' | '.join([*powers, *values])} | {'–' if ratio is None else f'{ratio:,.0f}×'} |")
    guessed = [f"{n} (to {a['measured_to']:,})" for n, a in record["layers"].items() if a["extrapolated"]]
    note = f"In italics: extrapolated from smaller N: {', '.join(guessed)}." if guessed else "All were measured."
    facts = record["environment"]
    origin = (
        f"*One layer, C = {CHANNELS}, H = {HEADS}, forward + backward, float32; exponents from {ASYMPTOTIC:,} points; "
        f"limits {record['limit_seconds']:g} s and {record['limit_gb']:g} GB a measurement. {facts['processor']}, "
        f"{record['threads']} thread(s) here, torch {facts['torch']}, commit {facts['commit']}.*"
    )
    return "\n".join([*lines, "", note, "", origin]) + "\n"


KEYS = ("seconds", "peak_mb")

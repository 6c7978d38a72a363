"""Time and memory of one layer, forward and backward: FLARE, softmax attention and physics attention.

Every measurement has a process of its own. Larger sizes are extrapolated with the fitted exponent of the layer.
"""

# N points, M latents or slices, C channels, H heads

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from flare.mixer import choose
from flare.train.profiling import median_seconds, peak_above, power_law_exponent, threads

CHANNELS, HEADS, WIDTH = 128, 8, 16
Sizes = Mapping[str, Sequence[int]]
SIZES: Sizes = dict.fromkeys(("softmax", "flare", "physics"), (CHANNELS, HEADS, WIDTH))
"""Kind of layer -> channels, heads and width of a head."""
POINTS = (1_000, 3_162, 10_000, 31_623, 100_000, 316_228, 1_000_000)
LATENTS = (128, 512, 2048)
KEYS = ("seconds", "peak_mb")
DECADE, FITTED = 10, 3
"""Exponents are fitted to the sizes from a tenth of the largest, where fixed costs do not matter, and to at least this
many sizes if there are as many."""
POWERS = {"softmax": (2, 1), "flare": (1, 1), "physics": (1, 1)}
"""Kind -> expected powers of N of time and memory, to predict whether the next size stays within the limits."""
DTYPES = {"32": None, "bf16": torch.bfloat16, "16": torch.float16}
"""Precision -> data type of matrix products under autocast."""
CALLS, MOST_POINTS = 5, 100_000
"""Time is the median of this many calls, or of fewer if these would process more points in all."""
WARM_UP, OLDER_WARM_UP = 16, 1024
"""Points of the warm-up step, now and in older rows, which do not name it. The allocator reuses its memory, so the
memory of a step with as many points or fewer is unknown."""
Row = dict[str, Any]


def layers(latents: Sequence[int] = LATENTS) -> list[str]:
    """List the names of layers: `softmax`, `flare 128`, `physics 128`, …"""
    return ["softmax", *(f"{kind} {m}" for kind in ("flare", "physics") for m in latents)]


def make_layer(name: str, sizes: Sizes = SIZES, backend: str = "auto") -> nn.Module:
    """Build a layer with its projections, without norm or pointwise MLP. The backend is that of FLARE."""
    from flare.models.baselines.transolver import PhysicsAttention
    from flare.models.flare import FLARE
    from flare.models.layers import SelfAttention

    kind, _, size = name.partition(" ")
    channels, heads, width = sizes[kind]
    if kind == "softmax":
        return SelfAttention(channels, heads)
    if kind == "flare":
        return FLARE(channels, heads, int(size), backend=backend)
    return PhysicsAttention(channels, heads, int(size), None, width)


def measure_layer(name: str, points: int, precision: str = "32", sizes: Sizes = SIZES, backend: str = "auto") -> Row:
    """Measure seconds and MiB of a forward and backward pass on one thread. To be called in a process of its own."""
    torch.manual_seed(0)
    device, mixed = "cuda" if torch.cuda.is_available() else "cpu", DTYPES[precision]
    with threads(1):
        layer, channels = make_layer(name, sizes, backend).to(device), sizes[name.split()[0]][0]

        def step(x: torch.Tensor, target: torch.Tensor) -> None:
            with torch.autocast(device, dtype=mixed, enabled=mixed is not None):
                loss = (layer(x) - target).square().mean()
            torch.autograd.grad(loss, [x, *layer.parameters()])

        def data(count: int) -> tuple[torch.Tensor, torch.Tensor]:
            x, target = torch.randn(2, 1, count, channels, device=device)
            return x.requires_grad_(), target

        step(*data(WARM_UP))
        x, target = data(points)
        peak = peak_above(lambda: step(x, target))
        seconds = median_seconds(lambda: step(x, target), max(1, min(CALLS, MOST_POINTS // points)))
    used = {"mixer": choose()[0] if backend == "auto" else backend} if "flare" in name else {}
    return {"layer": name, "points": points, "seconds": seconds, "peak_mb": peak, "warm_up": WARM_UP, **used}


def with_known_memory(rows: Sequence[Row]) -> list[Row]:
    """Replace `peak_mb` by None in rows whose memory is unknown, because the warm-up was as large."""
    return [row if has_known_memory(row) else {**row, "peak_mb": None} for row in rows]


def has_known_memory(row: Row) -> bool:
    """Return whether a row has more points than its warm-up."""
    return bool(row["points"] > row.get("warm_up", OLDER_WARM_UP))


def stays_within(rows: Sequence[Row], name: str, points: int, limit_seconds: float, limit_gb: float) -> bool:
    """Predict from the largest measured size whether the next one stays within the limits."""
    smaller = [r for r in rows if r["points"] < points]
    if not smaller:
        return True
    last = max(smaller, key=lambda r: r["points"])
    growth = points / last["points"]
    time, memory = POWERS[name.split()[0]]
    fits = last["peak_mb"] * growth**memory <= limit_gb * 1e9 / 2**20
    return fits and last["seconds"] * growth**time <= limit_seconds


def summary(rows: Sequence[Row], *, names: Sequence[str], largest: int) -> dict[str, Any]:
    """Return exponents of time and memory of each layer, both at the largest N, and its speed relative to softmax."""
    layers_: dict[str, Any] = {}
    for name in names:
        mine = sorted((r for r in rows if r["layer"] == name and r["points"] <= largest), key=lambda r: r["points"])
        if not mine:
            continue
        last = mine[-1]
        about: dict[str, Any] = {"measured_to": last["points"], "extrapolated": last["points"] < largest}
        for key in KEYS:
            known = mine if key == "seconds" else [r for r in mine if has_known_memory(r)]
            fitted = [r for r in known if DECADE * r["points"] >= known[-1]["points"]]
            fitted = fitted if len(fitted) >= FITTED else known[-FITTED:]
            power = None
            if len(fitted) > 1:
                power = power_law_exponent([r["points"] for r in fitted], [max(r[key], 1e-9) for r in fitted])
            about[f"{key}_exponent"] = power
            growth = (largest / last["points"]) ** power if power is not None else float("nan")
            at_last = last[key] if last in known else float("nan")
            about[f"{key}_at_largest"] = at_last * growth if about["extrapolated"] else at_last
        layers_[name] = about
    for about in layers_.values():
        about["faster_than_softmax"] = layers_["softmax"]["seconds_at_largest"] / about["seconds_at_largest"]
    return {"largest": largest, "layers": layers_}


def with_summary(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record with the summary of its rows computed again. Older ones had other fits."""
    return {**record, **summary(record["rows"], names=list(record["layers"]), largest=record["largest"])}


def speedup_where_measured(record: Mapping[str, Any], name: str) -> tuple[int, float] | None:
    """Return the most points at which a layer and softmax were both measured, and the ratio softmax / layer there."""
    seconds = {(row["layer"], row["points"]): row["seconds"] for row in record["rows"]}
    common = [n for layer, n in seconds if layer == name and ("softmax", n) in seconds and n <= record["largest"]]
    return (most := max(common), seconds["softmax", most] / seconds[name, most]) if common else None

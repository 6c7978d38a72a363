"""Time and memory of one layer, forward and backward, from a thousand points to a million: FLARE, softmax attention,
and physics attention with as many slices as FLARE has latents.

Each number comes from a process of its own. What would take longer, or more memory, than the limits is not measured: it
is extrapolated from the last measurements with their fitted exponent, and shown as such.
"""

# N points, M latents or slices, C channels, H heads

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from math import isnan
from pathlib import Path
from typing import Any

import torch
from torch import nn

from flare.environment import describe_environment, gigabytes
from flare.errors import ConfigError, nearest
from flare.experiments.analyses import Experiment
from flare.experiments.budgets import Budget
from flare.experiments.ledger import Ledger
from flare.experiments.papers_layers import FACTORS, WORDS, papers_table
from flare.experiments.study import DEPARTURES, READ_OFF, Block, Cell, Item, Picture, another_machine, origin, outcomes
from flare.experiments.tables import Table
from flare.files import write_json
from flare.measure import alone, exponent, median_seconds, peak_above, threads
from flare.report.page import png
from flare.trial import DTYPES

CHANNELS, HEADS, WIDTH = 128, 8, 16
Sizes = Mapping[str, Sequence[int]]
SIZES: Sizes = dict.fromkeys(("softmax", "flare", "physics"), (CHANNELS, HEADS, WIDTH))
"""Kind of layer -> channels, heads and width of a head."""
POINTS = (1_000, 3_162, 10_000, 31_623, 100_000, 316_228, 1_000_000)
LATENTS = (128, 512, 2048)
ASYMPTOTIC = 10_000
"""Points from which exponents are fitted: below, fixed costs show."""
FITTED = 3
"""Sizes that an exponent rests on, if there are as many: of two, the noise is raised to a power."""
POWERS = {"softmax": (2, 1), "flare": (1, 1), "physics": (1, 1)}
"""Kind -> powers of N of its time and memory; they tell whether the next size stays within the limits."""
WARM_UP, OLDER_WARM_UP = 16, 1024
"""Points of the step before the first that counts; the latter of older rows, which do not say. Memory that it leaves to
the allocator is not counted again in a step of as few points or fewer, so that theirs is not known."""
BEGIN, END = "<!-- scaling table -->", "<!-- end of scaling -->"
Row = dict[str, Any]


def layers(latents: Sequence[int] = LATENTS) -> list[str]:
    """`softmax`, `flare 128`, `physics 128`, …"""
    return ["softmax", *(f"{kind} {m}" for kind in ("flare", "physics") for m in latents)]


def make_layer(name: str, sizes: Sizes = SIZES) -> nn.Module:
    """With its projections, without norm or pointwise MLP."""
    from flare.models.attention import SelfAttention
    from flare.models.flare import FLARE
    from flare.models.transolver import PhysicsAttention

    kind, _, size = name.partition(" ")
    channels, heads, width = sizes[kind]
    if kind == "softmax":
        return SelfAttention(channels, heads)
    if kind == "flare":
        return FLARE(channels, heads, int(size))
    return PhysicsAttention(channels, heads, int(size), None, width)


def measure_layer(name: str, points: int, thread_count: int, precision: str = "32", sizes: Sizes = SIZES) -> Row:
    """Seconds and MiB of a forward and backward of the squared error, gradients of input and weights. Alone, please."""
    torch.manual_seed(0)
    device, mixed = "cuda" if torch.cuda.is_available() else "cpu", DTYPES[precision]
    with threads(thread_count):
        layer, channels = make_layer(name, sizes).to(device), sizes[name.split()[0]][0]

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
        seconds = median_seconds(lambda: step(x, target), max(1, min(5, 100_000 // points)))
    measured = {"seconds": seconds, "peak_mb": peak}
    how = {"threads": thread_count, "precision": precision, "sizes": list(sizes[name.split()[0]]), "warm_up": WARM_UP}
    return {"layer": name, "points": points, **measured, **how}


def run(
    out: Path,
    *,
    points: Sequence[int] = POINTS,
    latents: Sequence[int] = LATENTS,
    limit_seconds: float = 600.0,
    limit_gb: float = 16.0,
    thread_count: int = 1,
    precision: str = "32",
    sizes: Sizes = SIZES,
    tell: Callable[[str], None] = print,
) -> str:
    """Measure what is not measured yet, every row kept at once in `scaling.json`. Returns the table as Markdown."""
    if precision not in DTYPES:
        raise ConfigError(f"there is no precision {precision!r}; {nearest(precision, DTYPES)}")
    how = {"threads": thread_count, "precision": precision, "sizes": {kind: list(of) for kind, of in sizes.items()}}
    path = out / "scaling.json"
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"rows": []}
    record |= {"limit_seconds": limit_seconds, "limit_gb": limit_gb, **how}
    for name in layers(latents):
        for n in sorted(points):
            mine = [r for r in _alike(record["rows"], how) if r["layer"] == name]
            if any(r["points"] == n for r in mine) or not _within(mine, name, n, limit_seconds, limit_gb):
                continue
            row = alone(measure_layer, name, n, thread_count, precision, sizes)
            tell(f"{name}, {n:,} points: {row['seconds']:.4g} s, {row['peak_mb']:,.0f} MiB")
            record["rows"].append(row)
            record["environment"] = describe_environment()
            write_json(path, record)
    record |= summary(_alike(record["rows"], how), names=layers(latents), largest=max(points))
    write_json(path, record)
    from flare.report.scaling import scaling_figure

    shown = {**record, "rows": with_sound_memory(_alike(record["rows"], how))}
    scaling_figure(shown).savefig(out / "scaling.png", dpi=150)
    text = table(record)
    (out / "scaling.md").write_text(text, encoding="utf-8")
    return text


def _alike(rows: Sequence[Row], how: Mapping[str, Any]) -> list[Row]:
    """Measured with as many threads, in the same precision and sizes; older rows, which do not say, in the first."""
    found = []
    for row in rows:
        kind = row["layer"].split()[0]
        usual = {"precision": "32", "sizes": list(SIZES[kind])}
        if {**usual, **row}.items() >= {**how, "sizes": list(how["sizes"][kind])}.items():
            found.append(row)
    return found


def with_sound_memory(rows: Sequence[Row]) -> list[Row]:
    """`peak_mb` is None where the warm-up may have left what a row then did not need to ask for."""
    return [row if _sound(row) else {**row, "peak_mb": None} for row in rows]


def _sound(row: Row) -> bool:
    return bool(row["points"] > row.get("warm_up", OLDER_WARM_UP))


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
        mine = sorted((r for r in rows if r["layer"] == name and r["points"] <= largest), key=lambda r: r["points"])
        if not mine:
            continue
        last = mine[-1]
        about: dict[str, Any] = {"measured_to": last["points"], "extrapolated": last["points"] < largest}
        for key in ("seconds", "peak_mb"):
            known = mine if key == "seconds" else [r for r in mine if _sound(r)]
            fitted = [r for r in known if r["points"] >= ASYMPTOTIC]
            fitted = fitted if len(fitted) >= FITTED else known[-FITTED:]
            power = None
            if len(fitted) > 1:
                power = exponent([r["points"] for r in fitted], [max(r[key], 1e-9) for r in fitted])
            about[f"{key}_exponent"] = power
            growth = (largest / last["points"]) ** power if power is not None else float("nan")
            at_last = last[key] if last in known else float("nan")
            about[f"{key}_at_largest"] = at_last * growth if about["extrapolated"] else at_last
        layers_[name] = about
    if "softmax" in layers_:
        for about in layers_.values():
            about["faster_than_softmax"] = layers_["softmax"]["seconds_at_largest"] / about["seconds_at_largest"]
    return {"largest": largest, "layers": layers_}


def scaling_table(record: Mapping[str, Any]) -> Table:
    """A line a layer; what was not measured stands in italics."""
    head = [
        "layer",
        "time ~ N^",
        "memory ~ N^",
        f"seconds at {record['largest']:,}",
        "GB there",
        "faster than softmax",
        "the same where both were measured (at points)",
    ]
    rows = []
    for name, about in record["layers"].items():
        powers = ["–" if about[f"{key}_exponent"] is None else f"{about[f'{key}_exponent']:.2f}" for key in KEYS]
        at_largest = about["seconds_at_largest"], gigabytes(about["peak_mb_at_largest"])
        values = ["–" if isnan(value) else f"{value:,.4g}" for value in at_largest]
        if about["extrapolated"]:
            values = [value if value == "–" else f"*{value}*" for value in values]
        ratio, both = about.get("faster_than_softmax"), measured_lead(record, name)
        lead = "–" if ratio is None else f"{ratio:,.0f}×{_resting_on(record, name)}"
        rows.append([name, *powers, *values, lead, "–" if both is None else f"{both[1]:,.3g}× ({both[0]:,})"])
    return Table(head, rows)


def measured_lead(record: Mapping[str, Any], name: str) -> tuple[int, float] | None:
    """The most points at which a layer and softmax attention were both measured, and how much faster it is there."""
    seconds: dict[str, dict[int, float]] = {"softmax": {}, name: {}}
    for row in _alike(record["rows"], _setting(record)):
        if row["layer"] in seconds and row["points"] <= record["largest"]:
            seconds[row["layer"]][row["points"]] = row["seconds"]
    common = seconds["softmax"].keys() & seconds[name].keys()
    return (most := max(common), seconds["softmax"][most] / seconds[name][most]) if common else None


def _setting(record: Mapping[str, Any]) -> dict[str, Any]:
    """What rows must have alike to be compared."""
    return {"threads": record["threads"], "precision": record.get("precision", "32"), "sizes": _sizes_of(record)}


def _resting_on(record: Mapping[str, Any], name: str) -> str:
    """` (extrapolated: softmax from 31,623 points)`: what a factor rests on; empty where all was measured."""
    of = {layer: record["layers"][layer] for layer in ("softmax", name)}
    guessed = [f"{layer} from {about['measured_to']:,}" for layer, about in of.items() if about["extrapolated"]]
    return f" (extrapolated: {', '.join(guessed)} points)" if guessed and name != "softmax" else ""


def table(record: Mapping[str, Any]) -> str:
    """Markdown, with how it was made."""
    facts = record["environment"]
    origin = f"*{_how(record)} {facts['processor']}, torch {facts['torch']}, commit {facts['commit']}.*"
    return "\n".join([scaling_table(record).markdown(), _remarks(record), "", origin]) + "\n"


def _remarks(record: Mapping[str, Any]) -> str:
    guessed = [f"{n} (to {a['measured_to']:,})" for n, a in record["layers"].items() if a["extrapolated"]]
    note = f"In italics: extrapolated from smaller N: {', '.join(guessed)}." if guessed else "All were measured."
    return " ".join(filter(None, (note, verdict(record), _without_memory(record))))


def _without_memory(record: Mapping[str, Any]) -> str:
    """Which sizes have no memory to show, and why; empty where all have."""
    rows = [row for row in _alike(record["rows"], _setting(record)) if row["points"] <= record["largest"]]
    unsound = [row for row in rows if not _sound(row)]
    if not unsound:
        return ""
    sizes = ", ".join(f"{points:,}" for points in sorted({row["points"] for row in unsound}))
    warm = max(row.get("warm_up", OLDER_WARM_UP) for row in unsound)
    return (
        f"No memory is shown for {sizes} points: a warm-up of {warm:,} points came before, and what it left to the "
        "allocator is not counted again."
    )


def _how(record: Mapping[str, Any]) -> str:
    precision = record.get("precision", "32")
    products = "float32" if DTYPES[precision] is None else f"{precision} under autocast"
    sizes = _sizes_of(record)
    of = "; ".join(f"{kind} C = {c}, H = {h}, D = {d}" for kind, (c, h, d) in sizes.items())
    if sizes == _sizes_of({}):
        of = f"C = {CHANNELS}, H = {HEADS}"
    return (
        f"One layer, {of}, forward + backward, {products}, {record['threads']} thread(s); "
        f"exponents from {ASYMPTOTIC:,} points, or of the {FITTED} largest sizes; "
        f"limits {record['limit_seconds']:g} s and {record['limit_gb']:g} GB a measurement."
    )


def verdict(record: Mapping[str, Any]) -> str:
    """How FLARE's time and memory grow, and its lead over softmax: where both were measured, and at the largest N."""
    ours = {name: about for name, about in record["layers"].items() if name.startswith("flare")}
    powers = [about[f"{key}_exponent"] for about in ours.values() for key in KEYS]
    leads = {name: about["faster_than_softmax"] for name, about in ours.items() if "faster_than_softmax" in about}
    if not leads or None in powers:
        return ""
    best = max(leads, key=lambda name: leads[name])
    both, largest = measured_lead(record, best), record["largest"]
    words = f"FLARE's time and memory grow as N^{min(powers):.2f} to N^{max(powers):.2f}; {best} is "
    if both is not None and both[0] < largest:
        words += (
            f"{both[1]:,.3g} times as fast as softmax attention at {both[0]:,} points, the most measured of both, and "
        )
    return words + f"{leads[best]:,.0f} times as fast at {largest:,}{_resting_on(record, best)}."


KEYS = ("seconds", "peak_mb")


HOW: dict[str, dict[str, Any]] = {
    "smoke": {"points": (64, 128), "latents": (4,)},
    "cpu": {"limit_seconds": 300.0, "limit_gb": 12.0},
}
"""Budget -> arguments of `run`, in either precision."""
OF_THE_PAPER: dict[str, dict[str, Any]] = {
    "32": {
        "points": tuple(range(1_000, 50_001, 4_900)),
        "latents": (64, 128, 256),
        "sizes": {"softmax": (96, 6, 16), "flare": (64, 8, 8), "physics": (128, 8, 8)},
        "limit_gb": 80.0,
    },
    "16": {"points": (1_000, *range(100_000, 1_000_001, 100_000)), "limit_gb": 80.0},
}
"""Precision -> arguments of its two studies; of the first it has no factors at a million points."""
SECONDS = {"smoke": 30.0, "cpu": 2000.0, "paper": 4000.0}
"""What it takes, about."""
FP32 = "fp32-study"
"""The paper's float32 study on a CPU."""


def cells(budget: Budget) -> list[Cell]:
    """Float32, and mixed precision: the paper's float16, or bfloat16 when asked for, which not every processor does."""
    mixed = "16" if budget.name == "paper" else "bf16"
    found = [
        Cell(
            (f"precision={precision}",),
            Experiment("scaling", _arguments(budget, precision), SECONDS[budget.name]),
            extra=budget.name != "paper" and precision != "32",
        )
        for precision in ("32", mixed)
    ]
    if budget.name == "cpu":
        how = OF_THE_PAPER["32"] | HOW["cpu"] | {"precision": "32"}
        found.append(Cell((FP32,), Experiment("scaling", how, SECONDS["cpu"]), extra=True))
    return found


def part_of_the_paper(done: Sequence[Cell]) -> str:
    """Layers and sizes of points are those of a study; float32 and mixed precision of the same layers are one."""
    studies = {_study(cell) for cell in done}
    return f"layers of {len(studies)} of the paper's 2 studies"


def _study(cell: Cell) -> str:
    assert isinstance(cell.job, Experiment)
    return "float32" if "sizes" in cell.job.settings else "mixed"


def _arguments(budget: Budget, precision: str) -> dict[str, Any]:
    how = OF_THE_PAPER[precision] if budget.name == "paper" else HOW[budget.name]
    return how | {"precision": precision}


def report(ledger: Ledger, budget: Budget) -> list[Block]:
    found = outcomes(ledger, cells(budget))
    blocks: list[Block] = []
    for outcome in found:
        (name,), (made,) = outcome.cell.parts, outcome.records
        if made.outcome != "done":
            blocks.append(f"{name} failed: {made.failure}")
            continue
        from flare.report.scaling import scaling_figure

        record = made.result
        of_rows = {**record, "rows": with_sound_memory(_alike(record["rows"], _setting(record)))}
        blocks += [_with_paper(record, made.made), f"*{_how(record)}*", _remarks(record), _which_study(record)]
        if _comparable(record):
            blocks += [WORDS, papers_table(of_rows["rows"])]
        caption = f"Time and memory of one layer, {name}; dashed: extrapolated."
        blocks.append(Picture(name.replace("=", "-"), caption, png(scaling_figure(of_rows))))
    return [*blocks, origin(found)]


def _with_paper(record: Mapping[str, Any], made: Mapping[str, Any]) -> Table:
    """The paper's factor beside ours where sizes and number of points are its; and what differs all the same."""
    plain, comparable = scaling_table(record), _comparable(record)
    rows = []
    for row in plain.rows:
        about = record["layers"][row[0]]
        departs = another_machine(made)
        if comparable and record["precision"] != "16":
            departs.append(f"precision {record['precision']}, not 16")
        if about["extrapolated"]:
            departs.append(f"extrapolated from {about['measured_to']:,} points")
        factor = [FACTORS.get(row[0], "")] if comparable else []
        rows.append([*row, *factor, "; ".join(departs)])
    return Table([*plain.head, *([READ_OFF] if comparable else []), DEPARTURES], rows, notes=1)


def _which_study(record: Mapping[str, Any]) -> str:
    """That float32 here is not the paper's float32 study, which has other layers; empty where nobody could think so."""
    if not _comparable(record) or record["precision"] != "32":
        return ""
    theirs = OF_THE_PAPER["32"]
    of = "; ".join(f"{kind} C = {c}, H = {h}, D = {d}" for kind, (c, h, d) in theirs["sizes"].items())
    return (
        "The layers are those of the paper's mixed-precision study, measured here in float32. Its own float32 study is "
        f"another ({theirs['points'][0]:,} to {theirs['points'][-1]:,} points; {of}): it belongs to `paper`, and "
        f"`flare reproduce scaling --budget cpu --only {FP32}` does it here."
    )


def _comparable(record: Mapping[str, Any]) -> bool:
    """Whether a record has the layers and the most points of the paper's mixed study."""
    return record["largest"] == OF_THE_PAPER["16"]["points"][-1] and _sizes_of(record) == _sizes_of({})


def _sizes_of(record: Mapping[str, Any]) -> dict[str, list[int]]:
    """Older records do not say: theirs were the usual ones."""
    return {kind: list(of) for kind, of in record.get("sizes", SIZES).items()}


ITEM = Item("scaling", "Time and memory of one layer over the number of points", cells, report, part_of_the_paper)

"""Time and memory of one layer, forward and backward, from a thousand points to a million: FLARE, softmax attention,
and physics attention with as many slices as FLARE has latents.

What would take longer, or more memory, than the limits is not measured: it is extrapolated from the last measurements
with their fitted exponent, and shown as such.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from math import isnan
from pathlib import Path
from typing import Any

from flare.measure import alone
from flare.mixer import check_backend
from flare.report.page import png
from flare.reproduce.analyses import Experiment
from flare.reproduce.budgets import Budget
from flare.reproduce.items.layer_costs import (
    CALLS,
    FITTED,
    KEYS,
    LATENTS,
    MOST_POINTS,
    OLDER_WARM_UP,
    POINTS,
    SIZES,
    Sizes,
    beside_softmax,
    is_sound,
    layers,
    measure_layer,
    rows_of,
    sizes_of,
    stays_within,
    summarised,
    summary,
    with_sound_memory,
)
from flare.reproduce.items.papers_layers import FACTORS, WORDS, papers_memory, papers_table
from flare.reproduce.ledger import Ledger
from flare.reproduce.study import DEPARTURES, READ_OFF, Block, Cell, Item, Picture, another_machine, origin, outcomes
from flare.reproduce.tables import Table
from flare.trial import DTYPES
from flare.utils.environment import describe_environment, gigabytes
from flare.utils.errors import ConfigError, nearest
from flare.utils.files import write_json

BEGIN, END = "<!-- scaling table -->", "<!-- end of scaling -->"


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
    backend: str = "auto",
    tell: Callable[[str], None] = print,
) -> str:
    """Measure what is not measured yet, every row kept at once in `scaling.json`. Returns the table as Markdown."""
    if precision not in DTYPES:
        raise ConfigError(f"there is no precision {precision!r}; {nearest(precision, DTYPES)}")
    check_backend(backend)
    path = out / "scaling.json"
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"rows": []}
    record |= {"limit_seconds": limit_seconds, "limit_gb": limit_gb, "threads": thread_count, "precision": precision}
    record |= {"sizes": {kind: list(of) for kind, of in sizes.items()}, "backend": backend}
    for name in layers(latents):
        for n in sorted(points):
            mine = [r for r in rows_of(record) if r["layer"] == name]
            if any(r["points"] == n for r in mine) or not stays_within(mine, name, n, limit_seconds, limit_gb):
                continue
            row = alone(measure_layer, name, n, thread_count, precision, sizes, backend)
            tell(f"{name}, {n:,} points: {row['seconds']:.4g} s, {row['peak_mb']:,.0f} MiB")
            record["rows"].append(row)
            record["environment"] = describe_environment()
            write_json(path, record)
    record |= summary(rows_of(record), names=layers(latents), largest=max(points))
    write_json(path, record)
    from flare.report.scaling import scaling_figure

    shown = {**record, "rows": with_sound_memory(rows_of(record))}
    scaling_figure(shown).savefig(out / "scaling.png", dpi=150)
    text = table(record)
    (out / "scaling.md").write_text(text, encoding="utf-8")
    return text


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
        ratio, both = about.get("faster_than_softmax"), beside_softmax(record, name)
        lead = "–" if ratio is None else f"{_factor(ratio)}×{_resting_on(record, name)}"
        rows.append([name, *powers, *values, lead, "–" if both is None else f"{_factor(both[1])}× ({both[0]:,})"])
    return Table(head, rows)


def _factor(ratio: float) -> str:
    """Three digits, and all of those before the point."""
    return f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.3g}"


def _resting_on(record: Mapping[str, Any], name: str) -> str:
    """` (extrapolated: softmax from 31,623 points)`: what a factor rests on; empty where all was measured."""
    of = {layer: record["layers"][layer] for layer in ("softmax", name)}
    guessed = [f"{layer} from {about['measured_to']:,}" for layer, about in of.items() if about["extrapolated"]]
    return f" (extrapolated: {', '.join(guessed)} points)" if guessed and name != "softmax" else ""


def table(record: Mapping[str, Any]) -> str:
    """Markdown, with how it was made."""
    record, facts = summarised(record), record["environment"]
    origin = f"*{_how(record)} {facts['processor']}, torch {facts['torch']}, commit {facts['commit']}.*"
    return "\n".join([scaling_table(record).markdown(), _remarks(record), "", origin]) + "\n"


def _remarks(record: Mapping[str, Any]) -> str:
    guessed = [f"{name} (to {to:,})" for name, to in _extrapolated(record).items()]
    note = f"In italics: extrapolated from smaller N: {', '.join(guessed)}." if guessed else "All were measured."
    return " ".join(filter(None, (note, verdict(record), _without_memory(record))))


def _extrapolated(record: Mapping[str, Any]) -> dict[str, int]:
    """Layer -> the most points at which it was measured, fewer than the largest of the record."""
    return {name: about["measured_to"] for name, about in record["layers"].items() if about["extrapolated"]}


def _without_memory(record: Mapping[str, Any]) -> str:
    """Which sizes have no memory to show, and why; empty where all have."""
    rows = [row for row in rows_of(record) if row["points"] <= record["largest"]]
    unsound = [row for row in rows if not is_sound(row)]
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
    sizes = sizes_of(record)
    of = "; ".join(f"{kind} C = {c}, H = {h}, D = {d}" for kind, (c, h, d) in sizes.items())
    if len({tuple(size) for size in sizes.values()}) == 1:
        of = "C = {}, H = {}".format(*sizes["flare"])
    return (
        f"One layer, {of}, forward + backward, {products}, {record['threads']} thread(s). {_kernels(record)} Seconds "
        f"are of the processor, of a GPU by the clock: the median of {CALLS} calls, of fewer beyond "
        f"{MOST_POINTS // CALLS:,} points, of one beyond {MOST_POINTS // 2:,}. Memory is what a process needs beyond "
        "what it held before, so without input, target and weights, and grows in steps, as the allocator asks for it. "
        f"Exponents are of the sizes from a tenth of the largest, or of the {FITTED} largest; "
        f"limits {record['limit_seconds']:g} s and {record['limit_gb']:g} GB a measurement."
    )


def _kernels(record: Mapping[str, Any]) -> str:
    """By whose kernels FLARE was computed: a factor owes something to them. Older records do not say which it was."""
    asked = record.get("backend", "auto")
    used = {row["mixer"] for row in rows_of(record) if "mixer" in row} or {asked}
    words = {"native": "kernels of this package", "sdpa": "two calls of PyTorch's fused attention"}
    by = words.get(used.pop(), "kernels of this package wherever they are built, as `auto` does,")
    return f"FLARE is computed by {by}{'' if by.endswith(',') else ','} the others by PyTorch."


def verdict(record: Mapping[str, Any]) -> str:
    """How FLARE's time and memory grow, and its lead over softmax: where both were measured, and at the largest N."""
    ours = {name: about for name, about in record["layers"].items() if name.startswith("flare")}
    powers = [about[f"{key}_exponent"] for about in ours.values() for key in KEYS]
    leads = {name: about["faster_than_softmax"] for name, about in ours.items() if "faster_than_softmax" in about}
    if not leads or None in powers:
        return ""
    best = max(leads, key=lambda name: leads[name])
    both, largest = beside_softmax(record, best), record["largest"]
    channels = {kind: of[0] for kind, of in sizes_of(record).items()}
    against = "softmax attention"
    if channels["flare"] != channels["softmax"]:
        against += f" (C = {channels['softmax']}; FLARE has {channels['flare']})"
    words = f"FLARE's time and memory grow as N^{min(powers):.2f} to N^{max(powers):.2f}; {best} is "
    last = f"{_factor(leads[best])} times as fast"
    if both is None or both[0] == largest:
        words += f"{last} as {against} at {largest:,} points{_resting_on(record, best)}."
    else:
        words += f"{_factor(both[1])} times as fast as {against} at {both[0]:,} points, the most measured of both, and "
        words += f"{last} at {largest:,}{_resting_on(record, best)}."
    return words + _memory_beside(record, best)


def _memory_beside(record: Mapping[str, Any], name: str) -> str:
    """How its memory compares with softmax attention's, here and in the paper; empty where both were not measured."""
    both = beside_softmax(record, name, "peak_mb")
    if both is None or not both[1]:
        return ""
    words = f" Of memory it takes {1 / both[1]:.2g} times as much at {both[0]:,} points"
    if _comparable(record):
        words += f"; on the paper's GPU {papers_memory(name):.2g} times at a million"
    return f"{words}."


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
FP32, BY_PYTORCH = "fp32-study", "fp32-study-by-pytorch"
"""The paper's float32 study on a CPU; and the same without this package's kernels, in minutes."""


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
        without = how | {"backend": "sdpa", "limit_seconds": 20.0}
        found.append(Cell((BY_PYTORCH,), Experiment("scaling", without, SECONDS["cpu"] / 3), extra=True))
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

        record = summarised(made.result)
        of_rows = {**record, "rows": with_sound_memory(rows_of(record))}
        told = f"**{name}**: {_remarks(record)}"
        blocks += [_lead(name, record), _with_paper(record, made.made), f"*{_how(record)}*", told, _which_study(record)]
        if _comparable(record):
            blocks += [WORDS, papers_table(of_rows["rows"])]
        dashed = "; dashed: extrapolated" if _extrapolated(record) else ""
        caption = f"Time and memory of one layer, {name}{dashed}."
        blocks.append(Picture(name.replace("=", "-"), caption, png(scaling_figure(of_rows))))
    return [*blocks, origin(found)]


def _lead(name: str, record: Mapping[str, Any]) -> str:
    """Whose layers the table after it is of."""
    whose = ""
    if _comparable(record):
        whose = ", layers of the paper's mixed-precision study"
    elif _of_the_paper(record):
        whose = ", layers and numbers of points of the paper's float32 study, off whose figure no number was read"
    return f"**{name}**{whose}:"


def _with_paper(record: Mapping[str, Any], made: Mapping[str, Any]) -> Table:
    """The paper's factor beside ours where sizes and number of points are its; and what differs all the same."""
    plain, comparable = scaling_table(record), _comparable(record)
    rows = []
    for row in plain.rows:
        about = record["layers"][row[0]]
        departs = another_machine(made)
        if not _of_the_paper(record):
            departs.append(f"no study of the paper: {record['largest']:,} points at most")
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
        f"another ({theirs['points'][0]:,} to {theirs['points'][-1]:,} points; {of}): the cell `{FP32}`, which "
        f"`flare reproduce scaling --budget cpu --only {FP32}` measures."
    )


def _comparable(record: Mapping[str, Any]) -> bool:
    """Whether a record has the layers and the most points of the paper's mixed study."""
    return record["largest"] == OF_THE_PAPER["16"]["points"][-1] and sizes_of(record) == sizes_of({})


def _of_the_paper(record: Mapping[str, Any]) -> bool:
    """Whether a record has the layers and the most points of either study."""
    single = OF_THE_PAPER["32"]
    return _comparable(record) or (sizes_of(record) == sizes_of(single) and record["largest"] == single["points"][-1])


ITEM = Item("scaling", "Time and memory of one layer over the number of points", cells, report, part_of_the_paper)

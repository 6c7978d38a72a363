"""Table: the architectures side by side. Parameters, operations and memory of each, counted by the code; and the
paper's criteria, facts of this code where counting can tell, its statements where not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isqrt, log10, prod
from typing import Any

from flare.reproduce.analyses import ModelCost
from flare.reproduce.budgets import BUDGETS, Budget
from flare.reproduce.ledger import Ledger, Record
from flare.reproduce.study import Block, Cell, Item, Outcome, origin, outcomes
from flare.reproduce.tables import Table
from flare.train.recipes import OF_DATA

Terms = tuple[tuple[int, str], ...]
"""A sum of products: ((2, "BMN"), (1, "BMM")) is 2BMN + BM²."""


@dataclass(frozen=True)
class Architecture:
    """How a model mixes. Costs are pairs of which one asks the other, in the whole model: N points, M latents, slices
    or modes, B blocks, D width of a head. None: the paper does not say."""

    mixing: Terms
    """Here."""
    paper: Terms | None
    refines: bool
    """Every block takes the points to latents and back; counted."""
    attends: bool
    """Latents attend to each other; counted."""
    fused: bool
    """Points and latents meet in scaled dot-product attention alone; counted."""
    criteria: str | None = None
    """The paper's marks, in its order: sequential blocks, per head, coupled, latent attention, fused."""


PERCEIVER: Terms = ((2, "MN"), (1, "BMN"))
TRANSOLVER: Terms = ((2, "BMN"), (1, "BMM"))
LNO: Terms = ((2, "MN"), (1, "BMM"))
ARCHITECTURES = {
    "transformer": Architecture(((1, "BNN"),), None, refines=False, attends=False, fused=True),
    "perceiver": Architecture(PERCEIVER, PERCEIVER, refines=False, attends=False, fused=True, criteria="-+-++"),
    "gnot": Architecture(((2, "BND"),), None, refines=False, attends=False, fused=False),
    "lno": Architecture(LNO, LNO, refines=False, attends=True, fused=False, criteria="--++-"),
    "transolver": Architecture(TRANSOLVER, TRANSOLVER, refines=True, attends=True, fused=False, criteria="+†++-"),
    "transolver-conv": Architecture(TRANSOLVER, TRANSOLVER, refines=True, attends=True, fused=False, criteria="+†++-"),
    "flare": Architecture(((2, "BMN"),), ((2, "BMN"),), refines=True, attends=False, fused=True, criteria="+++-+"),
}
"""tests/reproduce/items/test_architectures.py counts what is said here of this code."""
POINTS = {"smoke": (256, 1024), "cpu": (1_024, 10_000, 102_400), "paper": (1_024, 10_000, 102_400, 1_000_000)}
"""Squares of whole numbers, so that models on grids have as many."""
PAPERS_SIZES = "Sizes are the paper's on Elasticity"
SIZES = (
    "Mixing: pairs of which one asks the other, in the whole model (N points, "
    "B blocks, M latents, slices or modes, D width of a head), here and as the paper has it. GFLOP: of one "
    "forward, matrix products and convolutions alone. Growth: the exponent of N between the last two sizes. "
    "GiB kept: what a training step keeps of one sample, by PyTorch's own operators; FLARE's kernels keep less."
)
CRITERIA = (
    "The paper's criteria. Encode and decode in every block, latents that attend to each other, and fused attention "
    "(points and latents meet in scaled dot-product attention alone) are facts of this code, which a test counts; what "
    "the paper says stands beside where it differs. Latents of each head's own and encoder tied to decoder are the "
    "paper's statements; † by it: Transolver's heads share their projection. Empty: it does not speak of that model. "
    "PerceiverIO has its code's cross-attention here, so its latents do not attend to each other: number 4 of "
    "[discrepancies](../discrepancies.md)."
)


def pairs(terms: Terms, **sizes: int) -> int:
    """A cost in numbers: `pairs(terms, N=1000, M=64, B=8)`."""
    return sum(factor * prod(sizes[symbol] for symbol in symbols) for factor, symbols in terms)


def formula(terms: Terms | None) -> str:
    """`2BMN + BM²`; empty for None."""
    return " + ".join(f"{factor if factor > 1 else ''}{_squared(symbols)}" for factor, symbols in terms or ())


def _squared(symbols: str) -> str:
    return symbols.replace("MM", "M²").replace("NN", "N²")


def cells(budget: Budget) -> list[Cell]:
    return [
        Cell((model, f"points={points}"), ModelCost(model, _sizes(budget, model, points), 2, points))
        for model in ARCHITECTURES
        for points in POINTS[budget.name]
    ]


def _sizes(budget: Budget, model: str, points: int) -> dict[str, Any]:
    """As the paper has it on Elasticity, which costs no more to count; a model for grids on a square one."""
    sizes = (BUDGETS["paper"] if budget.comparable else budget).model("elasticity", model)
    return sizes | {"grid": [isqrt(points)] * 2} if sizes.get("grid") == OF_DATA else sizes


def report(ledger: Ledger, budget: Budget) -> list[Block]:
    found = outcomes(ledger, cells(budget))
    if not found:
        return []
    points = POINTS[budget.name]
    counted = {}
    for model in ARCHITECTURES:
        done = {o.cell.parts[1]: o.records[0] for o in found if o.cell.parts[0] == model}
        counted[model] = [done.get(f"points={n}") for n in points]
    shown = [model for model, records in counted.items() if any(record is not None for record in records)]
    head = [
        *("model", "mixing", "paper's mixing", "parameters"),
        *(f"GFLOP, N = {n:,}" for n in points),
        *("growth", f"GiB kept, N = {points[-1]:,}"),
    ]
    costs = Table(head, [_row(model, counted[model], points) for model in shown], text=3)
    return [
        costs,
        f"*{'Sizes are tiny, to see it run' if budget.sizes else PAPERS_SIZES}. {SIZES}*",
        _verdict(shown, counted, points),
        _failures(found),
        criteria_table(shown),
        f"*{CRITERIA}*",
        origin(found),
    ]


def _row(model: str, records: Sequence[Record | None], points: Sequence[int]) -> list[str]:
    about = ARCHITECTURES[model]
    parameters = next((f"{record.result['parameters']:,}" for record in records if record and record.result), "")
    growth = _growth(records, points)
    return [
        *(model, formula(about.mixing), formula(about.paper), parameters),
        *(_number(record, "flops", 1e9, 1) for record in records),
        "" if growth is None else f"{growth:.2f}",
        _number(records[-1], "activations", 2**30, 2),
    ]


def _growth(records: Sequence[Record | None], points: Sequence[int]) -> float | None:
    """The exponent of N between the last two sizes; None where one is missing."""
    flops = [record.result.get("flops") if record is not None else None for record in records]
    if not flops[-1] or not flops[-2]:
        return None
    return log10(flops[-1] / flops[-2]) / log10(points[-1] / points[-2])


def _verdict(shown: Sequence[str], counted: dict[str, list[Record | None]], points: Sequence[int]) -> str:
    """Who takes the fewest operations at the most points, and how all grow."""
    last = {m: r.result["flops"] / 1e9 for m in shown if (r := counted[m][-1]) is not None and r.result}
    if not last:
        return ""
    order = ", ".join(f"{model} {flops:,.0f}" for model, flops in sorted(last.items(), key=lambda item: item[1]))
    return f"GFLOP of one forward at {points[-1]:,} points, counted: {order}."


def _failures(found: Sequence[Outcome]) -> str:
    """Why a count is not there; empty where none has failed."""
    why = [f"{'/'.join(o.cell.parts)}: {o.records[0].failure}" for o in found if o.failed]
    return f"Failed: {'; '.join(why)}." if why else ""


def criteria_table(models: Sequence[str]) -> Table:
    """A line a model; `no (paper: yes)` where this code is otherwise."""
    head = (
        *("model", "encode and decode in every block", "latents of each head's own, by the paper"),
        *("encoder tied to decoder, by the paper", "latents attend to each other", "fused attention"),
    )
    return Table(head, [(model, *_marks(ARCHITECTURES[model])) for model in models], text=len(head))


MARKS = {"+": "yes", "-": "no", "†": "yes†"}


def _marks(about: Architecture) -> tuple[str, ...]:
    says = [MARKS[mark] for mark in about.criteria] if about.criteria else [""] * 5
    counted = {0: about.refines, 3: about.attends, 4: about.fused}
    found = [_beside("yes" if counted[i] else "no", says[i]) if i in counted else says[i] for i in range(5)]
    if not any("M" in symbols for _, symbols in about.mixing):
        found[0] = found[3] = "no latents"
    return tuple(found)


def _beside(ours: str, papers: str) -> str:
    return ours if papers in (ours, "") else f"{ours} (paper: {papers})"


def _number(record: Record | None, key: str, unit: float, places: int) -> str:
    """Empty where nothing has been counted yet."""
    if record is None:
        return ""
    return f"{record.result[key] / unit:,.{places}f}" if record.outcome == "done" else "failed"


ITEM = Item("architectures", "Architectures and their counted costs", cells, report)

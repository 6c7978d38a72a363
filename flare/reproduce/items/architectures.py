"""Architectures side by side (Figure 6): counted parameters, operations and memory, and the paper's criteria."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isqrt, log10, prod
from typing import Any

from flare.reproduce.analyses import CostAnalysis
from flare.reproduce.budgets import BUDGETS, Budget
from flare.reproduce.ledger import Record
from flare.reproduce.study import Block, Cell, Item, Outcome
from flare.reproduce.tables import Table
from flare.train.recipes import OF_DATA

Terms = tuple[tuple[int, str], ...]
"""A sum of products: ((2, "BMN"), (1, "BMM")) is 2BMN + BM²."""


@dataclass(frozen=True)
class Architecture:
    """How a model mixes information between points.

    Costs are query-key pairs of the whole model, with N points, M latents, slices or modes, B blocks and head width D.
    """

    mixing: Terms
    """Cost in this code."""
    paper: Terms | None
    """Cost that the paper states, None if it states none."""
    refines: bool
    """Whether every block encodes points to latents and decodes them. A test counts it."""
    attends: bool
    """Whether latents attend to each other. A test counts it."""
    fused: bool
    """Whether points and latents interact in scaled dot-product attention only. A test counts it."""
    criteria: str | None = None
    """Marks of the paper: sequential blocks, latents per head, coupled, latent attention, fused."""


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
"""tests/reproduce/items/test_architectures.py counts `mixing`, `refines`, `attends` and `fused`."""
POINTS = {"smoke": (256, 1024), "cpu": (1_024, 10_000, 102_400), "paper": (1_024, 10_000, 102_400, 1_000_000)}
"""Budget -> numbers of points, all square numbers, so that models on grids have equally many."""


def pairs(terms: Terms, **sizes: int) -> int:
    """Evaluate a cost, as in `pairs(terms, N=1000, M=64, B=8)`."""
    return sum(factor * prod(sizes[symbol] for symbol in symbols) for factor, symbols in terms)


def formula(terms: Terms | None) -> str:
    """Format a cost as `2BMN + BM²`; empty for None."""
    return " + ".join(f"{factor if factor > 1 else ''}{_squared(symbols)}" for factor, symbols in terms or ())


def _squared(symbols: str) -> str:
    return symbols.replace("MM", "M²").replace("NN", "N²")


def cells(budget: Budget) -> list[Cell]:
    return [
        Cell((model, f"points={points}"), CostAnalysis(model, _sizes(budget, model, points), 2, points))
        for model in ARCHITECTURES
        for points in POINTS[budget.name]
    ]


def _sizes(budget: Budget, model: str, points: int) -> dict[str, Any]:
    """Return the sizes of a model on Elasticity, those of the paper except in budget `smoke`."""
    sizes = (BUDGETS["paper"] if budget.comparable else budget).model("elasticity", model)
    return sizes | {"grid": [isqrt(points)] * 2} if sizes.get("grid") == OF_DATA else sizes


def report(found: Sequence[Outcome], budget: Budget) -> list[Block]:
    points = POINTS[budget.name]
    counted = {}
    for model in ARCHITECTURES:
        done = {o.cell.parts[1]: o.records[0] for o in found if o.cell.parts[0] == model}
        if done:
            counted[model] = [done.get(f"points={n}") for n in points]
    head = [
        *("model", "mixing", "paper's mixing", "parameters"),
        *(f"GFLOP, N = {n:,}" for n in points),
        *("growth", f"GiB kept, N = {points[-1]:,}"),
    ]
    costs = Table(head, [_row(model, records, points) for model, records in counted.items()], text=3)
    return ["Counted costs of one forward pass:", costs, "The paper's criteria:", criteria_table(list(counted))]


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
    """Return the exponent of N between the last two sizes, None if one is missing."""
    flops = [record.result.get("flops") if record is not None else None for record in records]
    if not flops[-1] or not flops[-2]:
        return None
    return log10(flops[-1] / flops[-2]) / log10(points[-1] / points[-2])


def criteria_table(models: Sequence[str]) -> Table:
    """Build a table of the paper's criteria, with `no (paper: yes)` where this code differs."""
    head = (
        *("model", "encode and decode in every block", "latents per head (paper)"),
        *("encoder tied to decoder (paper)", "latents attend to each other", "fused attention"),
    )
    return Table(head, [(model, *_marks(ARCHITECTURES[model])) for model in models], text=len(head))


MARKS = {"+": "yes", "-": "no", "†": "yes†"}


def _marks(about: Architecture) -> tuple[str, ...]:
    papers = [MARKS[mark] for mark in about.criteria] if about.criteria else [""] * 5
    counted = {0: about.refines, 3: about.attends, 4: about.fused}
    found = [_beside("yes" if counted[i] else "no", papers[i]) if i in counted else papers[i] for i in range(5)]
    if not any("M" in symbols for _, symbols in about.mixing):
        found[0] = found[3] = "no latents"
    return tuple(found)


def _beside(ours: str, papers: str) -> str:
    return ours if papers in (ours, "") else f"{ours} (paper: {papers})"


def _number(record: Record | None, key: str, unit: float, places: int) -> str:
    """Format a counted number; empty without a record."""
    if record is None:
        return ""
    return f"{record.result[key] / unit:,.{places}f}" if record.outcome == "done" else "failed"


ITEM = Item("architectures", "Architectures and their counted costs", cells, report, "Figure 6")

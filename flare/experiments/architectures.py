"""Table: the architectures side by side. Parameters, operations and memory of each, counted by the code."""

from __future__ import annotations

from math import isqrt, log10
from typing import Any

from flare.experiments.analyses import ModelCost
from flare.experiments.budgets import BUDGETS, Budget
from flare.experiments.ledger import Ledger, Record
from flare.experiments.study import Block, Cell, Item, origin, outcomes
from flare.experiments.tables import Table
from flare.train.recipes import OF_DATA

MIXING = {
    "transformer": "N²",
    "perceiver": "(2 + B) M N",
    "gnot": "N D, twice",
    "lno": "2 M N, once; then M²",
    "transolver": "2 M N + M²",
    "transolver-conv": "2 M N + M²",
    "flare": "2 M N",
}
"""Pairs of which one asks the other: in a block, or in the whole model where it says once or B."""
POINTS = {"smoke": (256, 1024), "cpu": (1_024, 10_000, 102_400), "paper": (1_024, 10_000, 102_400, 1_000_000)}
"""Squares of whole numbers, so that models on grids have as many."""


def cells(budget: Budget) -> list[Cell]:
    return [
        Cell((model, f"points={points}"), ModelCost(model, _sizes(budget, model, points), 2, points))
        for model in MIXING
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
    rows = []
    for model in MIXING:
        done = {o.cell.parts[1]: o.records[0] for o in found if o.cell.parts[0] == model}
        records = [done.get(f"points={n}") for n in points]
        costs = [record.result if record is not None else {} for record in records]
        if not any(costs):
            continue
        flops = [cost.get("flops") for cost in costs]
        growth = ""
        if flops[-1] and flops[-2]:
            growth = f"{log10(flops[-1] / flops[-2]) / log10(points[-1] / points[-2]):.2f}"
        rows.append(
            [
                *(model, MIXING[model], f"{next(c for c in costs if c)['parameters']:,}"),
                *(_number(record, "flops", 1e9, 1) for record in records),
                growth,
                _number(records[-1], "activations", 2**30, 2),
            ]
        )
    head = [
        *("model", "mixing of N points", "parameters"),
        *(f"GFLOP, N = {n:,}" for n in points),
        *("growth", f"GiB kept, N = {points[-1]:,}"),
    ]
    words = (
        "Sizes are the paper's on Elasticity (B blocks, M latents, slices or modes, D width of a head). GFLOP: of one "
        "forward, matrix products and convolutions alone. Growth: the exponent of N between the last two sizes. "
        "GiB kept: what a training step keeps of one sample, by PyTorch's own operators; FLARE's kernels keep less."
    )
    return [Table(head, rows, text=2), words, origin(found)]


def _number(record: Record | None, key: str, unit: float, places: int) -> str:
    """Empty where nothing has been counted yet."""
    if record is None:
        return ""
    return f"{record.result[key] / unit:,.{places}f}" if record.outcome == "done" else "failed"


ITEM = Item("architectures", "Architectures and their counted costs", cells, report)

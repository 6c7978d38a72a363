"""Figures: truth, prediction and error of FLARE on a sample of Elasticity, Darcy, Pipe and LPBF: the median one."""

from __future__ import annotations

from flare.experiments.analyses import MedianSample
from flare.experiments.budgets import Budget
from flare.experiments.ledger import Ledger
from flare.experiments.study import Block, Cell, Item, Picture, origin, outcomes, thousandths
from flare.report.page import png
from flare.report.triptych import triptych

SHOWN = ("elasticity", "darcy", "pipe", "lpbf")


def cells(budget: Budget) -> list[Cell]:
    return [Cell((dataset,), MedianSample(budget.training(dataset))) for dataset in SHOWN if dataset in budget.scales]


def report(ledger: Ledger, budget: Budget) -> list[Block]:
    found = outcomes(ledger, cells(budget))
    blocks: list[Block] = []
    for outcome in found:
        (record,) = outcome.records
        failed = f"{outcome.cell.parts[0]} failed: {record.failure}"
        blocks.append(_picture(ledger, outcome.cell) if record.outcome == "done" else failed)
    done = {o.cell.parts[0]: o.records[0].result["rel_l2"] for o in found if o.records[0].outcome == "done"}
    errors = ", ".join(f"{dataset} {thousandths(error)}" for dataset, error in done.items())
    words = [f"Relative L2 error of the median test sample, × 1e-3: {errors}."] if done else []
    return [*words, *blocks, origin(found)]


def _picture(ledger: Ledger, cell: Cell) -> Picture:
    (dataset,) = cell.parts
    record, arrays = ledger.find(cell.job), ledger.arrays(cell.job)
    assert record is not None
    facts = record.result
    figure = triptych(
        arrays["points"],
        arrays["truth"],
        arrays["prediction"],
        name=facts["fields"],
        unit=facts["units"],
        grid=facts["grid"] and tuple(facts["grid"]),
        cells=arrays.get("cells"),
        title=f"{dataset}, sample {facts['index']}, median of {facts['of_samples']} test samples",
    )
    return Picture(f"qualitative-{dataset}", f"{dataset}: truth, prediction, error of the median sample.", png(figure))


ITEM = Item("qualitative", "Truth, prediction, error", cells, report)

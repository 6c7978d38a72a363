"""Truth, prediction and error of FLARE on the test sample with the median error (Figures 4 and 16)."""

from __future__ import annotations

from flare.report.page import png
from flare.report.triptych import triptych
from flare.reproduce.analyses import MedianSample
from flare.reproduce.budgets import BUDGETS, Budget
from flare.reproduce.ledger import Ledger
from flare.reproduce.study import ERROR, Block, Cell, Item, Picture, outcomes, thousandths
from flare.reproduce.tables import Table

SHOWN = ("elasticity", "darcy", "pipe", "lpbf")


def cells(budget: Budget) -> list[Cell]:
    exact = BUDGETS["paper"]
    return [
        Cell((dataset,), MedianSample(budget.training(dataset)), exact.training(dataset))
        for dataset in SHOWN
        if dataset in budget.scales
    ]


def report(ledger: Ledger, budget: Budget) -> list[Block]:
    pictures: list[Block] = []
    rows = []
    for outcome in outcomes(ledger, cells(budget)):
        training = outcome.cell.job.training
        assert training is not None
        record = ledger.find(training)
        of_all = record.result if record is not None and record.outcome == "done" else {}
        mean, field = (thousandths(of_all[k]) if k in of_all else "" for k in ("rel_l2", "rel_l2_mean_field"))
        rows.append((outcome.cell.name, outcome.error(), mean, field))
        if outcome.values():
            pictures.append(_picture(ledger, outcome.cell))
    head = ("dataset", f"median sample, {ERROR}", "mean of all test samples", "mean field")
    return ["Relative L2 errors:", Table(head, rows), *pictures] if rows else []


def _picture(ledger: Ledger, cell: Cell) -> Picture:
    (dataset,) = cell.parts
    record, arrays = ledger.find(cell.job), ledger.arrays(cell.job)
    assert record is not None
    facts = record.result
    figure = triptych(
        arrays["points"],
        arrays["truth"],
        arrays["prediction"],
        names=facts["fields"],
        units=facts["units"],
        grid=facts["grid"] and tuple(facts["grid"]),
        cells=arrays.get("cells"),
        title=f"{dataset}, sample {facts['index']}, median of {facts['of_samples']} test samples",
    )
    return Picture(f"qualitative-{dataset}", f"{dataset}: truth, prediction and error.", png(figure))


ITEM = Item("qualitative", "Truth, prediction, error", cells, report, "Figures 4 and 16")

"""Truth, prediction and error of FLARE on the test sample with the median error (Figures 4 and 16)."""

from __future__ import annotations

from collections.abc import Sequence

from flare.report.page import png
from flare.report.triptych import triptych
from flare.reproduce.analyses import MedianSample
from flare.reproduce.budgets import BUDGETS, Budget
from flare.reproduce.study import ERROR, Block, Cell, Item, Outcome, Picture, thousandths
from flare.reproduce.tables import Table

SHOWN = ("elasticity", "darcy", "pipe", "lpbf")


def cells(budget: Budget) -> list[Cell]:
    exact = BUDGETS["paper"]
    return [
        Cell((dataset,), MedianSample(budget.training(dataset)), exact.training(dataset))
        for dataset in SHOWN
        if dataset in budget.scales
    ]


def report(found: Sequence[Outcome], budget: Budget) -> list[Block]:
    rows = []
    for outcome in found:
        training = outcome.cell.job.training
        record = outcome.ledger.find(training) if training is not None else None
        of_all = record.result if record is not None else {}
        mean, field = (thousandths(of_all[k]) if k in of_all else "" for k in ("rel_l2", "rel_l2_mean_field"))
        rows.append((outcome.cell.name, outcome.error(), mean, field))
    head = ("dataset", f"median sample, {ERROR}", "mean of all test samples", "mean field")
    return ["Relative L2 errors:", Table(head, rows), *(_picture(outcome) for outcome in found if outcome.result)]


def _picture(outcome: Outcome) -> Picture:
    (dataset,), facts, arrays = outcome.cell.parts, outcome.result, outcome.arrays
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

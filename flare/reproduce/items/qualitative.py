"""Figures: truth, prediction and error of FLARE on a sample of Elasticity, Darcy, Pipe and LPBF: the median one."""

from __future__ import annotations

from collections.abc import Sequence

from flare.report.page import png
from flare.report.triptych import triptych
from flare.reproduce.analyses import MedianSample
from flare.reproduce.budgets import BUDGETS, Budget
from flare.reproduce.ledger import Ledger
from flare.reproduce.study import Block, Cell, Item, Outcome, Picture, captioned, origin, outcomes, thousandths

SHOWN = ("elasticity", "darcy", "pipe", "lpbf")


def cells(budget: Budget) -> list[Cell]:
    exact = BUDGETS["paper"]
    return [
        Cell((dataset,), MedianSample(budget.training(dataset)), exact.training(dataset))
        for dataset in SHOWN
        if dataset in budget.scales
    ]


def report(ledger: Ledger, budget: Budget) -> list[Block]:
    found = outcomes(ledger, cells(budget))
    blocks: list[Block] = []
    for outcome in found:
        (record,) = outcome.records
        failed = f"{outcome.cell.parts[0]} failed: {record.failure}"
        blocks.append(_picture(ledger, outcome.cell) if record.outcome == "done" else failed)
    done = [outcome for outcome in found if outcome.values()]
    return [_errors(ledger, done) if done else "", *blocks, origin(found)]


def _errors(ledger: Ledger, done: Sequence[Outcome]) -> str:
    """Of the samples shown; and, where the training has a record, of all beside what predicts the same for each."""
    words, poor = [], []
    for outcome in done:
        (dataset,), training = outcome.cell.parts, outcome.cell.job.training
        assert training is not None
        record = ledger.find(training)
        of_all = record.result if record is not None and record.outcome == "done" else {}
        beside = ""
        if "rel_l2_mean_field" in of_all:
            mean, field = of_all["rel_l2"], of_all["rel_l2_mean_field"]
            beside = f" (mean of all {thousandths(mean)}, the training-mean field {thousandths(field)})"
            poor += [dataset] * (mean >= field)
        words.append(f"{dataset} {thousandths(outcome.mean)}{beside}")
    none = f" No better than that field: {', '.join(poor)}." if poor else ""
    return f"Relative L2 error of the median test sample, × 1e-3: {'; '.join(words)}.{none}"


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
    caption = captioned(f"{dataset}: truth, prediction, error of the median sample.", cell)
    return Picture(f"qualitative-{dataset}", caption, png(figure))


ITEM = Item("qualitative", "Truth, prediction, error", cells, report)

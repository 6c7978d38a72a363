"""Table and figures: the printed parts. Statistics beside the published ones, histograms, gallery."""

from __future__ import annotations

from collections.abc import Mapping

from flare.data.benchmarks.cards import card
from flare.data.benchmarks.landmarks import labelled
from flare.report.dataset import number_histograms
from flare.report.page import png
from flare.reproduce.analyses import DatasetStatistics
from flare.reproduce.budgets import Budget
from flare.reproduce.ledger import Ledger
from flare.reproduce.study import Block, Cell, Item, Picture, origin, outcomes
from flare.reproduce.tables import Table


def cells(budget: Budget) -> list[Cell]:
    return [Cell(("lpbf",), DatasetStatistics(budget.scales["lpbf"].data))]


def report(ledger: Ledger, budget: Budget) -> list[Block]:
    (cell,) = cells(budget)
    record = ledger.find(cell.job)
    if record is None:
        return []
    if record.outcome == "failed":
        return [f"Failed: {record.failure}"]
    arrays = ledger.arrays(cell.job)
    gallery = arrays.pop("gallery.png").tobytes()
    noted = {key.replace("_", " "): unit for key, unit in card("lpbf").note_units.items()}  # older records lack them
    units = {title: unit or noted.get(title, "") for title, unit in record.result["units"].items()}
    histograms = number_histograms({title: (units[title], values.tolist()) for title, values in arrays.items()})
    data = budget.scales["lpbf"].data
    options = "".join(f", {key} {value}" for key, value in data.options.items())
    whose = "published parts" if data.published else f"parts of our simulator{options}"
    colours = record.result.get("gallery", "Colours from the least to the largest value.")  # as older records drew it
    return [
        f"{record.result['samples']} {whose}; the published set has "
        f"{sum(card('lpbf').samples.values()):,} parts of another simulator than ours.",
        statistics_table(record.result["landmarks"]),
        Picture("lpbf-histograms", "Points, largest values and the simulator's own numbers, by part.", png(histograms)),
        Picture("lpbf-gallery", f"Vertical displacement of parts evenly spread over the set. {colours}", gallery),
        origin(outcomes(ledger, [cell])),
    ]


def statistics_table(found: Mapping[str, float]) -> Table:
    """A line a quantity, ours beside the published number in each column."""
    published = card("lpbf").published
    kinds = list(dict.fromkeys(name.split(" of ", 1)[0] for name in found))
    rows = []
    for quantity in dict.fromkeys(name.split(" of ", 1)[1] for name in found):
        names = [f"{kind} of {quantity}" for kind in kinds]
        rows.append(
            [labelled(quantity), *(f"{_short(found[name])} ({_short(published[name].value)})" for name in names)]
        )
    return Table(["ours (published)", *kinds], rows, pair=("ours", "published"))


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


ITEM = Item("lpbf", "LPBF: statistics, histograms, gallery", cells, report)

"""Statistics, histograms and gallery of the printed parts (Table 6, Figures 14 and 15)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flare.data.benchmarks.cards import card
from flare.data.benchmarks.landmarks import labelled
from flare.report.dataset import number_histograms
from flare.report.page import png
from flare.reproduce.analyses import DatasetStatistics
from flare.reproduce.budgets import Budget
from flare.reproduce.study import Block, Cell, Item, Outcome, Picture
from flare.reproduce.tables import Table, facts_table


def cells(budget: Budget) -> list[Cell]:
    return [Cell(("lpbf",), DatasetStatistics(budget.scales["lpbf"].data))]


def report(found: Sequence[Outcome], budget: Budget) -> list[Block]:
    result = found[0].result
    if not result:
        return []
    arrays = found[0].arrays
    gallery = arrays.pop("gallery.png").tobytes()
    noted = {key.replace("_", " "): unit for key, unit in card("lpbf").note_units.items()}  # older records lack them
    units = {title: unit or noted.get(title, "") for title, unit in result["units"].items()}
    histograms = number_histograms({title: (units[title], values.tolist()) for title, values in arrays.items()})
    data = budget.scales["lpbf"].data
    facts = {"parts here": result["samples"], "published parts": sum(card("lpbf").samples.values())}
    facts |= {"source": "published files" if data.published else "simulator of flare", **data.options}
    return [
        "Dataset:",
        facts_table(facts),
        "Statistics, ours (published):",
        statistics_table(result["landmarks"]),
        Picture("lpbf-histograms", "Points, largest values and numbers of the simulator, per part.", png(histograms)),
        Picture("lpbf-gallery", "Vertical displacement of parts evenly spread over the dataset.", gallery),
    ]


def statistics_table(found: Mapping[str, float]) -> Table:
    """Build a table with one row per quantity and `ours (published)` in each column."""
    published = card("lpbf").published
    kinds = list(dict.fromkeys(name.split(" of ", 1)[0] for name in found))
    rows = []
    for quantity in dict.fromkeys(name.split(" of ", 1)[1] for name in found):
        names = [f"{kind} of {quantity}" for kind in kinds]
        rows.append(
            [labelled(quantity), *(f"{_short(found[name])} ({_short(published[name].value)})" for name in names)]
        )
    return Table(["quantity", *kinds], rows, pair=("ours", "published"))


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


ITEM = Item("lpbf", "LPBF: statistics, histograms, gallery", cells, report, "Table 6, Figures 14 and 15")

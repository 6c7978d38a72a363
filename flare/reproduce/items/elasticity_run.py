"""FLARE on Elasticity as the paper trains it, 8 blocks on 1,000 samples: one run, with its learning curve.

`paper` is its 500 epochs, the same run as in Table 1; `cpu` the same model and samples with a tenth of the epochs, so
that the schedule comes to its end in an hour or two. Either goes on where it was stopped, and its row says how far.
"""

from __future__ import annotations

from flare.reproduce.budgets import BUDGETS, Budget
from flare.reproduce.items.table1 import AUTHORS, DATASETS, PAPER
from flare.reproduce.learning import learning_curves
from flare.reproduce.ledger import Ledger
from flare.reproduce.study import Block, Cell, Item, Outcome, error_table, origin, outcomes, paper_value

SHORT = {
    "smoke": (("epochs", 4), ("evaluate_every", 1)),
    "cpu": (("epochs", 50), ("evaluate_every", 5)),
    "paper": (),
}


def cells(budget: Budget) -> list[Cell]:
    exact = BUDGETS["paper"]
    models = exact if budget.name == "cpu" else budget
    published = 1e-3 * (PAPER["flare"][DATASETS.index("elasticity")] or 0.0)
    return [
        Cell(
            ("elasticity", "flare"),
            models.training("elasticity", "flare", *SHORT[budget.name]),
            exact.training("elasticity"),
            paper=published if budget.comparable else None,
            seeds=1,
            remark=AUTHORS,
        )
    ]


def report(ledger: Ledger, budget: Budget) -> list[Block]:
    found = outcomes(ledger, cells(budget))
    blocks: list[Block] = [error_table(("dataset", "model"), found)]
    for outcome in found:
        paper = paper_value(outcome.cell)
        beside = f"; the paper has {paper}" if paper else ""
        blocks.append(f"FLARE on Elasticity, × 1e-3: {outcome.error()}{beside}.")
        if budget.name == "cpu":
            blocks.append(_as_it_is(outcome))
        if outcome.first is None:
            continue
        caption = "Relative L2 error on the test split while training, seed 0."
        blocks += learning_curves("learning", caption, {"FLARE": outcome.first})
    return [*blocks, origin(found)]


def _as_it_is(outcome: Outcome) -> str:
    """Of fewer epochs of the paper's model and samples: what their number is, and what all epochs would take here."""
    timed = [record for record in outcome.records if record.outcome == "done" and record.made.get("seconds")]
    if not timed or outcome.cell.exact is None:
        return ""
    made, epochs, whole = timed[0].made, timed[0].result["epochs"], outcome.cell.exact.settings()["epochs"]
    each = made["seconds"] / epochs
    return (
        f"The schedule comes to its end within these {epochs:g} epochs: the number is that of a finished, shorter "
        f"training, not of the paper's run cut off. At their {each:.0f} s an epoch ({made['processor']}) the paper's "
        f"{whole} would take about {each * whole / 3600:.0f} h: {WHOLE}, which goes on where it was stopped."
    )


WHOLE = "`flare reproduce elasticity-run --budget paper --workers 1 --threads 2`"


ITEM = Item("elasticity-run", "The paper's Elasticity run and its learning curve", cells, report)

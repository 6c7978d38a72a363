"""Figure: width of the heads. Error of FLARE on Elasticity over D = C / H, at equal channels."""

from __future__ import annotations

from flare.reproduce.budgets import Budget
from flare.reproduce.items.ablation import Settings, curves, drawable, grid_cells, table_of
from flare.reproduce.ledger import Ledger
from flare.reproduce.study import READ_OFF, Block, Cell, Item, error_table, origin, outcomes
from flare.reproduce.verdicts import lowest

WIDTHS = (2, 4, 8, 16, 32, 64)
PAPER = table_of(
    WIDTHS,
    {
        16: (5.28, 4.51, 5.05, 4.71, 5.02, 5.54),
        32: (3.91, 3.80, 3.71, 3.92, 4.57, 5.25),
        64: (4.55, 3.45, 3.73, 3.98, 4.44, 5.61),
        128: (4.60, 4.16, 4.30, 3.92, 4.38, 4.60),
    },
)
"""(head width, latents) -> error in thousandths, read off the paper's figure."""
GRIDS = {
    "smoke": [(2, 4), (8, 4)],
    "cpu": [(d, 64) for d in WIDTHS[:-1]],  # half the channels, so one width less
    "paper": [(d, m) for m in (16, 32, 64, 128) for d in WIDTHS],
}


def _settings(budget: Budget, width: int, latents: int) -> Settings:
    return [("model.heads", budget.model("elasticity")["channels"] // width), ("model.latents", latents)]


def cells(budget: Budget) -> list[Cell]:
    return grid_cells(budget, "elasticity", ("width", "latents"), GRIDS[budget.name], _settings, PAPER)


def report(ledger: Ledger, budget: Budget) -> list[Block]:
    wanted = cells(budget)
    found = outcomes(ledger, wanted)
    blocks: list[Block] = [error_table(("dataset", "head width", "latents"), found, READ_OFF)]
    blocks.append(lowest(wanted, found, "head width", "latents"))
    if drawable(found):
        caption = "Relative L2 error over the width of a head; heads × width is the number of channels."
        blocks.append(curves("head-dimension", wanted, found, axis="head width D", by="M =", caption=caption))
    return [*blocks, origin(found)]


ITEM = Item("head-dimension", "Head dimension", cells, report)

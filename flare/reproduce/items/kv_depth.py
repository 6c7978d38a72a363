"""Figure: depth of the residual MLP of keys and values. Error of FLARE on Elasticity; the FFN stays."""

from __future__ import annotations

from flare.reproduce.budgets import Budget
from flare.reproduce.items.ablation import Settings, curves, drawable, grid_cells, table_of
from flare.reproduce.ledger import Ledger
from flare.reproduce.study import READ_OFF, Block, Cell, Item, error_table, origin, outcomes
from flare.reproduce.verdicts import lowest

DEPTHS = (0, 1, 2, 3, 4, 5)
PAPER = table_of(
    DEPTHS,
    {
        16: (6.36, 4.95, 4.46, 5.14, 3.61, 4.06),
        32: (6.31, 4.53, 4.92, 3.67, 4.01, 3.68),
        64: (5.96, 3.91, 3.79, 3.77, 3.68, 3.57),
        128: (6.03, 4.32, 3.64, 3.66, 3.62, 3.78),
    },
)
"""(depth, latents) -> error in thousandths, read off the paper's figure."""
GRIDS = {
    "smoke": [(depth, 4) for depth in (0, 1)],
    "cpu": [(depth, 64) for depth in DEPTHS],
    "paper": [(depth, m) for m in (16, 32, 64, 128) for depth in DEPTHS],
}


def _settings(_: Budget, depth: int, latents: int) -> Settings:
    return [("model.kv_depth", depth), ("model.latents", latents)]


def cells(budget: Budget) -> list[Cell]:
    return grid_cells(budget, "elasticity", ("depth", "latents"), GRIDS[budget.name], _settings, PAPER)


def report(ledger: Ledger, budget: Budget) -> list[Block]:
    wanted = cells(budget)
    found = outcomes(ledger, wanted)
    blocks: list[Block] = [error_table(("dataset", "K/V depth", "latents"), found, READ_OFF)]
    blocks.append(lowest(wanted, found, "K/V depth", "latents"))
    if drawable(found):
        caption = "Relative L2 error over the inner layers of the MLP of keys and values."
        blocks.append(curves("kv-depth", wanted, found, axis="K/V depth", by="M =", caption=caption, log=False))
    return [*blocks, origin(found)]


ITEM = Item("kv-depth", "K/V depth", cells, report)

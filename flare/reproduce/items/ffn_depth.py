"""Figure: depth of the pointwise residual MLP, the FFN. Error of FLARE on Elasticity; keys and values stay."""

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
        16: (4.28, 4.42, 4.02, 5.14, 4.06, 4.02),
        32: (4.47, 4.53, 3.74, 3.67, 3.85, 4.37),
        64: (4.40, 4.12, 3.94, 3.77, 4.36, 3.65),
        128: (4.11, 3.94, 3.83, 3.66, 3.47, 3.53),
    },
)
"""(depth, latents) -> error in thousandths, read off the paper's figure."""
GRIDS = {
    "smoke": [(depth, 4) for depth in (0, 1)],
    "cpu": [(depth, 64) for depth in DEPTHS],
    "paper": [(depth, m) for m in (16, 32, 64, 128) for depth in DEPTHS],
}


def _settings(_: Budget, depth: int, latents: int) -> Settings:
    return [("model.ffn_depth", depth), ("model.latents", latents)]


def cells(budget: Budget) -> list[Cell]:
    return grid_cells(budget, "elasticity", ("depth", "latents"), GRIDS[budget.name], _settings, PAPER)


def report(ledger: Ledger, budget: Budget) -> list[Block]:
    wanted = cells(budget)
    found = outcomes(ledger, wanted)
    blocks: list[Block] = [error_table(("dataset", "FFN depth", "latents"), found, READ_OFF)]
    blocks.append(lowest(wanted, found, "FFN depth", "latents"))
    if drawable(found):
        caption = "Relative L2 error over the inner layers of the pointwise MLP."
        blocks.append(curves("ffn-depth", wanted, found, axis="FFN depth", by="M =", caption=caption, log=False))
    return [*blocks, origin(found)]


ITEM = Item("ffn-depth", "FFN depth", cells, report)

"""Figure: transformer blocks on the latents, so many in each block of FLARE, on Elasticity."""

from __future__ import annotations

from flare.experiments.ablation import Settings, curves, drawable, grid_cells, table_of
from flare.experiments.budgets import Budget
from flare.experiments.ledger import Ledger
from flare.experiments.study import Block, Cell, Item, Outcome, error_table, origin, outcomes
from flare.experiments.verdicts import overlap, without_numbers

BLOCKS = (1, 2, 4, 8)
PAPER = table_of(
    BLOCKS,
    {
        0: (21.2, 10.5, 5.27, 3.73),
        1: (13.9, 8.59, 5.32, 3.65),
        2: (13.4, 7.71, 4.82, 4.56),
        4: (13.9, 7.00, 5.48, 4.30),
        8: (12.3, 7.84, 5.39, 4.19),
    },
)
"""(blocks, latent blocks) -> error in thousandths, as printed in the paper's figure."""
GRIDS = {
    "smoke": [(b, l) for l in (0, 1) for b in (1, 2)],
    "cpu": [(b, l) for l in (0, 1, 4) for b in (1, 2, 4) if b * (l + 1) <= 10],
    "paper": [(b, l) for l in (0, 1, 2, 4, 8) for b in BLOCKS],
}


def _settings(_: Budget, blocks: int, latent_blocks: int) -> Settings:
    # Without latent blocks it is the model of the other ablations, and one run serves all.
    return [("model.blocks", blocks), *([("model.latent_blocks", latent_blocks)] if latent_blocks else [])]


def cells(budget: Budget) -> list[Cell]:
    return grid_cells(budget, "elasticity", ("blocks", "latent-blocks"), GRIDS[budget.name], _settings, PAPER)


def report(ledger: Ledger, budget: Budget) -> list[Block]:
    found = outcomes(ledger, cells(budget))
    blocks: list[Block] = [error_table(("dataset", "blocks", "latent blocks"), found)]
    if drawable(found):
        caption = "Relative L2 error over the number of blocks; a curve for every number of latent blocks in each."
        picture = curves("latent-blocks", found, axis="blocks", by="latent blocks", caption=caption)
        blocks += [_verdict(cells(budget), found), picture]
    return [*blocks, origin(found)]


def _verdict(wanted: list[Cell], found: list[Outcome]) -> str:
    """The best number of latent blocks for each number of blocks that has several to choose from."""
    best = []
    for blocks in dict.fromkeys(cell.parts[1] for cell in wanted):
        ranked = sorted(
            (o for o in found if o.cell.parts[1] == blocks and o.values()), key=lambda outcome: outcome.mean
        )
        if len(ranked) > 1:
            close = [_latent_blocks(other) for other in ranked[1:] if overlap(ranked[0], other)]
            doubt = f" (its spread overlaps that of {', '.join(close)})" if close else ""
            best.append(f"{_latent_blocks(ranked[0])} at {blocks}{doubt}")
    words = (
        f"Lowest error at a fixed number of blocks, by latent blocks: {', '.join(best)}."
        if best
        else "No number of blocks has two cells with numbers yet."
    )
    missing = without_numbers(wanted, found, lambda cell: "/".join(cell.parts[1:]))
    return (
        f"{words}{missing} The paper's sentence that latent blocks consistently degrade accuracy holds in its own "
        "figure at equal parameters, not at equal blocks."
    )


def _latent_blocks(outcome: Outcome) -> str:
    return outcome.cell.parts[2].split("=")[1]


ITEM = Item("latent-blocks", "Latent blocks × blocks", cells, report)

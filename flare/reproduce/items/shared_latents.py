"""Table and figures: one set of latents for all heads, or one for each. Errors on Elasticity, and spectra of both."""

from __future__ import annotations

from torch import Tensor

from flare.reproduce.analyses import TrainedSpectra
from flare.reproduce.budgets import Budget
from flare.reproduce.items.ablation import Point, Settings, grid_cells
from flare.reproduce.items.spectra import SAMPLES, found_spectra, spectra_blocks
from flare.reproduce.jobs import Training
from flare.reproduce.ledger import Ledger
from flare.reproduce.study import Block, Cell, Item, Outcome, error_table, origin, outcomes
from flare.reproduce.verdicts import NO_DIFFERENCE, few_seeds, overlap, without_numbers
from flare.spectra import FP32_EPSILON, Spectra

PAPER: dict[str, dict[Point, float]] = {
    "independent": {(1,): 21.9, (2,): 9.99, (4,): 5.21, (8,): 3.85},
    "shared": {(1,): 20.8, (2,): 10.8, (4,): 5.91, (8,): 4.37},
}
"""Latents -> blocks -> error in thousandths, as printed."""
BLOCKS = {"smoke": (1, 2), "cpu": (1, 2, 4, 8), "paper": (1, 2, 4, 8)}


def _errors(budget: Budget) -> list[Cell]:
    found = []
    for kind, paper in PAPER.items():

        def settings(_: Budget, blocks: int, shared: bool = kind == "shared") -> Settings:
            return [("model.blocks", blocks), *([("model.shared_latents", True)] if shared else [])]

        points = [(blocks,) for blocks in BLOCKS[budget.name]]
        for cell in grid_cells(budget, "elasticity", ("blocks",), points, settings, paper):
            found.append(Cell((*cell.parts, kind), cell.job, cell.exact, cell.paper))
    return found


def _spectra(budget: Budget) -> list[Cell]:
    """Of the deepest models, with seed 0."""
    deepest = f"blocks={max(BLOCKS[budget.name])}"
    return [
        Cell(("spectra", cell.parts[2]), TrainedSpectra(cell.job, SAMPLES[budget.name]), cell.exact)
        for cell in _errors(budget)
        if cell.parts[1] == deepest and isinstance(cell.job, Training)
    ]


def cells(budget: Budget) -> list[Cell]:
    return [*_errors(budget), *_spectra(budget)]


def report(ledger: Ledger, budget: Budget) -> list[Block]:
    found = outcomes(ledger, _errors(budget))
    blocks: list[Block] = [error_table(("dataset", "blocks", "latents"), found), _verdict(_errors(budget), found)]
    spectra = _spectra(budget)
    both = {cell.parts[1]: of for cell in spectra if (of := found_spectra(ledger, cell)) is not None}
    if len(both) == 2:
        blocks.append(_heads_apart(both["independent"], both["shared"]))
    for cell in spectra:
        kind = cell.parts[1]
        blocks += spectra_blocks(ledger, cell, f"shared-latents-{kind}", f"{kind.capitalize()} latents.")
    return [*blocks, origin([*found, *outcomes(ledger, spectra)])]


def _verdict(wanted: list[Cell], found: list[Outcome]) -> str:
    """Who wins at every number of blocks that has both."""

    def name(cell: Cell) -> str:
        return "/".join(cell.parts[1:])

    words: list[str] = []
    compared: list[Outcome] = []
    for blocks in dict.fromkeys(cell.parts[1] for cell in wanted):
        both = {o.cell.parts[2]: o for o in found if o.cell.parts[1] == blocks and o.values()}
        if len(both) == 2:
            independent, shared = both["independent"], both["shared"]
            better = "independent" if independent.mean < shared.mean else "**shared**"
            alike = overlap(independent, shared)
            verdict = NO_DIFFERENCE.lower() if alike else f"{better} latents are better"
            words.append(f"{blocks}: {verdict} (independent {independent.number}, shared {shared.number})")
            compared += both.values()
    told = "; ".join(words).capitalize() + "." if words else "No number of blocks has both kinds yet."
    return told + few_seeds(compared, name) + without_numbers(wanted, found, name)


def _heads_apart(independent: Spectra, shared: Spectra) -> str:
    """Whether heads differ more with latents of their own, as in the paper's figure, by two measures of that."""
    words, sides = [], set()
    for what, measure in (("effective rank", _ranks_apart), ("log10 of the eigenvalues", _curves_apart)):
        own, common = measure(independent), measure(shared)
        sides.add(_side(own, common))
        blocks = f"{int((own > common).sum())} of {len(own)} blocks"
        means = f"{own.mean():.2f} with independent, {common.mean():.2f} with shared latents"
        words.append(f"{what} {means} (independent ones differ more in {blocks})")
    if sides == {1}:
        verdict = "Heads differ more with independent latents, as in the paper's figure"
    elif sides == {-1}:
        verdict = "Heads differ more with **shared** latents, against the paper's figure"
    else:
        verdict = "**Neither** kind has heads that clearly differ more; in the paper's figure independent ones do"
    return f"{verdict}. Standard deviation over the heads of a block, mean of blocks, one seed: {'; '.join(words)}."


def _side(own: Tensor, common: Tensor) -> int:
    """1: heads differ more with independent latents, in the mean and in most blocks; -1: with shared; 0: unclear."""
    in_mean, in_blocks = (own.mean() - common.mean()).sign(), (own - common).sign().sum().sign()
    return int(in_mean) if in_mean == in_blocks else 0


def _ranks_apart(spectra: Spectra) -> Tensor:
    """[L]: of effective rank."""
    return spectra.effective_rank.std(1)


def _curves_apart(spectra: Spectra) -> Tensor:
    """[L]: of log10 of the eigenvalues down to the epsilon of float32, mean over the indices."""
    return spectra.eigenvalues.clamp_min(FP32_EPSILON).log10().std(1).mean(1)


ITEM = Item("shared-latents", "Shared or independent latents", cells, report)

"""Figure: spectra of a trained FLARE. Eigenvalues of each head's mixing in the first, middle and last block."""

from __future__ import annotations

import torch
from torch import Tensor

from flare.report.page import png
from flare.report.spectra import shown_blocks, spectra_figure
from flare.reproduce.analyses import TrainedSpectra
from flare.reproduce.budgets import BUDGETS, Budget
from flare.reproduce.ledger import Ledger
from flare.reproduce.study import Block, Cell, Item, Picture, captioned, origin, outcomes, thousandths
from flare.spectra import Spectra

SAMPLES = {"smoke": 1, "cpu": 20, "paper": 200}
"""Test samples to average over; the paper takes all."""


def cells(budget: Budget) -> list[Cell]:
    job = TrainedSpectra(budget.training("elasticity"), SAMPLES[budget.name])
    return [Cell(("elasticity", "flare"), job, BUDGETS["paper"].training("elasticity"))]


def spectra_blocks(ledger: Ledger, cell: Cell, name: str, about: str) -> list[Block]:
    """The picture of a cell, where it has a record, and what it shows in numbers; words where it failed."""
    record = ledger.find(cell.job)
    if record is None:
        return []
    spectra = found_spectra(ledger, cell)
    if spectra is None:
        return [f"{about} Spectra failed: {record.failure}"]
    caption = (
        f"{about} Eigenvalues of each head's mixing, mean of {spectra.samples} test samples. {_drawn(spectra)} "
        f"Effective rank, least to most of the heads (mean), block by block: {ranks_of_heads(spectra)} of "
        f"{spectra.eigenvalues.shape[-1]} latents. "
        f"Relative L2 error of the model: {thousandths(record.result['rel_l2'])} × 1e-3."
    )
    return [Picture(name, captioned(caption, cell), png(spectra_figure(spectra)))]


def _drawn(spectra: Spectra) -> str:
    """Which blocks the picture has and which not, and what its lines are."""
    total, _, latents = spectra.eigenvalues.shape
    shown = shown_blocks(total)
    left_out = [block for block in range(1, total + 1) if block not in shown]
    if left_out:
        left = f"left out: {_listed(left_out)} of {total}"
        blocks = f"Drawn are the first, the middle and the last block, as in the paper; {left}."
    else:
        blocks = f"Drawn are all {total} blocks." if total > 1 else "The model has one block."
    return (
        f"{blocks} Dotted: the last of the {latents} indices, {latents - 1}. "
        "Dashed: the epsilon of float32, below which there is only noise."
    )


def _listed(blocks: list[int]) -> str:
    return f"block{'s' * (len(blocks) > 1)} {', '.join(map(str, blocks))}"


def found_spectra(ledger: Ledger, cell: Cell) -> Spectra | None:
    """Of a cell that is done."""
    record = ledger.find(cell.job)
    if record is None or record.outcome != "done":
        return None
    arrays = ledger.arrays(cell.job)
    values, spread = (torch.from_numpy(arrays[key]) for key in ("eigenvalues", "spread"))
    return Spectra(values, spread, record.result["samples"])


def ranks_of_heads(spectra: Spectra) -> str:
    """`1.0 to 2.7 (1.3), …`, block by block: heads that differ are what the figure is about."""
    return ", ".join(f"{heads.min():.1f} to {heads.max():.1f} ({heads.mean():.1f})" for heads in spectra.effective_rank)


def _verdict(spectra: Spectra) -> str:
    """Where heads mix most and least, and how far they differ within a block."""
    ranks = spectra.effective_rank
    widest = int((ranks.max(1).values - ranks.min(1).values).argmax())
    return (
        f"Effective rank of a head: {ranks.min():.1f} to {ranks.max():.1f} of {spectra.eigenvalues.shape[-1]} latents; "
        f"by block, mean over heads: {', '.join(f'{rank:.1f}' for rank in ranks.mean(1))}. Heads differ most in block "
        f"{widest + 1}: {ranks[widest].min():.1f} to {ranks[widest].max():.1f}."
    )


PAPERS_FIGURE = (
    "*The paper's figure shows blocks 1, 5 and 8 of its 8, M = 64 latents, C = 64 features, trained for 500 epochs. Of "
    "it the paper says: eigenvalues drop sharply within the first 10 to 20 indices in all blocks, most of all in block "
    "1; those of blocks 5 and 8 fall more slowly, so deeper blocks use more of the latents; and heads differ, "
    "especially in later blocks. It prints no number to stand beside ours.*"
)


def _beside_the_paper(spectra: Spectra) -> str:
    """The three things that the paper says of its figure, of ours."""
    total, _, latents = spectra.eigenvalues.shape
    if total == 1:
        return "One block: nothing can be said of deeper ones, as the paper does."
    index = min(20, latents - 1)
    left = ", ".join(f"{value:.0e}" for value in spectra.eigenvalues[..., index].max(1).values)
    ranks = spectra.effective_rank
    mean, apart = ranks.mean(1), ranks.std(1, correction=0)
    rank, width = _deeper(mean), _deeper(apart)
    if rank.endswith(" agrees") and not bool((mean[1:] > mean[:-1]).all()):
        rank += ", though it does not rise with every block"
    return (
        f"Beside what the paper says of its figure: at index {index} the largest of the heads' eigenvalues is, block "
        f"by block, {left}, the first being 1; the effective rank, mean of the heads, is {rank}; "
        f"its standard deviation over the heads is {width}."
    )


def _deeper(of_blocks: Tensor) -> str:
    """Whether a number is larger in deeper blocks, as the paper says; what is printed alike is no difference."""
    first, deeper = (f"{float(value):.1f}" for value in (of_blocks[0], of_blocks[1:].mean()))
    if first == deeper:
        return f"{first} in block 1 and in the mean of the deeper ones, no difference"
    agrees = "agrees" if float(deeper) > float(first) else "does **not** agree"
    return f"{first} in block 1 and {deeper} in the mean of the deeper ones, which {agrees}"


def report(ledger: Ledger, budget: Budget) -> list[Block]:
    (cell,) = cells(budget)
    spectra = found_spectra(ledger, cell)
    words = [_verdict(spectra), PAPERS_FIGURE, _beside_the_paper(spectra)] if spectra is not None else []
    picture = spectra_blocks(ledger, cell, "spectra", "FLARE on Elasticity.")
    return [*words, *picture, origin(outcomes(ledger, [cell]))]


ITEM = Item("spectra", "Spectra of a trained FLARE", cells, report)

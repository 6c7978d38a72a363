"""Figure: spectra of a trained FLARE. Eigenvalues of each head's mixing in the first, middle and last block."""

from __future__ import annotations

import torch

from flare.experiments.analyses import TrainedSpectra
from flare.experiments.budgets import BUDGETS, Budget
from flare.experiments.ledger import Ledger
from flare.experiments.study import Block, Cell, Item, Picture, captioned, origin, outcomes, thousandths
from flare.report.page import png
from flare.report.spectra import spectra_figure
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
        f"{about} Eigenvalues of each head's mixing, mean of {spectra.samples} test samples. "
        f"Effective rank, least to most of the heads (mean), block by block: {ranks_of_heads(spectra)} of "
        f"{spectra.eigenvalues.shape[-1]} latents. "
        f"Relative L2 error of the model: {thousandths(record.result['rel_l2'])} × 1e-3."
    )
    return [Picture(name, captioned(caption, cell), png(spectra_figure(spectra)))]


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


def report(ledger: Ledger, budget: Budget) -> list[Block]:
    (cell,) = cells(budget)
    spectra = found_spectra(ledger, cell)
    words = [_verdict(spectra)] if spectra is not None else []
    picture = spectra_blocks(ledger, cell, "spectra", "FLARE on Elasticity.")
    return [*words, *picture, origin(outcomes(ledger, [cell]))]


ITEM = Item("spectra", "Spectra of a trained FLARE", cells, report)

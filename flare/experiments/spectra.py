"""Figure: spectra of a trained FLARE. Eigenvalues of each head's mixing in the first, middle and last block."""

from __future__ import annotations

import torch

from flare.experiments.analyses import TrainedSpectra
from flare.experiments.budgets import Budget
from flare.experiments.ledger import Ledger
from flare.experiments.study import Block, Cell, Item, Picture, origin, outcomes, thousandths
from flare.report.page import png
from flare.report.spectra import spectra_figure
from flare.spectra import Spectra

SAMPLES = {"smoke": 1, "cpu": 20, "paper": 200}
"""Test samples to average over; the paper takes all."""


def cells(budget: Budget) -> list[Cell]:
    return [Cell(("elasticity", "flare"), TrainedSpectra(budget.training("elasticity"), SAMPLES[budget.name]))]


def spectra_blocks(ledger: Ledger, cell: Cell, name: str, about: str) -> list[Block]:
    """The picture of a cell, where it has a record, and what it shows in numbers; words where it failed."""
    record = ledger.find(cell.job)
    if record is None:
        return []
    if record.outcome == "failed":
        return [f"{about} Spectra failed: {record.failure}"]
    arrays = ledger.arrays(cell.job)
    spectra = Spectra(
        torch.from_numpy(arrays["eigenvalues"]), torch.from_numpy(arrays["spread"]), record.result["samples"]
    )
    ranks = [sum(heads) / len(heads) for heads in record.result["effective_rank"]]
    caption = (
        f"{about} Eigenvalues of each head's mixing, mean of {spectra.samples} test samples. "
        f"Effective rank, mean over heads, block by block: {', '.join(f'{rank:.1f}' for rank in ranks)} of "
        f"{spectra.eigenvalues.shape[-1]} latents. "
        f"Relative L2 error of the model: {thousandths(record.result['rel_l2'])} × 1e-3."
    )
    return [Picture(name, caption, png(spectra_figure(spectra)))]


def report(ledger: Ledger, budget: Budget) -> list[Block]:
    (cell,) = cells(budget)
    return [*spectra_blocks(ledger, cell, "spectra", "FLARE on Elasticity."), origin(outcomes(ledger, [cell]))]


ITEM = Item("spectra", "Spectra of a trained FLARE", cells, report)

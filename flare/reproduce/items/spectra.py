"""Spectra of a trained FLARE: eigenvalues of the mixing matrix of each head in the first, middle and last block."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from flare.models.spectra import FP32_EPSILON, Spectra
from flare.report.page import png
from flare.report.spectra import spectra_figure
from flare.reproduce.analyses import TrainedSpectra
from flare.reproduce.budgets import BUDGETS, Budget
from flare.reproduce.study import Block, Cell, Item, Outcome, Picture
from flare.reproduce.tables import Table

SAMPLES = {"smoke": 1, "cpu": 20, "paper": 200}
"""Budget -> test samples to average over. The paper takes all."""
INDEX = 20
"""Index of the eigenvalue shown in the table. In the paper's figure eigenvalues drop within the first 10 to 20."""


def cells(budget: Budget) -> list[Cell]:
    job = TrainedSpectra(budget.training("elasticity"), SAMPLES[budget.name])
    return [Cell(("elasticity", "flare"), job, BUDGETS["paper"].training("elasticity"))]


def report(found: Sequence[Outcome], budget: Budget) -> list[Block]:
    return spectra_blocks(found, "spectra")


def spectra_blocks(found: Sequence[Outcome], name: str) -> list[Block]:
    """Build a picture per cell that is done, and a table of the effective ranks of all.

    Args:
        found: Outcomes of `TrainedSpectra`. The last part of a cell is its name in the table.
        name: Name of the pictures, followed by the name of the cell if items have several.
    """
    blocks: list[Block] = []
    rows: list[tuple[str, ...]] = []
    for outcome in (outcome for outcome in found if outcome.result):
        arrays, label = outcome.arrays, outcome.cell.parts[-1]
        values, spread = (torch.from_numpy(arrays[key]) for key in ("eigenvalues", "spread"))
        spectra = Spectra(values, spread, outcome.result["samples"])
        caption = (
            f"{label}: eigenvalues of the mixing matrix of each head, mean of {spectra.samples} test samples. "
            "Dotted: the last index. Dashed: the epsilon of float32."
        )
        stem = name if outcome.cell.parts[0] != "spectra" else f"{name}-{label}"
        blocks.append(Picture(stem, caption, png(spectra_figure(spectra))))
        rows += [(label, *row) for row in rank_rows(spectra)]
    head = (
        *("model", "block", "effective rank: min", "mean", "max", "std over heads"),
        *(f"largest eigenvalue at index {INDEX}", "std of log10 eigenvalues over heads"),
    )
    return [*blocks, "Effective rank of the heads of each block:", Table(head, rows)] if rows else []


def rank_rows(spectra: Spectra) -> list[tuple[str, ...]]:
    """Return one row per block: effective ranks of its heads, a late eigenvalue, and how far the heads differ."""
    index = min(INDEX, spectra.eigenvalues.shape[-1] - 1)
    logs = spectra.eigenvalues.clamp_min(FP32_EPSILON).log10()
    apart = logs.std(1, correction=0).mean(1)
    return [
        (
            *(f"{block}", f"{ranks.min():.1f}", f"{ranks.mean():.1f}", f"{ranks.max():.1f}"),
            *(f"{ranks.std(correction=0):.2f}", f"{values[:, index].max():.0e}", f"{float(apart[block - 1]):.2f}"),
        )
        for block, (ranks, values) in enumerate(zip(spectra.effective_rank, spectra.eigenvalues, strict=True), 1)
    ]


ITEM = Item("spectra", "Spectra of a trained FLARE", cells, report, "as in Figure 12")

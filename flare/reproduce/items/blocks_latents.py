"""Figure: more blocks, more latents. Error of FLARE over the number of blocks, for several numbers of latents."""

from __future__ import annotations

from flare.reproduce.budgets import Budget
from flare.reproduce.items.ablation import Settings, curves, drawable, grid_cells, table_of
from flare.reproduce.ledger import Ledger
from flare.reproduce.study import (
    ERROR,
    IN_A_CELL,
    READ_OFF,
    Block,
    Cell,
    Item,
    Outcome,
    error_table,
    labels,
    matrix,
    origin,
    outcomes,
    thousandths,
)
from flare.reproduce.verdicts import falling, few_seeds, overlap

BLOCKS = (1, 2, 4, 8, 12, 16, 20)
PAPER = {
    "elasticity": table_of(
        BLOCKS,
        {
            16: (23.0, 9.94, 6.48, 4.70, 3.26, 3.42, 3.25),
            32: (22.6, 10.9, 6.48, 3.39, 3.91, 3.10, 2.92),
            64: (22.0, 9.99, 5.23, 3.84, 4.06, 3.17, 2.95),
            128: (26.9, 9.58, 5.28, 3.43, 3.31, 3.61, 3.10),
            256: (21.0, 9.51, 6.27, 3.51, 3.00, 3.46, 3.51),
            512: (21.9, 8.75, 5.36, 3.87, 2.96, 3.44, 3.13),
        },
    ),
    "darcy": table_of(
        BLOCKS,
        {
            16: (22.2, 11.6, 8.36, 6.70, 6.45, 6.34, 6.21),
            32: (20.1, 9.14, 6.63, 6.07, 6.11, 6.17, 5.96),
            64: (18.6, 8.28, 6.09, 5.88, 5.86, 5.68, 5.78),
            128: (18.5, 7.67, 5.87, 5.42, 5.24, 5.32, 5.11),
            256: (19.1, 7.37, 5.74, 5.26, 5.57, 5.23, 5.39),
            512: (18.3, 7.41, 5.61, 5.10, 4.91, 5.15, 5.04),
        },
    ),
}
"""Dataset -> (blocks, latents) -> error in thousandths, read off the paper's figure to about a hundredth."""
GRIDS = {
    "smoke": [(b, m) for m in (2, 4) for b in (1, 2)],
    "cpu": [(b, m) for m in (16, 64) for b in (1, 2, 4, 8)],
    "paper": [(b, m) for m in (16, 32, 64, 128, 256, 512) for b in BLOCKS],
}


def _settings(budget: Budget, blocks: int, latents: int) -> Settings:
    heads = budget.sizes.get("heads", 8)  # 8 on Darcy too, where Table 1 has 16
    return [("model.blocks", blocks), ("model.latents", latents), ("model.heads", heads)]


def cells(budget: Budget) -> list[Cell]:
    return [
        cell
        for dataset, paper in PAPER.items()
        for cell in grid_cells(budget, dataset, ("blocks", "latents"), GRIDS[budget.name], _settings, paper)
    ]


def report(ledger: Ledger, budget: Budget) -> list[Block]:
    found = outcomes(ledger, cells(budget))
    blocks: list[Block] = []
    for dataset in PAPER:
        blocks += _matrix(dataset, budget, [o for o in found if o.cell.parts[0] == dataset])
    blocks.append(error_table(("dataset", "blocks", "latents"), found, READ_OFF))
    for dataset in PAPER:
        here = [outcome for outcome in found if outcome.cell.parts[0] == dataset]
        wanted = [cell for cell in cells(budget) if cell.parts[0] == dataset]
        if not any(outcome.values() for outcome in here):
            blocks.append(f"{dataset}: none of its {len(wanted)} cells has a number yet.")
            continue
        blocks += [_verdict(dataset, budget, here), _more_latents(dataset, here)]
        if drawable(here):
            caption = f"{dataset}: relative L2 error over the number of blocks."
            blocks.append(curves(f"blocks-latents-{dataset}", wanted, here, axis="blocks", by="M =", caption=caption))
    return [*blocks, origin(found)]


def _matrix(dataset: str, budget: Budget, found: list[Outcome]) -> list[Block]:
    def place(cell: Cell) -> tuple[str, ...]:
        _, blocks, latents = labels(cell)
        return latents, blocks

    wanted = {place(cell): cell for cell in cells(budget) if cell.parts[0] == dataset}
    best = min((o for o in found if o.values()), key=lambda outcome: outcome.mean, default=None)
    bold = [place(best.cell)] if best is not None else []
    lead = f"{dataset}, latents (rows) × blocks, {ERROR}: {IN_A_CELL}; the paper's are read off its figure; "
    lead += "in bold our lowest mean:"
    return matrix("latents", wanted, {place(o.cell): o for o in found}, bold, lead)


def _verdict(dataset: str, budget: Budget, found: list[Outcome]) -> str:
    """Whether the error falls with every step to more blocks, for each number of latents."""
    lines: dict[str, list[Cell]] = {}
    for cell in cells(budget):
        if cell.parts[0] == dataset:
            lines.setdefault(cell.parts[2], []).append(cell)
    return f"{dataset}: {falling(list(lines.values()), found)}"


def _more_latents(dataset: str, found: list[Outcome]) -> str:
    """Whether the error falls from the least to the most latents that have numbers, at each number of blocks; in the
    paper, too."""
    ours, theirs, compared = _Changes(), _Changes(), []
    for blocks in dict.fromkeys(outcome.cell.parts[1] for outcome in found):
        here = sorted((o for o in found if o.cell.parts[1] == blocks and o.values()), key=_latents)
        if len(here) < 2:
            continue
        few, many = here[0], here[-1]
        compared += [few, many]
        place, step = blocks.split("=")[1], f"{_latents(few)} to {_latents(many)} latents"
        how = SAME if overlap(few, many) else _direction(few.mean, many.mean)
        ours.note(how, step, f"{place} ({few.number} to {many.number})")
        if few.cell.paper is not None and many.cell.paper is not None:
            numbers = f"{thousandths(few.cell.paper)} to {thousandths(many.cell.paper)}"
            theirs.note(_direction(few.cell.paper, many.cell.paper), step, f"{place} ({numbers})")
    if not compared:
        return f"{dataset}: no number of blocks has numbers of two numbers of latents yet."
    beside = f" In the paper, of one seed: {theirs.words()}." if theirs.places else ""
    alone = few_seeds(compared, lambda cell: "/".join(cell.parts[1:]))
    return f"{dataset}, more latents at a fixed number of blocks: {ours.words()}.{alone}{beside}"


SAME, FALLS, RISES = "no difference beyond the spread", "the error falls", "the error does **not** fall"


def _direction(few: float, many: float) -> str:
    return FALLS if many < few else RISES


def _latents(outcome: Outcome) -> int:
    return int(outcome.cell.parts[2].split("=")[1])


class _Changes:
    """How the error changes, by the step and what comes of it: at which numbers of blocks."""

    def __init__(self) -> None:
        self.places: dict[tuple[str, str], list[str]] = {}

    def note(self, how: str, step: str, place: str) -> None:
        self.places.setdefault((how, step), []).append(place)

    def words(self) -> str:
        """`no difference beyond the spread from 16 to 64 latents at 1 (299 ± 7 to 298 ± 16), 2 (…) blocks; …`."""
        return "; ".join(f"{how} from {step} at {', '.join(at)} blocks" for (how, step), at in self.places.items())


ITEM = Item("blocks-latents", "Blocks × latents", cells, report)

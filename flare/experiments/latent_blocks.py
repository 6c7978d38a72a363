"""Figure: transformer blocks on the latents, so many in each block of FLARE, on Elasticity: error against time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

from flare.experiments.ablation import Point, Settings, curves, grid_cells, measured, table_of
from flare.experiments.budgets import Budget
from flare.experiments.ledger import Ledger
from flare.experiments.study import Block, Cell, Item, Outcome, digits, error_table, origin, outcomes
from flare.experiments.tables import Table
from flare.experiments.verdicts import NO_DIFFERENCE, overlap, without_numbers

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
PAPERS_SECONDS = table_of(
    BLOCKS,
    {
        0: (4.6, 6.5, 9.9, 16.8),
        1: (5.2, 7.6, 12.3, 21.9),
        2: (5.6, 8.3, 15.8, 25.7),
        4: (6.5, 10.2, 17.9, 34.2),
        8: (8.3, 13.7, 24.8, 48.8),
    },
)
"""(blocks, latent blocks) -> seconds of an epoch, printed there too; on which GPU the paper does not say."""
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
    blocks: list[Block] = [_with_seconds(found, budget)]
    if measured(found):
        caption = "Relative L2 error over the number of blocks; a curve for every number of latent blocks in each."
        pictures = curves("latent-blocks", found, axis="blocks", by="latent blocks", caption=caption)
        blocks += [_verdict(cells(budget), found), _worth_their_time(found, budget), *pictures]
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
            doubt = f" ({NO_DIFFERENCE.lower()} from {', '.join(close)})" if close else ""
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


def _with_seconds(found: list[Outcome], budget: Budget) -> Table:
    """Seconds of an epoch before the last column, ours of the records and the paper's."""
    plain = error_table(("dataset", "blocks", "latent blocks"), found)
    head = [*plain.head[:-1], "s an epoch, least of the seeds", "paper: s an epoch, its GPU", plain.head[-1]]
    rows = []
    for row, outcome in zip(plain.rows, found, strict=True):
        seconds = min(_seconds(outcome), default=None)
        paper = PAPERS_SECONDS.get(_point(outcome)) if budget.comparable else None
        times = ["" if value is None else f"{value:.1f}" for value in (seconds, paper)]
        rows.append([*row[:-1], *times, row[-1]])
    return Table(head, rows, text=plain.text, notes=plain.notes)


def _seconds(outcome: Outcome) -> list[float]:
    """Of an epoch, evaluations included, by seed: of the CPU where a record has them, else by the clock, which also
    counts what the machine did besides; the least is then the least disturbed."""
    done = [record for record in outcome.records if record.outcome == "done" and record.result.get("epochs")]
    known = [(r.made.get("cpu_seconds") or r.made.get("seconds"), r.result["epochs"]) for r in done]
    return [seconds / epochs for seconds, epochs in known if seconds]


def _worth_their_time(found: list[Outcome], budget: Budget) -> str:
    """What the figure is about: the cells that nothing beats in both time and error, ours and the paper's."""
    timed = [(seconds, o) for o in found if o.values() and (seconds := _seconds(o))]
    if not timed:
        return ""
    scatter = max(max(seconds) / min(seconds) for seconds, _ in timed)
    papers = [(PAPERS_SECONDS[point], 1e-3 * error, *point) for point, error in PAPER.items()]
    beside = f" In the paper: {_front(papers)}." if budget.comparable else ""
    return (
        "Beaten by none in both time and error, as blocks/latent blocks (s an epoch, error × 1e-3). "
        f"Here: {_front([(min(seconds), o.mean, *_point(o)) for seconds, o in timed])}.{beside} "
        "Ours are seconds of the CPU, or of the clock where a record has no others: of the seeds of a cell, which have "
        f"the same to do and differ by up to {scatter:.1f}×, the least."
    )


def _front(measured: list[tuple[float, ...]]) -> str:
    """Of (seconds, error, blocks, latent blocks), those that no other equals in one and beats in the other."""
    best = sorted(one for one in measured if not any(_beats(other, one) for other in measured))
    times = _apart([one[0] for one in best], lambda seconds, more: f"{seconds:.{1 + more}f}")
    errors = _apart([one[1] for one in best], lambda error, more: digits(error, None, 1e-3, more))
    return ", ".join(f"{b:g}/{m:g} ({s}, {e})" for s, e, (*_, b, m) in zip(times, errors, best, strict=True))


def _beats(one: Sequence[float], other: Sequence[float]) -> bool:
    return one[0] <= other[0] and one[1] <= other[1] and tuple(one[:2]) != tuple(other[:2])


def _apart(values: Sequence[float], printed: Callable[[float, int], str]) -> list[str]:
    """In the usual digits, or as many more as it takes to see which of two is less."""
    tries = ([printed(value, more) for value in values] for more in count())
    return next(texts for texts in tries if len(set(texts)) == len(set(values)))


def _point(outcome: Outcome) -> Point:
    return tuple(int(part.split("=")[1]) for part in outcome.cell.parts[1:])


def _latent_blocks(outcome: Outcome) -> str:
    return outcome.cell.parts[2].split("=")[1]


ITEM = Item("latent-blocks", "Latent blocks × blocks", cells, report)

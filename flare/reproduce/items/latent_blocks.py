"""Figure: transformer blocks on the latents, so many in each block of FLARE, on Elasticity.

The paper's is a grid of blocks by latent blocks, with error, parameters and seconds of an epoch in each cell: here a
table, and a picture of the error over the blocks.
"""

from __future__ import annotations

from flare.reproduce.budgets import Budget
from flare.reproduce.items.ablation import Point, Settings, curves, drawable, grid_cells, table_of
from flare.reproduce.ledger import Ledger
from flare.reproduce.study import Block, Cell, Item, Outcome, error_table, origin, outcomes, thousandths
from flare.reproduce.tables import Table
from flare.reproduce.verdicts import NO_DIFFERENCE, only_some, overlap, without_numbers

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
    if any(outcome.values() for outcome in found):
        blocks += [_verdict(cells(budget), found), _worth_their_time(found, budget)]
    if drawable(found):
        caption = "Relative L2 error over the number of blocks; a curve for every number of latent blocks in each."
        blocks.append(curves("latent-blocks", cells(budget), found, axis="blocks", by="latent blocks", caption=caption))
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
    known = sum(bool(outcome.values()) for outcome in found)
    start = only_some(known, len(wanted), "cells", "Lowest error")
    words = (
        f"{start} at a fixed number of blocks, by latent blocks: {', '.join(best)}."
        if best
        else "No number of blocks has two cells with numbers yet."
    )
    missing = without_numbers(wanted, found, lambda cell: "/".join(cell.parts[1:]))
    return (
        f"{words}{missing} The paper's sentence that latent blocks consistently degrade accuracy holds in its own "
        "figure at equal parameters, not at equal blocks."
    )


def _with_seconds(found: list[Outcome], budget: Budget) -> Table:
    """Seconds of an epoch before the last column, ours of the records and the paper's, and the machine among the
    departures."""
    plain = error_table(("dataset", "blocks", "latent blocks"), found)
    head = [*plain.head[:-1], OURS, THEIRS, plain.head[-1]]
    rows = []
    for row, outcome in zip(plain.rows, found, strict=True):
        seconds = min(_seconds(outcome), default=None)
        paper = PAPERS_SECONDS.get(_point(outcome)) if budget.comparable else None
        times = ["" if value is None else f"{value:.1f}" for value in (seconds, paper)]
        machine = "" if seconds is None or paper is None else f"seconds of {_machine(outcome)}, not of the paper's GPU"
        rows.append([*row[:-1], *times, "; ".join(words for words in (row[-1], machine) if words)])
    return Table(head, rows, text=plain.text, notes=plain.notes)


OURS, THEIRS = "s an epoch on our machine, least of the seeds", "paper: s an epoch on its GPU, not comparable"


def _machine(outcome: Outcome) -> str:
    made = outcome.records[0].made
    return next((str(value) for key, value in made.items() if key.startswith("cuda:")), "a CPU")


def _seconds(outcome: Outcome) -> list[float]:
    """Of an epoch, evaluations included, by seed: of the CPU where a record has them, else by the clock, which also
    counts what the machine did besides; the least is then the least disturbed."""
    done = [record for record in outcome.records if record.outcome == "done" and record.result.get("epochs")]
    known = [(r.made.get("cpu_seconds") or r.made.get("seconds"), r.result["epochs"]) for r in done]
    return [seconds / epochs for seconds, epochs in known if seconds]


def _worth_their_time(found: list[Outcome], budget: Budget) -> str:
    """What the figure is about: which cells others beat in both time and error, of ours as far as such times tell it,
    and which none beats in the paper."""
    timed = [(min(seconds), o) for o in found if o.values() and (seconds := _seconds(o))]
    if not timed:
        return ""
    scatter = max(max(seconds) / min(seconds) for _, o in timed if (seconds := _seconds(o)))
    beaten = [
        f"{_name(slow)} by {_name(fast)} ({time:.1f} and {less:.1f} s an epoch, {slow.number} and {fast.number})"
        for time, slow in timed
        for less, fast in timed
        if time > scatter * less and fast.mean < slow.mean and not overlap(slow, fast)
    ]
    if any(len(_seconds(o)) > 1 for _, o in timed):
        caution = (
            f"Seeds of a cell have the same to do, and their times differ by up to {scatter:.1f}×: only of cells whose "
            "times differ by more can it be told which is faster."
        )
    else:
        caution = "Of one seed: by how much such times differ with nothing to cause it is not known."
    beside = (
        " In the paper, beaten by none in both (s an epoch, error × 1e-3; one seed, one time): "
        f"{_front()}. {NOT_COMPARABLE.format(' and '.join(dict.fromkeys(_machine(o) for _, o in timed)))}"
        if budget.comparable
        else ""
    )
    return (
        "Beaten in both time and error, beyond the scatter of both, as blocks/latent blocks: "
        f"{'; '.join(beaten) or 'none'}. {caution} They are seconds of the CPU, or of the clock where a record has no "
        f"others.{beside}"
    )


NOT_COMPARABLE = (
    "Its seconds are of a GPU that it does not name, ours of {}, and of the data and model that the departures name: "
    "compare them down a column, never across."
)


def _front() -> str:
    """`1/0 (4.6, 21.2), …`: the paper's cells that no other equals in one and beats in the other."""
    measured = {point: (PAPERS_SECONDS[point], error) for point, error in PAPER.items()}
    best = {p: m for p, m in measured.items() if not any(_beats(other, m) for other in measured.values())}
    told = sorted(best.items(), key=lambda item: item[1])
    return ", ".join(f"{b}/{m} ({seconds:.1f}, {thousandths(1e-3 * error)})" for (b, m), (seconds, error) in told)


def _beats(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return one[0] <= other[0] and one[1] <= other[1] and one != other


def _point(outcome: Outcome) -> Point:
    return tuple(int(part.split("=")[1]) for part in outcome.cell.parts[1:])


def _name(outcome: Outcome) -> str:
    """`2/4`: blocks and latent blocks."""
    return "/".join(map(str, _point(outcome)))


def _latent_blocks(outcome: Outcome) -> str:
    return outcome.cell.parts[2].split("=")[1]


ITEM = Item("latent-blocks", "Latent blocks × blocks", cells, report)

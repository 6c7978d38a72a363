"""Sentences about outcomes that stay true while some have failed or are still to come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from flare.reproduce.study import Cell, Outcome

Name = Callable[[Cell], str]
"""What a sentence calls a cell."""


def without_numbers(cells: Sequence[Cell], found: Sequence[Outcome], name: Name) -> str:
    """` Failed: lno. No record yet: gnot.`, beginning with a space; empty where all cells have numbers."""
    of = {outcome.cell.parts: outcome for outcome in found}
    kinds: dict[str, list[str]] = {"Failed": [], "Unfinished": [], "No record yet": []}
    for cell in cells:
        outcome = of.get(cell.parts)
        if outcome is None:
            kinds["No record yet"].append(name(cell))
        elif not outcome.values():
            kinds["Failed" if outcome.failed else "Unfinished"].append(name(cell))
    return "".join(f" {kind}: {', '.join(names)}." for kind, names in kinds.items() if names)


SPREAD = (
    "Numbers with ±: mean ± sample standard deviation (n − 1) over the seeds. Two spreads overlap when the means "
    "differ by no more than both deviations together, which is no difference beyond the spread; a single seed has none."
)
"""Under the head of every page with spreads."""


def overlap(a: Outcome, b: Outcome) -> bool:
    """Whether mean ± standard deviation of both have something in common: see `SPREAD`."""
    return abs(a.mean - b.mean) <= (a.spread or 0.0) + (b.spread or 0.0)


def doubts(best: Outcome, others: Sequence[Outcome], name: Name) -> str:
    """` No difference beyond the spread from lno (14.0 ± 2.8).`: what might be the best, too; begins with a space."""
    close = [f"{name(other.cell)} ({other.number})" for other in others if overlap(best, other)]
    words = f" {NO_DIFFERENCE} from {', '.join(close)}." if close else ""
    return words + few_seeds([best, *others], name)


NO_DIFFERENCE = "No difference beyond the spread"


OF_ONE_SEED = " Of one seed, so without a spread: "


def few_seeds(found: Sequence[Outcome], name: Name) -> str:
    """Which of those with numbers have one seed alone, and which have lost some; beginning with a space."""
    single = [name(outcome.cell) for outcome in found if outcome.spread is None]
    which = "all" if len(single) == len(found) > 1 else ", ".join(single)
    words = f"{OF_ONE_SEED}{which}." if single else ""
    lost = [f"{name(o.cell)} {o.failed} of {len(o.records)}" for o in found if o.failed]
    return words + (f" Seeds that failed: {', '.join(lost)}." if lost else "")


def flare_among(ranked: Sequence[Outcome], cells: Sequence[Cell], found: Sequence[Outcome], word: str) -> str:
    """Whether FLARE is first of those with numbers, who else might be, and who has none.

    Args:
        ranked: those with numbers, the best first; at least one.
        cells: all that should have one.
        word: for the first, such as `lowest`.
    """

    def name(cell: Cell) -> str:
        return cell.parts[1]

    best, others = ranked[0], ranked[1:]
    missing = without_numbers(cells, found, name)
    among = " of those with numbers" if missing else ""
    mean = " by its mean" if any(overlap(best, other) for other in others) else ""
    if name(best.cell) == "flare":
        words = f" FLARE is the {word}{among}{mean}."
    elif any(name(outcome.cell) == "flare" for outcome in others):
        words = f" FLARE is **not** the {word}{among}: {name(best.cell)} is{mean}."
    else:
        words = f" The {word}{among}{mean} is {name(best.cell)}; FLARE has none."
    return words + doubts(best, others, name) + missing


def falling(lines: Sequence[Sequence[Cell]], found: Sequence[Outcome]) -> str:
    """Whether the error falls at every step along lines of cells, and which steps cannot be told."""
    of = {outcome.cell.parts: outcome for outcome in found if outcome.values()}
    steps = [step for line in lines for step in pairwise(line)]
    known = [(of[a.parts], of[b.parts]) for a, b in steps if a.parts in of and b.parts in of]
    missing = without_numbers([cell for line in lines for cell in line], found, _axes)
    if not known:
        return "too few cells have numbers to say whether the error falls with more blocks." + missing
    rising = [_step(a, b) for a, b in known if b.mean >= a.mean]
    slight = [_step(a, b) for a, b in known if b.mean < a.mean and overlap(a, b)]
    among = "" if len(known) == len(steps) else f", of the {len(known)} of {len(steps)} steps that have both numbers"
    if rising:
        words = f"the error does **not** fall at every step to more blocks{among} ({'; '.join(rising)})."
    else:
        words = f"the error falls with every step to more blocks{among}."
    words += f" It falls by less than the spread: {'; '.join(slight)}." if slight else ""
    return words + few_seeds(list(of.values()), _axes) + missing


def lowest(cells: Sequence[Cell], found: Sequence[Outcome], axis: str, by: str) -> str:
    """Which value of an axis has the lowest error, for every value of the other; the paper's choice; what is missing.

    Args:
        cells: of a grid, each (dataset, value of the axis, value of the other).
        axis: what the text calls the first of these.
        by: and the other.
    """
    words = ""
    for line in dict.fromkeys(cell.parts[2] for cell in cells):
        wanted = [cell for cell in cells if cell.parts[2] == line]
        ranked = sorted((o for o in found if o.cell.parts[2] == line and o.values()), key=lambda outcome: outcome.mean)
        if len(ranked) > 1:
            best = ranked[0]
            start = only_some(len(ranked), len(wanted), f"{axis}s", "Lowest")
            words += f" {start} with {_value(line)} {by}: {axis} {_at(best.cell)}, {best.number}."
            words += doubts(best, ranked[1:], _at) + _of_the_paper(wanted)
    if not words:
        words = f" Too few cells have numbers to say which {axis} has the lowest error."
    return words.strip() + without_numbers(cells, found, _axes)


def only_some(known: int, of: int, what: str, start: str) -> str:
    """`3 of the 6 depths only. Lowest`: before a verdict that others may yet change; the start alone where all are."""
    return start if known == of else f"{known} of the {of} {what} only. {start}"


def _of_the_paper(cells: Sequence[Cell]) -> str:
    """` The paper's lowest of 2, 4, 8: 4.`, beginning with a space; empty where it has no number beside each."""
    numbers = {_at(cell): cell.paper for cell in cells if cell.paper is not None}
    if len(numbers) < len(cells):
        return ""
    return f" The paper's lowest of {', '.join(numbers)}: {min(numbers, key=lambda value: numbers[value])}."


def _at(cell: Cell) -> str:
    """`4` for `width=4`."""
    return _value(cell.parts[1])


def _value(part: str) -> str:
    return part.split("=")[1]


def _axes(cell: Cell) -> str:
    """`blocks=2/latents=64`, without the dataset."""
    return "/".join(cell.parts[1:])


def _step(a: Outcome, b: Outcome) -> str:
    return f"{_axes(a.cell)} to {_axes(b.cell)}, {a.number} to {b.number}"

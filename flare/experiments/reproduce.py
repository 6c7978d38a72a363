"""The paper's tables and figures by name: plan them, do them, look whether a cell comes out again."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path

from flare.errors import ConfigError, DataError, nearest
from flare.experiments.budgets import BENCHMARKS, BUDGETS, Budget
from flare.experiments.estimate import job_seconds, making_seconds
from flare.experiments.jobs import Job, Place, Training, needed_data
from flare.experiments.ledger import Ledger
from flare.experiments.names import ITEMS
from flare.experiments.study import Cell, Item, Outcome, chosen, outcomes
from flare.experiments.sweep import sweep


def item_named(name: str) -> Item:
    if name not in ITEMS:
        raise ConfigError(f"there is no table or figure {name!r}; {nearest(name, ITEMS)}")
    return import_module(f"flare.experiments.{ITEMS[name]}").ITEM


def selected(what: str, only: Sequence[str] | None) -> list[tuple[Item, list[str] | None]]:
    """Items and their chosen cells, in the order asked for; of `all` every choice begins with the name of an item."""
    if what != "all":
        return [(item_named(what), list(only) if only else None)]
    parts = [choice.partition("/") for choice in only or ITEMS]
    return [(item_named(name), [cells] if cells else None) for name, _, cells in parts]


def planned(item: Item, budget: Budget, only: Sequence[str] | None, seeds: int | None) -> list[Job]:
    """The jobs of an item; those that look at a trained model bring its training along."""
    jobs: list[Job] = []
    for cell in chosen(item.cells(budget), only):
        for job in cell.jobs(seeds or cell.seeds or budget.seeds(cell.job)):
            jobs += [job.training, job] if job.training is not None else [job]
    return jobs


def estimated_seconds(jobs: Sequence[Job], ledger: Ledger, workers: int) -> float:
    """For what has no record: making its data included, as though none were there."""
    missing = list({ledger.path(job): job for job in jobs if ledger.find(job) is None}.values())
    seconds = [job_seconds(job) for job in missing]
    making = sum(map(making_seconds, needed_data(missing)))
    return making / workers + max(sum(seconds) / workers, max(seconds, default=0.0))


@dataclass(frozen=True)
class Line:
    """Of the list: an item, or the cells of one benchmark where it has several."""

    name: str
    title: str
    costs: Mapping[str, tuple[int, float]]
    """Budget -> (jobs, seconds)."""


def listing(ledger: Ledger, workers: int) -> list[Line]:
    lines = []
    for name in ITEMS:
        item = item_named(name)
        lines.append(Line(name, item.title, _costs(item, None, ledger, workers)))
        benchmarks = [b for b in BENCHMARKS if any(b == cell.parts[0] for cell in item.cells(BUDGETS["paper"]))]
        if len(benchmarks) > 1:
            lines += [Line(f"{name}/{b}", "", _costs(item, [b], ledger, workers)) for b in benchmarks]
    return lines


def _costs(item: Item, only: Sequence[str] | None, ledger: Ledger, workers: int) -> dict[str, tuple[int, float]]:
    plans = {budget.name: planned(item, budget, only, None) for budget in BUDGETS.values()}
    return {
        key: (len({ledger.path(job) for job in jobs}), estimated_seconds(jobs, ledger, workers))
        for key, jobs in plans.items()
    }


def verify(
    cells: Sequence[Cell],
    ledger: Ledger,
    place: Place,
    *,
    workers: int,
    threads: int,
    scheduler: str | None = None,
    tell: Callable[[str], None],
) -> bool:
    """Train some cells again, with the seeds of their records, and say whether they come out within their spread.

    The records stay as they are.
    """
    found = [outcome for outcome in outcomes(ledger, cells) if isinstance(outcome.cell.job, Training)]
    if not found:
        raise DataError(f"none of these cells is a training with records in {ledger.folder}; nothing to verify")
    place.root.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="again-", dir=place.root))
    try:
        anew = Ledger(folder / "records")
        jobs = [job for outcome in found for job in outcome.jobs]
        there = replace(place, runs=f"{folder.name}/runs")
        sweep(jobs, anew, there, workers=workers, threads=threads, scheduler=scheduler, tell=tell)
        after = outcomes(anew, [outcome.cell for outcome in found])
        verdicts = [_agrees(then, now, tell) for then, now in zip(found, after, strict=True)]
    finally:
        shutil.rmtree(folder)
    return all(verdicts)


LEAST = 0.05
"""Part of the recorded error within which a cell of one seed, which has no spread, should come out again."""


def _agrees(before: Outcome, after: Outcome, tell: Callable[[str], None]) -> bool:
    single = before.spread is None
    allowed = LEAST * before.mean if before.spread is None else before.spread
    good = abs(after.mean - before.mean) <= allowed if before.values() else not after.values()
    span = f"{LEAST:.0%}, having one seed and no spread" if single else "the spread"
    words = f"within {span}" if good else f"OUTSIDE {span}: {allowed:.2g} is allowed"
    tell(f"{'/'.join(before.cell.parts)}: recorded {before.error()}, now {after.error()}  ({words})")
    return good

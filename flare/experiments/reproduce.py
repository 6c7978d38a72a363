"""The paper's tables and figures by name: plan them, do them, look whether a cell comes out again."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from flare.errors import ConfigError, DataError, nearest
from flare.experiments.budgets import BUDGETS, Budget
from flare.experiments.estimate import job_seconds, making_seconds
from flare.experiments.jobs import Job, Place, Training, needed_data
from flare.experiments.ledger import Ledger
from flare.experiments.names import ABSENT, ITEMS
from flare.experiments.study import Cell, Item, Outcome, chosen, outcomes
from flare.experiments.sweep import sweep


def item_named(name: str) -> Item:
    if name in ABSENT:
        raise ConfigError(f"{name} ({ABSENT[name]}) is not in this version yet; see:  flare reproduce list")
    if name not in ITEMS:
        raise ConfigError(f"there is no table or figure {name!r}; {nearest(name, ITEMS)}")
    return import_module(f"flare.experiments.{ITEMS[name]}").ITEM


def planned(item: Item, budget: Budget, only: Sequence[str] | None, seeds: int | None) -> list[Job]:
    """The jobs of an item; those that look at a trained model bring its training along."""
    jobs: list[Job] = []
    for cell in chosen(item.cells(budget), only):
        for job in cell.jobs(seeds or budget.seeds):
            jobs += [job.training, job] if job.training is not None else [job]
    return jobs


def estimated_seconds(jobs: Sequence[Job], ledger: Ledger) -> float:
    """Core seconds for what has no record: making its data included, as though none were there."""
    missing = {ledger.path(job): job for job in jobs if ledger.find(job) is None}.values()
    return sum(map(job_seconds, missing)) + sum(map(making_seconds, needed_data(list(missing))))


def listing(ledger: Ledger) -> list[tuple[str, str, dict[str, tuple[int, float]]]]:
    """(name, title, budget -> (jobs, core seconds of those without a record)) of every item."""
    found = []
    for name in ITEMS:
        item = item_named(name)
        plans = {budget.name: planned(item, budget, None, None) for budget in BUDGETS.values()}
        costs = {
            key: (len({ledger.path(job) for job in jobs}), estimated_seconds(jobs, ledger))
            for key, jobs in plans.items()
        }
        found.append((name, item.title, costs))
    return found


def verify(
    cells: Sequence[Cell], ledger: Ledger, place: Place, *, workers: int, threads: int, tell: Callable[[str], None]
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
        jobs = [job for outcome in found for job in outcome.cell.jobs(len(outcome.records))]
        sweep(jobs, anew, replace(place, runs=f"{folder.name}/runs"), workers=workers, threads=threads, tell=tell)
        after = outcomes(anew, [outcome.cell for outcome in found])
        verdicts = [_agrees(then, now, tell) for then, now in zip(found, after, strict=True)]
    finally:
        shutil.rmtree(folder)
    return all(verdicts)


LEAST = 0.05
"""Part of the recorded error within which a cell of one seed, which has no spread, should come out again."""


def _agrees(before: Outcome, after: Outcome, tell: Callable[[str], None]) -> bool:
    allowed = LEAST * before.mean if before.spread is None else before.spread
    good = abs(after.mean - before.mean) <= allowed if before.values() else not after.values()
    words = "within the spread" if good else f"OUTSIDE: {allowed:.2g} is allowed"
    tell(f"{'/'.join(before.cell.parts)}: recorded {before.error()}, now {after.error()}  ({words})")
    return good

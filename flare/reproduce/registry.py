"""Look up tables and figures by name, list their jobs, and estimate what these cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from flare.reproduce import ITEMS
from flare.reproduce.budgets import BENCHMARKS, BUDGETS, Budget
from flare.reproduce.estimate import job_seconds, making_seconds
from flare.reproduce.jobs import Job, Training, needed_data
from flare.reproduce.ledger import Ledger, address
from flare.reproduce.study import Cell, Item, select_cells
from flare.utils.errors import ConfigError, suggest_name
from flare.utils.registry import import_attribute


def find_item(name: str) -> Item:
    """Return the table or figure of a name.

    Raises:
        ConfigError: The name is unknown.
    """
    if name not in ITEMS:
        raise ConfigError(f"unknown item {name!r}; {suggest_name(name, ITEMS)}  (see: flare reproduce list)")
    item: Item = import_attribute(ITEMS[name])
    return item


def select_items(what: str, only: Sequence[str] | None) -> list[tuple[Item, list[str] | None]]:
    """Return items with the names of their selected cells.

    Args:
        what: Name of an item, or `all`.
        only: Names of cells; with `all`, names of items that may be followed by `/` and a cell.
    """
    if what != "all":
        return [(find_item(what), list(only) if only else None)]
    parts = [choice.partition("/") for choice in only or ITEMS]
    return [(find_item(name), [cells] if cells else None) for name, _, cells in parts]


def planned(item: Item, budget: Budget, only: Sequence[str] | None, seeds: int | None) -> list[Job]:
    """List the jobs of an item, with the trainings of the models that they analyze."""
    jobs = cell_jobs(item, budget, only, seeds)
    return [each for _, job in jobs for each in (job.training, job) if each is not None]


def cell_jobs(item: Item, budget: Budget, only: Sequence[str] | None, seeds: int | None) -> list[tuple[Cell, Job]]:
    """List the selected cells of an item with their jobs."""
    cells = select_cells(item.cells(budget), only)
    return [(cell, job) for cell in cells for job in cell.jobs(seeds or cell.seeds or budget.seeds(cell.job))]


def job_names(jobs: Iterable[tuple[Cell, Job]]) -> dict[str, str]:
    """Map the address of each job, and of the training it needs, to the name of its cell and its seed."""
    names: dict[str, str] = {}
    for cell, job in jobs:
        for each in (job.training, job):
            if each is not None:
                seed = f", seed {each.seed}" if isinstance(each, Training) else ""
                names.setdefault(address(each), cell.name + seed)
    return names


@dataclass(frozen=True)
class JobCost:
    """Number of jobs and estimated time, as if none had a record and no data existed."""

    jobs: int
    recorded: int
    """Jobs with a record of success or failure, which are not done again."""
    unfinished: int
    """Jobs with a record of their progress."""
    seconds: float


def list_items(ledgers: Mapping[str, Ledger], workers: int) -> dict[str, dict[str, JobCost]]:
    """Return item, or item and benchmark if it has several, -> budget -> cost.

    Args:
        ledgers: Budget -> its records.
        workers: Number of processes that share the work.
    """
    lines = {}
    for name in ITEMS:
        item = find_item(name)
        lines[name] = _costs(item, None, ledgers, workers)
        benchmarks = [b for b in BENCHMARKS if any(b == cell.parts[0] for cell in item.cells(BUDGETS["paper"]))]
        if len(benchmarks) > 1:
            lines |= {f"{name}/{b}": _costs(item, [b], ledgers, workers) for b in benchmarks}
    return lines


def _costs(item: Item, only: Sequence[str] | None, ledgers: Mapping[str, Ledger], workers: int) -> dict[str, JobCost]:
    plans = {budget.name: planned(item, budget, only, None) for budget in BUDGETS.values()}
    return {key: _cost(jobs, ledgers[key], workers) for key, jobs in plans.items()}


def _cost(jobs: Sequence[Job], ledger: Ledger, workers: int) -> JobCost:
    each = list({ledger.path(job): job for job in jobs}.values())
    seconds = [job_seconds(job) for job in each]
    making = sum(map(making_seconds, needed_data(each)))
    whole = making / workers + max(sum(seconds) / workers, max(seconds, default=0.0))
    ended = [record.outcome != "unfinished" for job in each if (record := ledger.find(job)) is not None]
    return JobCost(len(each), sum(ended), len(ended) - sum(ended), whole)

"""The paper's tables and figures by name: what each has to do, and how long that takes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module

from flare.reproduce.budgets import BENCHMARKS, BUDGETS, Budget
from flare.reproduce.estimate import job_seconds, making_seconds
from flare.reproduce.jobs import Job, Training, needed_data
from flare.reproduce.ledger import Ledger, address
from flare.reproduce.names import ITEMS
from flare.reproduce.study import Cell, Item, chosen
from flare.utils.errors import ConfigError, nearest


def item_named(name: str) -> Item:
    if name not in ITEMS:
        raise ConfigError(f"there is no table or figure {name!r}; {_meant(name)}")
    return import_module(f"flare.reproduce.items.{ITEMS[name]}").ITEM


def _meant(name: str) -> str:
    """What to give in place of a name that no item has, such as one that counts as the paper does: `figure-9`."""
    if "," in name:
        return f"several are:  all --only {name}"
    number = re.fullmatch(r"(fig|tab)(?:ure|le)?[-_. ]*(\d+)", name.lower())
    where = f"{'Figure' if number[1] == 'fig' else 'Table'} {number[2]}" if number else ""
    found = [item for item in ITEMS if where in _places(item_named(item))]
    return f"{where} of the paper is {' and '.join(found)}" if found else nearest(name, ITEMS)


def _places(item: Item) -> set[str]:
    """`Figure 2` and `Figure 8` of a heading that ends in (Figures 2 and 8); not what is `as in` one, or `of` it."""
    found = re.findall(r"(?<!in )(?<!of )(Figure|Table)s? (\d+)(?: and (\d+))?", item.heading)
    return {f"{kind} {number}" for kind, *numbers in found for number in numbers if number}


def selected(what: str, only: Sequence[str] | None) -> list[tuple[Item, list[str] | None]]:
    """Items and their chosen cells, in the order asked for; of `all` every choice begins with the name of an item."""
    if what != "all":
        return [(item_named(what), list(only) if only else None)]
    parts = [choice.partition("/") for choice in only or ITEMS]
    return [(item_named(name), [cells] if cells else None) for name, _, cells in parts]


def planned(item: Item, budget: Budget, only: Sequence[str] | None, seeds: int | None) -> list[Job]:
    """The jobs of an item; those that look at a trained model bring its training along."""
    return [each for _, job in wanted(item, budget, only, seeds) for each in (job.training, job) if each is not None]


def wanted(item: Item, budget: Budget, only: Sequence[str] | None, seeds: int | None) -> list[tuple[Cell, Job]]:
    """The jobs of an item, each with its cell."""
    cells = chosen(item.cells(budget), only)
    return [(cell, job) for cell in cells for job in cell.jobs(seeds or cell.seeds or budget.seeds(cell.job))]


def job_names(jobs: Iterable[tuple[Cell, Job]]) -> dict[str, str]:
    """Address -> cell, as `--only` takes it, and seed of each job, and of the training it looks at."""
    names: dict[str, str] = {}
    for cell, job in jobs:
        for each in (job.training, job):
            if each is not None:
                seed = f", seed {each.seed}" if isinstance(each, Training) else ""
                names.setdefault(address(each), "/".join(cell.parts) + seed)
    return names


@dataclass(frozen=True)
class Cost:
    """Of doing all jobs of a line, recorded or not: making their data included, as though none were there."""

    jobs: int
    recorded: int
    """Of these, done or failed: what is not done again."""
    unfinished: int
    """Of these, with a record of how far they came."""
    seconds: float


@dataclass(frozen=True)
class Line:
    """Of the list: an item, or the cells of one benchmark where it has several."""

    name: str
    title: str
    costs: Mapping[str, Cost]
    """Of each budget."""


def listing(ledgers: Mapping[str, Ledger], workers: int) -> list[Line]:
    """A line an item.

    Args:
        ledgers: of each budget.
    """
    lines = []
    for name in ITEMS:
        item = item_named(name)
        lines.append(Line(name, item.heading, _costs(item, None, ledgers, workers)))
        benchmarks = [b for b in BENCHMARKS if any(b == cell.parts[0] for cell in item.cells(BUDGETS["paper"]))]
        if len(benchmarks) > 1:
            lines += [Line(f"{name}/{b}", "", _costs(item, [b], ledgers, workers)) for b in benchmarks]
    return lines


def _costs(item: Item, only: Sequence[str] | None, ledgers: Mapping[str, Ledger], workers: int) -> dict[str, Cost]:
    plans = {budget.name: planned(item, budget, only, None) for budget in BUDGETS.values()}
    return {key: cost_of(jobs, ledgers[key], workers) for key, jobs in plans.items()}


def cost_of(jobs: Sequence[Job], ledger: Ledger, workers: int) -> Cost:
    each = list({ledger.path(job): job for job in jobs}.values())
    seconds = [job_seconds(job) for job in each]
    making = sum(map(making_seconds, needed_data(each)))
    whole = making / workers + max(sum(seconds) / workers, max(seconds, default=0.0))
    ended = [record.outcome != "unfinished" for job in each if (record := ledger.find(job)) is not None]
    return Cost(len(each), sum(ended), len(ended) - sum(ended), whole)

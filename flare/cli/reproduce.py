"""`flare reproduce WHAT`: reproduce tables and figures of the paper, or write pages from records."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flare.cli import count, make_parser, parse
from flare.reproduce import ITEMS
from flare.utils.errors import ConfigError
from flare.utils.terminal import print_status
from flare.utils.text import counted, duration

if TYPE_CHECKING:
    from flare.reproduce.registry import JobCost

WORK = "runs/reproduce"
RECORDS = "results/records"
"""Records of the budgets cpu and paper. Those of smoke are in the work folder."""
TAKEN = {"list": ("workers", "records", "work"), "pages": ("records", "out")}
"""Command -> its options."""
EPILOG = f"""WHAT is one of: {", ".join(ITEMS)}; or
  list     all of them, with estimated time and recorded jobs
  pages    write docs/results from the records
  all      one after another; --only names items in the order to do them: table1/elasticity,spectra

examples:
  flare reproduce list
  flare reproduce table1 --budget smoke
  flare reproduce table1 --budget cpu --only elasticity --workers 2
  flare reproduce table1 --budget cpu --only elasticity/flare --verify
  flare reproduce pages

Jobs with a record are not done again. Repeat the command to resume stopped jobs. The exit code is 1 if jobs have
failed, or if --verify finds a cell that does not agree with its records."""


def run(words: Sequence[str]) -> int:
    """Run the command."""
    parser = make_parser("reproduce", "Reproduce the tables and figures of the paper, each by one command.", EPILOG)
    add = parser.add_argument
    add("what", help="a table or figure, list, pages, or all")
    add("--budget", choices=["smoke", "cpu", "paper"], help="size of the experiments; see docs/paper/reproduce.md")
    add("--seeds", type=count, help="number of seeds; default 3 for Elasticity and Table 2 of budget cpu, otherwise 1")
    add("--only", help="cells, such as elasticity or elasticity/flare,darcy/flare; for all: items")
    add("--workers", type=count, help="processes; default number of GPUs, or of cores")
    add("--threads", type=count, help="threads of each worker; default 1")
    add("--scheduler", help="address of a dask scheduler to use instead, such as tcp://10.0.0.1:8786")
    add("--published", action="store_true", help="read published files; only for --budget paper")
    add("--retry", action="store_true", help="do failed jobs again")
    add("--verify", action="store_true", help="do recorded cells again and compare; see docs/paper/reproduce.md")
    add("--records", help=f"folder of the records; default {RECORDS}, for smoke WORK/smoke/records")
    add("--work", help=f"folder of data and runs; default {WORK}")
    add("-o", "--out", help="folder of tables and figures; default WORK/<budget>; pages: docs/results")
    given = parse(parser, words)
    used = [name for name, value in vars(given).items() if name != "what" and value not in (None, False)]
    taken = TAKEN.get(given.what, used)
    if idle := [name for name in used if name not in taken]:
        raise ConfigError(f"{given.what} does not take --{', --'.join(idle)}, only --{', --'.join(taken)}")
    if given.scheduler and given.workers:
        raise ConfigError("--scheduler uses the workers of its cluster; it does not take --workers")
    given.work = given.work or WORK
    return {"list": _list, "pages": _pages}.get(given.what, _reproduce)(given)


def _records(given: Any, budget: str | None = None) -> Path:
    return Path(given.records or (f"{given.work}/smoke/records" if budget == "smoke" else RECORDS))


def _list(given: Any) -> int:
    from flare.reproduce.budgets import BUDGETS
    from flare.reproduce.ledger import Ledger
    from flare.reproduce.registry import list_items

    ledgers = {budget: Ledger(_records(given, budget)) for budget in BUDGETS}
    if given.records is not None:
        ledgers["cpu"].check_exists()
    workers = given.workers or os.cpu_count() or 1
    for name, costs in list_items(ledgers, workers).items():
        print(f"{name:<26}" + "; ".join(f"{budget}: {_cost(cost)}" for budget, cost in costs.items()))
    print(f"\nEstimated time of all jobs with {counted(workers, 'worker')} of one core each, without a GPU.")
    print("Recorded jobs are not done again; unfinished ones are resumed.")
    return 0


def _cost(cost: JobCost) -> str:
    recorded = "all recorded" if cost.recorded == cost.jobs else f"{cost.recorded} of {cost.jobs} recorded"
    texts = [recorded] * (cost.recorded > 0) + [f"{cost.unfinished} unfinished"] * (cost.unfinished > 0)
    return f"{counted(cost.jobs, 'job')}, {duration(cost.seconds)}" + (f" ({', '.join(texts)})" if texts else "")


def _pages(given: Any) -> int:
    from flare.reproduce.ledger import Ledger, check_writable
    from flare.reproduce.pages import write_pages

    ledger = Ledger(_records(given))
    ledger.check_exists()
    out = Path(given.out or "docs/results")
    check_writable(out, "out")
    for page in write_pages(ledger, out):
        print(page)
    return 0


def _reproduce(given: Any) -> int:
    from flare.reproduce.budgets import budget_named
    from flare.reproduce.jobs import Workspace
    from flare.reproduce.ledger import Ledger, check_writable
    from flare.reproduce.pages import write_report
    from flare.reproduce.registry import cell_jobs, job_names, planned, select_items
    from flare.reproduce.study import MOST_SEEDS, select_cells
    from flare.reproduce.sweep import default_workers, sweep
    from flare.reproduce.verify import verify

    if given.seeds is not None and given.seeds > MOST_SEEDS:
        raise ConfigError(f"--seeds {given.seeds}: at most {MOST_SEEDS}")
    items = select_items(given.what, _only(given.only))
    if not given.budget:
        raise ConfigError("--budget is required: smoke, cpu or paper  (see: flare reproduce list)")
    budget = budget_named(given.budget, published=given.published)
    ledger, workspace = Ledger(_records(given, given.budget)), Workspace(Path(given.work))
    cores = given.workers or os.cpu_count() or 1
    how: dict[str, Any] = {"workers": given.workers or default_workers(), "generators": cores}
    how |= {"threads": given.threads or 1, "scheduler": given.scheduler}
    plans = [planned(item, budget, only, given.seeds) for item, only in items]  # checks --only before anything is done
    if not any(plans):
        raise ConfigError(f"{given.what} has no cells in budget {budget.name}")
    if given.verify:
        ledger.check_exists()
        check_writable(workspace.root, "work")
        cells = [cell for item, only in items for cell in select_cells(item.cells(budget), only)]
        return 0 if verify(cells, ledger, workspace, seeds=given.seeds, **how) else 1
    out = Path(given.out or f"{given.work}/{budget.name}")
    for name, folder in (("work", workspace.root), ("out", out)):
        check_writable(folder, name)  # fails before hours of work
    done = 0
    for (item, only), jobs in zip(items, plans, strict=True):
        names = job_names(cell_jobs(item, budget, only, given.seeds))
        done += sweep(jobs, ledger, workspace, retry=given.retry, names=names, **how)
        text = write_report(item, ledger, budget, out)
        print(text, end="", flush=True)
        if text:
            print_status(f"written: {out / f'{item.name}-{budget.key}.md'}")
    if not done:
        print_status(
            f"all jobs are recorded in {ledger.folder}; --verify does them again, --records DIR starts new records"
        )
    planned_jobs = {ledger.path(job): job for plan in plans for job in plan}.values()
    failed = sum(record is not None and record.outcome == "failed" for record in map(ledger.find, planned_jobs))
    if failed:
        print_status(f"{failed} of {len(planned_jobs)} jobs have failed; --retry does them again")
    return 1 if failed else 0


def _only(text: str | None) -> list[str] | None:
    """Parse names between commas; empty ones are ignored."""
    pieces = [piece.strip(" /") for piece in (text or "").split(",")]
    if text is not None and not any(pieces):
        raise ConfigError(f"--only {text!r} is empty; omit it to do all cells")
    return [piece for piece in pieces if piece] or None

"""`flare reproduce WHAT`: the paper's tables and figures, done again, or made of what is recorded."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flare.cli import parse
from flare.cli.options import make_parser
from flare.reproduce.names import ITEMS
from flare.utils.errors import ConfigError
from flare.utils.terminal import say
from flare.utils.text import counted, duration

if TYPE_CHECKING:
    from flare.reproduce.registry import Cost

WORK = "runs/reproduce"
RECORDS = "results/records"
"""Of the cpu and the paper budget; of smoke they lie among its runs."""
WHOLE = {"list": "tells of all items", "pages": "writes all pages, from all records"}
"""Of which nothing is chosen."""
TAKEN = {"list": ("workers", "records", "work"), "pages": ("records", "out")}
"""Options that mean something to them."""
AT_ODDS = (
    ("verify", "retry", "does again whatever has come to its end"),
    ("verify", "out", "writes no report"),
    ("scheduler", "workers", "has the workers of its cluster"),
)
"""An option, one that means nothing beside it, and why."""
EPILOG = f"""WHAT is one of: {", ".join(ITEMS)}; or
  list     all of them, with the time each takes and what is recorded
  pages    docs/results again, from the records alone
  all      one after another; --only names items, in the order you want them: table1/elasticity,spectra

examples:
  flare reproduce list
  flare reproduce table1 --budget smoke
  flare reproduce table1 --budget cpu --only elasticity --workers 2
  flare reproduce table1 --budget cpu --only elasticity/flare --verify
  flare reproduce pages

What has a record is not done again; what was stopped goes on with the same command. The exit code is 1 where jobs have
failed, or where --verify finds a cell that does not come out as recorded."""


def run(words: Sequence[str]) -> int:
    parser = make_parser("reproduce", "The paper's tables and figures, by one command each.", EPILOG)
    parser.add_argument("what", help="a table or figure, list, pages, or all")
    parser.add_argument("--budget", choices=["smoke", "cpu", "paper"], help="how much of it; docs/reproduce.md tells")
    parser.add_argument(
        "--seeds", type=int, help="of every training: 0, 1, ...; default 3 on cpu of Elasticity and Table 2, else 1"
    )
    parser.add_argument("--only", help="cells, such as elasticity or elasticity/flare,darcy/flare; of all: items")
    parser.add_argument("--workers", type=int, help="processes; default as many as GPUs, else as cores")
    parser.add_argument("--threads", type=int, help="of each worker; default 1")
    parser.add_argument("--scheduler", help="address of a dask scheduler to use instead, such as tcp://10.0.0.1:8786")
    parser.add_argument("--published", action="store_true", help="published files instead of our solvers; paper only")
    parser.add_argument("--retry", action="store_true", help="also do again what has failed")
    parser.add_argument(
        "--verify",
        action="store_true",
        help="do recorded cells again: as recorded, or within what seeds scatter? docs/reproduce.md has the rules",
    )
    parser.add_argument("--records", help=f"folder of the records; default {RECORDS}, of smoke WORK/smoke/records")
    parser.add_argument("--work", help=f"folder of data and runs; default {WORK}")
    parser.add_argument("--out", help="folder of tables and pictures; default WORK/<budget>; of pages docs/results")
    given = parse(parser, words)
    for name in ("seeds", "workers", "threads"):
        value = getattr(given, name)
        if value is not None and value < 1:
            raise ConfigError(f"--{name} {value}: at least 1, please")
    _refuse_idle_options(given)
    given.work, given.threads = given.work or WORK, given.threads or 1
    if given.what == "list":
        return _list(given)
    if given.what == "pages":
        return _pages(given)
    return _reproduce(given)


def _refuse_idle_options(given: Any) -> None:
    """An option that changes nothing would mislead whoever gives it."""
    used = [name for name, value in vars(given).items() if name != "what" and value not in (None, False)]
    if given.what in WHOLE:
        taken = TAKEN[given.what]
        idle = [name for name in used if name not in taken]
        if idle:
            only = f"it takes no --{', --'.join(idle)}, only --{', --'.join(taken)}"
            raise ConfigError(f"{given.what} {WHOLE[given.what]}; {only}")
    for option, name, why in AT_ODDS:
        if option in used and name in used:
            raise ConfigError(f"--{option} {why}; it takes no --{name}")


def _cores() -> int:
    return os.cpu_count() or 1


def _records(given: Any, budget: str | None = None) -> Path:
    return Path(given.records or (f"{given.work}/smoke/records" if budget == "smoke" else RECORDS))


def _list(given: Any) -> int:
    from flare.reproduce.budgets import BUDGETS
    from flare.reproduce.ledger import Ledger
    from flare.reproduce.registry import listing

    ledgers = {budget: Ledger(_records(given, budget)) for budget in BUDGETS}
    if given.records is not None:
        ledgers["cpu"].refuse_no_folder()
    workers = given.workers or _cores()
    lines = listing(ledgers, workers)
    rows = [
        [f"{counted(cost.jobs, 'job')}, {duration(cost.seconds)}{_recorded(cost)}" for cost in line.costs.values()]
        for line in lines
    ]
    width = 2 + max(len(cell) for row in rows for cell in row)
    print(f"{'':<26}" + "".join(f"{budget:>{width}}" for budget in lines[0].costs))
    for line, row in zip(lines, rows, strict=True):
        print(f"{line.name:<26}" + "".join(f"{cell:>{width}}" for cell in row) + f"   {line.title}".rstrip())
    each = f"{counted(workers, 'worker')} of a core each"
    print(
        f"\nAbout, for all of it, with {each}, on a machine like that of benchmarks/results, without a GPU, that does"
    )
    print("nothing else. What is recorded is not done again; what is unfinished goes on.")
    return 0


def _recorded(cost: Cost) -> str:
    recorded = "all recorded" if cost.recorded == cost.jobs else f"{cost.recorded} of {cost.jobs} recorded"
    words = [recorded] * (cost.recorded > 0) + [f"{cost.unfinished} unfinished"] * (cost.unfinished > 0)
    return f" ({', '.join(words)})" if words else ""


def _pages(given: Any) -> int:
    from flare.reproduce.ledger import Ledger
    from flare.reproduce.pages import write_pages

    ledger = Ledger(_records(given))
    ledger.refuse_no_folder()
    out = Path(given.out or "docs/results")
    _refuse_no_folder(out, "--out")
    for page in write_pages(ledger, out):
        print(page)
    return 0


def _reproduce(given: Any) -> int:
    from flare.reproduce.budgets import budget_named
    from flare.reproduce.jobs import Place
    from flare.reproduce.ledger import Ledger
    from flare.reproduce.pages import write_report
    from flare.reproduce.registry import job_names, planned, selected, wanted
    from flare.reproduce.study import MOST_SEEDS, chosen
    from flare.reproduce.sweep import gpus, sweep
    from flare.train.signals import Interrupted

    if given.seeds is not None and given.seeds > MOST_SEEDS:
        raise ConfigError(f"--seeds {given.seeds}: at most {MOST_SEEDS}, where reports stop looking for records")
    items = selected(given.what, _only(given.only))
    if not given.budget:
        raise ConfigError("say how much with --budget smoke, cpu or paper  (see: flare reproduce list)")
    budget = budget_named(given.budget, published=given.published)
    ledger, place = Ledger(_records(given, given.budget)), Place(Path(given.work))
    how: dict[str, Any] = {"workers": given.workers or len(gpus()) or _cores(), "makers": given.workers or _cores()}
    how |= {"threads": given.threads, "scheduler": given.scheduler, "tell": say}
    plans = [planned(item, budget, only, given.seeds) for item, only in items]  # a wrong --only shows itself first
    try:
        if given.verify:
            ledger.refuse_no_folder()
            _refuse_no_folder(place.root, "--work")
            how["seeds"] = given.seeds
            return _verify([chosen(item.cells(budget), only) for item, only in items], ledger, place, how)
        _warn_of_other_files(ledger.folder)
        out = Path(given.out or f"{given.work}/{budget.name}")
        for option, folder in (("--work", place.root), ("--out", out)):
            _refuse_no_folder(folder, option)  # not after hours of work
        done = 0
        for (item, only), jobs in zip(items, plans, strict=True):
            names = job_names(wanted(item, budget, only, given.seeds))
            done += sweep(jobs, ledger, place, retry=given.retry, names=names, **how)
            text = write_report(item, ledger, budget, out)
            print(text, end="", flush=True)
            if text:
                say(f"written: {out / f'{item.name}-{budget.key}.md'}, its files beside")
    except Interrupted as stop:
        say("saved. Give the same command again to go on")
        raise SystemExit(stop.exit_code) from None
    if not done:
        ways = "--verify trains again and compares, --records DIR starts records of your own"
        say(f"nothing was trained: these are the records of {ledger.folder}; {ways}")
    return _failed(ledger, {ledger.path(job): job for jobs in plans for job in jobs}.values())


def _refuse_no_folder(folder: Path, option: str) -> None:
    """One that is not there is made later; what is in its place, or above it, must be a folder to write into."""
    places = (folder.absolute(), *folder.absolute().parents)
    there = next(place for place in places if os.path.exists(place))  # noqa: PTH110 - Path's fails where it may not look
    try:
        with tempfile.TemporaryFile(dir=there):  # permissions alone do not tell, as of /proc
            pass
    except OSError:
        raise ConfigError(f"{option} {folder}: {there} is no folder that can be written into; name another") from None


def _failed(ledger: Any, jobs: Collection[Any]) -> int:
    """1 where some have failed, now or before, which is then the last line."""
    failed = sum(record is not None and record.outcome == "failed" for record in map(ledger.find, jobs))
    if failed:
        say(f"{failed} of {len(jobs)} jobs failed; --retry does them again")
    return 1 if failed else 0


def _verify(items: Sequence[Any], ledger: Any, place: Any, how: dict[str, Any]) -> int:
    """1 where a cell does not come out as recorded; an item that has nothing to verify does not keep others from it."""
    from flare.reproduce.verify import NothingToVerify, verify

    agree: list[bool] = []
    for cells in items:
        try:
            agree.append(verify(cells, ledger, place, **how))
        except NothingToVerify as error:
            if len(items) == 1:
                raise
            say(str(error))
    if not agree:
        raise NothingToVerify(f"nothing of all this can be verified by the records in {ledger.folder}")
    return 0 if all(agree) else 1


def _only(text: str | None) -> list[str] | None:
    """What stands between commas, of which there may be one too many."""
    pieces = [piece.strip(" /") for piece in (text or "").split(",")]
    if text is not None and not any(pieces):
        raise ConfigError(f"--only {text!r} names nothing; leave it out to do all")
    return [piece for piece in pieces if piece] or None


def _warn_of_other_files(records: Path) -> None:
    """A record of the repository should be of a commit that others can have."""
    import flare
    from flare.utils.environment import commit

    ours = Path(flare.__file__).parents[1] / RECORDS
    if records.resolve() == ours.resolve() and (now := commit()).endswith("+"):
        say(
            f"warning: files differ from commit {now[:-1]}; new records in {records} will say {now}. Commit them first?"
        )

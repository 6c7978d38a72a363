"""Reports as files: Markdown with pictures, and every table as CSV and LaTeX. Of the ledger alone, byte for byte; and
what people have to say of an item, from `notes/<item>.md` beside the ledger, under a heading of its own."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from flare.experiments.budgets import Budget, budget_named
from flare.experiments.ledger import Ledger, address
from flare.experiments.names import ITEMS
from flare.experiments.reproduce import item_named
from flare.experiments.study import Block, Item, Picture, outcomes
from flare.experiments.tables import Table
from flare.experiments.verdicts import SPREAD
from flare.files import replacing

SHOWN = (budget_named("cpu"), budget_named("paper"), budget_named("paper", published=True))
"""Budgets that pages tell of: smoke says nothing about the paper."""


def write_report(item: Item, ledger: Ledger, budget: Budget, folder: Path) -> str:
    """The report of one item under one budget, with its files in `folder`; returns the Markdown. Empty: no records."""
    if not outcomes(ledger, item.cells(budget)):
        return ""
    parts = list(_written(item.report(ledger, budget), folder, f"{item.name}-{budget.key}"))
    return "\n\n".join([f"## Budget {_title(budget)}: {budget.about}", *parts]) + "\n"


def _title(budget: Budget) -> str:
    return f"`{budget.name}`" + (", published files" if budget.published else "")


def _written(blocks: Iterable[Block], folder: Path, stem: str) -> Iterable[str]:
    """Markdown of each block, after its files are there."""
    tables = 0
    for block in blocks:
        if isinstance(block, Table):
            tables += 1
            name = f"{stem}-{tables}"
            _write(folder / "tables" / f"{name}.csv", block.csv().encode())
            _write(folder / "tables" / f"{name}.tex", block.latex().encode())
            yield block.markdown() + f"\nAs [CSV](tables/{name}.csv) and [LaTeX](tables/{name}.tex)."
        elif isinstance(block, Picture):
            name = f"{stem}-{block.name}.png"
            _write(folder / "images" / name, block.png)
            yield f"![{block.name}](images/{name})\n\n*{block.caption}*"
        elif block:
            yield block


def write_pages(ledger: Ledger, folder: Path) -> list[Path]:
    """A page for every item with records, and `README.md` that lists them all. Returns the pages."""
    pages, lines = [], []
    for name in ITEMS:
        item = item_named(name)
        texts = [(budget, write_report(item, ledger, budget, folder)) for budget in _that_differ(item)]
        told = [(budget, text) for budget, text in texts if text]
        if told:
            page = folder / f"{name}.md"
            again = "; ".join(command for budget, _ in told for command in _commands(item, ledger, budget))
            head = [f"# {item.title}", f"Done again by {again}."]
            whole = "".join(text for _, text in told)
            head += [words for mark, words in MARKS.items() if mark in whole]
            parts = ["\n\n".join(head) + "\n", *(text for _, text in told), *_notes(ledger, name)]
            _write(page, "\n".join(parts).encode())
            pages.append(page)
            lines.append(f"* [{item.title}]({page.name}): {'; '.join(_coverage(item, ledger, b) for b, _ in told)}")
        else:
            lines.append(f"* {item.title}: not run yet, `flare reproduce {name} --budget cpu`")
    page = folder / "README.md"
    _write(page, (INDEX + "\n".join(lines) + "\n").encode())
    return [*pages, page]


MARKS = {
    "±": SPREAD,
    "(#": "Numbers such as (#15) are those of [discrepancies](../discrepancies.md): a choice other than that of the "
    "authors' code, of which the paper's numbers very probably are.",
}
"""What stands on a page -> what it means, to be said under its head."""


def _commands(item: Item, ledger: Ledger, budget: Budget) -> list[str]:
    """What to give to do all again that a page tells of: the usual cells, and by name the others that have records."""
    cells = item.cells(budget)
    found = outcomes(ledger, cells)
    start = f"flare reproduce {item.name} --budget {budget.name}" + " --published" * budget.published
    commands = [f"`{start}`"] if any(not outcome.cell.extra for outcome in found) else []
    usual = {cell.parts[0] for cell in cells if not cell.extra}
    extra = [outcome.cell for outcome in found if outcome.cell.extra]
    # A task that has nothing but extra cells is chosen whole.
    names = dict.fromkeys("/".join(c.parts) if c.parts[0] in usual else c.parts[0] for c in extra)
    if names:
        fetched = any(c.job.data is not None and c.job.data.published for c in extra) and not budget.published
        commands.append(f"`{start} --only {','.join(names)}`" + " (which fetches files)" * fetched)
    return commands


def _coverage(item: Item, ledger: Ledger, budget: Budget) -> str:
    """`` `cpu`, 6 of 36 cells``: how many of the usual ones have come to their end, and how many others."""
    cells = item.cells(budget)
    done = [o.cell for o in outcomes(ledger, cells) if any(record.outcome == "done" for record in o.records)]
    usual, extra = (sum(cell.extra == which for cell in done) for which in (False, True))
    count = sum(not cell.extra for cell in cells)
    return f"{_title(budget)}, {usual} of {count} cell{'s' * (count > 1)}" + (f" and {extra} extra" if extra else "")


def _that_differ(item: Item) -> list[Budget]:
    """Budgets, without published files where an item reads none: it would be told twice."""
    jobs = {budget.key: {address(cell.job) for cell in item.cells(budget)} for budget in SHOWN}
    return [budget for budget in SHOWN if not budget.published or jobs[budget.key] != jobs[budget.name]]


def _notes(ledger: Ledger, name: str) -> list[str]:
    """What people say of an item, after all that is made of records."""
    path = ledger.folder.parent / "notes" / f"{name}.md"
    return [f"## Remarks, written by hand\n\n{path.read_text(encoding='utf-8').strip()}\n"] if path.exists() else []


INDEX = """# Results

The paper's tables and figures, done again. Everything here is written by `flare reproduce pages` from the records in
[results/records](../../results/records), and nothing by hand but what stands under "Remarks", from
[results/notes](../../results/notes); [reproducing](../reproduce.md) tells how to do them
again, [discrepancies](../discrepancies.md) what we decided where the paper and its code disagree.

"""


def _write(path: Path, content: bytes) -> None:
    with replacing(path) as temporary:
        temporary.write_bytes(content)

"""Reports as files: Markdown with pictures, and every table as CSV and LaTeX. Of the ledger alone, byte for byte."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from flare.experiments.budgets import BUDGETS, Budget
from flare.experiments.ledger import Ledger
from flare.experiments.names import ITEMS
from flare.experiments.reproduce import item_named
from flare.experiments.study import Block, Item, Picture, outcomes
from flare.experiments.tables import Table
from flare.files import replacing

SHOWN = ("cpu", "paper")
"""Budgets that pages tell of: the third says nothing about the paper."""


def write_report(item: Item, ledger: Ledger, budget: Budget, folder: Path) -> str:
    """The report of one item under one budget, with its files in `folder`; returns the Markdown. Empty: no records."""
    if not outcomes(ledger, item.cells(budget)):
        return ""
    parts = list(_written(item.report(ledger, budget), folder, f"{item.name}-{budget.name}"))
    return "\n\n".join([f"## Budget `{budget.name}`: {budget.about}", *parts]) + "\n"


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
        texts = [write_report(item, ledger, BUDGETS[budget], folder) for budget in SHOWN]
        told = [budget for budget, text in zip(SHOWN, texts, strict=True) if text]
        if told:
            page = folder / f"{name}.md"
            head = f"# {item.title}\n\nDone again by `flare reproduce {name} --budget {told[0]}`.\n"
            _write(page, "\n".join([head, *filter(None, texts)]).encode())
            pages.append(page)
            lines.append(f"* [{item.title}]({page.name}): {', '.join(told)}")
        else:
            lines.append(f"* {item.title}: not run yet, `flare reproduce {name} --budget cpu`")
    page = folder / "README.md"
    _write(page, (INDEX + "\n".join(lines) + "\n").encode())
    return [*pages, page]


INDEX = """# Results

The paper's tables and figures, done again. Everything here is written by `flare reproduce pages` from the records in
[results/records](../../results/records), and nothing by hand; [reproducing](../reproduce.md) tells how to do them
again, [discrepancies](../discrepancies.md) what we decided where the paper and its code disagree.

"""


def _write(path: Path, content: bytes) -> None:
    with replacing(path) as temporary:
        temporary.write_bytes(content)

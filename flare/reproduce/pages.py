"""Reports as files: Markdown with pictures, and every table as CSV and LaTeX. Of the ledger alone, byte for byte, of
pictures with the versions of constraints.txt; and what people have to say of an item, from `notes/<item>.md` beside
the ledger, under a heading of its own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from flare.reproduce.budgets import Budget, budget_named
from flare.reproduce.claims import claims, order_flips
from flare.reproduce.departures import other_epochs
from flare.reproduce.jobs import Training
from flare.reproduce.ledger import Ledger, address
from flare.reproduce.names import ITEMS
from flare.reproduce.registry import item_named
from flare.reproduce.study import Block, Item, Picture, chosen, outcomes, thousandths
from flare.reproduce.tables import Table
from flare.reproduce.verdicts import SPREAD
from flare.utils.errors import DataError
from flare.utils.files import replacing

SHOWN = (budget_named("cpu"), budget_named("paper"), budget_named("paper", published=True))
"""Budgets that pages tell of: smoke says nothing about the paper."""


@dataclass(frozen=True)
class Section:
    """Of a page: an item under one budget."""

    budget: Budget
    text: str
    """Markdown."""
    outcome: Sequence[str]
    """Its sentences on what came out."""


def write_report(item: Item, ledger: Ledger, budget: Budget, folder: Path) -> str:
    """The report of one item under one budget, with its files in `folder`; returns the Markdown. Empty: no records."""
    section = _section(item, ledger, budget, folder)
    if section is None:
        return ""
    _write(folder / f"{item.name}-{budget.key}.md", section.text.encode())
    return section.text


def _section(item: Item, ledger: Ledger, budget: Budget, folder: Path) -> Section | None:
    found = outcomes(ledger, item.cells(budget))
    if not found:
        return None
    blocks = item.report(ledger, budget)
    # Numbers of small models beside the paper's puzzle whoever comes by a link.
    why = [BESIDE] if budget.halved and any(outcome.cell.paper is not None for outcome in found) else []
    about = f"{item.heading}, budget {_title(budget).replace('`', '')}: {budget.about}"
    parts = [*why, *_written(blocks, folder, f"{item.name}-{budget.key}", about)]
    text = "\n\n".join([f"## Budget {_title(budget)}: {budget.about}", *parts]) + "\n"
    return Section(budget, text, _outcome(blocks))


def _outcome(blocks: Iterable[Block]) -> list[str]:
    """The paragraphs of a report but for those in italics, on how it was made, and those that lead to a table."""
    words = [block for block in blocks if isinstance(block, str) and block]
    return [word for word in words if not re.match(r"\*(?!\*)", word) and not word.endswith(":")]


def _title(budget: Budget) -> str:
    return f"`{budget.name}`" + (", published files" if budget.published else "")


def _written(blocks: Iterable[Block], folder: Path, stem: str, about: str) -> Iterable[str]:
    """Markdown of each block, after its files are there.

    Args:
        about: what LaTeX tables say of themselves, before the words that lead to each.
    """
    tables, lead = 0, ""
    for block in blocks:
        if isinstance(block, Table):
            tables += 1
            name = f"{stem}-{tables}"
            _write(folder / "tables" / f"{name}.csv", block.csv().encode())
            _write(folder / "tables" / f"{name}.tex", block.latex(_comments(block, about, lead)).encode())
            yield block.markdown() + f"\nAs [CSV](tables/{name}.csv) and [LaTeX](tables/{name}.tex)."
        elif isinstance(block, Picture):
            name = f"{stem}-{block.name}.png"
            _write(folder / "images" / name, block.png)
            yield f"![{block.name}](images/{name})\n\n*{block.caption}*"
        elif block:
            yield block
        lead = block if isinstance(block, str) and block.endswith(":") else ""


def _comments(table: Table, about: str, lead: str) -> list[str]:
    """For whoever has the file of a table without its page."""
    marks = [words for mark, words in MARKS.items() if mark in table.markdown()]
    where = [re.sub(r"\[.+?\]\(\.\./(.+?)\)", r"docs/\1", words) for words in marks]
    return [about, *([lead.removesuffix(":") + "."] if lead else []), *where]


def write_pages(ledger: Ledger, folder: Path) -> list[Path]:
    """A page for every item with records, and `README.md` that lists them all. Returns the pages.

    Pages, tables and pictures that an earlier call left there, and that no record gives any more, are removed. Without
    any record to show, nothing is written or removed.
    """
    pages, lines = [], []
    for name in ITEMS:
        item = item_named(name)
        told = [one for budget in _that_differ(item) if (one := _section(item, ledger, budget, folder)) is not None]
        if told:
            page = folder / f"{name}.md"
            again = "; ".join(command for section in told for command in _commands(item, ledger, section.budget))
            head = [f"# {item.heading}", f"{AGAIN}{again}."]
            whole = "".join(section.text for section in told)
            head += [words for mark, words in MARKS.items() if mark in whole]
            parts = ["\n\n".join(head) + "\n", *(section.text for section in told), *_notes(ledger, name)]
            _write(page, "\n".join(parts).encode())
            pages.append(page)
            covered = "; ".join(_coverage(item, ledger, section.budget) for section in told)
            lines.append(f"* [{item.heading}]({page.name}): {covered}")
            for section in told:
                which = f"{_title(section.budget)}: " if len(told) > 1 else ""
                lines += [f"    * {which}{words}" for words in section.outcome]
        else:
            lines.append(f"* {item.heading}: not run yet, `flare reproduce {name} --budget cpu`")
    if not pages:  # a slip in the name of the ledger, rather than the wish to remove everything
        raise DataError(
            f"{ledger.folder} has no record that a page would show, of budget cpu or paper; {folder} stays as it is. "
            "Name another folder with --records, or begin with:  flare reproduce table1 --budget cpu"
        )
    page = folder / "README.md"
    _write(
        page,
        "\n".join([INDEX, *_claims(ledger), *_what_cpu_shows(ledger), "## Tables and figures\n", *lines, ""]).encode(),
    )
    pages.append(page)
    _remove_others(folder, pages)
    return pages


AGAIN = "Done again by "
"""Begins the second paragraph of a page, by which it is known as ours."""
OURS = re.compile(rf".+-(?:{'|'.join(budget.key for budget in SHOWN)})-(?:.+\.png|\d+\.(?:csv|tex))")
"""Names of the files that pages show."""


def _remove_others(folder: Path, pages: Sequence[Path]) -> None:
    """Of what is ours by its looks: all pages but these, and all files that none of these shows."""
    for page in set(folder.glob("*.md")) - set(pages):
        if f"\n\n{AGAIN}`flare reproduce " in page.read_text(encoding="utf-8"):
            page.unlink()
    told = "".join(page.read_text(encoding="utf-8") for page in pages)
    for file in [*folder.glob("images/*"), *folder.glob("tables/*")]:
        if OURS.fullmatch(file.name) and f"({file.parent.name}/{file.name})" not in told:
            file.unlink()


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
    words = f"{_title(budget)}, {usual} of {count} cell{'s' * (count > 1)}" + (f" and {extra} extra" if extra else "")
    return words + (f": {item.part(done)}" if item.part and done else "")


def _that_differ(item: Item) -> list[Budget]:
    """Budgets, without published files where an item reads none: it would be told twice."""
    jobs = {budget.key: {address(cell.job) for cell in item.cells(budget)} for budget in SHOWN}
    return [budget for budget in SHOWN if not budget.published or jobs[budget.key] != jobs[budget.name]]


def _notes(ledger: Ledger, name: str) -> list[str]:
    """What people say of an item, after all that is made of records."""
    path = ledger.folder.parent / "notes" / f"{name}.md"
    return [f"## Remarks, written by hand\n\n{path.read_text(encoding='utf-8').strip()}\n"] if path.exists() else []


def _claims(ledger: Ledger) -> list[str]:
    told = claims(ledger, budget_named("cpu"))
    return [CLAIMS, told] if told else []


def _what_cpu_shows(ledger: Ledger) -> list[str]:
    """Why its numbers are far from the paper's: by FLARE on Elasticity, the first that a reader sees."""
    cpu = budget_named("cpu")
    (cell,) = chosen(item_named("table1").cells(cpu), ["elasticity/flare"])
    assert isinstance(cell.job, Training)
    assert cell.exact is not None
    assert cell.paper is not None
    ours, theirs = cell.job.settings(), cell.exact.settings()
    train, full = (data.samples - data.test for data in (cell.job.on, cell.exact.on))
    parts = [other_epochs(ours["epochs"], theirs["epochs"]), f"{train} of {full:,} training samples"]
    parts += [f"{ours['model'][key]} of {theirs['model'][key]} {key}" for key in cpu.halved]
    found = [outcome for outcome in outcomes(ledger, [cell]) if outcome.values()]
    beside = f" That is why {found[0].number} stands beside the paper's {thousandths(cell.paper)}." if found else ""
    return [
        "## What `cpu` numbers can and cannot show\n",
        "Budget `cpu` is a part of the paper's setting that two cores can do. FLARE on Elasticity, for one, has "
        f"{'; '.join(parts)}; and data of our own solver.{beside}\n",
        LEVEL.format(FLIP if order_flips(ledger, cpu) else ""),
    ]


CLAIMS = """## The paper's claims, and what came out here

Of short trainings of small models: [below](#what-cpu-numbers-can-and-cannot-show) is what these can show.
"""
BESIDE = (
    "The paper's numbers here are of its own, whole setting, and ours of a small part of it: see "
    "[what `cpu` numbers can and cannot show](README.md#what-cpu-numbers-can-and-cannot-show)."
)
LEVEL = """Such numbers can show an order (who is ahead after equally short trainings) and a trend (does the error fall
with more blocks). They cannot show the level, which comes of long trainings of whole models: an error above the paper's
does not contradict it, and an order that is seen here need not last for 500 epochs.{} The table of architectures counts
the paper's own models under any budget. Every row of an error says in what its setting departs from the paper's.
"""
FLIP = """ Nor need it last in another
setting: on Elasticity it is another one as soon as points are not normalised (rows `-raw-points` of
[Table 1](table1.md))."""
INDEX = """# Results

The paper's tables and figures, done again. Everything here is written by `flare reproduce pages` from the records in
[results/records](../../results/records), and nothing by hand but what stands under "Remarks", from
[results/notes](../../results/notes); [reproducing](../reproduce.md) tells how to do them
again, [discrepancies](../discrepancies.md) what we decided where the paper and its code disagree.
"""


def _write(path: Path, content: bytes) -> None:
    with replacing(path) as temporary:
        temporary.write_bytes(content)

"""A table or figure of the paper: cells, each a job with the paper's number for it, and a report made of records."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flare.reproduce.budgets import Budget
from flare.reproduce.departures import departures_of
from flare.reproduce.jobs import Job, Training
from flare.reproduce.ledger import Ledger, Record
from flare.reproduce.names import IN_THE_PAPER
from flare.reproduce.tables import Table
from flare.utils.environment import gigabytes
from flare.utils.errors import ConfigError, nearest
from flare.utils.text import duration

MOST_SEEDS = 10
"""Seeds of a cell are 0 to 9; any of them may have a record."""


@dataclass(frozen=True)
class Cell:
    parts: tuple[str, ...]
    """Its name, part by part, such as ("elasticity", "flare"): what `--only` chooses by."""
    job: Job
    exact: Training | None = None
    """The same training, or that of the model looked at, in the paper's setting, to tell departures; None: there is no
    such thing."""
    paper: float | None = None
    """The paper's relative L2 error, or accuracy."""
    extra: bool = False
    """Done only when chosen by name."""
    seeds: int | None = None
    """Of its own, whatever the budget has."""
    remark: str = ""
    """On the paper's number, to stand beside it."""
    otherwise: str = ""
    """Of a variant: what `exact` has otherwise than the training of the paper's number."""

    def jobs(self, seeds: int) -> list[Job]:
        """Trainings are done with several seeds; the rest is looked at once."""
        return [self.job.with_seed(seed) for seed in range(seeds)] if isinstance(self.job, Training) else [self.job]


@dataclass(frozen=True)
class Picture:
    name: str
    caption: str
    png: bytes


Block = str | Table | Picture
"""Of a report: a paragraph, a table, a picture."""


@dataclass(frozen=True)
class Item:
    """One table or figure of the paper."""

    name: str
    title: str
    cells: Callable[[Budget], list[Cell]]
    report: Callable[[Ledger, Budget], list[Block]]
    """Made of records alone; cells without any are left out."""
    part: Callable[[Sequence[Cell]], str] | None = None
    """Which part of the paper's item the cells that are done stand for, where their number alone would mislead."""

    @property
    def heading(self) -> str:
        """The title, and where it stands in the paper."""
        where = IN_THE_PAPER.get(self.name)
        return f"{self.title} ({where})" if where else self.title


def chosen(cells: Sequence[Cell], only: Sequence[str] | None) -> list[Cell]:
    """The cells that match one of `only`, each such as `elasticity` or `elasticity/flare`; None: all but the extra."""
    if only is None:
        return [cell for cell in cells if not cell.extra]
    known = {part for cell in cells for part in cell.parts}
    for choice in only:
        for part in choice.split("/"):
            if part not in known:
                what = "there is no such cell" if part == choice else f"there is no {part!r}"
                raise ConfigError(f"--only {choice}: {what}; {nearest(part, known)}")
    # A choice that names no extra cell means the usual ones.
    named = {part for cell in cells if cell.extra for part in cell.parts} - {
        part for cell in cells if not cell.extra for part in cell.parts
    }
    found = [
        cell
        for cell in cells
        if any(
            set(choice.split("/")) <= set(cell.parts) and (not cell.extra or named & set(choice.split("/")))
            for choice in only
        )
    ]
    if not found:
        raise ConfigError(f"--only {','.join(only)}: no cell has all of that; {_with_part(cells, only[0])}")
    return found


def _with_part(cells: Sequence[Cell], choice: str) -> str:
    """`lpbf has: perceiver, gnot`: what could have stood behind the first part of a choice."""
    first = choice.split("/")[0]
    having = [cell for cell in cells if first in cell.parts]
    usual = [cell for cell in having if not cell.extra] or having
    return f"{first} has: {', '.join('/'.join(part for part in cell.parts if part != first) for cell in usual)}"


@dataclass(frozen=True)
class Outcome:
    """What the seeds of a cell gave."""

    cell: Cell
    records: Sequence[Record]
    jobs: Sequence[Job]
    """Whose records these are: the cell's job with one seed each."""

    @property
    def first(self) -> Record | None:
        """Of seed 0; None where only others have records."""
        return self.records[0] if self.jobs[0] == self.cell.job else None

    @property
    def measure(self) -> str:
        return self.cell.job.measure if isinstance(self.cell.job, Training) else "rel_l2"

    @property
    def unit(self) -> float:
        return self.cell.job.unit if isinstance(self.cell.job, Training) else Training.unit

    def values(self, key: str | None = None) -> list[float]:
        """Of the seeds that came to their end; by default what is measured."""
        key = key or self.measure
        return [r.result[key] for r in self.records if r.outcome == "done" and key in r.result]

    @property
    def mean(self) -> float:
        """Of what is measured; infinite where no seed came to its end, so that it is never the least error."""
        return statistics.mean(self.values()) if self.values() else math.inf

    @property
    def spread(self) -> float | None:
        """Standard deviation over seeds; None for one seed, which has none."""
        return statistics.stdev(self.values()) if len(self.values()) > 1 else None

    def error(self, key: str | None = None) -> str:
        """`5.21 ± 0.13`, in thousandths (of accuracies in hundredths); of what did not end well, the words for it."""
        values, words = self.values(key), []
        if values:
            spread = statistics.stdev(values) if len(values) > 1 else None
            words.append(digits(statistics.mean(values), spread, self.unit))
        words += [f"failed: {record.failure}" for record in self.records if record.outcome == "failed"]
        for record in self.records:
            if record.outcome == "unfinished":
                epoch, error = record.result["curve"][-1]
                far = f"at epoch {epoch} of {record.result['epochs']:g}, unfinished"
                words.append(f"{digits(error, None, self.unit)} {far}")
        return "; ".join(words)

    @property
    def number(self) -> str:
        """`5.21 ± 0.13` alone, of those that came to their end."""
        return digits(self.mean, self.spread, self.unit)

    @property
    def seeds(self) -> str:
        return f"{len(self.values())}" + (f" of {len(self.records)}" if len(self.values()) < len(self.records) else "")

    @property
    def failed(self) -> int:
        """How many of the seeds."""
        return sum(record.outcome == "failed" for record in self.records)

    @property
    def parameters(self) -> str:
        found = [record.result["parameters"] for record in self.records if "parameters" in record.result]
        return f"{found[0]:,}" if found else ""


def outcomes(ledger: Ledger, cells: Iterable[Cell]) -> list[Outcome]:
    """Of the cells that have records, with all seeds that have."""
    found, known = [], ledger.labels()  # an address takes longer to compute than a label
    for cell in cells:
        possible = [job for job in cell.jobs(MOST_SEEDS) if job.label in known]
        recorded = [(job, record) for job in possible if (record := ledger.find(job)) is not None]
        if recorded:
            jobs, records = zip(*recorded, strict=True)
            found.append(Outcome(cell, records, jobs))
    return found


def digits(value: float, spread: float | None, unit: float, more: int = 0) -> str:
    """Three digits, or so many more, and the spread to the same place, both in `unit`."""
    value = value / unit
    places = max(0, 2 - math.floor(math.log10(value) + 1e-9)) if value > 0 else 2  # 9.99999999 is 10
    places += more
    return f"{value:.{places}f}" + ("" if spread is None else f" ± {spread / unit:.{places}f}")


def thousandths(value: float, spread: float | None = None) -> str:
    return digits(value, spread, 1e-3)


def paper_value(cell: Cell) -> str:
    if cell.paper is None:
        return ""
    unit = cell.job.unit if isinstance(cell.job, Training) else Training.unit
    return digits(cell.paper, None, unit) + (f" ({cell.remark})" if cell.remark else "")


def departures(cell: Cell) -> str:
    """In what a training, or that of the model looked at, differs from the one of the paper's number, in words."""
    training = cell.job if isinstance(cell.job, Training) else cell.job.training
    if training is None or cell.exact is None:
        return ""
    return "; ".join([*departures_of(training, cell.exact), *([cell.otherwise] if cell.otherwise else [])])


def captioned(words: str, cell: Cell) -> str:
    """The words of a picture, and where it departs from the paper's setting, for it has no row to say so."""
    told = departures(cell)
    return f"{words} {DEPARTURES.capitalize()}: {told}." if told else words


ERROR, PAPER, READ_OFF = "rel-L2 × 1e-3", "paper", "paper (read off the figure)"
DEPARTURES = "departures from the paper's setting"


def row(outcome: Outcome) -> tuple[str, ...]:
    """Parameters, error, seeds, the paper's number, departures."""
    cell = outcome.cell
    return outcome.parameters, outcome.error(), outcome.seeds, paper_value(cell), departures(cell)


def labels(cell: Cell) -> tuple[str, ...]:
    """Parts without the name of their axis, which heads the column: `8` for `blocks=8`."""
    return tuple(part.split("=")[-1] for part in cell.parts)


def error_table(axes: Sequence[str], found: Sequence[Outcome], paper: str = PAPER) -> Table:
    """A line a cell: its parts, then what was measured, the paper's number, and how the settings differ.

    Args:
        paper: heads the paper's numbers; `READ_OFF` where it prints none.
    """
    head = (*axes, "parameters", ERROR, "seeds", paper, DEPARTURES)
    return Table(head, [(*labels(outcome.cell), *row(outcome)) for outcome in found], text=len(axes), notes=1)


IN_A_CELL = (
    "ours, and in brackets the paper's where it has one of the same benchmark and measure; – where there is no such "
    "cell, empty where there is no record yet"
)
"""What stands in a matrix."""


def matrix(
    corner: str,
    wanted: Mapping[tuple[str, ...], Cell],
    found: Mapping[tuple[str, ...], Outcome],
    bold: Collection[tuple[str, ...]],
    lead: str,
) -> list[Block]:
    """The whole at a glance, `ours (paper)` in each cell, after a line that leads to it; nothing for a single number.

    Args:
        wanted: (row, column) -> its cell.
        bold: which of them are set so.
    """
    if sum(bool(outcome.values()) for outcome in found.values()) < 2:
        return []
    down, across = (list(dict.fromkeys(key[side] for key in wanted)) for side in (0, 1))

    def text(row: str, column: str) -> str:
        if (key := (row, column)) not in wanted:
            return "–"
        outcome, paper = found.get(key), wanted[key].paper
        if outcome is None:
            return ""
        if not outcome.values():
            return "failed" if outcome.failed else "unfinished"
        number = f"**{outcome.number}**" if key in bold else outcome.number
        return number if paper is None else f"{number} ({digits(paper, None, outcome.unit)})"

    rows = [[row, *(text(row, column) for column in across)] for row in down]
    return [lead, Table([corner, *across], rows, pair=("ours", "paper"))]


def another_machine(made: Mapping[str, Any]) -> list[str]:
    """That time and memory were not measured on the paper's kind of machine; empty where they were."""
    gpu = next((str(value) for key, value in made.items() if key.startswith("cuda:")), "a CPU")
    return [] if "H100" in gpu else [f"{gpu}, not an H100"]


def origin(found: Iterable[Outcome]) -> str:
    """Where numbers come from: commits, versions, hardware, time."""
    made = [record.made for outcome in found for record in outcome.records]
    if not made:
        return ""
    facts = {
        key: sorted({str(m.get(key, "unknown")) for m in made}) for key in ("flare", "commit", "torch", "processor")
    }
    # As older records have it, and newer ones say it.
    processors = dict.fromkeys(text.replace(" 1 threads ", " 1 thread ") for text in facts["processor"])
    memory = max(m.get("peak_memory_mb") or 0 for m in made)
    words = f"{len(made)} records" if len(made) > 1 else "One record"
    return (
        f"*{words}: flare {', '.join(facts['flare'])} at {', '.join(facts['commit'])}, "
        f"torch {', '.join(facts['torch'])}, "
        f"{'; '.join(processors)}; {_times(made)}{f', at most {gigabytes(memory):.1f} GB' if memory else ''}."
        f"{DIRTY if any(commit.endswith('+') for commit in facts['commit']) else ''}*"
    )


DIRTY = " A + behind a commit: some files were not as it has them."


def _times(made: Sequence[Mapping[str, Any]]) -> str:
    """Wall time, and how far to trust it. Older records of experiments done in several calls have none."""
    timed = [m for m in made if m.get("seconds") is not None]
    if not timed:
        spent = [m["cpu_seconds"] for m in made if m.get("cpu_seconds") is not None]
        return f"{duration(sum(spent))} of CPU, by the clock not kept" if spent else "time not kept"
    of = "in all" if len(timed) == len(made) else f"for {len(timed)} of the {len(made)} (the others kept no time)"
    wall = f"{duration(sum(m['seconds'] for m in timed))} {of}"
    if any(m.get("cpu_seconds") is None for m in timed):
        return f"{wall} by the clock of a machine that did other work, too"
    return f"{wall}, {duration(sum(m['cpu_seconds'] for m in timed))} of CPU"

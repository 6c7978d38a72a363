"""The parts of a table or figure: cells (a job and the paper's number for it), their outcomes, and report blocks."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flare.reproduce.budgets import Budget
from flare.reproduce.jobs import Job, Training
from flare.reproduce.ledger import Arrays, Ledger, Record
from flare.reproduce.tables import Table
from flare.utils.environment import gigabytes
from flare.utils.errors import ConfigError, suggest_name
from flare.utils.text import duration

MOST_SEEDS = 10
"""Reports look for records of seeds 0 to 9."""
ERROR, PAPER, READ_OFF = "rel-L2 × 1e-3", "paper", "paper (read off the figure)"
MEAN_FIELD = "mean field"
"""Column with the error of the trivial baseline that predicts the mean field of the training samples."""


@dataclass(frozen=True)
class Cell:
    """One number of a table or figure."""

    parts: tuple[str, ...]
    """Name of the cell, such as ("elasticity", "flare"). `only` selects cells by these parts."""
    job: Job
    exact: Training | None = None
    """Training in the paper's setting, to list differences from it. None if the paper has no such training."""
    paper: float | None = None
    """The paper's relative L2 error or accuracy."""
    extra: bool = False
    """True for a cell that is only run when it is selected by name."""
    seeds: int | None = None
    """Number of seeds. None: that of the budget."""
    discrepancies: Mapping[str, int] = field(default_factory=dict)
    """Setting -> row of docs/paper/discrepancies.md that explains its value in this cell."""

    @property
    def name(self) -> str:
        """Name as `only` takes it, such as `elasticity/flare`."""
        return "/".join(self.parts)

    @property
    def unit(self) -> float:
        """Unit in which tables print the measured value."""
        return self.job.unit if isinstance(self.job, Training) else Training.unit

    def jobs(self, seeds: int) -> list[Job]:
        """Return the job once per seed. Jobs other than trainings have no seed and are returned once."""
        return [self.job.with_seed(seed) for seed in range(seeds)] if isinstance(self.job, Training) else [self.job]


@dataclass(frozen=True)
class Picture:
    """A figure of a report, as the bytes of a PNG file."""

    name: str
    caption: str
    png: bytes


Block = str | Table | Picture
"""Part of a report. A string that ends in a colon is the title of the table after it."""


@dataclass(frozen=True)
class Item:
    """One table or figure of the paper."""

    name: str
    title: str
    cells: Callable[[Budget], list[Cell]]
    report: Callable[[Sequence[Outcome], Budget], list[Block]]
    """Builds the tables and figures from the outcomes of the cells that have a record (at least one)."""
    where: str = ""
    """Number in the paper, such as `Figure 9`."""

    @property
    def place(self) -> str:
        """Number in the paper, also of an item whose title starts with it."""
        return self.where or (self.title.split(":")[0] if self.title.startswith("Table ") else "")

    @property
    def heading(self) -> str:
        """Title and number in the paper."""
        return f"{self.title} ({self.where})" if self.where else self.title


def select_cells(cells: Sequence[Cell], only: Sequence[str] | None) -> list[Cell]:
    """Select cells by name.

    Args:
        cells: All cells of an item.
        only: Names such as `elasticity` or `elasticity/flare`. None selects every cell that is not extra.

    Raises:
        ConfigError: A name does not match any cell.
    """
    if only is None:
        return [cell for cell in cells if not cell.extra]
    known = {part for cell in cells for part in cell.parts}
    for choice in only:
        for part in choice.split("/"):
            if part not in known:
                raise ConfigError(f"only={choice!r}: no cell has a part {part!r}; {suggest_name(part, known)}")
    # Extra cells are selected only by a part that no other cell has.
    usual = {part for cell in cells if not cell.extra for part in cell.parts}

    def matches(cell: Cell, choice: str) -> bool:
        parts = set(choice.split("/"))
        return parts <= set(cell.parts) and (not cell.extra or bool(parts - usual))

    found = [cell for cell in cells if any(matches(cell, choice) for choice in only)]
    if not found:
        first = only[0].split("/")[0]
        having = [cell for cell in cells if first in cell.parts]
        having = [cell for cell in having if not cell.extra] or having
        names = ", ".join("/".join(part for part in cell.parts if part != first) for cell in having)
        raise ConfigError(f"only={','.join(only)!r}: no cell has all these parts; cells of {first}: {names}")
    return found


@dataclass(frozen=True)
class Outcome:
    """The records of all seeds of a cell."""

    cell: Cell
    records: Sequence[Record]
    jobs: Sequence[Job]
    """Job of each record: the job of the cell with one seed each."""
    ledger: Ledger

    @property
    def first(self) -> Record | None:
        """Record of seed 0, None if it does not exist."""
        return self.records[0] if self.jobs[0] == self.cell.job else None

    @property
    def measure(self) -> str:
        """Key of the measured value in results."""
        return self.cell.job.measure if isinstance(self.cell.job, Training) else Training.measure

    @property
    def unit(self) -> float:
        """Unit in which tables print the measured value."""
        return self.cell.unit

    @property
    def result(self) -> Mapping[str, Any]:
        """Result of the first finished seed; empty if there is none."""
        return next((record.result for record in self.records if record.outcome == "done"), {})

    @property
    def arrays(self) -> Arrays:
        """Arrays of a finished job without seeds."""
        return self.ledger.arrays(self.cell.job)

    def values(self, key: str | None = None) -> list[float]:
        """Return a value of every finished seed.

        Args:
            key: Key in the results. None: the measured value.
        """
        key = key or self.measure
        return [r.result[key] for r in self.records if r.outcome == "done" and key in r.result]

    @property
    def mean(self) -> float:
        """Mean of the measured value over seeds, infinite if no seed has finished."""
        return statistics.mean(self.values()) if self.values() else math.inf

    @property
    def spread(self) -> float | None:
        """Sample standard deviation over seeds, None for fewer than two."""
        return statistics.stdev(self.values()) if len(self.values()) > 1 else None

    def error(self, key: str | None = None) -> str:
        """Format a value as `5.21 ± 0.13`, with `failed` or the last epoch of seeds that have not finished."""
        texts = [mean_spread(self.values(key), self.unit)] if self.values(key) else []
        texts += ["failed"] * bool(self.failed)
        for record in self.records:
            if record.outcome == "unfinished":
                epoch, error = record.result["curve"][-1]
                texts.append(f"{digits(error, None, self.unit)} at epoch {epoch} of {record.result['epochs']:g}")
        return "; ".join(texts)

    @property
    def seeds(self) -> str:
        """Number of finished seeds, and of all that have a record if these are more."""
        return f"{len(self.values())}" + (f" of {len(self.records)}" if len(self.values()) < len(self.records) else "")

    @property
    def failed(self) -> int:
        """Number of failed seeds."""
        return sum(record.outcome == "failed" for record in self.records)

    @property
    def parameters(self) -> str:
        """Number of parameters of the model, empty if unknown."""
        found = [record.result["parameters"] for record in self.records if "parameters" in record.result]
        return f"{found[0]:,}" if found else ""

    @property
    def mean_field(self) -> str:
        """Error of the trivial baseline that predicts the mean field of the training samples."""
        found = self.values("rel_l2_mean_field")
        return digits(min(found), None, self.unit) if found else ""

    @property
    def paper(self) -> str:
        """The paper's number, empty if it has none."""
        return "" if self.cell.paper is None else digits(self.cell.paper, None, self.unit)


def outcomes(ledger: Ledger, cells: Iterable[Cell]) -> list[Outcome]:
    """Find the records of cells, of all seeds. Cells without a record are left out."""
    found, known = [], ledger.labels()  # a label is cheaper to compute than an address
    for cell in cells:
        possible = [job for job in cell.jobs(MOST_SEEDS) if job.label in known]
        recorded = [(job, record) for job in possible if (record := ledger.find(job)) is not None]
        if recorded:
            jobs, records = zip(*recorded, strict=True)
            found.append(Outcome(cell, records, jobs, ledger))
    return found


def digits(value: float, spread: float | None, unit: float) -> str:
    """Format a value with three significant digits, and its spread with as many decimals, both in `unit`."""
    value = value / unit
    places = max(0, 2 - math.floor(math.log10(value) + 1e-9)) if value > 0 else 2  # 9.99999999 is 10
    return f"{value:.{places}f}" + ("" if spread is None else f" ± {spread / unit:.{places}f}")


def mean_spread(values: Sequence[float], unit: float) -> str:
    """Format mean and sample standard deviation of values; empty without values."""
    if not values:
        return ""
    return digits(statistics.mean(values), statistics.stdev(values) if len(values) > 1 else None, unit)


def thousandths(value: float) -> str:
    """Format a value with three digits in units of 1e-3."""
    return digits(value, None, 1e-3)


def labels(cell: Cell) -> tuple[str, ...]:
    """Return the parts of a cell without the names of their axes: `8` for `blocks=8`."""
    return tuple(part.split("=")[-1] for part in cell.parts)


def error_table(
    axes: Sequence[str], found: Sequence[Outcome], paper: str = PAPER, more: Mapping[str, Sequence[str]] | None = None
) -> Table:
    """Build a table with one row per cell: its parts, parameters, error, mean field, seeds and the paper's number.

    Args:
        axes: Column titles of the parts of cells.
        found: Outcomes to show.
        paper: Title of the column with the paper's numbers.
        more: Further columns: title -> one text per outcome.
    """
    columns = {"parameters": [o.parameters for o in found], ERROR: [o.error() for o in found]}
    columns |= {MEAN_FIELD: [o.mean_field for o in found], "seeds": [o.seeds for o in found]}
    columns |= {paper: [o.paper for o in found]} if any(o.paper for o in found) else {}
    columns |= {title: list(texts) for title, texts in (more or {}).items()}
    names = zip(*(labels(o.cell) for o in found), strict=True)
    return Table((*axes, *columns), list(zip(*names, *columns.values(), strict=True)), text=len(axes))


def matrix(
    corner: str,
    wanted: Mapping[tuple[str, str], Cell],
    found: Mapping[tuple[str, str], Outcome],
    bold: Collection[tuple[str, str]],
    title: str,
) -> list[Block]:
    """Build a table with `ours (paper)` in each cell, after its title.

    Args:
        corner: Title of the first column.
        wanted: (row, column) -> cell. Other places show a dash.
        found: (row, column) -> outcome.
        bold: Places that are set in bold.
        title: Title of the table.

    Returns:
        The title and the table; nothing if fewer than two cells have a number.
    """
    if sum(bool(outcome.values()) for outcome in found.values()) < 2:
        return []
    down, across = (list(dict.fromkeys(key[side] for key in wanted)) for side in (0, 1))

    def text(row: str, column: str) -> str:
        if (key := (row, column)) not in wanted:
            return "–"
        outcome = found.get(key)
        if outcome is None:
            return ""
        if not outcome.values():
            return "failed" if outcome.failed else "unfinished"
        number = mean_spread(outcome.values(), outcome.unit)
        number = f"**{number}**" if key in bold else number
        return f"{number} ({outcome.paper})" if outcome.paper else number

    rows = [[row, *(text(row, column) for column in across)] for row in down]
    return [title, Table([corner, *across], rows, pair=("ours", "paper"))]


def failures(found: Iterable[Outcome]) -> list[Block]:
    """Build a table of the failed jobs of an item, after its title; nothing if none has failed."""
    rows = [
        (outcome.cell.name, str(job.seed) if isinstance(job, Training) else "", record.failure)
        for outcome in found
        for job, record in zip(outcome.jobs, outcome.records, strict=True)
        if record.outcome == "failed"
    ]
    return ["Failed jobs:", Table(("cell", "seed", "failure"), rows, text=3)] if rows else []


def provenance(found: Iterable[Outcome]) -> list[Block]:
    """Build a table of where records come from, one row per version, commit and machine, after its title."""
    groups: dict[tuple[str, ...], list[Mapping[str, object]]] = {}
    for outcome in found:
        for record in outcome.records:
            made = record.made
            machine = str(made.get("processor", "unknown")).replace(" 1 threads ", " 1 thread ")  # of older records
            gpu = next((str(value) for key, value in made.items() if key.startswith("cuda:")), "")
            facts = (*(str(made.get(key, "unknown")) for key in ("flare", "commit", "torch")), gpu or machine)
            groups.setdefault(facts, []).append(made)
    rows = [
        (*facts, f"{len(made)}", _total(made, "seconds"), _total(made, "cpu_seconds"), _peak(made))
        for facts, made in sorted(groups.items())
    ]
    head = ("flare", "commit", "torch", "machine", "records", "wall time", "CPU time", "peak GB")
    return ["Provenance:", Table(head, rows, text=4)] if rows else []


def _total(made: Sequence[Mapping[str, object]], key: str) -> str:
    """Format the sum of a time over records; empty if one does not have it."""
    known = [value for each in made if isinstance(value := each.get(key), int | float)]
    return duration(sum(known)) if len(known) == len(made) else ""


def _peak(made: Sequence[Mapping[str, object]]) -> str:
    known = [value for each in made if isinstance(value := each.get("peak_memory_mb"), int | float) and value]
    return f"{gigabytes(max(known)):.1f}" if known else ""

"""A CSV file about files: a row each, with their parameters, and a column by which they belong together."""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from flare.data.fields_of import identifier
from flare.data.tables import unit_in
from flare.errors import ConfigError, DataError, nearest

FILE = ("file", "filename", "name", "case", "sample", "path")
"""What the column of file names is called."""


@dataclass(frozen=True)
class CaseTable:
    path: Path
    columns: list[str]
    """Parameters, as a schema can name them."""
    units: dict[str, str]
    rows: dict[str, dict[str, str]]
    """File name without folders -> column -> text."""
    grouping: str | None

    def values(self, file: Path) -> dict[str, np.ndarray]:
        """Parameter -> (1,)."""
        row = self._row(file)
        return {column: np.array([_number(self.path, file, column, row[column])]) for column in self.columns}

    def group(self, file: Path) -> str:
        assert self.grouping is not None
        return self._row(file)[self.grouping]

    def _row(self, file: Path) -> dict[str, str]:
        for key in (file.name, file.stem, str(file)):
            if key in self.rows:
                return self.rows[key]
        raise DataError(f"{self.path} has no row for {file.name}; its first are {', '.join(list(self.rows)[:3])}")


def read_case_table(path: str | os.PathLike[str], files: Sequence[Path], grouping: str | None = None) -> CaseTable:
    """Refuses a file that a row is missing for, and a parameter that is no number; a text column may group files."""
    path = Path(path)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = [[cell.strip() for cell in line] for line in csv.reader(file) if any(line)]
    except FileNotFoundError:
        raise DataError(f"{path} does not exist") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read as CSV: {error}") from None
    titles = lines[0] if lines else []
    key = next((i for i, title in enumerate(titles) if title.lower() in FILE), None)
    if key is None or len(lines) < 2:
        raise DataError(f"{path} needs a row a file and a column 'file'; its first line is {','.join(titles)!r}")
    names = [identifier(title.split(" [")[0]) for title in titles]
    for number, line in enumerate(lines[1:], start=2):
        if len(line) != len(names):
            raise DataError(f"{path}: row {number} has {len(line)} columns, the header has {len(names)}")
    group = identifier(grouping) if grouping not in (None, "folder") and grouping is not None else None
    if group is not None and group not in names:
        raise ConfigError(f"{path} has no column {grouping!r}; {nearest(group, names)}")
    columns = [name for i, name in enumerate(names) if i != key and name != group]
    units = {name: unit_in(title) for name, title in zip(names, titles, strict=True)}
    table = CaseTable(
        path, columns, units, {line[key]: dict(zip(names, line, strict=True)) for line in lines[1:]}, group
    )
    for one in files:
        table.values(one)
    return table


def _number(path: Path, file: Path, column: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not np.isfinite(value):
        raise DataError(
            f"{path}: {column!r} of {file.name} is {text!r}, not a number; a column of words can be a --group"
        )
    return value

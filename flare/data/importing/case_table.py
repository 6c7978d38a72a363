"""A CSV file about files: a row each, with their parameters, and a column by which they belong together."""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from flare.data.importing.cases import Place
from flare.data.importing.fields import identifier
from flare.data.tables import refuse_repeated, refuse_separator, split_titles
from flare.utils.errors import ConfigError, DataError, nearest
from flare.utils.text import counted

FILE = ("file", "filename", "name", "case", "sample", "path")
"""What the column of file names is called."""


@dataclass(frozen=True)
class CaseTable:
    path: Path
    columns: list[str]
    """Parameters, as a schema can name them."""
    units: dict[str, str]
    """Of every one of these; "1" where its title says none."""
    rows: dict[str, dict[str, str]]
    """Name of a file -> column -> text."""
    grouping: str | None

    def values(self, place: Place) -> dict[str, np.ndarray]:
        """Parameter -> (1,)."""
        row = self.rows[self.key(place)]
        return {column: np.array([_number(self.path, place, column, row[column])]) for column in self.columns}

    def group(self, place: Place) -> str:
        assert self.grouping is not None
        return self.rows[self.key(place)][self.grouping]

    def unused(self, places: Sequence[Place]) -> list[str]:
        """A remark on rows that fit none of the files, where there are such."""
        used = {self.key(place) for place in places}
        rows = [row for row in self.rows if row not in used]
        fit = "fits" if len(rows) == 1 else "fit"
        return [f"{counted(len(rows), 'row')} of {self.path} {fit} no file (first: {rows[0]!r})"] if rows else []

    def key(self, place: Place) -> str:
        """The row that fits with most folders: `a/plate_0.vtu` before `plate_0.vtu`; a suffix may be left out.

        A case inside a file may have its own, such as `all.h5:run/3`; otherwise it has that of the file.
        """
        parts, inside = place.path.absolute().parts, place.name.removeprefix(str(place.path))
        for ending in dict.fromkeys([inside, ""]):
            for start in range(len(parts)):
                path = Path(*parts[start:])
                fits = [
                    k for k in dict.fromkeys([f"{path}{ending}", f"{path.with_suffix('')}{ending}"]) if k in self.rows
                ]
                if len(fits) > 1:
                    raise DataError(f"{self.path} has two rows for {place.name}: {' and '.join(fits)}; leave one")
                if fits:
                    return fits[0]
        raise DataError(
            f"{self.path} has no row for {place.path.name}{inside}; its first are {', '.join([*self.rows][:3])}"
        )


def read_case_table(path: str | os.PathLike[str], places: Sequence[Place], grouping: str | None = None) -> CaseTable:
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
    refuse_separator(path, titles)
    key = next((i for i, title in enumerate(titles) if title.lower() in FILE), None)
    if key is None or len(lines) < 2:
        raise DataError(f"{path} needs a row a file and a column 'file'; its first line is {','.join(titles)!r}")
    plain, stated = split_titles(titles)
    names = [identifier(title) for title in plain]
    for number, line in enumerate(lines[1:], start=2):
        if len(line) != len(names):
            raise DataError(f"{path}: row {number} has {len(line)} columns, the header has {len(names)}")
    group = identifier(grouping) if grouping not in (None, "folder") and grouping is not None else None
    if group is not None and group not in names:
        raise ConfigError(f"{path} has no column {grouping!r}; {nearest(group, names)}")
    columns = [name for i, name in enumerate(names) if i != key and name != group]
    refuse_repeated(path, names)
    units = {name: unit for name, unit in zip(names, stated, strict=True) if name in columns}
    rows: dict[str, dict[str, str]] = {}
    for number, line in enumerate(lines[1:], start=2):
        if rows.setdefault(str(Path(line[key])), row := dict(zip(names, line, strict=True))) is not row:
            raise DataError(f"{path}: row {number} is the second for {line[key]!r}; write folders where names repeat")
    table = CaseTable(path, columns, units, rows, group)
    owner: dict[str, Path] = {}
    for place in places:
        table.values(place)
        other = owner.setdefault(table.key(place), place.path)
        if other != place.path:
            raise DataError(
                f"{path}: the row {table.key(place)!r} fits {other} and {place.path}; write the folder before the name"
            )
    return table


def _number(path: Path, place: Place, column: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not np.isfinite(value):
        raise DataError(
            f"{path}: {column!r} of {place.path.name} is {text!r}, not a number; a column of words can be a --group"
        )
    return value

"""A CSV file with one row per simulation file: its parameters, and a column that groups files."""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from flare.data.importing.cases import CaseLocation
from flare.data.importing.fields import identifier
from flare.mesh.io.tables import check_separator, check_unique, split_titles
from flare.utils.errors import ConfigError, DataError, suggest_name
from flare.utils.text import counted

FILE_COLUMNS = ("file", "filename", "name", "case", "sample", "path")
"""Accepted titles of the column of file names."""


@dataclass(frozen=True)
class CaseTable:
    """Parameters of cases by file name."""

    path: Path
    columns: list[str]
    """Parameters, as a schema names them."""
    units: dict[str, str]
    """Unit of each parameter; "1" if its title states none."""
    rows: dict[str, dict[str, str]]
    """File name -> column -> text."""
    grouping: str | None

    def values(self, location: CaseLocation) -> dict[str, np.ndarray]:
        """Return the parameters of a case: name -> (1,)."""
        row, values = self.rows[self.key(location)], {}
        for column in self.columns:
            try:
                values[column] = np.array([float(row[column])])
                if not np.isfinite(values[column]):
                    raise ValueError
            except ValueError:
                where = f"{self.path}: {column!r} of {location.path.name}"
                raise DataError(f"{where} is {row[column]!r}, not a number; text needs group={column!r}") from None
        return values

    def group(self, location: CaseLocation) -> str:
        """Return the group of a case."""
        assert self.grouping is not None
        return self.rows[self.key(location)][self.grouping]

    def unused(self, locations: Sequence[CaseLocation]) -> list[str]:
        """Return a note about rows without a file, if there are any."""
        used = {self.key(location) for location in locations}
        rows = [row for row in self.rows if row not in used]
        return [f"{counted(len(rows), 'row')} of {self.path} without a file (first: {rows[0]!r})"] if rows else []

    def key(self, location: CaseLocation) -> str:
        """Return the row of a case, the one that matches with most folders: `a/plate_0.vtu` before `plate_0.vtu`.

        A suffix may be omitted. A case inside a file may have its own row, such as `all.h5:run/3`; otherwise it has
        that of the file.
        """
        parts, inside = location.path.absolute().parts, location.name.removeprefix(str(location.path))
        for ending in dict.fromkeys([inside, ""]):
            for start in range(len(parts)):
                path = Path(*parts[start:])
                names = dict.fromkeys([f"{path}{ending}", f"{path.with_suffix('')}{ending}"])
                for name in names:
                    if name in self.rows:
                        return name
        first = ", ".join([*self.rows][:3])
        raise DataError(f"{self.path} has no row for {location.path.name}{inside}; its first rows are {first}")


def read_case_table(
    path: str | os.PathLike[str], locations: Sequence[CaseLocation], grouping: str | None = None
) -> CaseTable:
    """Read a parameter file and check that it has a row of numbers for every case.

    Args:
        path: CSV file.
        locations: Cases that need a row.
        grouping: Column that groups files, which may hold text; "folder" is ignored here.

    Raises:
        DataError: A row is missing or repeated, or a parameter is not a number.
        ConfigError: There is no column `grouping`.
    """
    path = Path(path)
    lines = _lines(path)
    titles = lines[0] if lines else []
    check_separator(path, titles)
    key = next((i for i, title in enumerate(titles) if title.lower() in FILE_COLUMNS), None)
    if key is None or len(lines) < 2:
        raise DataError(f"{path} needs one row per file and a column 'file'; its first line is {','.join(titles)!r}")
    plain, stated = split_titles(titles)
    names = [identifier(title) for title in plain]
    for number, line in enumerate(lines[1:], start=2):
        if len(line) != len(names):
            raise DataError(f"{path}: row {number} has {len(line)} columns, the header has {len(names)}")
    group = identifier(grouping) if grouping is not None and grouping != "folder" else None
    if group is not None and group not in names:
        raise ConfigError(f"{path} has no column {grouping!r}; {suggest_name(group, names)}")
    columns = [name for i, name in enumerate(names) if i != key and name != group]
    check_unique(path, names)
    units = {name: unit for name, unit in zip(names, stated, strict=True) if name in columns}
    rows: dict[str, dict[str, str]] = {}
    for number, line in enumerate(lines[1:], start=2):
        if rows.setdefault(str(Path(line[key])), row := dict(zip(names, line, strict=True))) is not row:
            raise DataError(f"{path}: row {number} repeats {line[key]!r}; include folders where file names repeat")
    table = CaseTable(path, columns, units, rows, group)
    owner: dict[str, Path] = {}
    for location in locations:
        table.values(location)
        other = owner.setdefault(table.key(location), location.path)
        if other != location.path:
            used = table.key(location)
            raise DataError(f"{path}: the row {used!r} matches {other} and {location.path}; include the folder")
    return table


def _lines(path: Path) -> list[list[str]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            return [[cell.strip() for cell in line] for line in csv.reader(file) if any(line)]
    except FileNotFoundError:
        raise DataError(f"{path} does not exist") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read as CSV: {error}") from None

"""Meshes in tables: CSV and Parquet, with one row per point and one column per component.

Columns named `velocity.x`, `velocity_x` or `velocity:0` (ParaView) are components of one field. A title such as
`pressure [Pa]` states a unit.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from flare.mesh.io import ReadLimits
from flare.mesh.io.arrays import ArrayLayout, is_points_name, optional_module
from flare.mesh.mesh import NUMERIC, Array, Mesh
from flare.utils.errors import DataError, TooLarge, one_line
from flare.utils.files import replace_atomically

SEPARATORS = {";": "semicolons", "\t": "tabs"}
"""Separators of other programs, for messages."""
COMPONENT = re.compile(r"(.+?)(?:[.:](?:[xyz]|\d+)|_[xyz])$", re.IGNORECASE)
MAX_LINE = 64 * 1024
"""Most bytes of a line of an untrusted CSV file."""


@dataclass(frozen=True)
class TableSource:
    """The CSV file behind a mesh: saved again, its titles and numbers stay as they were typed."""

    path: Path
    fields: frozenset[str]
    """Point data that the file has."""


def read_table(path: Path, *, layout: ArrayLayout | None = None, limits: ReadLimits | None = None) -> Mesh:
    """Read the points and point data of a table.

    Columns that a model expects are grouped as it names them; all others are recognized by their titles.

    Raises:
        DataError: The table is damaged, has repeated titles, or no columns of coordinates.
        TooLarge: It has more rows than the limits allow.
    """
    layout = layout or ArrayLayout()
    if limits is not None:
        _check_rows(path, limits)
    titles, arrays = read_csv(path) if path.suffix.lower() == ".csv" else _read_parquet(path)
    header, units = split_titles(titles)
    check_unique(path, header)
    columns = dict(zip(header, arrays, strict=True))
    unit_of = dict(zip(header, units, strict=True))
    grouped = _group_columns(header, layout)
    fields: dict[str, Array] = {name: np.stack([columns[c] for c in parts], 1) for name, parts in grouped.items()}
    stated = {name: unit_of[parts[0]] for name, parts in grouped.items() if unit_of[parts[0]] != "1"}
    key = layout.points_field if layout.points_field in fields else None
    key = key or next((name for name in fields if is_points_name(name, layout.points)), None)
    axes = [name for letter in "xyz" for name in header if name.lower() == letter]
    if key is None and len(axes) >= 2:
        key, fields["points"] = "points", np.stack([columns[axis] for axis in axes], 1)
        lengths = list(dict.fromkeys(unit_of[axis] for axis in axes if unit_of[axis] != "1"))
        if len(lengths) > 1:
            raise DataError(f"{path}: the coordinates are in {' and '.join(lengths)}; convert them to one unit")
        stated |= {"points": lengths[0]} if lengths else {}
        fields = {name: values for name, values in fields.items() if name not in axes}
    if key is None:
        raise DataError(f"{path} has no columns x, y (and z), with units such as x [mm]; it has {', '.join(header)}")
    points = fields.pop(key)
    return Mesh(
        points,
        point_data={name: values if values.shape[1] > 1 else values[:, 0] for name, values in fields.items()},
        units={"points" if name == key else name: unit for name, unit in stated.items() if name not in axes},
        name=str(path),
        _source=TableSource(path, frozenset(fields)) if path.suffix.lower() == ".csv" else None,
    )


def _group_columns(header: Sequence[str], layout: ArrayLayout) -> dict[str, list[str]]:
    """Return field -> its columns: fields of the layout that the table has completely, then all others."""
    grouped: dict[str, list[str]] = {}
    for name, components in layout.inputs.items():
        matches = [_matching(header, layout, name, component) for component in components]
        if all(matches):
            grouped[name] = [match[0] for match in matches]
    known = {name for parts in grouped.values() for name in parts}
    stems = [match[1] if (match := COMPONENT.match(name)) else name for name in header]
    for name, stem in zip(header, stems, strict=True):
        if name not in known:
            grouped.setdefault(stem if stems.count(stem) > 1 else name, []).append(name)
    return grouped


def _matching(header: Sequence[str], layout: ArrayLayout, field: str, component: str) -> list[str]:
    """Return columns for a component: `velocity.x`, `velocity` if it is the only one, `x` if no other field has one."""
    names = [f"{field}.{component}"]
    if len(layout.inputs[field]) == 1:
        names.append(field)
    if sum(component in components for components in layout.inputs.values()) == 1:
        names.append(component)
    return [name for name in names if name in header]


def read_csv(path: Path) -> tuple[list[str], list[Array]]:
    """Return titles and columns of a CSV file of numbers."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            return _parse_csv(path, file)
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} is damaged or not a text file of numbers: {error}") from None


def _parse_csv(path: Path, file: Iterable[str]) -> tuple[list[str], list[Array]]:
    rows = csv.reader(file)
    titles = [name.strip() for name in next(rows, [])]
    check_separator(path, titles)
    if len(titles) < 2:
        raise DataError(f"{path} has no header of comma-separated columns; its first line is {','.join(titles)!r}")
    table = []
    for row in _without_blanks(rows):
        try:
            table.append([float(cell) for cell in row])
        except ValueError:
            raise DataError(f"{path}: line {rows.line_num} has a value that is not a number: {','.join(row)}") from None
        if len(row) != len(titles):
            raise DataError(f"{path}: line {rows.line_num} has {len(row)} columns, the header has {len(titles)}")
    if not table:
        raise DataError(f"{path} has a header but no rows")
    return titles, list(np.array(table).T)


def _without_blanks(rows: Iterable[list[str]]) -> Iterator[list[str]]:
    return (row for row in rows if "".join(row).strip())


def check_separator(path: Path, titles: Sequence[str]) -> None:
    """Raise DataError if a table is separated by other characters than commas."""
    for sign, name in SEPARATORS.items():
        if ",".join(titles).count(sign) >= max(1, len(titles)):
            raise DataError(f"{path} is separated by {name}, not commas; it starts with {','.join(titles)!r}")


def check_unique(path: Path, names: Sequence[str]) -> None:
    """Raise DataError if two columns have the same name."""
    again = next((name for name in names if names.count(name) > 1), None)
    if again is not None:
        raise DataError(f"{path}: {names.count(again)} columns are named {again!r}; rename or remove all but one")


def split_titles(titles: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return names and units of titles such as `pressure [Pa]`; the unit is "1" if there is none."""
    parts = [_split_title(title) for title in titles]
    return [name for name, _ in parts], [unit for _, unit in parts]


def _split_title(title: str) -> tuple[str, str]:
    name, bracket, unit = title.removesuffix("]").rpartition("[")
    is_index = unit.isdecimal() and not name.endswith(" ")  # `velocity[0]`
    if not (bracket and name.strip() and title.endswith("]")) or is_index:
        return title, "1"
    return name.strip(), unit.strip() or "1"


def _read_parquet(path: Path) -> tuple[list[str], list[Array]]:
    """Return titles, which may repeat, and columns."""
    parquet = optional_module("pyarrow.parquet")
    try:
        table = parquet.ParquetFile(path).read()
        columns = [column.to_numpy().astype(np.float64) for column in table.columns]
    except (ValueError, OSError, TypeError) as error:
        raise DataError(f"{path} cannot be read as Parquet of numbers: {one_line(error)[:200]}") from None
    return table.column_names, columns


def _check_rows(path: Path, limits: ReadLimits) -> None:
    rows = 0
    with path.open("rb") as file:
        while line := file.readline(MAX_LINE):
            rows += 1
            if len(line) == MAX_LINE:
                raise DataError(f"{path}: line {rows} has {MAX_LINE:,} bytes or more; a row of numbers is shorter")
            if rows > limits.points + 1 and line.strip():
                raise TooLarge(f"{path} has more than {limits.points:,} rows, the limit")


def write_csv(path: str | os.PathLike[str], mesh: Mesh, *, points: str = "points") -> None:
    """Write points, point data and parameters, one row per point; parameters are repeated in every row.

    A mesh that was read from a CSV file is written as that file with columns added at the end: titles and numbers stay
    as they were typed. Blank lines are dropped.

    Args:
        path: File to write.
        mesh: Mesh to write; cells and cell data are not written.
        points: Name of the coordinates.
    """
    source = mesh._source if isinstance(mesh._source, TableSource) else None
    fields = {points: mesh.points} | dict(mesh.point_data)
    fields |= {name: v for name, v in mesh.field_data.items() if np.asarray(v).dtype.kind in NUMERIC}
    if source is not None:
        fields = {name: v for name, v in fields.items() if name != points and name not in source.fields}
    titles, columns = _titled(mesh, fields, points)
    with replace_atomically(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as out:
        if source is None:
            csv.writer(out).writerow(titles)
            np.savetxt(out, np.stack(columns, 1), delimiter=",", fmt="%.9g")
            return
        with source.path.open(newline="", encoding="utf-8-sig") as file:
            rows, writer = csv.reader(file), csv.writer(out, lineterminator="\n")
            writer.writerow([*next(rows), *titles])
            new = np.stack(columns, 1) if columns else np.zeros((len(mesh.points), 0))
            for row, values in zip(_without_blanks(rows), new, strict=True):
                writer.writerow([*row, *(f"{value:.9g}" for value in values)])


def _titled(mesh: Mesh, fields: dict[str, Array], points: str) -> tuple[list[str], list[Array]]:
    """Return a title with its unit and a column for every component."""
    titles, columns = [], []
    for name, values in fields.items():
        rows = np.asarray(values)
        is_parameter = name in mesh.field_data
        width = rows.size if is_parameter else rows.reshape(len(rows), -1).shape[1]
        names = mesh.components.get(name) or component_names(width)
        table = np.broadcast_to(rows.reshape(-1, width), (len(mesh.points), width))
        unit = mesh.units.get("points" if name == points else name, "1")
        for component, column in zip(names, table.T, strict=True):
            title = name if width == 1 else f"{name}.{component}"
            titles.append(title if unit == "1" else f"{title} [{unit}]")
            columns.append(column)
    return titles, columns


def component_names(width: int) -> tuple[str, ...]:
    """Return x, y, z for up to three components, numbers for more."""
    return tuple("xyz"[:width]) if width <= 3 else tuple(map(str, range(width)))

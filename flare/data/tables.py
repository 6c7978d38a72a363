"""Points and fields in plain files: .npz with an array per field, .csv with a column per channel, or a folder with a
.npy file per field, which is memory-mapped: the one for more points than fit into memory.

Arrays that are written are (N, channels), and (N,) for a field of one component, in a folder as in a .npz file.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from flare.data.dataset import open_array
from flare.data.sample import INPUT_ROLES, Field, Schema
from flare.utils.errors import DataError
from flare.utils.files import filling, refuse_full_disk, replacing

FORMATS = (".npz", ".csv")
SEPARATORS = {";": "semicolons", "\t": "tabs"}
"""Of tables that others write."""


def write_outputs(
    path: str | os.PathLike[str],
    known: Mapping[str, Field],
    inputs: Mapping[str, np.ndarray],
    outputs: Mapping[str, np.ndarray],
    more: Mapping[str, ArrayLike] | None = None,
) -> None:
    """Inputs and predicted fields together, in the format the suffix names; `more` goes into a .npz beside them.

    Args:
        known: what each of them is: the fields of a schema, and others of any name.
    """
    path = Path(path)
    refuse_format(path)
    fields = {**inputs, **outputs}
    with replacing(path) as temporary:
        if path.suffix.lower() == ".npz":
            arrays = {name: _plain(known[name], values) for name, values in fields.items()}
            np.savez(temporary, **arrays, **(more or {}))  # type: ignore[arg-type]
        else:
            _write_csv(temporary, known, fields)


def refuse_format(path: Path, *, more: Sequence[str] = ()) -> None:
    """Refuse a file to be written by its suffix; `more` are suffixes that the caller can do himself."""
    if path.suffix.lower() not in (*FORMATS, *more):
        ways = " or ".join([*FORMATS, *more])
        raise DataError(f"{path}: cannot write {path.suffix or 'a file without a suffix'}; use {ways}")


def is_folder_of_arrays(path: str | os.PathLike[str]) -> bool:
    path = Path(path)
    return path.is_dir() and not (path / "dataset.json").exists() and any(path.glob("*.npy"))


@contextmanager
def mapped_outputs(path: str | os.PathLike[str], schema: Schema, count: int) -> Iterator[dict[str, np.ndarray]]:
    """Room on disk for every target, name -> (N, channels); the folder gets its name when all is written."""
    with filling(path) as folder:
        # A mapped file has holes until it is written; no room for them then would end the process without a word.
        refuse_full_disk(
            folder, 4 * count * schema.out_dim, f"the fields at {count:,} points", "name another place by --out"
        )
        rooms = {}
        for name, width in zip(schema.named("target"), schema.widths("target"), strict=True):
            shape = (count,) if width == 1 else (count, width)
            room = np.lib.format.open_memmap(folder / f"{name}.npy", mode="w+", dtype=np.float32, shape=shape)
            rooms[name] = room.reshape(count, width)
        yield rooms


def _plain(field: Field, values: np.ndarray) -> np.ndarray:
    """As it is written: one number a point is (N,); points are (N, dimensions) always."""
    return values[:, 0] if field.role != "points" and values.ndim == 2 and values.shape[1] == 1 else values


def map_inputs(path: Path, schema: Schema) -> dict[str, np.ndarray]:
    """The input fields of one sample from a folder of .npy files, which stay on disk; other files are left alone."""
    if (path / "dataset.json").exists():  # its arrays have all samples end to end
        raise DataError(
            f"{path} is a dataset; one sample is needed here, such as a folder of its arrays or a .npz file"
        )
    wanted = schema.named(*INPUT_ROLES)
    for name in wanted:
        if not (path / f"{name}.npy").exists():
            raise DataError(f"{path} has no {name}.npy; the model needs {', '.join(f'{n}.npy' for n in wanted)}")
    return {name: open_array(path / f"{name}.npy", "write it anew with numpy.save") for name in wanted}


def read_table(path: Path) -> tuple[list[str], list[str], np.ndarray]:
    """Column names, their units ("1" where a heading has none in brackets), and the rows."""
    try:
        return _parsed_table(path)
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} is damaged or no text of numbers: {error}") from None


def _parsed_table(path: Path) -> tuple[list[str], list[str], np.ndarray]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = csv.reader(file)
        titles = [name.strip() for name in next(rows, [])]
        refuse_separator(path, titles)
        header, units = split_titles(titles)
        if len(header) < 2:
            raise DataError(
                f"{path} has no header of columns separated by commas; its first line is {','.join(titles)!r}"
            )
        refuse_repeated(path, header)
        table = []
        for number, row in enumerate(_to_the_last(rows), start=2):
            try:
                table.append([float(cell) for cell in row])
            except ValueError:
                raise DataError(
                    f"{path}: line {number} holds something that is not a number: {','.join(row)}"
                ) from None
            if len(row) != len(header):
                raise DataError(f"{path}: line {number} has {len(row)} columns, the header has {len(header)}")
    if not table:
        raise DataError(f"{path} has a header but no rows")
    return header, units, np.array(table)


def _to_the_last(rows: Iterable[list[str]]) -> Iterator[list[str]]:
    """Rows up to the last that holds something; a blank one before it is a row of nothing."""
    blank = 0  # counted, not collected: a stranger's file may have nothing else
    for row in rows:
        if not "".join(row).strip():
            blank += 1
            continue
        for _ in range(blank):
            yield []
        blank = 0
        yield row


def refuse_separator(path: Path, titles: Sequence[str]) -> None:
    """A table of another separator, which would be one column; its numbers may have decimal commas, too."""
    line = ",".join(titles)
    for sign, name in SEPARATORS.items():
        if line.count(sign) >= max(1, len(titles)):
            raise DataError(
                f"{path}: columns are separated by commas here, not by {name}, and numbers have a decimal point. Write "
                f"it so; its first line is {line!r}"
            )


def refuse_repeated(path: Path, names: Sequence[str]) -> None:
    """Of two columns of one name nobody knows which is meant."""
    again = next((name for name in names if names.count(name) > 1), None)
    if again is not None:
        raise DataError(f"{path}: {names.count(again)} columns are called {again!r}; rename or remove all but one")


def split_titles(titles: Sequence[str]) -> tuple[list[str], list[str]]:
    """Names and units of headings such as `pressure [Pa]`; "1" where there is no unit."""
    parts = [_split(title) for title in titles]
    return [name for name, _ in parts], [unit for _, unit in parts]


def _split(title: str) -> tuple[str, str]:
    name, bracket, unit = title.removesuffix("]").rpartition("[")
    of_component = unit.isdecimal() and not name.endswith(" ")  # `velocity[0]`
    if not (bracket and name.strip() and title.endswith("]")) or of_component:
        return title, "1"
    return name.strip(), unit.strip() or "1"


def columns_by_field(header: Sequence[str], schema: Schema) -> dict[str, list[str]]:
    """Input field -> its columns, of the fields that a table has whole, under the names that a model gives them."""
    found = {}
    for name in schema.named(*INPUT_ROLES):
        columns = [_columns(header, schema, name, component) for component in schema.fields[name].components]
        if all(columns):
            found[name] = [hits[0] for hits in columns]
    return found


def _columns(header: Sequence[str], schema: Schema, field: str, component: str) -> list[str]:
    """Those that would do: `velocity.x`, `velocity` of one component, `x` where no other field has one."""
    names = [f"{field}.{component}"]
    if len(schema.fields[field].components) == 1:
        names.append(field)
    if sum(component in schema.fields[other].components for other in schema.named(*INPUT_ROLES)) == 1:
        names.append(component)
    return [name for name in names if name in header]


def append_columns(
    source: str | os.PathLike[str],
    path: str | os.PathLike[str],
    known: Mapping[str, Field],
    fields: Mapping[str, np.ndarray],
) -> None:
    """A .csv file again, every title and number as it was typed, with the columns of these fields behind.

    Blank lines at its end have nothing to stand beside, and are left out.
    """
    with Path(source).open(newline="", encoding="utf-8-sig") as file, replacing(path) as temporary:
        rows = csv.reader(file)
        head = next(rows)
        count = len(next(iter(fields.values())))
        titles, columns = _titled(known, fields, count)
        with temporary.open("w", encoding="utf-8", newline="") as out:
            writer = csv.writer(out, lineterminator="\n")
            writer.writerow([*head, *titles])
            for row, new in zip(_to_the_last(rows), np.stack(columns, 1), strict=True):
                writer.writerow([*row, *(f"{value:.9g}" for value in new)])


def _write_csv(path: Path, known: Mapping[str, Field], fields: Mapping[str, np.ndarray]) -> None:
    count = next(len(values) for name, values in fields.items() if known[name].role == "points")
    titles, columns = _titled(known, fields, count)
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerow(titles)
        np.savetxt(file, np.stack(columns, 1), delimiter=",", fmt="%.9g")


def _titled(
    known: Mapping[str, Field], fields: Mapping[str, np.ndarray], count: int
) -> tuple[list[str], list[np.ndarray]]:
    """A title, with its unit, and a column for every component."""
    titles, columns = [], []
    for name, values in fields.items():
        field = known[name]
        table = np.broadcast_to(np.asarray(values).reshape(-1, len(field.components)), (count, len(field.components)))
        for component, column in zip(field.components, table.T, strict=True):
            title = name if len(field.components) == 1 else f"{name}.{component}"
            titles.append(title if field.unit == "1" else f"{title} [{field.unit}]")
            columns.append(column)
    return titles, columns

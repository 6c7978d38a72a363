"""Points and fields in plain files: .npz with an array per field, .csv with a column per channel."""

from __future__ import annotations

import csv
import os
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from flare.data.sample import INPUT_ROLES, Schema
from flare.errors import DataError, nearest
from flare.files import replacing

FORMATS = (".npz", ".csv")


def read_inputs(path: str | os.PathLike[str], schema: Schema) -> dict[str, np.ndarray]:
    """The input fields of one sample by name; fields the schema does not ask for are left alone."""
    path = Path(path)
    if path.suffix not in FORMATS:
        raise DataError(f"{path}: cannot read {path.suffix or 'a file without a suffix'}; use {' or '.join(FORMATS)}")
    if not path.is_file():
        raise DataError(f"{path} does not exist")
    return _read_npz(path, schema) if path.suffix == ".npz" else _read_csv(path, schema)


def write_outputs(
    path: str | os.PathLike[str], schema: Schema, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]
) -> None:
    """Inputs and predicted fields together, in the format the suffix names."""
    path = Path(path)
    if path.suffix not in FORMATS:
        raise DataError(f"{path}: cannot write {path.suffix or 'a file without a suffix'}; use {' or '.join(FORMATS)}")
    with replacing(path) as temporary:
        if path.suffix == ".npz":
            np.savez(temporary, **inputs, **outputs)  # type: ignore[arg-type]
        else:
            _write_csv(temporary, schema, {**inputs, **outputs})


def _read_npz(path: Path, schema: Schema) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            present = list(archive)
            wanted = schema.named(*INPUT_ROLES)
            for name in wanted:
                if name not in present:
                    raise DataError(
                        f"{path} has no array {name!r}; it has {', '.join(present)}, the model needs {wanted}"
                    )
            return {name: archive[name] for name in wanted}
    except (ValueError, OSError, zipfile.BadZipFile) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} is damaged or not an .npz file: {error}") from None


def _read_csv(path: Path, schema: Schema) -> dict[str, np.ndarray]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        header = [name.strip().split(" [")[0] for name in next(csv.reader(file), [])]
    fields = {}
    for name in schema.named(*INPUT_ROLES):
        columns = [
            _column(path, header, name, c, len(schema.fields[name].components)) for c in schema.fields[name].components
        ]
        values = _read_columns(path, columns)
        fields[name] = values[0] if schema.fields[name].role == "parameter" else values
    return fields


def _column(path: Path, header: list[str], field: str, component: str, width: int) -> int:
    """A column is called by its component (`x`), its channel (`velocity.x`), or the field where that has only one."""
    names = [component, f"{field}.{component}", *([field] if width == 1 else [])]
    for name in names:
        if name in header:
            return header.index(name)
    raise DataError(f"{path} has no column for {field}.{component}; {nearest(component, header)}")


def _read_columns(path: Path, columns: list[int]) -> np.ndarray:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # loadtxt only warns of a file without rows
            return np.loadtxt(path, delimiter=",", skiprows=1, usecols=columns, ndmin=2, encoding="utf-8-sig")
    except (ValueError, UserWarning) as error:
        raise DataError(f"{path} cannot be read as a table of numbers: {error}") from None


def _write_csv(path: Path, schema: Schema, fields: Mapping[str, np.ndarray]) -> None:
    count = len(fields[schema.points])
    titles, columns = [], []
    for name, values in fields.items():
        field = schema.fields[name]
        table = np.broadcast_to(np.asarray(values).reshape(-1, len(field.components)), (count, len(field.components)))
        for component, column in zip(field.components, table.T, strict=True):
            title = name if len(field.components) == 1 else f"{name}.{component}"
            titles.append(title if field.unit == "1" else f"{title} [{field.unit}]")
            columns.append(column)
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerow(titles)
        np.savetxt(file, np.stack(columns, 1), delimiter=",", fmt="%.9g")

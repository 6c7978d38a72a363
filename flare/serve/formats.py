"""Uploads as the inputs of one sample. What a stranger sends is read in full or refused."""

from __future__ import annotations

import json
import math
import struct
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from flare.data.importing.cases import Case, Place
from flare.data.importing.containers import read_container, read_point_table
from flare.data.importing.fields import fields_of
from flare.data.importing.meshed import grid_case
from flare.data.sample import INPUT_ROLES, Schema
from flare.mesh.stl import read_stl
from flare.mesh.unstructured import Grid, read_grid
from flare.part import refuse_twice, refuse_units, twice
from flare.prediction import kept_fields, kept_units
from flare.serve.limits import Limits
from flare.serve.surface import pointed
from flare.utils.errors import DataError, MissingInputError, TooLarge

NUMBERS = "fiub"
"""Kinds of numpy types that are numbers: floats, whole numbers, truth."""
MEMBERS = 64
"""Arrays of an .npz file."""
DIRECTORY = 64 * 1024
"""Bytes of the table of contents of an .npz file; an entry takes some 60."""
LINE = 64 * 1024
"""Bytes of a line of CSV."""


@dataclass(frozen=True)
class Part:
    """What an upload holds."""

    fields: dict[str, Any]
    """Points, features and parameters by name, not yet judged: `Surrogate.sample` does that."""
    grid: Grid | None = None
    """The mesh they came on, to be given back with the answer."""
    kept: dict[str, np.ndarray] = field(default_factory=dict)
    """What else there is at these points, likewise."""
    units: dict[str, str] = field(default_factory=dict)
    """Of that, where the upload states them."""
    remarks: list[str] = field(default_factory=list)
    """What the sender should know: what was averaged, where the points of a surface are."""


def read_part(
    path: Path,
    schema: Schema,
    settings: Mapping[str, Any],
    limits: Limits,
    *,
    known: Mapping[str, np.ndarray] | None = None,
    spacing: float | None = None,
) -> Part:
    """Read an upload by its suffix.

    Args:
        settings: features alike at all points, and parameters, that come beside the file: name -> channels. What is in
            the file, too, is refused.
        known: parameters of the encoded part that is asked; the file may repeat them, and not differ.
        spacing: of the training points, where it is known; a bare surface gets points as dense.

    Raises:
        DataError: what it holds is no sample for this schema; TooLarge beyond a limit.
    """
    for name in settings:
        if name not in schema.named("feature", "parameter"):
            raise DataError(f"this model has no feature or parameter {name!r} to set")
    if path.suffix == ".json":
        part = Part(_read_json(path, schema))
    elif path.suffix == ".stl":
        grid, what = pointed(read_stl(path.read_bytes(), path.name), schema, spacing, limits.points, path.name)
        part = _of_case(replace(grid_case(grid, path.name), remarks=[f"{path.name}: {what}"]), schema, settings, known)
    else:
        part = _of_case(READERS[path.suffix](path, schema, limits), schema, settings, known)
    given = {**settings, **(known or {})}
    for name in part.fields.keys() & given.keys():
        if name in settings or not _same(part.fields[name], given[name]):
            raise twice(name, path.name, part.fields[name], given[name])
    count = len(np.atleast_1d(part.fields.get(schema.points, [])))
    if count == 0:
        raise DataError(f"{path.name} has no points; the model needs {schema.points!r}")
    if count > limits.points:
        raise TooLarge(f"{path.name} has {count:,} points; this server accepts {limits.points:,}")
    everywhere = {name: np.tile(settings[name], (count, 1)) for name in schema.named("feature") if name in settings}
    return replace(part, fields={**part.fields, **given, **everywhere})


def _same(own: np.ndarray, known: np.ndarray) -> bool:
    """To the precision of a code."""
    return np.array_equal(np.asarray(own, np.float32).reshape(-1), known)


def _read_npz(path: Path, schema: Schema, limits: Limits) -> Case:
    _check_archive(path)
    try:
        with zipfile.ZipFile(path) as archive:
            _check_members(path, archive, schema, limits)
        return read_container(Place(path), schema=schema)
    except (DataError, MemoryError):
        raise
    except Exception as error:  # whatever three parsers, of archives, packed bytes and headers, make of a damaged file
        what = f"{type(error).__name__}: {error}"
        raise DataError(f"{path.name} is damaged or not an .npz file: {what[:200]}") from None


def _check_archive(path: Path) -> None:
    """Look at the end of the file: a table of contents of millions of entries is itself a bomb."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 22 - 65535))
        tail = file.read()
    place = tail.rfind(b"PK\x05\x06")
    if place < 0 or len(tail) - place < 22:
        raise DataError(f"{path.name} is cut short or not an .npz file: it has no table of contents")
    entries, size = struct.unpack("<HI", tail[place + 10 : place + 16])
    if entries > MEMBERS or size > DIRECTORY:
        raise DataError(f"{path.name} has {entries:,} arrays in a table of {size:,} bytes; {MEMBERS} are accepted")


def _check_members(path: Path, archive: zipfile.ZipFile, schema: Schema, limits: Limits) -> None:
    """Sizes and types that the archive declares, before anything is unpacked. It cannot unpack to more than those."""
    names = [member.filename for member in archive.infolist()]
    if len(names) > MEMBERS or len(set(names)) < len(names):
        raise DataError(f"{path.name} has {len(names):,} arrays, or two of one name; up to {MEMBERS} are accepted")
    total = sum(member.file_size for member in archive.infolist())
    if total > limits.array_bytes:
        raise TooLarge(f"{path.name} unpacks to {total:,} bytes; {limits.array_bytes:,} are accepted")
    for member in archive.infolist():
        name = member.filename.removesuffix(".npy")
        if name == member.filename:
            raise DataError(f"{path.name} holds {name[:100]!r}, which is no array (.npy)")
        with archive.open(member) as file:
            shape, kind = _array_header(file)
            head = file.tell()
        if kind.kind not in NUMBERS and name in schema.named(*INPUT_ROLES):
            raise DataError(f"{path.name}: {name!r} holds {kind}, not numbers")
        if kind.hasobject:  # nobody unpickles it
            continue
        if any(n < 0 for n in shape) or head + math.prod(shape) * kind.itemsize != member.file_size:
            raise DataError(f"{path.name}: {name!r} declares the shape {shape}, which is not the size it has")


def _array_header(file: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        shape, _, kind = np.lib.format.read_array_header_1_0(file)
    elif version == (2, 0):
        shape, _, kind = np.lib.format.read_array_header_2_0(file)
    else:
        raise DataError(f"arrays of the .npy version {version} are not read")
    return shape, kind


def _read_csv(path: Path, schema: Schema, limits: Limits) -> Case:
    rows = 0
    with path.open("rb") as file:
        while line := file.readline(LINE):
            rows += 1
            if len(line) == LINE:
                raise DataError(f"{path.name}: line {rows} has {LINE:,} bytes or more; a row of numbers is shorter")
            if rows > limits.points + 1 and line.strip():
                raise TooLarge(f"{path.name} has more than {limits.points:,} rows, which this server accepts")
    return read_point_table(Place(path), schema=schema)


def _read_json(path: Path, schema: Schema) -> dict[str, np.ndarray]:
    try:
        record = json.loads(path.read_bytes(), parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path.name} is no JSON: {str(error)[:200]}") from None
    if not isinstance(record, dict):
        raise DataError(f"{path.name} should be an object of fields by name, such as {_example(schema)}")
    return {name: _numbers(path, name, values) for name, values in record.items()}


def _no_number(name: str) -> NoReturn:
    raise DataError(f"{name} is no number of JSON, and no value of a field")


def _numbers(path: Path, name: str, values: Any) -> np.ndarray:
    try:
        array = np.asarray(values)
    except (ValueError, OverflowError):
        array = np.array(None)
    if array.dtype.kind not in "fiu":
        raise DataError(f"{path.name}: {name[:100]!r} should be numbers, or rows of as many numbers each")
    return array


def _example(schema: Schema) -> str:
    width = len(schema.fields[schema.points].components)
    return json.dumps({schema.points: [[0.0] * width]})


def _read_vtu(path: Path, schema: Schema, limits: Limits) -> Case:
    grid = read_grid(path, most_points=limits.points, most_bytes=limits.array_bytes)
    return grid_case(grid, path.name)


def _of_case(case: Case, schema: Schema, settings: Mapping[str, Any], known: Mapping[str, np.ndarray] | None) -> Part:
    remarks, inputs = list(case.remarks), [name for name in schema.named(*INPUT_ROLES) if name not in settings]
    refuse_twice(case, schema, settings)
    refuse_units(case, schema, inputs)
    fields: dict[str, Any] = {}
    for name in inputs:
        try:
            fields |= fields_of(case, schema, [name], told=remarks.append)
        except MissingInputError:
            if name not in (known or {}):
                raise
    kept = kept_fields(case, schema, told=remarks.append)
    return Part(fields, _whole(case), kept, kept_units(case, kept), remarks)


def _whole(case: Case) -> Grid | None:
    """Its mesh with all fields: that of an NPZ file comes without them."""
    if case.grid is None:
        return None
    return replace(
        case.grid,
        point_fields=dict(case.point_fields),
        cell_fields=dict(case.cell_fields),
        values={**case.parameters, **case.grid.values},
    )


READERS: dict[str, Callable[[Path, Schema, Limits], Case]] = {".npz": _read_npz, ".csv": _read_csv, ".vtu": _read_vtu}
"""Format of an upload -> how it is read; STL, which has surfaces only, and JSON, which has no others, apart."""

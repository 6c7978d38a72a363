"""Files of arrays as cases: NPZ, HDF5 and Zarr with an array per field, CSV and Parquet with a row per point.

An HDF5 or Zarr file may hold a case in each group, and tell units and parameters as attributes. Arrays whose
coordinates are (cases, N, dimensions) hold all cases along their first axis. Nothing is unpickled.
"""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from flare.data.importing.cases import Case, Place
from flare.data.importing.fields import CENTRES, identifier
from flare.data.importing.meshed import cells_grid
from flare.data.sample import Schema
from flare.data.tables import columns_by_field, read_table, refuse_repeated, split_titles
from flare.utils.errors import DataError, NoCoordinatesError, numpys_reason, one_line

POINTS = ("points", "point", "pos", "position", "positions", "coordinates", "coords", "xyz", "nodes", "vertices")
"""What coordinates are called, in large or small letters."""
CELLS = {"triangle": 3, "quad": 4, "tetra": 4, "wedge": 6, "hexahedron": 8}
FEW = 16
"""Values that a parameter has at most."""
COMPONENT = re.compile(r"(.+?)(?:[.:](?:[xyz]|\d+)|_[xyz])$", re.IGNORECASE)


def cases_inside(path: Path, points: str | None = None, schema: Schema | None = None) -> list[Place]:
    """The cases of a file of arrays: one, one a group, or one a row."""
    with _opened(path) as root:
        points = schema.points if schema and any(schema.points in _names(node) for _, node in _groups(root)) else points
        groups = [name for name, node in _groups(root) if _coordinates(node, points)]
        if not groups:
            raise _no_coordinates(str(path), root, points)
        places = []
        for name in groups:
            node = root[name] if name else root
            shape = node[_coordinates(node, points)].shape
            rows = range(shape[0]) if len(shape) == 3 else [None]
            places += [Place(path, name, row) for row in rows]
        return places


def read_container(place: Place, points: str | None = None, schema: Schema | None = None) -> Case:
    with _opened(place.path) as root:
        node = root[place.group] if place.group else root
        own = schema.points if schema and schema.points in _names(node) else None
        key = own or _coordinates(node, points)
        if key is None:
            raise _no_coordinates(place.name, node, points)
        read = {name: _array(node, name) for name in _names(node)}
        units = {"points" if name == key else name: unit for name in read if (unit := _unit(node, name))}
        told = _numbers_told(root) | _numbers_told(node)
    arrays = {name: a for name, a in read.items() if a is not None and a.dtype.kind in "fiub"}
    for name in schema.fields if schema else ():
        if name in read and name not in arrays:
            holds = getattr(read[name], "dtype", "objects")
            raise DataError(f"{place.name}: {name!r} holds {holds}; real numbers are expected")
    if place.row is not None:
        stacked = arrays[key]
        arrays = {
            name: a[place.row] if a.ndim and len(a) == len(stacked) and not _cells(name, a, stacked[0]) else a
            for name, a in arrays.items()  # what has no row for each case, such as the cells, is shared by all
        }
    for name, value in told.items():
        if name in arrays and arrays[name].size == 1 and arrays[name].item() != value.item():
            raise DataError(
                f"{place.name}: {name!r} is {arrays[name].item():g} as an array and {value.item():g} as an attribute; "
                f"remove one"
            )
    return replace(_case(place.name, key, {**told, **arrays}, schema), units=units)


def read_point_table(place: Place, points: str | None = None, schema: Schema | None = None) -> Case:
    """A row a point; `velocity.x`, `velocity_x` or ParaView's `velocity:0` are components of one field.

    Columns that a schema calls its own are taken as it says; the others are told by their names, as without a schema.
    """
    if place.path.suffix.lower() == ".csv":
        header, units, rows = read_table(place.path)
        columns = dict(zip(header, rows.T, strict=True))
    else:
        titles, arrays = _parquet(place.path)
        header, units = split_titles(titles)
        refuse_repeated(place.path, header)
        columns = dict(zip(header, arrays, strict=True))
    stems = [match[1] if (match := COMPONENT.match(name)) else name for name in header]
    grouped = columns_by_field(header, schema) if schema else {}
    known = {name for parts in grouped.values() for name in parts}
    for name, stem in zip(header, stems, strict=True):
        if name in known:
            continue
        grouped.setdefault(stem if stems.count(stem) > 1 else name, []).append(name)
    axes = [name for letter in "xyz" for name in header if name.lower() == letter]
    fields = {name: np.stack([columns[c] for c in parts], 1) for name, parts in grouped.items()}
    fields = {name: values if values.shape[1] > 1 else values[:, 0] for name, values in fields.items()}
    unit_of = dict(zip(header, units, strict=True))
    told = {name: unit_of[parts[0]] for name, parts in grouped.items() if unit_of[parts[0]] != "1"}
    own = schema.points if schema and schema.points in fields else None
    key = own or next((name for name in fields if _is_points(name, points)), None)
    if key is None and len(axes) >= 2:
        key, fields["points"] = "points", np.stack([columns[axis] for axis in axes], 1)
        lengths = list(dict.fromkeys(unit_of[axis] for axis in axes if unit_of[axis] != "1"))
        if len(lengths) > 1:
            raise DataError(f"{place.name}: its coordinates are in {' and '.join(lengths)}; write all in one unit")
        told |= {"points": lengths[0]} if lengths else {}
        fields = {name: values for name, values in fields.items() if name not in axes}
    if key is not None and fields[key].ndim == 1:
        fields[key] = fields[key][:, None]
    if key is None:
        form = "; a unit stands in square brackets, such as x [mm]" if any("(" in name for name in header) else ""
        raise DataError(f"{place.name}: no columns x, y (and z) in it; it has {', '.join(header)}{form}")
    case = _case(place.name, key, fields)
    return Case(
        case.name, case.points, case.point_fields, units={"points" if n == key else n: u for n, u in told.items()}
    )


def _case(name: str, key: str, arrays: Mapping[str, np.ndarray], schema: Schema | None = None) -> Case:
    points = arrays[key]
    if points.ndim != 2 or points.shape[1] not in (1, 2, 3):
        raise DataError(f"{name}: {key!r} has shape {points.shape}; coordinates are (points, 1 to 3)")
    others = {k: a for k, a in arrays.items() if k != key}
    cells = {k: _cells(k, a, points) for k, a in others.items()}
    # Corners are numbers of points, which cell centres are not.
    found = {} if key == CENTRES else dict(filter(None, cells.values()))
    rest = {k: a for k, a in others.items() if cells[k] is None}
    widths = {k: len(f.components) for k, f in schema.fields.items() if f.role == "parameter"} if schema else {}
    # Three numbers of a part of three points are what the model says they are.
    whole = {k: np.atleast_1d(a) for k, a in rest.items() if a.ndim <= 1 and a.size == widths.get(identifier(k))}
    rest = {k: a for k, a in rest.items() if k not in whole}
    at_points = {k: a for k, a in rest.items() if a.ndim in (1, 2) and len(a) == len(points)}
    count = len(next(iter(found.values()))) if len(found) == 1 else -1  # of two types nobody knows the order
    at_cells = {k: a for k, a in rest.items() if k not in at_points and a.ndim in (1, 2) and len(a) == count}
    placed = {**at_points, **at_cells}
    whole |= {k: np.atleast_1d(a) for k, a in rest.items() if k not in placed and a.ndim <= 1 and a.size <= FEW}
    remarks = [
        f"{k!r} of shape {a.shape} is left out: neither at {len(points):,} points nor at {max(count, 0):,} cells"
        for k, a in rest.items()
        if k not in placed and k not in whole
    ]
    if count == len(points):
        remarks += [f"{k!r} has as many values as there are points and cells: taken at the points" for k in at_points]
    grid = cells_grid(points, found) if found else None
    return Case(name, points, at_points, at_cells, whole, found, grid=grid, remarks=remarks)


def _cells(name: str, array: np.ndarray, points: np.ndarray) -> tuple[str, np.ndarray] | None:
    """Type and corners, where whole numbers are called after a type of cell, or `cells` and can be but one."""
    if array.ndim != 2 or array.dtype.kind not in "iu":
        return None
    kind = next((k for k in CELLS if name.lower().startswith(k[:5]) and array.shape[1] == CELLS[k]), None)
    if kind is None and name.lower() in ("cells", "elements", "elems", "faces"):
        kind = {3: "triangle", 8: "hexahedron"}.get(array.shape[1])
        kind = "quad" if array.shape[1] == 4 and points.shape[1] == 2 else kind
    if kind is None or (array.size and not 0 <= array.min() <= array.max() < len(points)):
        return None
    return kind, array.astype(np.int64)


def _is_points(name: str, points: str | None) -> bool:
    return name == points if points else name.lower() in POINTS


def _coordinates(node: Any, points: str | None) -> str | None:
    return next((name for name in _names(node) if _is_points(name, points)), None)


def _no_coordinates(name: str, node: Any, points: str | None) -> DataError:
    there = f"it has {', '.join(_names(node)) or 'nothing'}"
    if points:
        return DataError(f"{name}: no coordinates called {points!r} in it; {there}")
    return NoCoordinatesError(
        f"{name}: no coordinates in it; {there}. They are known as {', '.join(POINTS)}: rename the array"
    )


def _names(node: Any) -> list[str]:
    """Arrays of a group, not those of groups within it."""
    if isinstance(node, np.lib.npyio.NpzFile):
        return list(node.files)
    return [name for name in node if hasattr(node[name], "shape")]


def _array(node: Any, name: str) -> np.ndarray | None:
    """An array of numbers; None for what would have to be unpickled."""
    try:
        array = np.asarray(node[name][()])
    except ValueError as error:
        if "pickle" not in str(error).lower():
            raise DataError(f"{name!r} is damaged: {numpys_reason(error)}") from None
        return None
    return None if array.dtype == object else array


def _unit(node: Any, name: str) -> str:
    """What the attribute `units` or `unit` of an array says; empty where there is none."""
    values = [_attribute(node[name], title) for title in ("units", "unit")] if hasattr(node, "attrs") else []
    words = [value.item() for value in values if value is not None and value.size == 1]
    texts = [word.decode(errors="replace") if isinstance(word, bytes) else word for word in words]
    return next((text.strip() for text in texts if isinstance(text, str)), "")


def _numbers_told(node: Any) -> dict[str, np.ndarray]:
    """Attributes of a file or group that are one number each; names with `_` in front are those of libraries."""
    values = {name: _attribute(node, name) for name in getattr(node, "attrs", ()) if not name.startswith("_")}
    numbers = {name: v for name, v in values.items() if v is not None and v.size == 1 and v.dtype.kind in "fiub"}
    return {name: value.reshape(()) for name, value in numbers.items()}


def _attribute(node: Any, name: str) -> np.ndarray | None:
    """None where there is none, or one of a type that NumPy does not know."""
    try:
        return np.asarray(node.attrs[name]) if name in node.attrs else None
    except (OSError, TypeError, ValueError):
        return None


def _groups(root: Any) -> Iterator[tuple[str, Any]]:
    """The file itself and every group below it, by name."""
    yield "", root
    if isinstance(root, np.lib.npyio.NpzFile):
        return
    waiting = [(name, root[name]) for name in sorted(root) if not hasattr(root[name], "shape")]
    while waiting:
        name, node = waiting.pop(0)
        yield name, node
        waiting += [(f"{name}/{inner}", node[inner]) for inner in sorted(node) if not hasattr(node[inner], "shape")]


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    if not path.exists():
        raise DataError(f"{path} does not exist")
    suffix = path.suffix.lower()
    try:
        if suffix == ".npz":
            with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
                yield archive
        elif suffix == ".zarr":
            yield _extra("zarr").open_group(str(path), mode="r")
        else:
            with _extra("h5py").File(path, "r") as groups:
                yield groups
    except DataError as error:
        raise error if str(path) in str(error) else DataError(f"{path}: {error}") from None
    except (ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path} is damaged or no {suffix} file: {one_line(numpys_reason(error))[:200]}") from None


def _parquet(path: Path) -> tuple[list[str], list[np.ndarray]]:
    """Titles and columns; titles may repeat."""
    parquet = _extra("pyarrow.parquet")
    try:
        table = parquet.ParquetFile(path).read()
        columns = [column.to_numpy().astype(np.float64) for column in table.columns]
    except (ValueError, OSError, TypeError) as error:
        raise DataError(f"{path} cannot be read as Parquet of numbers: {one_line(error)[:200]}") from None
    return table.column_names, columns


def _extra(name: str) -> ModuleType:
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError:
        package = name.split(".")[0]
        raise DataError(f"{package} is missing; it comes with the extra:  pip install 'flare-engine[mesh]'") from None

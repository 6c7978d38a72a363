"""Meshes in files of arrays: NPZ, HDF5 and Zarr, with one array per field.

An HDF5 or Zarr file may hold a mesh in each group, and state units and parameters as attributes. If the coordinates
have shape (meshes, N, dimensions), all arrays hold several meshes along their first axis. Nothing is unpickled.
"""

from __future__ import annotations

import math
import os
import struct
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from flare.mesh.io import ReadLimits
from flare.mesh.mesh import CORNERS, NUMERIC, Array, Arrays, Mesh
from flare.utils.errors import DataError, TooLarge, numpy_error_reason, one_line
from flare.utils.files import replace_atomically, save_arrays

POINTS = ("points", "point", "pos", "position", "positions", "coordinates", "coords", "xyz", "nodes", "vertices")
"""Names of coordinates, in lower case."""
CENTRES = "cell_centres"
"""Name of the coordinates if they are cell centers."""
CELL_ARRAYS = ("triangle", "quad", "tetra", "wedge", "hexahedron")
"""Cell types that are recognized by the name of an array of indices."""
MAX_PARAMETER = 16
"""Most values of an array that is taken as a parameter of the whole mesh."""
MAX_MEMBERS = 64
"""Most arrays of an untrusted .npz file."""
MAX_DIRECTORY = 64 * 1024
"""Most bytes of the directory of an untrusted .npz file; an entry takes about 60."""


@dataclass(frozen=True)
class ArrayLayout:
    """What a caller knows about the names in a file of arrays or a table."""

    points: str | None = None
    """Name of the coordinates; None recognizes the usual names."""
    points_field: str | None = None
    """Name that a model gives to its points; preferred if the file has it."""
    inputs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Input fields of a model, points included -> names of their components."""
    parameters: Collection[str] = ()
    """Inputs that have one value for the whole mesh."""
    numeric: Collection[str] = ()
    """Fields that must hold numbers."""
    spell: Callable[[str], str] = str
    """Turns a name of the file into the spelling of the model."""


def find_meshes(path: Path, layout: ArrayLayout | None = None) -> list[tuple[str, int | None]]:
    """Return group and row of every mesh in a file."""
    layout = layout or ArrayLayout()
    with _open(path) as root:
        found: list[tuple[str, int | None]] = []
        for name, node in _groups(root):
            if (key := _coordinates(node, layout)) is not None:
                shape = node[key].shape
                found += [(name, row) for row in (range(shape[0]) if len(shape) == 3 else [None])]
        if not found:
            raise _no_coordinates(str(path), root, layout)
        return found


def read_arrays(
    path: Path,
    *,
    layout: ArrayLayout | None = None,
    group: str = "",
    row: int | None = None,
    limits: ReadLimits | None = None,
) -> Mesh:
    """Read one mesh of a file; see `flare.mesh.read_mesh`."""
    layout, name = layout or ArrayLayout(), mesh_name(path, group, row)
    with _open(path, limits) as root:
        node = root[group] if group else root
        key = _coordinates(node, layout)
        if key is None:
            raise _no_coordinates(name, node, layout)
        read = {title: _array(node, title) for title in _names(node)}
        units = {"points" if title == key else title: unit for title in read if (unit := _unit(node, title))}
        attributes = _numeric_attributes(root) | _numeric_attributes(node)
        arrays = {title: a for title, a in read.items() if a is not None and a.dtype.kind in NUMERIC}
        for title in layout.numeric:
            if title in read and title not in arrays:
                raise DataError(f"{name}: {title!r} holds {getattr(read[title], 'dtype', 'objects')}; expected numbers")
        if row is not None:
            stacked = arrays[key]
            arrays = {
                title: a[row] if a.ndim and len(a) == len(stacked) and not _cells(title, a, stacked[0]) else a
                for title, a in arrays.items()  # arrays without a row per mesh, such as the cells, are shared by all
            }
        for title in attributes.keys() & arrays.keys():
            one, other = arrays[title], attributes[title].item()
            if one.size == 1 and one.item() != other:
                raise DataError(f"{name}: {title!r} is {one.item():g} as an array and {other:g} as an attribute")
        return mesh_from_arrays(name, key, {**attributes, **arrays}, layout, units)


def mesh_name(path: Path, group: str = "", row: int | None = None) -> str:
    """Return the name of a mesh inside a file, such as `all.h5:run/3`."""
    inside = "/".join(filter(None, [group, "" if row is None else str(row)]))
    return f"{path}:{inside}" if inside else str(path)


def write_npz(path: str | os.PathLike[str], mesh: Mesh, *, points: str = "points") -> None:
    """Write points, point data, cells by type, cell data and numeric field data as arrays.

    Args:
        path: File to write.
        mesh: Mesh to write. Data of one component is written with shape (N,).
        points: Name of the coordinates.
    """
    arrays = {points: mesh.points} | {name: _squeezed(values) for name, values in mesh.point_data.items()}
    cells = {kind: corners for kind, corners in mesh.cells.items() if corners.size and kind not in mesh.point_data}
    values = {name: v for name, v in mesh.field_data.items() if np.asarray(v).dtype.kind in NUMERIC}
    with replace_atomically(path) as temporary:
        save_arrays(temporary, {**cells, **mesh.cell_data, **values, **arrays})


def _squeezed(values: Array) -> Array:
    return values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values


def mesh_from_arrays(
    name: str, key: str, arrays: Arrays, layout: ArrayLayout, units: Mapping[str, str] | None = None
) -> Mesh:
    """Build a mesh from named arrays: by name and shape they are cells, point data, cell data or parameters.

    Args:
        name: Name for messages.
        key: Name of the coordinates.
        arrays: All arrays of the file.
        layout: Names that the caller knows.
        units: Units by name; `points` is that of the coordinates.
    """
    points = arrays[key]
    if points.ndim != 2 or points.shape[1] not in (1, 2, 3):
        raise DataError(f"{name}: {key!r} has shape {points.shape}; expected (points, 1 to 3)")
    others = {k: a for k, a in arrays.items() if k != key}
    indices = {k: _cells(k, a, points) for k, a in others.items()}
    # Corners are indices of points, not of cell centers.
    cells = {} if key == CENTRES else dict(filter(None, indices.values()))
    rest = {k: a for k, a in others.items() if indices[k] is None}
    widths = {k: len(layout.inputs[k]) for k in layout.parameters}
    # Three values of a mesh of three points are a parameter if the model has such a parameter.
    whole = {k: np.atleast_1d(a) for k, a in rest.items() if a.ndim <= 1 and a.size == widths.get(layout.spell(k))}
    rest = {k: a for k, a in rest.items() if k not in whole}
    at_points = {k: a for k, a in rest.items() if a.ndim in (1, 2) and len(a) == len(points)}
    count = len(next(iter(cells.values()))) if len(cells) == 1 else -1  # the order of two types is unknown
    at_cells = {k: a for k, a in rest.items() if k not in at_points and a.ndim in (1, 2) and len(a) == count}
    placed = {**at_points, **at_cells}
    small = {k: a for k, a in rest.items() if k not in placed and a.ndim <= 1 and a.size <= MAX_PARAMETER}
    whole |= {k: np.atleast_1d(a) for k, a in small.items()}
    notes = [
        f"{k!r} of shape {a.shape} is ignored: it matches neither {len(points):,} points nor {max(count, 0):,} cells"
        for k, a in rest.items()
        if k not in placed and k not in whole
    ]
    if count == len(points):
        notes += [f"{k!r} has as many values as there are points and cells: taken as point data" for k in at_points]
    data = {"point_data": at_points, "cell_data": at_cells, "field_data": whole}
    return Mesh.from_cells(points, cells, **data, units=units or {}, name=name, notes=tuple(notes))


def _cells(name: str, array: Array, points: Array) -> tuple[str, Array] | None:
    """Return type and corners if integers are named after a cell type, or `cells` and can be one type only."""
    if array.ndim != 2 or array.dtype.kind not in "iu":
        return None
    kind = next((k for k in CELL_ARRAYS if name.lower().startswith(k[:5]) and array.shape[1] == CORNERS[k]), None)
    if kind is None and name.lower() in ("cells", "elements", "elems", "faces"):
        kind = {3: "triangle", 8: "hexahedron"}.get(array.shape[1])
        kind = "quad" if array.shape[1] == 4 and points.shape[1] == 2 else kind
    if kind is None or (array.size and not 0 <= array.min() <= array.max() < len(points)):
        return None
    return kind, array.astype(np.int64)


def is_points_name(name: str, points: str | None) -> bool:
    """Return whether an array holds coordinates by its name; `points` is the only accepted name if it is given."""
    return name == points if points else name.lower() in POINTS


def _coordinates(node: Any, layout: ArrayLayout) -> str | None:
    names = _names(node)
    if layout.points_field in names:
        return layout.points_field
    return next((name for name in names if is_points_name(name, layout.points)), None)


def _no_coordinates(name: str, node: Any, layout: ArrayLayout) -> DataError:
    expected = repr(layout.points) if layout.points else f"any of {', '.join(POINTS)}"
    there = ", ".join(_names(node)) or "no arrays"
    return DataError(f'{name} has no coordinates named {expected}; it has {there}. Rename it, or pass points="NAME"')


def _names(node: Any) -> list[str]:
    """Return the names of the arrays of a group, without those of nested groups."""
    if isinstance(node, np.lib.npyio.NpzFile):
        return list(node.files)
    return [name for name in node if hasattr(node[name], "shape")]


def _array(node: Any, name: str) -> Array | None:
    """Return an array, or None for objects, which would have to be unpickled."""
    try:
        array = np.asarray(node[name][()])
    except ValueError as error:
        if "pickle" not in str(error).lower():
            raise DataError(f"{name!r} is damaged: {numpy_error_reason(error)}") from None
        return None
    return None if array.dtype == object else array


def _unit(node: Any, name: str) -> str:
    """Return the attribute `units` or `unit` of an array; empty if there is none."""
    values = [_attribute(node[name], title) for title in ("units", "unit")] if hasattr(node, "attrs") else []
    words = [value.item() for value in values if value is not None and value.size == 1]
    texts = [word.decode(errors="replace") if isinstance(word, bytes) else word for word in words]
    return next((text.strip() for text in texts if isinstance(text, str)), "")


def _numeric_attributes(node: Any) -> dict[str, Array]:
    """Return the attributes of a group that are one number each, without those of libraries, which start with `_`."""
    values = {name: _attribute(node, name) for name in getattr(node, "attrs", ()) if not name.startswith("_")}
    numbers = {name: v for name, v in values.items() if v is not None and v.size == 1 and v.dtype.kind in NUMERIC}
    return {name: value.reshape(()) for name, value in numbers.items()}


def _attribute(node: Any, name: str) -> Array | None:
    """Return an attribute; None if it does not exist or has a type that NumPy does not have."""
    try:
        return np.asarray(node.attrs[name]) if name in node.attrs else None
    except (OSError, TypeError, ValueError):
        return None


def _groups(root: Any) -> Iterator[tuple[str, Any]]:
    """Yield the file itself and every group in it, with its name."""
    groups = [("", root)]
    for name, node in groups:  # grows while it is read
        yield name, node
        if not isinstance(node, np.lib.npyio.NpzFile):
            inner = [(f"{name}/{part}".lstrip("/"), node[part]) for part in sorted(node)]
            groups += [(path, child) for path, child in inner if not hasattr(child, "shape")]


@contextmanager
def _open(path: Path, limits: ReadLimits | None = None) -> Iterator[Any]:
    """Open a file of arrays and turn every fault in it into one error that names the file."""
    if not path.exists():
        raise DataError(f"{path} does not exist")
    suffix = path.suffix.lower()
    try:
        if limits is not None:
            _check_archive(path, limits)
        if suffix == ".npz":
            with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
                yield archive
        elif suffix == ".zarr":
            yield optional_module("zarr").open_group(str(path), mode="r")
        else:
            with optional_module("h5py").File(path, "r") as groups:
                yield groups
    except DataError as error:
        raise error if str(path) in str(error) else DataError(f"{path}: {error}") from None
    except MemoryError:
        raise
    except Exception as error:  # parsers of archives, compressed bytes and headers raise anything for a damaged file
        reason = one_line(numpy_error_reason(error))[:200]
        raise DataError(f"{path} is damaged or not a {suffix} file: {reason}") from None


def optional_module(name: str) -> ModuleType:
    """Import a module of the extra `mesh`, or raise DataError with the command that installs it."""
    try:
        return import_module(name)
    except ImportError:
        package = name.split(".")[0]
        raise DataError(f"{package} is not installed:  pip install 'flare-engine[mesh]'") from None


# ---- untrusted archives ----------------------------------------------------------------------------------------------


def _check_archive(path: Path, limits: ReadLimits) -> None:
    """Check the declared number, sizes and types of the arrays of an .npz file before anything is unpacked."""
    if path.suffix.lower() != ".npz":
        raise DataError(f"{path}: {path.suffix} files are not accepted here; use .npz")
    _check_directory(path)
    with zipfile.ZipFile(path) as archive:
        names = [member.filename for member in archive.infolist()]
        if len(names) > MAX_MEMBERS or len(set(names)) < len(names):
            raise DataError(f"{path} has {len(names):,} arrays, or two of one name; the limit is {MAX_MEMBERS}")
        total = sum(member.file_size for member in archive.infolist())
        if total > limits.bytes:
            raise TooLarge(f"{path} unpacks to {total:,} bytes; the limit is {limits.bytes:,}")
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            with archive.open(member) as file:
                shape, kind = _array_header(file)
                head = file.tell()
            if kind.hasobject:  # it is never unpickled
                continue
            if any(n < 0 for n in shape) or head + math.prod(shape) * kind.itemsize != member.file_size:
                raise DataError(f"{path}: {name!r} declares the shape {shape}, which does not match its size")


def _check_directory(path: Path) -> None:
    """Check the size of the directory at the end of the file: one of millions of entries would exhaust the memory."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 22 - 65535))
        tail = file.read()
    place = tail.rfind(b"PK\x05\x06")
    if place < 0 or len(tail) - place < 22:
        raise DataError(f"{path} is truncated or not an .npz file: it has no directory")
    entries, size = struct.unpack("<HI", tail[place + 10 : place + 16])
    if entries > MAX_MEMBERS or size > MAX_DIRECTORY:
        raise DataError(f"{path} has {entries:,} arrays in a directory of {size:,} bytes; the limit is {MAX_MEMBERS}")


def _array_header(file: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    shape, _, kind = readers[np.lib.format.read_magic(file)](file)
    return shape, kind

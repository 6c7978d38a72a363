"""VTK XML files (VTU, VTP, PVD), read and written without VTK.

The reader is safe for files from untrusted sources. It supports text, base64 and raw arrays, inline or appended,
uncompressed, zlib or LZMA, with 32 or 64-bit headers. Appended data is memory-mapped and only the requested arrays are
unpacked. No array is unpacked beyond the size that its header declares or beyond the limits of the caller, and XML
entities and document types are rejected.
"""

from __future__ import annotations

import base64
import lzma
import mmap
import os
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from xml.sax.saxutils import quoteattr

import numpy as np
from numpy.typing import NDArray

from flare.mesh.io import ReadLimits
from flare.mesh.mesh import Array, Mesh, in_space, stated_units, written_field_data
from flare.utils.errors import DataError, TooLarge
from flare.utils.files import replace_atomically

TYPES = {f"{kind}{8 * size}": f"{code}{size}" for kind, code in (("Int", "i"), ("UInt", "u")) for size in (1, 2, 4, 8)}
TYPES |= {"Float32": "f4", "Float64": "f8"}
"""VTK's number types -> NumPy's, without the byte order."""
TYPE_NAMES = {code: name for name, code in TYPES.items()}
STRING = "String"
HEADERS = {"UInt32": "u4", "UInt64": "u8"}
APPENDED = b"<AppendedData"
MAX_ELEMENTS = 20_000
"""Most XML elements of a file; a mesh has a few dozen."""
MAX_CHARACTERS = 1 << 24
"""Most characters of a string array, counting every string at the length of the longest, as NumPy stores it."""
BLOCK = 1 << 20
"""Bytes that are compressed at a time."""
TENSOR = ("XX", "YY", "ZZ", "YZ", "XZ", "XY")
"""Names of six components in our order; VTK's default order is XX YY ZZ XY YZ XZ."""
POLYGON, POLYHEDRON = 7, 42
OTHER_POLYDATA = ("NumberOfVerts", "NumberOfLines", "NumberOfStrips")


class InvalidFile(Exception):
    """A fault in a file; `open_xml` adds the name of the file."""


# ---- reading ---------------------------------------------------------------------------------------------------------


def read_vtu(path: str | os.PathLike[str], limits: ReadLimits | None = None) -> Mesh:
    """Read an unstructured grid. Strings at points or cells and attributes of the file are not kept.

    Raises:
        DataError: The file is missing, damaged, or not an unstructured grid.
        TooLarge: It exceeds one of the limits; no array has been unpacked beyond them.
    """
    with open_xml(path, "VTU", limit=limits.bytes if limits else None) as file:
        piece, names = _only_piece(file, "UnstructuredGrid"), ("connectivity", "offsets", "types")
        points, corners, ends, (types,) = _read_cells(file, piece, "Cells", names, limits.points if limits else None)
        if (types == POLYHEDRON).any():
            raise InvalidFile("has polyhedra, which this reader does not support; convert them to tetrahedra")
        point_data = _data(file, piece.iterfind("PointData/DataArray"), len(points))
        cell_data = _data(file, piece.iterfind("CellData/DataArray"), len(ends))
        field_data = _data(file, file.root.iterfind("UnstructuredGrid/FieldData/*"), None)
        units = stated_units(field_data)
        return Mesh(points, corners, ends, types, point_data, cell_data, field_data, units, name=str(path))


def read_vtp(path: str | os.PathLike[str], fields: Iterable[str] = ()) -> Mesh:
    """Read the polygons of a surface file; only the named cell fields are unpacked.

    Raises:
        DataError: The file is missing or damaged, has other cells than polygons, or lacks one of the fields.
    """
    with open_xml(path, "VTP") as file:
        piece = _only_piece(file, "PolyData")
        if any(int(piece.get(kind, "0")) for kind in OTHER_POLYDATA):
            raise InvalidFile("has vertices, lines or strips besides polygons; keep the polygons only")
        points, corners, ends, _ = _read_cells(file, piece, "Polys", ("connectivity", "offsets"))
        types = np.full(len(ends), POLYGON, np.uint8)
        known = {about.get("Name", ""): about for about in piece.iterfind("CellData/DataArray")}
        if lacking := set(fields) - known.keys():
            raise InvalidFile(f"has no cell field {min(lacking)!r}; it has {', '.join(sorted(known)) or 'none'}")
        data = _data(file, [known[name] for name in fields], len(ends))
        return Mesh(points, corners.astype(np.int64), ends.astype(np.int64), types, cell_data=data, name=str(path))


def _only_piece(file: XMLFile, kind: str) -> ElementTree.Element:
    pieces = file.root.findall(f"{kind}/Piece")
    if len(pieces) != 1:
        raise InvalidFile(f"holds {len(pieces)} pieces of {file.root.get('type')}; expected one of {kind}")
    return pieces[0]


def _read_cells(
    file: XMLFile, piece: ElementTree.Element, place: str, names: Sequence[str], max_points: int | None = None
) -> tuple[Array, Array, Array, list[Array]]:
    """Read and check points, corners, ends and further arrays of the cells."""
    count = int(piece.attrib["NumberOfPoints"])
    if max_points is not None and count > max_points:
        raise TooLarge(f"the file has {count:,} points; the limit is {max_points:,}")
    position = piece.find("Points/DataArray")
    about = {a.get("Name", ""): a for a in piece.iterfind(f"{place}/DataArray")}
    if position is None or position.get("NumberOfComponents", "3") != "3" or not set(names) <= about.keys():
        raise InvalidFile("has no points of three coordinates, or no cells")
    points = file.array(position).reshape(-1, 3)
    corners, ends, *others = (_integers(file.array(about[name]), name) for name in names)
    cells = int(piece.attrib["NumberOfPolys" if place == "Polys" else "NumberOfCells"])
    if len(points) != count or any(len(array) != cells for array in (ends, *others)):
        raise InvalidFile(f"declares {count:,} points and {cells:,} cells, but its arrays have other lengths")
    _check_cells(corners, ends, count)
    return points, corners, ends, others


def _integers(array: Array, name: str) -> Array:
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise InvalidFile(f"has {name} of type {array.dtype} and shape {array.shape}; expected a list of integers")
    return array


def _check_cells(corners: Array, ends: Array, points: int) -> None:
    steps = np.diff(ends.astype(np.float64), prepend=0)  # floats: a difference of unsigned integers would wrap
    if (len(ends) and (steps.min() < 1 or int(ends[-1]) != len(corners))) or (not len(ends) and len(corners)):
        raise InvalidFile("has cells that do not match its list of corners")
    if len(corners) and not 0 <= int(corners.min()) <= int(corners.max()) < points:
        raise InvalidFile(f"has cells that refer to points {corners.min()} to {corners.max()} of {points:,}")


def _data(file: XMLFile, arrays: Iterable[ElementTree.Element], rows: int | None) -> dict[str, Array]:
    found: dict[str, Array] = {}
    for about in arrays:
        name = about.get("Name", "")
        text = rows is None and about.get("type") == STRING
        if about.get("type") not in TYPES and not text:  # strings at points or cells
            continue
        if not name or name in found:
            raise InvalidFile(f"has two fields {name!r}, or one without a name")
        values = file.strings(about) if text else file.array(about)
        if rows is not None and len(values) != rows:
            raise InvalidFile(f"has {len(values):,} values of field {name!r} for {rows:,} points or cells")
        found[name] = values
    return found


@contextmanager
def open_xml(path: str | os.PathLike[str], kind: str, *, limit: int | None = None) -> Iterator[XMLFile]:
    """Open a file and turn every fault in it into one error that names the file.

    Args:
        path: File to read.
        kind: `VTP` or `VTU`, for messages.
        limit: Most bytes of all arrays together, once unpacked; None for no limit.

    Raises:
        DataError: The file is missing or damaged.
        TooLarge: The arrays would take more than `limit`.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            if not os.fstat(file.fileno()).st_size:
                raise InvalidFile("is empty")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                yield XMLFile(content, limit)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
    except InvalidFile as error:
        raise DataError(f"{path} {error}") from None
    except TooLarge as error:
        raise TooLarge(f"{path}: {error}") from None
    except (ElementTree.ParseError, ValueError, LookupError, OverflowError, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"{path} is damaged or not a {kind} file: {type(error).__name__}: {error}") from None


DECOMPRESSORS: dict[str, Callable[[], Any]] = {
    "vtkZLibDataCompressor": zlib.decompressobj,
    "vtkLZMADataCompressor": lambda: lzma.LZMADecompressor(memlimit=1 << 28),
}


class XMLFile:
    """The element tree of a VTK XML file and access to its arrays."""

    def __init__(self, content: mmap.mmap, limit: int | None = None) -> None:
        self.content, self.left = content, limit
        cut = content.find(APPENDED)
        if cut < 0:
            self.root = _tree(content[:])
        else:
            self.root = _tree(content[:cut] + b"</VTKFile>")
            tag = content.find(b">", cut) + 1
            self.raw = b'"raw"' in content[cut:tag]
            self.start = content.find(b"_", tag) + 1
        self.order = "<" if self.root.get("byte_order", "LittleEndian") == "LittleEndian" else ">"
        self.header = np.dtype(self.order + HEADERS[self.root.get("header_type", "UInt32")])
        packer = self.root.get("compressor")
        if packer and packer not in DECOMPRESSORS:
            raise InvalidFile(f"is compressed by {packer}; supported are {', '.join(DECOMPRESSORS)}")
        self.unpack = DECOMPRESSORS[packer] if packer else None

    def array(self, about: ElementTree.Element) -> Array:
        """Read the numbers of a DataArray, (rows,) or (rows, components)."""
        kind = np.dtype(self.order + TYPES[about.attrib["type"]])
        if about.get("format", "ascii") == "ascii":
            numbers = self._text(about.text or "", kind.newbyteorder("="))
        else:
            numbers = np.frombuffer(self._bytes(about), dtype=kind)
        components = int(about.get("NumberOfComponents", "1"))
        return numbers.reshape(-1, components) if components > 1 else numbers

    def strings(self, about: ElementTree.Element) -> NDArray[np.str_]:
        """Read an array of null-terminated strings."""
        if about.get("format", "ascii") == "ascii":
            codes = self._text(about.text or "", np.dtype(np.int16))  # some programs write signed bytes
            content = codes.astype(np.uint8).tobytes()
        else:
            content = self._bytes(about)
        found = content.decode().removesuffix("\0").split("\0") if content else []
        characters = len(found) * max(map(len, found), default=0)
        if characters > MAX_CHARACTERS:
            raise InvalidFile(f"has a string array {about.get('Name')!r} that is too long; remove it")
        self._spend(4 * characters)
        return np.array(found, dtype=np.str_)

    def _bytes(self, about: ElementTree.Element) -> bytes:
        """Read the bytes of an array that is not stored as text."""
        form = about.get("format")
        if form == "appended":
            return self._appended(int(about.attrib["offset"]))
        if form == "binary":
            return self._decoded("".join((about.text or "").split()).encode(), 0)
        raise InvalidFile(f"has an array {about.get('Name')!r} of unknown format {form!r}")

    def _text(self, text: str, kind: np.dtype[Any]) -> Array:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # older NumPy versions only warn about a word that is not a number
            try:
                numbers = np.fromstring(text, dtype=kind, sep=" ") if text and not text.isspace() else np.empty(0, kind)
            except (DeprecationWarning, ValueError):
                raise InvalidFile("has a text array with a word that is not a number") from None
        self._spend(numbers.nbytes)  # at most four times the text
        return numbers

    def _appended(self, offset: int) -> bytes:
        if not hasattr(self, "start"):
            raise InvalidFile("is truncated: it has no appended data")
        return self._plain(self.start + offset) if self.raw else self._decoded(self.content, self.start + offset)

    def _plain(self, place: int) -> bytes:
        """Read raw bytes: a header, then the data or its compressed blocks."""
        size = self.header.itemsize
        first = self._numbers(self.content[place : place + size])[0]
        if self.unpack is None:
            return self._exactly(self.content[place + size : place + size + first], first)
        head = self._numbers(self.content[place : place + (3 + first) * size])
        start = place + (3 + first) * size
        return self._unpacked(self.content[start : start + sum(head[3:])], head)

    def _decoded(self, text: bytes | mmap.mmap, place: int) -> bytes:
        """Read base64. The header of compressed data is encoded separately; that of other data may be, or not."""
        size = self.header.itemsize
        first = self._numbers(_base64(text, place, size))[0]
        if self.unpack is not None:
            head = self._numbers(_base64(text, place, (3 + first) * size))
            return self._unpacked(_base64(text, place + _encoded_size((3 + first) * size), sum(head[3:])), head)
        if text[place + _encoded_size(size) - 1 : place + _encoded_size(size)] == b"=":
            return self._exactly(_base64(text, place + _encoded_size(size), first), first)
        return self._exactly(_base64(text, place, size + first)[size:], first)

    def _numbers(self, header: bytes) -> list[int]:
        if not header or len(header) % self.header.itemsize:
            raise InvalidFile("is truncated")
        return [int(number) for number in np.frombuffer(header, dtype=self.header)]

    def _unpacked(self, packed: bytes, head: list[int]) -> bytes:
        """Unpack blocks. The header has their number, their size, the size of the last, and all compressed sizes."""
        assert self.unpack is not None
        count, whole, last, *sizes = head
        if len(sizes) != count or len(packed) != sum(sizes):
            raise InvalidFile("is truncated")
        total = whole * (count - bool(last)) + last if count else 0
        self._spend(total)
        ends, found = np.cumsum([0, *sizes]).tolist(), list[bytes]()
        for number, (a, b) in enumerate(pairwise(ends), start=1):
            size = last if last and number == count else whole
            # One byte more than declared, to detect excess.
            found.append(self.unpack().decompress(packed[a:b], size + 1))
            if len(found[-1]) != size:
                raise InvalidFile(f"has an array whose block {number} does not unpack to the declared {size:,} bytes")
        return b"".join(found)

    def _exactly(self, data: bytes, size: int) -> bytes:
        if len(data) != size:
            raise InvalidFile(f"is truncated or damaged: an array has {len(data):,} of {size:,} bytes")
        self._spend(size)
        return data

    def _spend(self, size: int) -> None:
        if self.left is None:
            return
        self.left -= size
        if self.left < 0:
            raise TooLarge(f"the arrays of the file exceed the limit by {-self.left:,} bytes")


class _LimitedBuilder(ElementTree.TreeBuilder):
    """A tree builder that rejects document types and too many elements."""

    count = 0

    def start(self, tag: Any, attrs: dict[Any, Any], /) -> ElementTree.Element:
        self.count += 1
        if self.count > MAX_ELEMENTS:
            raise InvalidFile(f"has more than {MAX_ELEMENTS:,} XML elements")
        return super().start(tag, attrs)

    def doctype(self, name: str, public: str | None, system: str | None) -> None:
        raise InvalidFile("declares a document type, which is not accepted")


def _tree(text: bytes) -> ElementTree.Element:
    return ElementTree.fromstring(text, ElementTree.XMLParser(target=_LimitedBuilder()))


def _encoded_size(size: int) -> int:
    """Return the number of base64 characters of `size` bytes."""
    return -(-size // 3) * 4


def _base64(text: bytes | mmap.mmap, place: int, size: int) -> bytes:
    return base64.b64decode(text[place : place + _encoded_size(size)])[:size]


# ---- writing ---------------------------------------------------------------------------------------------------------


def write_vtu(path: str | os.PathLike[str], mesh: Mesh) -> None:
    """Write a mesh as an unstructured grid, arrays as base64 of zlib blocks at their own precision.

    Points without cells are written with a vertex each, so that ParaView shows them. Components of vectors are named
    X, Y, Z and those of symmetric tensors as in `TENSOR`.

    Raises:
        DataError: An array has the wrong length or a type that VTK does not have; no file is left.
    """
    at_points, at_cells = (mesh.point_data, len(mesh.points), "points"), (mesh.cell_data, mesh.cell_count, "cells")
    for data, count, where in (at_points, at_cells):
        for name, values in data.items():
            if values.ndim not in (1, 2) or len(values) != count:
                raise DataError(f"{path}: field {name!r} has shape {values.shape}, but there are {count:,} {where}")
    cells = {"connectivity": mesh.connectivity, "offsets": mesh.offsets, "types": mesh.cell_types}
    if not mesh.has_cells:
        number = np.arange(len(mesh.points), dtype=np.int64)
        cells = {"connectivity": number, "offsets": number + 1, "types": np.ones(len(number), np.uint8)}
    field_data = [
        _string_array(name, values) if values.dtype.kind == "U" else _data_array(name, values, tuples=True)
        for name, values in ((name, np.asarray(v)) for name, v in written_field_data(mesh).items())
    ]
    arrays = {
        "Points": {"Points": in_space(mesh.points)},
        "Cells": cells,
        "PointData": mesh.point_data,
        "CellData": mesh.cell_data,
    }
    lines = [
        "<UnstructuredGrid>",
        *(["<FieldData>", *field_data, "</FieldData>"] if field_data else []),
        f'<Piece NumberOfPoints="{len(mesh.points)}" NumberOfCells="{len(cells["types"])}">',
    ]
    for tag, named in arrays.items():
        lines += [f"<{tag}>", *(_data_array(name, values) for name, values in named.items()), f"</{tag}>"]
    lines += ["</Piece>", "</UnstructuredGrid>"]
    _write_xml(path, "UnstructuredGrid", lines, ' header_type="UInt64" compressor="vtkZLibDataCompressor"')


def write_pvd(path: str | os.PathLike[str], steps: Mapping[float, str | os.PathLike[str]]) -> None:
    """Write a time series: time -> VTU file, relative to the series or absolute; paths are stored as relative."""
    folder, lines = Path(path).resolve().parent, ["<Collection>"]
    for time in sorted(steps):
        name = Path(os.path.relpath(folder / steps[time], folder)).as_posix()
        lines.append(f'<DataSet timestep="{float(time)!r}" part="0" file={quoteattr(name)}/>')
    _write_xml(path, "Collection", [*lines, "</Collection>"])


def _write_xml(path: str | os.PathLike[str], kind: str, lines: list[str], attributes: str = "") -> None:
    head = f'<VTKFile type="{kind}" version="1.0" byte_order="LittleEndian"{attributes}>'
    text = "\n".join(['<?xml version="1.0"?>', head, *lines, "</VTKFile>\n"])
    with replace_atomically(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _data_array(name: str, values: Array, *, tuples: bool = False) -> str:
    """Format an array as XML; `tuples` adds the number of rows, which field data needs."""
    if values.dtype == bool:
        values = values.astype(np.uint8)
    kind = f"{values.dtype.kind}{values.dtype.itemsize}"
    if kind not in TYPE_NAMES:
        raise DataError(f"field {name!r} has type {values.dtype}; use float32, float64, an integer type or bool")
    data = np.ascontiguousarray(values, dtype=f"<{kind}").tobytes()
    shape = _components(values.shape[1]) if values.ndim == 2 else ""
    shape += f' NumberOfTuples="{len(np.atleast_1d(values))}"' if tuples else ""
    head = f'<DataArray type="{TYPE_NAMES[kind]}" Name={quoteattr(name)}{shape} format="binary">'
    return f"{head}{_compressed(data)}</DataArray>"


def _string_array(name: str, words: Iterable[str]) -> str:
    """Format strings as XML: the bytes of each in decimal, followed by a zero."""
    words = list(words)
    codes = " ".join(str(code) for word in words for code in (*str(word).encode(), 0))
    return f'<Array type="String" Name={quoteattr(name)} NumberOfTuples="{len(words)}" format="ascii">{codes}</Array>'


def _components(count: int) -> str:
    names = {3: ("X", "Y", "Z"), 6: TENSOR}.get(count, ())
    return f' NumberOfComponents="{count}"' + "".join(f' ComponentName{n}="{name}"' for n, name in enumerate(names))


def _compressed(data: bytes) -> str:
    """Encode a header (blocks, bytes of each, bytes of the last, compressed bytes of each) and the blocks."""
    blocks = [data[start : start + BLOCK] for start in range(0, len(data), BLOCK)]
    packed = [zlib.compress(block, level=4) for block in blocks]
    last = len(blocks[-1]) if blocks else 0
    header = np.array([len(blocks), BLOCK, last, *map(len, packed)], dtype="<u8")
    return (base64.b64encode(header.tobytes()) + base64.b64encode(b"".join(packed))).decode("ascii")

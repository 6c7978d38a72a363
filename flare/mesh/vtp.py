"""Polygons with fields from VTP files (VTK XML PolyData), as CFD codes and ParaView write surfaces.

    car = read_vtp("boundary_1.vtp", fields=["pMeanTrim"])
    some = car.select(np.arange(1000))
    some.centres(), some.area_vectors(), some.fields["pMeanTrim"]

Arrays may be text, base64 or raw, inline or appended, plain or packed by zlib or lzma, with headers of 32 or 64 bits.
Only those asked for are unpacked, and an appended part is mapped, not read: files of a gigabyte are welcome.
"""

from __future__ import annotations

import base64
import binascii
import lzma
import mmap
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from flare.errors import DataError

TYPES = {f"{kind}{8 * size}": f"{code}{size}" for kind, code in (("Int", "i"), ("UInt", "u")) for size in (1, 2, 4, 8)}
TYPES |= {"Float32": "f4", "Float64": "f8"}
"""VTK's names of numbers -> numpy's, less the byte order."""
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "vtkZLibDataCompressor": zlib.decompress,
    "vtkLZMADataCompressor": lzma.decompress,
}
OTHER_CELLS = ("NumberOfVerts", "NumberOfLines", "NumberOfStrips")
APPENDED = b"<AppendedData"

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Polygons:
    """Flat cells in space, each of any number of corners, with fields."""

    points: NDArray[Any]
    """(N, 3)."""
    corners: NDArray[np.int64]
    """(C,) points of all polygons, one after the other."""
    ends: NDArray[np.int64]
    """(P,) where in `corners` each polygon ends."""
    fields: Mapping[str, NDArray[Any]]
    """Name -> (P,) or (P, components), of the cells."""

    def __len__(self) -> int:
        return len(self.ends)

    def select(self, chosen: NDArray[np.integer]) -> Polygons:
        """Some of the polygons, in this order, on the same points."""
        starts, counts = (self.ends - self.counts)[chosen], self.counts[chosen]
        ends = np.cumsum(counts)
        places = np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - (ends - counts), counts)
        return Polygons(self.points, self.corners[places], ends, {name: f[chosen] for name, f in self.fields.items()})

    @property
    def counts(self) -> NDArray[np.int64]:
        """(P,) corners of each."""
        return np.diff(self.ends, prepend=0)

    def centres(self) -> Array:
        """(P, 3) means of the corners."""
        return self._sums(self._places) / self.counts[:, None]

    def area_vectors(self) -> Array:
        """(P, 3) area times normal; the corners are counter-clockwise seen from its tip."""
        away = self._places - np.repeat(self.centres(), self.counts, axis=0)
        following = np.arange(1, len(away) + 1)
        following[self.ends - 1] = self.ends - self.counts
        return self._sums(np.cross(away, away[following])) / 2

    @property
    def _places(self) -> Array:
        return self.points[self.corners].astype(np.float64)

    def _sums(self, of_corners: Array) -> Array:
        if not len(self):
            return np.zeros((0, 3))
        return np.add.reduceat(of_corners, self.ends - self.counts, axis=0)


def read_vtp(path: str | os.PathLike[str], fields: Iterable[str] = ()) -> Polygons:
    """The polygons of a file, with the cell fields that are named.

    Raises:
        DataError: no such file, no polygons, a field that it lacks, or damage of any kind.
    """
    path = Path(path)
    try:
        with _opened(path) as file:
            return _polygons(file, list(fields))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
    except _Damaged as error:
        raise DataError(f"{path}: {error}") from None
    except (ElementTree.ParseError, ValueError, KeyError, binascii.Error, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"{path} is damaged or no VTP file: {type(error).__name__}: {error}") from None


class _Damaged(Exception):
    """What is wrong with a file; whoever knows its name says it."""


class _File:
    """The tree of an XML file, and how to get at the numbers of its arrays."""

    def __init__(self, content: mmap.mmap) -> None:
        self.content = content
        cut = content.find(APPENDED)
        if cut < 0:
            self.root = ElementTree.fromstring(content[:])
        else:
            self.root = ElementTree.fromstring(content[:cut] + b"</VTKFile>")
            tag = content.find(b">", cut) + 1
            self.raw = b'"raw"' in content[cut:tag]
            self.start = content.find(b"_", tag) + 1
        self.order = "<" if self.root.get("byte_order", "LittleEndian") == "LittleEndian" else ">"
        self.header = np.dtype(self.order + TYPES[self.root.get("header_type", "UInt32")])
        packer = self.root.get("compressor")
        if packer and packer not in PACKERS:
            raise _Damaged(f"it is packed by {packer}; {' and '.join(PACKERS)} are known. Write it anew in ParaView")
        self.unpack = PACKERS[packer] if packer else None

    def array(self, about: ElementTree.Element) -> NDArray[Any]:
        """The numbers of a DataArray, (rows,) or (rows, components)."""
        kind = np.dtype(self.order + TYPES[about.attrib["type"]])
        form = about.get("format", "ascii")
        if form == "ascii":
            numbers = np.array((about.text or "").split(), dtype=kind.newbyteorder("="))
        elif form == "appended":
            numbers = np.frombuffer(self._appended(int(about.attrib["offset"])), dtype=kind)
        elif form == "binary":
            numbers = np.frombuffer(self._decoded("".join((about.text or "").split()).encode(), 0), dtype=kind)
        else:
            raise _Damaged(f"array {about.get('Name')!r} has the unknown format {form!r}")
        components = int(about.get("NumberOfComponents", "1"))
        return numbers.reshape(-1, components) if components > 1 else numbers

    def _appended(self, offset: int) -> bytes:
        return self._plain(self.start + offset) if self.raw else self._decoded(self.content, self.start + offset)

    def _plain(self, place: int) -> bytes:
        """Raw bytes from a place on: a header, then the data or its packed blocks."""
        size = self.header.itemsize
        first = self._numbers(self.content[place : place + size])[0]
        if self.unpack is None:
            return self._exactly(self.content[place + size : place + size + first], first)
        head = self._numbers(self.content[place : place + (3 + first) * size])
        start = place + (3 + first) * size
        return self._unpacked(self.content[start : start + sum(head[3:])], head)

    def _decoded(self, text: bytes | mmap.mmap, place: int) -> bytes:
        """Likewise of base64. The header of packed data is coded by itself; that of others may be, or not."""
        size = self.header.itemsize
        first = self._numbers(_base64(text, place, size))[0]
        if self.unpack is not None:
            head = self._numbers(_base64(text, place, (3 + first) * size))
            return self._unpacked(_base64(text, place + _coded((3 + first) * size), sum(head[3:])), head)
        if text[place + _coded(size) - 1 : place + _coded(size)] == b"=":
            return self._exactly(_base64(text, place + _coded(size), first), first)
        return self._exactly(_base64(text, place, size + first)[size:], first)

    def _numbers(self, header: bytes) -> list[int]:
        if not header or len(header) % self.header.itemsize:
            raise _Damaged("it ends early")
        return [int(number) for number in np.frombuffer(header, dtype=self.header)]

    def _unpacked(self, packed: bytes, head: list[int]) -> bytes:
        """Of a header (blocks, bytes in each, bytes in the last, packed bytes of each) and its blocks."""
        assert self.unpack is not None
        count, whole, last, *sizes = head
        if len(sizes) != count or len(packed) != sum(sizes):
            raise _Damaged("it ends early")
        ends = np.cumsum([0, *sizes])
        data = b"".join(self.unpack(packed[a:b]) for a, b in pairwise(ends))
        return self._exactly(data, whole * (count - bool(last)) + last if count else 0)

    def _exactly(self, data: bytes, size: int) -> bytes:
        if len(data) != size:
            raise _Damaged(f"an array has {len(data):,} of {size:,} bytes; the file is cut short or damaged")
        return data


def _coded(size: int) -> int:
    """Letters of base64 that code so many bytes."""
    return -(-size // 3) * 4


def _base64(text: bytes | mmap.mmap, place: int, size: int) -> bytes:
    return base64.b64decode(text[place : place + _coded(size)])[:size]


@contextmanager
def _opened(path: Path) -> Iterator[_File]:
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            raise _Damaged("it is empty")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            yield _File(content)


def _polygons(file: _File, fields: list[str]) -> Polygons:
    pieces = [_piece(file, piece, fields) for piece in file.root.iterfind("PolyData/Piece")]
    if not pieces:
        raise _Damaged(f"it holds {file.root.get('type', 'something else')}; PolyData is expected")
    before = np.cumsum([0, *(len(piece.points) for piece in pieces)])
    earlier = np.cumsum([0, *(len(piece.corners) for piece in pieces)])
    return Polygons(
        np.concatenate([piece.points for piece in pieces]),
        np.concatenate([piece.corners + n for piece, n in zip(pieces, before, strict=False)]),
        np.concatenate([piece.ends + n for piece, n in zip(pieces, earlier, strict=False)]),
        {name: np.concatenate([piece.fields[name] for piece in pieces]) for name in fields},
    )


def _piece(file: _File, piece: ElementTree.Element, fields: list[str]) -> Polygons:
    if any(int(piece.get(kind, "0")) for kind in OTHER_CELLS):
        raise _Damaged("it has vertices, lines or strips beside its polygons; keep the polygons only")
    count, nodes = int(piece.attrib["NumberOfPolys"]), int(piece.attrib["NumberOfPoints"])
    found = {a.get("Name", ""): a for a in piece.iterfind("CellData/DataArray")}
    for name in fields:
        if name not in found:
            raise _Damaged(f"it has no cell field {name!r}; it has {', '.join(sorted(found)) or 'none at all'}")
    about = {a.get("Name", ""): a for a in piece.iterfind("Polys/DataArray")}
    place = piece.find("Points/DataArray")
    if place is None or not {"connectivity", "offsets"} <= about.keys():
        raise _Damaged("it lacks points or polygons")
    points = file.array(place).reshape(-1, 3)
    corners, ends = (file.array(about[key]).astype(np.int64) for key in ("connectivity", "offsets"))
    values = {name: file.array(found[name]) for name in fields}
    if len(points) != nodes or any(len(array) != count for array in (ends, *values.values())):
        raise _Damaged(f"its arrays are not of {nodes:,} points and {count:,} polygons, as it says")
    if count and (ends[-1] != len(corners) or np.diff(ends, prepend=0).min() < 3):
        raise _Damaged("its polygons do not fit their list of corners")
    if count and not 0 <= corners.min() <= corners.max() < nodes:
        raise _Damaged(f"its polygons name points {corners.min()} to {corners.max()}, but there are {nodes:,}")
    return Polygons(points, corners, ends, values)

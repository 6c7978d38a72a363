"""Arrays of VTK's XML files (VTP, VTU): text, base64 or raw, inline or appended, plain or packed, 32 or 64 bits.

    with open_xml("part.vtu", "VTU") as file:
        numbers = file.array(file.root.find("UnstructuredGrid/Piece/Points/DataArray"))

An appended part is mapped, not read, and only what is asked for is unpacked. Files may come from strangers: nothing is
unpacked beyond the size that its header declares nor beyond `limit`, and entities, which could grow without end, are
refused.
"""

from __future__ import annotations

import base64
import binascii
import lzma
import mmap
import os
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from flare.utils.errors import DataError, TooLarge

TYPES = {f"{kind}{8 * size}": f"{code}{size}" for kind, code in (("Int", "i"), ("UInt", "u")) for size in (1, 2, 4, 8)}
TYPES |= {"Float32": "f4", "Float64": "f8"}
"""VTK's names of numbers -> numpy's, less the byte order."""
HEADERS = {"UInt32": "u4", "UInt64": "u8"}
APPENDED = b"<AppendedData"
ELEMENTS = 20_000
"""Of XML; a mesh with fields has some dozens."""
LETTERS = 1 << 24
"""Of an array of words, each as long as the longest: what numpy takes for them."""


def _zlib(packed: bytes, most: int) -> bytes:
    return zlib.decompressobj().decompress(packed, most)


def _lzma(packed: bytes, most: int) -> bytes:
    return lzma.LZMADecompressor(memlimit=1 << 28).decompress(packed, most)


PACKERS: dict[str, Callable[[bytes, int], bytes]] = {"vtkZLibDataCompressor": _zlib, "vtkLZMADataCompressor": _lzma}
"""Packed bytes and the most that is wanted of what they hold -> that."""


class Damaged(Exception):
    """What is wrong with a file; whoever knows its name says it."""


@contextmanager
def open_xml(path: str | os.PathLike[str], kind: str, *, limit: int | None = None) -> Iterator[XMLFile]:
    """The file, open; whatever is wrong with it becomes one message with its name.

    Args:
        kind: `VTP` or `VTU`, for the messages.
        limit: bytes that all arrays together may take once unpacked; None: any number.

    Raises:
        DataError: no such file, or damage of any kind.
        TooLarge: the arrays would take more than `limit`.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            if not os.fstat(file.fileno()).st_size:
                raise Damaged("it is empty")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                yield XMLFile(content, limit)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
    except Damaged as error:
        raise DataError(f"{path}: {error}") from None
    except (DataError, MemoryError):
        raise
    except (ElementTree.ParseError, ValueError, LookupError, OverflowError, binascii.Error, zlib.error) as error:
        raise DataError(f"{path} is damaged or no {kind} file: {type(error).__name__}: {error}") from None
    except lzma.LZMAError as error:
        raise DataError(f"{path} is damaged: {error}") from None


class XMLFile:
    """The tree of an XML file, and how to get at the numbers of its arrays."""

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
        if packer and packer not in PACKERS:
            raise Damaged(f"it is packed by {packer}; {' and '.join(PACKERS)} are known. Write it anew in ParaView")
        self.unpack = PACKERS[packer] if packer else None

    def array(self, about: ElementTree.Element) -> NDArray[Any]:
        """The numbers of a DataArray, (rows,) or (rows, components)."""
        kind = np.dtype(self.order + TYPES[about.attrib["type"]])
        if about.get("format", "ascii") == "ascii":
            numbers = self._text(about.text or "", kind.newbyteorder("="))
        else:
            numbers = np.frombuffer(self._bytes(about), dtype=kind)
        components = int(about.get("NumberOfComponents", "1"))
        if components < 1:
            raise Damaged(f"array {about.get('Name')!r} has {components} components")
        return numbers.reshape(-1, components) if components > 1 else numbers

    def words(self, about: ElementTree.Element) -> NDArray[np.str_]:
        """The words of an array of strings, whose bytes have a zero behind each."""
        name = about.get("Name")
        if about.get("format", "ascii") == "ascii":
            codes = self._text(about.text or "", np.dtype(np.int16))  # some programs write those above 127 with a sign
            if codes.size and not -128 <= codes.min() <= codes.max() <= 255:
                raise Damaged(f"array {name!r} of text holds a code that is no byte")
            content = codes.astype(np.uint8).tobytes()
        else:
            content = self._bytes(about)
        try:
            found = content.decode().removesuffix("\0").split("\0") if content else []
        except UnicodeDecodeError:
            raise Damaged(f"array {name!r} holds text that is no UTF-8") from None
        letters = len(found) * max(map(len, found), default=0)
        if letters > LETTERS:
            raise Damaged(f"array {name!r} of text is too long; remove it")
        self._spend(4 * letters)
        return np.array(found, dtype=np.str_)

    def _bytes(self, about: ElementTree.Element) -> bytes:
        """Of an array that is not in text."""
        form = about.get("format")
        if form == "appended":
            return self._appended(int(about.attrib["offset"]))
        if form == "binary":
            return self._decoded("".join((about.text or "").split()).encode(), 0)
        raise Damaged(f"array {about.get('Name')!r} has the unknown format {form!r}")

    def _text(self, text: str, kind: np.dtype[Any]) -> NDArray[Any]:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # older numpy only warns of a word that is no number
            try:
                numbers = np.fromstring(text, dtype=kind, sep=" ") if text and not text.isspace() else np.empty(0, kind)
            except (DeprecationWarning, ValueError):
                raise Damaged("an array in text holds a word that is no number") from None
        self._spend(numbers.nbytes)  # at most four times the text
        return numbers

    def _appended(self, offset: int) -> bytes:
        if not hasattr(self, "start"):
            raise Damaged("it ends early: its appended data is missing")
        if offset < 0:
            raise Damaged(f"an array lies at the place {offset}")
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
            raise Damaged("it ends early")
        return [int(number) for number in np.frombuffer(header, dtype=self.header)]

    def _unpacked(self, packed: bytes, head: list[int]) -> bytes:
        """Of a header (blocks, bytes in each, bytes in the last, packed bytes of each) and its blocks."""
        assert self.unpack is not None
        count, whole, last, *sizes = head
        if len(sizes) != count or len(packed) != sum(sizes):
            raise Damaged("it ends early")
        total = whole * (count - bool(last)) + last if count else 0
        self._spend(total)
        ends, found = np.cumsum([0, *sizes]).tolist(), list[bytes]()
        for number, (a, b) in enumerate(pairwise(ends), start=1):
            size = last if last and number == count else whole
            found.append(self.unpack(packed[a:b], size + 1))  # one more than declared, to see whether there is more
            if len(found[-1]) != size:
                raise Damaged(f"block {number} of an array holds other than the {size:,} bytes it declares")
        return b"".join(found)

    def _exactly(self, data: bytes, size: int) -> bytes:
        if len(data) != size:
            raise Damaged(f"an array has {len(data):,} of {size:,} bytes; the file is cut short or damaged")
        self._spend(size)
        return data

    def _spend(self, size: int) -> None:
        if self.left is None:
            return
        self.left -= size
        if self.left < 0:
            raise TooLarge(f"its arrays take {-self.left:,} bytes more than are accepted")


class _Builder(ElementTree.TreeBuilder):
    """A tree of so many elements at most, and of no document type: what a mesh needs, and no bomb."""

    count = 0

    def start(self, tag: Any, attrs: dict[Any, Any], /) -> ElementTree.Element:
        self.count += 1
        if self.count > ELEMENTS:
            raise Damaged(f"it has more than {ELEMENTS:,} elements of XML; a mesh has some dozens")
        return super().start(tag, attrs)

    def doctype(self, name: str, public: str | None, system: str | None) -> None:
        raise Damaged("it declares a document type; a mesh has none")


def _tree(text: bytes) -> ElementTree.Element:
    return ElementTree.fromstring(text, ElementTree.XMLParser(target=_Builder()))


def _coded(size: int) -> int:
    """Letters of base64 that code so many bytes."""
    return -(-size // 3) * 4


def _base64(text: bytes | mmap.mmap, place: int, size: int) -> bytes:
    return base64.b64decode(text[place : place + _coded(size)])[:size]

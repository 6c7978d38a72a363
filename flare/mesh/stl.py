"""STL files, binary and text."""

from __future__ import annotations

import os

import numpy as np

from flare.mesh.surface import Array, Surface
from flare.mesh.unfit import Unfit
from flare.utils.errors import DataError
from flare.utils.files import replacing

TRIANGLE = np.dtype([("normal", "<f4", 3), ("corners", "<f4", (3, 3)), ("attribute", "<u2")])
LONGEST_WORD = 1000
HEAD = 84  # bytes: a comment of 80, then the number of triangles


def read_stl(data: bytes, name: str) -> Surface:
    """Triangles of an STL file from its bytes, each with vertices of its own; `name` is for messages.

    Raises:
        Unfit: the file is cut short or no STL.
    """
    corners = _text(data, name) if _is_text(data) else _binary(data, name)
    return Surface(corners, np.arange(len(corners)).reshape(-1, 3))


def is_stl(data: bytes) -> bool:
    """Whether bytes are an STL file, whatever it is called: text that says so, or as long as their header promises."""
    return _is_text(data) or len(data) == _promised(data)


def _is_text(data: bytes) -> bool:
    words = data[:2000].lower()
    return words.lstrip().startswith(b"solid") and b"facet" in words  # a binary comment may begin with "solid" too


def _promised(data: bytes) -> int:
    """Bytes of a binary file by its header."""
    return HEAD + int.from_bytes(data[80:HEAD], "little") * TRIANGLE.itemsize


def _binary(data: bytes, name: str) -> Array:
    whole = _promised(data) if len(data) >= HEAD else HEAD
    count = (whole - HEAD) // TRIANGLE.itemsize
    if len(data) < whole:
        raise Unfit(
            "unreadable",
            f"{name} is cut short or no STL: it has {len(data):,} bytes, and its header promises {count:,} triangles "
            f"in {whole:,}; copy it again",
        )
    with np.errstate(invalid="ignore"):  # numbers that are none are told of later, by place
        return np.frombuffer(data, TRIANGLE, count, HEAD)["corners"].reshape(-1, 3).astype(np.float64)


def _text(data: bytes, name: str) -> Array:
    parts = data.lower().split()
    if max(map(len, parts)) > LONGEST_WORD:  # numpy gives every word as much room as the longest
        raise Unfit("unreadable", f"{name} is no STL: it has words of more than {LONGEST_WORD} letters")
    words = np.array(parts)
    if b"endsolid" not in words[-1000:]:
        raise Unfit(
            "unreadable", f"{name} is cut short: a text STL ends with 'endsolid', this one does not; copy it again"
        )
    starts = np.flatnonzero(words == b"vertex")
    try:
        corners = words[starts[:, None] + [1, 2, 3]].astype(np.float64)
    except (IndexError, ValueError):
        corners = np.zeros((1, 3))
    if len(corners) % 3:
        raise Unfit(
            "unreadable", f"{name} is damaged: its {len(starts):,} vertices are no triangles of numbers; copy it again"
        )
    return corners


def write_stl(path: str | os.PathLike[str], surface: Surface) -> None:
    """Write a binary STL file; single precision, as that format has it."""
    if not len(surface.faces):
        raise DataError(f"{path}: there are no triangles to write")
    corners = surface.vertices[surface.faces]
    normal = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    length = np.linalg.norm(normal, axis=1, keepdims=True)
    triangles = np.zeros(len(corners), dtype=TRIANGLE)
    triangles["normal"] = normal / np.where(length > 0, length, 1.0)
    triangles["corners"] = corners
    with replacing(path) as temporary:
        header = b"flare, millimetres".ljust(80) + len(triangles).to_bytes(4, "little")
        temporary.write_bytes(header + triangles.tobytes())

"""STL files, binary and text, read and written without other libraries."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from flare.mesh.mesh import Array, Mesh
from flare.mesh.surface import GeometryError
from flare.utils.files import replace_atomically

TRIANGLE = np.dtype([("normal", "<f4", 3), ("corners", "<f4", (3, 3)), ("attribute", "<u2")])
MAX_WORD = 1000
HEADER = 84
"""Bytes of the header: a comment of 80, then the number of triangles."""


def read_stl(path: str | os.PathLike[str]) -> Mesh:
    """Read a surface; equal vertices are merged, triangles with equal corners are dropped.

    Raises:
        GeometryError: The file is truncated or not an STL file.
    """
    corners = parse_stl(Path(path).read_bytes(), str(path))
    points, number = _merged(corners)
    faces = number.reshape(-1, 3)
    proper = (faces != np.roll(faces, 1, axis=1)).all(axis=1)
    return Mesh.from_cells(points, {"triangle": faces[proper]}, name=str(path))


def parse_stl(data: bytes, name: str) -> Array:
    """Return the corners of all triangles, (3 T, 3): float32 from a binary file, float64 from text.

    Raises:
        GeometryError: The data is truncated or not STL; the message starts with `name`.
    """
    words = data[:2000].lower()
    is_text = words.lstrip().startswith(b"solid") and b"facet" in words  # the comment of a binary file may start alike
    return _text(data, name) if is_text else _binary(data, name)


def write_stl(path: str | os.PathLike[str], mesh: Mesh) -> None:
    """Write the triangles of a mesh as binary STL, in single precision."""
    surface = mesh.surface()
    length = np.linalg.norm(surface.normals, axis=1, keepdims=True)
    triangles = np.zeros(len(surface.faces), dtype=TRIANGLE)
    triangles["normal"] = surface.normals / np.where(length > 0, length, 1.0)
    triangles["corners"] = surface.vertices[surface.faces]
    with replace_atomically(path) as temporary:
        header = b"flare, millimetres".ljust(80) + len(triangles).to_bytes(4, "little")
        temporary.write_bytes(header + triangles.tobytes())


def _merged(corners: Array) -> tuple[Array, Array]:
    """Return the distinct points in order of first appearance, and the number of each corner among them."""
    with np.errstate(invalid="ignore"):  # non-finite values are reported later, with their place
        numbers = corners + 0.0  # -0 equals 0
    keys = np.ascontiguousarray(numbers).view(np.dtype((np.void, corners.itemsize * 3)))[:, 0]
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    return corners[first[order]], rank[inverse.reshape(-1)]


def _binary(data: bytes, name: str) -> Array:
    count = int.from_bytes(data[80:HEADER], "little")
    if len(data) < HEADER + count * TRIANGLE.itemsize:
        reason = f"it has {len(data):,} bytes, and its header declares {count:,} triangles"
        raise GeometryError("unreadable", f"{name} is truncated or not STL: {reason}")
    return np.frombuffer(data, TRIANGLE, count, HEADER)["corners"].reshape(-1, 3)


def _text(data: bytes, name: str) -> Array:
    parts = data.lower().split()
    if max(map(len, parts)) > MAX_WORD:  # NumPy stores every word at the length of the longest
        raise GeometryError("unreadable", f"{name} is not STL: it has words of more than {MAX_WORD} characters")
    words = np.array(parts)
    if b"endsolid" not in words[-1000:]:
        raise GeometryError("unreadable", f"{name} is truncated: it does not end with 'endsolid'")
    starts = np.flatnonzero(words == b"vertex")
    try:
        corners = words[starts[:, None] + [1, 2, 3]].astype(np.float64)
    except (IndexError, ValueError):
        corners = np.zeros((1, 3))
    if len(corners) % 3:
        raise GeometryError("unreadable", f"{name} is damaged: its vertices are not triangles of numbers")
    return corners

"""Hexahedra with fields as VTU files, and time steps of them as a PVD series: what ParaView opens.

    write_vtu("part.vtu", mesh.points, mesh.hexahedra, point_fields={"displacement": u, "temperature": T})
    write_pvd("build.pvd", {0.0: "step_000.vtu", 35.2: "step_001.vtu"})

Arrays are stored in the XML as base64 of zlib blocks, at their own precision.
"""

from __future__ import annotations

import base64
import os
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from xml.sax.saxutils import quoteattr

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flare.mesh.vtkxml import TYPES
from flare.utils.errors import DataError
from flare.utils.files import replacing

HEXAHEDRON = 12  # VTK's number for the cell
BLOCK = 1 << 20  # bytes compressed at a time
TENSOR = ("XX", "YY", "ZZ", "YZ", "XZ", "XY")
"""Our order of six components; a program that goes by their number alone would take VTK's, XX YY ZZ XY YZ XZ."""
NAMES = {kind: name for name, kind in TYPES.items()}  # numpy's names of numbers -> VTK's

Fields = Mapping[str, ArrayLike]
Place = str | os.PathLike[str]


def write_vtu(
    path: Place,
    points: ArrayLike,
    hexahedra: ArrayLike,
    *,
    point_fields: Fields | None = None,
    cell_fields: Fields | None = None,
) -> None:
    """Write one mesh. A file that is there already is replaced, once the new one is whole.

    Fields of three components are named X, Y, Z in it, those of six as in `TENSOR`.

    Args:
        path: ends in .vtu by custom.
        points: (N, 3).
        hexahedra: (E, 8) points of each, in VTK's order.
        point_fields: name -> (N,) or (N, components).
        cell_fields: name -> (E,) or (E, components).
    """
    nodes, cells = np.asarray(points), np.asarray(hexahedra, dtype=np.int64)
    if nodes.ndim != 2 or nodes.shape[1] != 3 or cells.ndim != 2 or cells.shape[1] != 8:
        raise DataError(f"points have shape {nodes.shape}, hexahedra {cells.shape}; give (N, 3) and (E, 8)")
    if cells.size and not 0 <= cells.min() <= cells.max() < len(nodes):
        raise DataError(f"hexahedra name points {cells.min()} to {cells.max()}, but there are {len(nodes):,}")
    count = len(cells)
    lines = vtu_text(
        points=nodes,
        cells={
            "connectivity": cells.reshape(-1),
            "offsets": 8 * np.arange(1, count + 1),
            "types": np.full(count, HEXAHEDRON, dtype=np.uint8),
        },
        point_fields=_fields(point_fields, len(nodes), "points"),
        cell_fields=_fields(cell_fields, count, "hexahedra"),
    )
    with replacing(path) as temporary:
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")


def vtu_text(
    *,
    points: NDArray,
    cells: Mapping[str, NDArray],
    point_fields: Iterable[str],
    cell_fields: Iterable[str],
    values: Iterable[str] = (),
) -> list[str]:
    """The lines of a file: points, the arrays of the cells by VTK's names, fields and values of the whole mesh."""
    values = list(values)
    return [
        '<?xml version="1.0"?>',
        '<VTKFile type="UnstructuredGrid" version="1.0" byte_order="LittleEndian" header_type="UInt64" '
        'compressor="vtkZLibDataCompressor">',
        "<UnstructuredGrid>",
        *(["<FieldData>", *values, "</FieldData>"] if values else []),
        f'<Piece NumberOfPoints="{len(points)}" NumberOfCells="{len(cells["types"])}">',
        "<Points>",
        vtu_array("Points", points),
        "</Points>",
        "<Cells>",
        *[vtu_array(name, array) for name, array in cells.items()],
        "</Cells>",
        "<PointData>",
        *point_fields,
        "</PointData>",
        "<CellData>",
        *cell_fields,
        "</CellData>",
        "</Piece>",
        "</UnstructuredGrid>",
        "</VTKFile>",
    ]


def write_pvd(path: Place, steps: Mapping[float, Place]) -> None:
    """Write a series: time -> VTU file, relative to the series or absolute. A folder of both can be moved as one."""
    folder = Path(path).resolve().parent
    lines = [
        '<?xml version="1.0"?>',
        '<VTKFile type="Collection" version="1.0" byte_order="LittleEndian">',
        "<Collection>",
    ]
    for time in sorted(steps):
        name = Path(os.path.relpath(folder / steps[time], folder)).as_posix()
        lines.append(f'<DataSet timestep="{float(time)!r}" part="0" file={quoteattr(name)}/>')
    with replacing(path) as temporary:
        temporary.write_text("\n".join([*lines, "</Collection>", "</VTKFile>"]) + "\n", encoding="utf-8")


def _fields(fields: Fields | None, count: int, where: str) -> Iterable[str]:
    for name, values in (fields or {}).items():
        array = np.asarray(values)
        if array.ndim not in (1, 2) or len(array) != count:
            raise DataError(
                f"field {name!r} has shape {array.shape}; there are {count:,} {where}, so give ({count}, components)"
            )
        yield vtu_array(name, array)


def vtu_array(name: str, values: NDArray, *, tuples: bool = False) -> str:
    """One array as XML; `tuples` says how many rows it has, which an array of no points nor cells must."""
    if values.dtype == bool:
        values = values.astype(np.uint8)
    kind = f"{values.dtype.kind}{values.dtype.itemsize}"
    if kind not in NAMES:
        raise DataError(f"field {name!r} has type {values.dtype}; use float32, float64, a whole number or bool")
    data = np.ascontiguousarray(values, dtype=f"<{kind}").tobytes()
    shape = _components(values.shape[1]) if values.ndim == 2 else ""
    shape += f' NumberOfTuples="{len(values)}"' if tuples else ""
    head = f'<DataArray type="{NAMES[kind]}" Name={quoteattr(name)}{shape} format="binary">'
    return f"{head}{_compressed(data)}</DataArray>"


def vtu_words(name: str, words: Iterable[str]) -> str:
    """Strings as XML: the bytes of each in decimal, and a zero behind it."""
    words = list(words)
    codes = " ".join(str(code) for word in words for code in (*str(word).encode(), 0))
    return f'<Array type="String" Name={quoteattr(name)} NumberOfTuples="{len(words)}" format="ascii">{codes}</Array>'


def _components(count: int) -> str:
    names = {3: ("X", "Y", "Z"), 6: TENSOR}.get(count, ())
    return f' NumberOfComponents="{count}"' + "".join(f' ComponentName{n}="{name}"' for n, name in enumerate(names))


def _compressed(data: bytes) -> str:
    """Base64 of a header (blocks, bytes in each, bytes in the last, compressed bytes of each), then of the blocks."""
    blocks = [data[start : start + BLOCK] for start in range(0, len(data), BLOCK)]
    packed = [zlib.compress(block, level=4) for block in blocks]
    last = len(blocks[-1]) if blocks else 0
    header = np.array([len(blocks), BLOCK, last, *map(len, packed)], dtype="<u8")
    return (base64.b64encode(header.tobytes()) + base64.b64encode(b"".join(packed))).decode("ascii")

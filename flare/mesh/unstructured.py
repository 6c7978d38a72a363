"""Meshes of any cells with fields, from VTU files and back, bit for bit; also of files from strangers.

    grid = read_grid("part.vtu")
    grid.points, grid.types, grid.point_fields["pressure"]
    write_grid("part_pred.vtu", grid.with_fields({"stress": stress}))

Points, cells and fields keep their order, numbers and types, and so do words of the whole mesh. Text at points or cells
and file attributes are not kept.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from flare.mesh.incidence import Incidence, incidence
from flare.mesh.vtkxml import TYPES, Damaged, XMLFile, open_xml
from flare.mesh.vtu import vtu_array, vtu_text, vtu_words
from flare.utils.errors import DataError, TooLarge
from flare.utils.files import replacing

Arrays = dict[str, NDArray[Any]]
TEXT = "String"
"""VTK's type of words."""
POLYHEDRON = 42
"""VTK's number of the cell whose faces are listed beside its corners."""


@dataclass(frozen=True)
class Grid:
    """Points, cells of any kinds, and fields."""

    points: NDArray[Any]
    """(N, 3)."""
    corners: NDArray[Any]
    """(K,) points of all cells, one after the other."""
    ends: NDArray[Any]
    """(E,) where in `corners` each cell ends."""
    types: NDArray[Any]
    """(E,) VTK's numbers: 5 triangle, 9 quad, 10 tetra, 12 hexahedron, ..."""
    point_fields: Arrays = field(default_factory=dict)
    """Name -> (N,) or (N, components)."""
    cell_fields: Arrays = field(default_factory=dict)
    """Name -> (E,) or (E, components)."""
    values: Arrays = field(default_factory=dict)
    """Name -> numbers, or words, of the whole mesh: VTK's field data."""

    def with_fields(
        self,
        point_fields: Mapping[str, NDArray[Any]] | None = None,
        *,
        cell_fields: Mapping[str, NDArray[Any]] | None = None,
        values: Mapping[str, NDArray[Any]] | None = None,
    ) -> Grid:
        """The same mesh with these added.

        Raises:
            DataError: it has one of that name already, which would be lost.
        """
        return replace(
            self,
            point_fields=_added(self.point_fields, point_fields or {}),
            cell_fields=_added(self.cell_fields, cell_fields or {}),
            values=_added(self.values, values or {}),
        )

    @property
    def cell_count(self) -> int:
        return len(self.ends)

    def centres(self) -> NDArray[np.float64]:
        """(E, 3): the mean of each cell's corners."""
        return self._incidence.to_cells(self.points)

    def averaged_to_points(self, values: NDArray[Any]) -> NDArray[Any]:
        """A field of the cells at the points: the mean over the cells around each."""
        return self._incidence.to_points(values, "the mesh")

    def averaged_to_cells(self, values: NDArray[Any]) -> NDArray[Any]:
        """A field of the points at the cells: the mean over the corners of each."""
        return self._incidence.to_cells(values)

    @cached_property
    def _incidence(self) -> Incidence:
        ends = self.ends.astype(np.int64)  # of any type of whole numbers, as the file has them
        return incidence(self.corners.astype(np.int64), np.diff(ends, prepend=0), len(self.points))

    def cells(self, kind: int, width: int) -> NDArray[np.int64]:
        """(cells, width) points of all cells of one of VTK's types."""
        ends = self.ends[self.types == kind].astype(np.int64)
        return self.corners.astype(np.int64)[ends[:, None] - width + np.arange(width)]


def _added(mine: Arrays, new: Mapping[str, NDArray[Any]]) -> Arrays:
    for name in new:
        if name in mine:
            raise DataError(f"the mesh has {name!r} already; rename it, so that it is not lost")
    return {**mine, **new}


def grid_of(points: NDArray[Any], cells: Mapping[int, NDArray[Any]]) -> Grid:
    """VTK's types -> (cells, corners), one type after the other, as a grid. Planes get z = 0."""
    places = points
    if points.shape[1] < 3:
        places = np.zeros((len(points), 3), points.dtype)
        places[:, : points.shape[1]] = points
    counts = [len(corners) for corners in cells.values()]
    widths = np.repeat([corners.shape[1] for corners in cells.values()], counts)
    corners = np.concatenate([corners.reshape(-1) for corners in cells.values()]).astype(np.int64)
    return Grid(places, corners, np.cumsum(widths, dtype=np.int64), np.repeat(list(cells), counts).astype(np.uint8))


def surface_grid(points: NDArray[Any], faces: NDArray[Any]) -> Grid:
    """Triangles as a grid."""
    return grid_of(points, {5: faces})


def cloud_grid(points: NDArray[Any]) -> Grid:
    """Points without cells, (N, dimensions), as a mesh of vertices, which ParaView shows. Planes get z = 0."""
    return grid_of(points.astype(np.result_type(points, np.float32), copy=False), {1: np.arange(len(points))[:, None]})


def read_grid(path: str | os.PathLike[str], *, most_points: int | None = None, most_bytes: int | None = None) -> Grid:
    """One mesh from a VTU file.

    Args:
        most_points: more points are refused before any array is read.
        most_bytes: of all arrays together.

    Raises:
        DataError: no such file, no unstructured grid, or damage of any kind.
        TooLarge: beyond one of the limits.
    """
    with open_xml(path, "VTU", limit=most_bytes) as file:
        return _grid(file, most_points)


def _grid(file: XMLFile, most_points: int | None) -> Grid:
    pieces = file.root.findall("UnstructuredGrid/Piece")
    if len(pieces) != 1:
        held = f"{len(pieces)} pieces" if pieces else file.root.get("type", "something else")
        raise Damaged(f"it holds {held}; one piece of an UnstructuredGrid is expected")
    (piece,) = pieces
    points, cells = (int(piece.attrib[f"NumberOf{what}"]) for what in ("Points", "Cells"))
    if min(points, cells) < 0:
        raise Damaged(f"it declares {points} points and {cells} cells")
    if most_points is not None and points > most_points:
        raise TooLarge(f"it has {points:,} points; {most_points:,} are accepted")
    place = piece.find("Points/DataArray")
    about = {a.get("Name", ""): a for a in piece.iterfind("Cells/DataArray")}
    if place is None or not {"connectivity", "offsets", "types"} <= about.keys():
        raise Damaged("it lacks points or cells")
    if place.get("NumberOfComponents", "3") != "3":
        raise Damaged(f"its points have {place.get('NumberOfComponents')} coordinates; VTK's have 3")
    nodes = file.array(place).reshape(-1, 3)
    corners, ends, types = (_whole(file.array(about[key]), key) for key in ("connectivity", "offsets", "types"))
    if len(nodes) != points or len(ends) != cells or len(types) != cells:
        raise Damaged(f"its arrays are not of {points:,} points and {cells:,} cells, as it says")
    if (types == POLYHEDRON).any():
        raise Damaged("it has polyhedra, whose faces are not read; turn them into tetrahedra first")
    _check_cells(corners, ends, points)
    return Grid(
        nodes,
        corners,
        ends,
        types,
        _fields(file, piece.iterfind("PointData/DataArray"), points),
        _fields(file, piece.iterfind("CellData/DataArray"), cells),
        _fields(file, file.root.iterfind("UnstructuredGrid/FieldData/*"), None),
    )


def _whole(array: NDArray[Any], name: str) -> NDArray[Any]:
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise Damaged(f"its {name} are {array.dtype} of shape {array.shape}, not a list of whole numbers")
    return array


def _check_cells(corners: NDArray[Any], ends: NDArray[Any], points: int) -> None:
    steps = np.diff(ends.astype(np.float64), prepend=0)  # which no subtraction of unsigned numbers can wrap
    if (len(ends) and (steps.min() < 1 or int(ends[-1]) != len(corners))) or (not len(ends) and len(corners)):
        raise Damaged("its cells do not fit their list of corners")
    if len(corners) and not 0 <= int(corners.min()) <= int(corners.max()) < points:
        raise Damaged(f"its cells name points {corners.min()} to {corners.max()}, but there are {points:,}")


def _fields(file: XMLFile, arrays: Iterable[ElementTree.Element], rows: int | None) -> Arrays:
    found: Arrays = {}
    for about in arrays:
        name = about.get("Name", "")
        text = rows is None and about.get("type") == TEXT
        if about.get("type") not in TYPES and not text:  # text at points, which no model reads
            continue
        if not name or name in found:
            raise Damaged(f"it has {'a field without a name' if not name else f'two fields {name!r}'}")
        values = file.words(about) if text else file.array(about)
        if rows is not None and len(values) != rows:
            raise Damaged(f"field {name!r} has {len(values):,} values for {rows:,} points or cells")
        found[name] = values
    return found


def write_grid(path: str | os.PathLike[str], grid: Grid) -> None:
    """Write a VTU file; one that is there already is replaced, once the new one is whole."""
    for fields, count in ((grid.point_fields, len(grid.points)), (grid.cell_fields, len(grid.ends))):
        for name, values in fields.items():
            if values.ndim not in (1, 2) or len(values) != count:
                raise DataError(f"field {name!r} has shape {values.shape} on {count:,} points or cells")
    lines = vtu_text(
        points=grid.points,
        cells={"connectivity": grid.corners, "offsets": grid.ends, "types": grid.types},
        point_fields=[vtu_array(name, values) for name, values in grid.point_fields.items()],
        cell_fields=[vtu_array(name, values) for name, values in grid.cell_fields.items()],
        values=[
            vtu_words(name, values) if values.dtype.kind == "U" else vtu_array(name, values, tuples=True)
            for name, values in grid.values.items()
        ],
    )
    with replacing(path) as temporary:
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")

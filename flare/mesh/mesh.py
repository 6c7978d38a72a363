"""A mesh with data at its points and cells: the type that every reader returns and every writer takes.

    mesh = read_mesh("wing.vtu")
    mesh.points, mesh.cells["tetra"], mesh.point_data["pressure"], mesh.units["pressure"]
    mesh.with_data(point_data={"pressure_predicted": p}, units={"pressure_predicted": "Pa"}).save("wing_predicted.vtu")

A file that is read and saved again keeps its points, cells and data bit for bit and in order.
"""

# N points, E cells, K corners of all cells

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flare.utils.errors import DataError, suggest_name
from flare.utils.text import counted

if TYPE_CHECKING:
    from flare.mesh.surface import Surface

Array = NDArray[Any]
Arrays = Mapping[str, Array]

CELL_NAMES = {3: "line", 5: "triangle", 9: "quad", 10: "tetra", 12: "hexahedron", 13: "wedge", 14: "pyramid"}
"""VTK's number of each cell type that a dataset can store."""
CELL_TYPES = {name: number for number, name in CELL_NAMES.items()}
CORNERS = {"line": 2, "triangle": 3, "quad": 4, "tetra": 4, "pyramid": 5, "wedge": 6, "hexahedron": 8}
"""Number of points of a cell of each type."""
DIMENSION = {"line": 1, "triangle": 2, "quad": 2, "tetra": 3, "pyramid": 3, "wedge": 3, "hexahedron": 3}
"""Dimension of a cell of each type."""
OTHER = "other"
"""Key of `Mesh.cells` for cells of all other types, such as polygons and quadratic cells."""
VERTICES = (1, 2)
"""VTK's numbers of a vertex and of several vertices in one cell."""
UNITS = "units"
"""Field data that states units, one string such as `pressure=Pa` per array."""
NUMERIC = "fiub"
"""Kinds of NumPy types that hold numbers."""

_REORDERED = {8: (9, [0, 1, 3, 2]), 11: (12, [0, 1, 3, 2, 4, 5, 7, 6])}
"""Pixels and voxels: quadrilaterals and hexahedra with their corners in a different order."""
_LINES = (3, 4, 21, 35, 60, 68, 75)
_FACES = (5, 6, 7, 8, 9, 22, 23, 28, 30, 34, 36, 61, 62, 63, 69, 70, 76, 77)
_SOLIDS = (*range(10, 17), 24, 25, 26, 27, 29, 31, 32, 33, 37, 41, 42, 64, 65, 66, 67, *range(71, 75), *range(78, 82))
_DIMENSIONS = dict.fromkeys(_LINES, 1) | dict.fromkeys(_FACES, 2) | dict.fromkeys(_SOLIDS, 3)
"""Dimension of every cell type of VTK; vertices have 0."""


@dataclass(frozen=True, eq=False)
class Mesh:
    """Points, cells of any types, and data at the points, at the cells and of the whole mesh.

    Cells are stored as VTK stores them, end to end, because their order is that of the cell data. `Mesh.from_cells`
    builds a mesh from one array per cell type, and `cells` returns such arrays.

    Example:
        >>> import numpy as np
        >>> from flare import Mesh
        >>> points = np.array([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
        >>> mesh = Mesh.from_cells(points, {"triangle": np.array([[0, 1, 2]])}, units={"points": "m"})
        >>> warm = mesh.with_data(point_data={"temperature": np.array([20.0, 25.0, 30.0])})
        >>> warm.cells["triangle"].shape, list(warm.point_data)
        ((1, 3), ['temperature'])
    """

    points: Array
    """(N, 1 to 3), at the precision of the file."""
    connectivity: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    """(K,) points of all cells, one cell after the other."""
    offsets: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    """(E,) end of each cell in `connectivity`."""
    cell_types: Array = field(default_factory=lambda: np.zeros(0, np.uint8))
    """(E,) VTK's cell types: 5 triangle, 9 quad, 10 tetra, 12 hexahedron, ..."""
    point_data: Arrays = field(default_factory=dict)
    """Name -> (N,) or (N, components)."""
    cell_data: Arrays = field(default_factory=dict)
    """Name -> (E,) or (E, components)."""
    field_data: Arrays = field(default_factory=dict)
    """Name -> numbers or strings of the whole mesh."""
    units: Mapping[str, str] = field(default_factory=dict)
    """Name -> unit, where the file states it; `points` is the unit of length."""
    components: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Name -> names of the components, for tables; x, y, z or numbers where they are not listed."""
    name: str = "the mesh"
    """File name, or a description for messages."""
    notes: tuple[str, ...] = ()
    """Decisions that the reader made, one sentence each."""
    _source: Any = field(default=None, repr=False)
    """What the reader keeps so that the file can be written again bit for bit; None for a mesh of plain arrays."""

    def __post_init__(self) -> None:
        for name in ("points", "connectivity", "offsets", "cell_types"):  # lists are accepted, memory maps are kept
            object.__setattr__(self, name, np.asanyarray(getattr(self, name)))
        for name in ("point_data", "cell_data", "field_data"):
            data = {key: np.asanyarray(values) for key, values in getattr(self, name).items()}
            object.__setattr__(self, name, data)

    def __repr__(self) -> str:
        fields = [*self.point_data, *self.cell_data, *self.field_data]
        data = f", data {', '.join(map(repr, fields))}" if fields else ""
        return f"Mesh({self.name!r}: {counted(len(self.points), 'point')}, {counted(self.cell_count, 'cell')}{data})"

    @classmethod
    def from_cells(cls, points: ArrayLike, cells: Mapping[str, ArrayLike], **more: Any) -> Mesh:
        """Build a mesh from one array of cells per type.

        Args:
            points: (N, 1 to 3).
            cells: Type -> (cells, corners). Types are line, triangle, quad, tetra, pyramid, wedge and hexahedron.
            more: Other attributes of the mesh by name.

        Raises:
            DataError: A type of cells is unknown, has another number of corners or refers to points that do not exist.
        """
        vertices, arrays = np.asanyarray(points), {kind: np.asarray(corners) for kind, corners in cells.items()}
        for kind, corners in arrays.items():
            if kind not in CORNERS:
                raise DataError(f"unknown cell type {kind!r}; {suggest_name(kind, CORNERS)}")
            if corners.ndim != 2 or corners.shape[1] != CORNERS[kind]:
                raise DataError(f"{kind} cells have shape {corners.shape}; expected (cells, {CORNERS[kind]})")
            if corners.size and not 0 <= corners.min() <= corners.max() < len(vertices):
                low, high = corners.min(), corners.max()
                raise DataError(f"{kind} cells refer to points {low} to {high}; there are {len(vertices):,} points")
        counts = [len(corners) for corners in arrays.values()]
        widths = np.repeat([corners.shape[1] for corners in arrays.values()], counts)
        connectivity = np.concatenate([np.zeros(0, np.int64), *map(np.ravel, arrays.values())])
        types = np.repeat([CELL_TYPES[kind] for kind in arrays], counts).astype(np.uint8)
        return cls(vertices, connectivity.astype(np.int64), np.cumsum(widths, dtype=np.int64), types, **more)

    def with_data(
        self,
        *,
        point_data: Arrays | None = None,
        cell_data: Arrays | None = None,
        field_data: Arrays | None = None,
        units: Mapping[str, str] | None = None,
    ) -> Mesh:
        """Return the mesh with more data.

        Args:
            point_data: Name -> (N,) or (N, components).
            cell_data: Name -> (E,) or (E, components).
            field_data: Name -> numbers or strings of the whole mesh.
            units: Name -> unit.

        Raises:
            DataError: The mesh already has data of one of these names, which would be lost.
        """
        kept = self.field_data.get(UNITS)
        if units and kept is not None and kept.dtype.kind != "U":
            raise _taken(self.name, UNITS)
        return replace(
            self,
            point_data=self._merged(self.point_data, point_data),
            cell_data=self._merged(self.cell_data, cell_data),
            field_data=self._merged(self.field_data, field_data),
            units={**self.units, **(units or {})},
        )

    def _merged(self, mine: Arrays, new: Arrays | None) -> Arrays:
        for name in new or {}:
            if name in mine:
                raise _taken(self.name, name)
        return {**mine, **(new or {})}

    @classmethod
    def from_pyvista(cls, data: Any) -> Mesh:
        """Convert a pyvista dataset, such as an `UnstructuredGrid`; the blocks of a `MultiBlock` are joined.

        Raises:
            DataError: pyvista is not installed, or `data` is not a pyvista dataset or has no points.
        """
        from flare.mesh.io.vtk_library import from_pyvista

        return from_pyvista(data)

    def to_pyvista(self) -> Any:
        """Convert to a pyvista dataset: of the kind that was read, otherwise `PolyData` or `UnstructuredGrid`."""
        from flare.mesh.io.vtk_library import own_suffix, to_pyvista

        return to_pyvista(self, own_suffix(self))

    @property
    def cell_count(self) -> int:
        """Number of cells."""
        return len(self.cell_types)

    @property
    def has_cells(self) -> bool:
        """Whether the mesh has any cells, vertices included; a table of points has none."""
        return len(self.cell_types) > 0

    @cached_property
    def cells(self) -> dict[str, Array]:
        """Type -> (cells, corners). `other` -> (cells, 0) counts cells that have no name in `CELL_NAMES`."""
        ends = self.offsets.astype(np.int64)
        starts, corners = np.concatenate([[0], ends[:-1]]), self._corners
        found: dict[str, list[Array]] = {}
        for number in np.unique(self.cell_types):
            chosen = self.cell_types == number
            kind, order = _REORDERED.get(int(number), (int(number), None))
            if kind in VERTICES:
                continue
            if kind not in CELL_NAMES:
                found.setdefault(OTHER, []).append(np.zeros((int(chosen.sum()), 0), np.int64))
                continue
            columns = np.arange(CORNERS[CELL_NAMES[kind]]) if order is None else np.array(order)
            found.setdefault(CELL_NAMES[kind], []).append(corners[starts[chosen][:, None] + columns])
        return {name: np.concatenate(parts) for name, parts in found.items()}

    @property
    def dimension(self) -> int | None:
        """Highest dimension of the cells: 3 for solids, 2 for surfaces; None for points and vertices."""
        return max((_DIMENSIONS.get(int(number), 0) for number in np.unique(self.cell_types)), default=0) or None

    @property
    def parameters(self) -> dict[str, Array]:
        """Numeric field data as vectors: name -> (components,)."""
        numbers = {name: np.asarray(v) for name, v in self.field_data.items() if np.asarray(v).dtype.kind in NUMERIC}
        vectors = {name: np.atleast_1d(v.squeeze()) for name, v in numbers.items()}
        return {name: vector for name, vector in vectors.items() if vector.ndim == 1}

    def surface(self) -> Surface:
        """Return the triangles of the mesh, in float64.

        Raises:
            DataError: The mesh has no triangles.
        """
        from flare.mesh.surface import Surface

        triangles = self.cells.get("triangle")
        if triangles is None or not len(triangles):
            raise DataError(f"{self.name} has no triangles")
        return Surface(self.points.astype(np.float64), triangles)

    def cell_centers(self) -> NDArray[np.float64]:
        """Compute the mean of the corners of each cell, (E, dimensions)."""
        return self.to_cells(self.points)

    def to_cells(self, values: Array) -> Array:
        """Average point data to the cells: the mean over the corners of each cell."""
        return _grouped_mean(values, self._owners, self._corners, self.cell_count)

    def to_points(self, values: Array) -> Array:
        """Average cell data to the points: the mean over the cells around each point.

        Raises:
            DataError: Some points belong to no cell.
        """
        alone = np.ones(len(self.points), dtype=bool)
        alone[self._corners] = False
        if alone.any():
            stray = f"{alone.sum():,} of {len(alone):,} points (first: {alone.argmax()}) belong to no cell"
            raise DataError(f"{self.name}: {stray}; use the cell centers")
        return _grouped_mean(values, self._corners, self._owners, len(self.points))

    @cached_property
    def _corners(self) -> Array:
        """(K,) point of each corner, as int64 whatever integers the file has."""
        return self.connectivity.astype(np.int64, copy=False)

    @cached_property
    def _owners(self) -> Array:
        """(K,) cell of each corner."""
        ends: NDArray[np.int64] = self.offsets.astype(np.int64)
        counts: NDArray[np.int64] = np.diff(ends, prepend=0)
        return np.repeat(np.arange(self.cell_count), counts)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the mesh in the format of the suffix.

        A mesh read from a VTK file is written as the kind of file it came from, as .vtk or as .vtu; others as .vtu,
        .vtp, .vtk, .stl (triangles), .npz or .csv (points and point data).
        """
        from flare.mesh.io import write_mesh

        write_mesh(self, path)


def stated_units(field_data: Arrays) -> dict[str, str]:
    """Return the units that the field data of a file states, by name; strings of any other form are ignored."""
    words = field_data.get(UNITS)
    if words is None or words.dtype.kind != "U":
        return {}
    parts = [str(word).partition("=") for word in words.reshape(-1)]
    return {name: unit for name, sign, unit in parts if sign}


def written_field_data(mesh: Mesh) -> Arrays:
    """Return the field data to write: the strings `units` of the file, then one string per unit that it lacks."""
    old = mesh.field_data.get(UNITS, np.array([], dtype=np.str_))
    stated = stated_units(mesh.field_data)
    new = {name: unit for name, unit in mesh.units.items() if unit != "1" and stated.get(name) != unit}
    if not new:
        return mesh.field_data
    kept = [str(word) for word in old.reshape(-1) if str(word).partition("=")[0] not in new]
    words = np.array([*kept, *(f"{name}={unit}" for name, unit in new.items())])
    return {**mesh.field_data, UNITS: words}


def in_space(points: Array) -> Array:
    """Return points of one or two coordinates with zeros for the others, in a floating-point type."""
    kind = np.result_type(points.dtype, np.float32)
    if points.shape[1] == 3:
        return points.astype(kind, copy=False)
    padded = np.zeros((len(points), 3), kind)
    padded[:, : points.shape[1]] = points
    return padded


def _grouped_mean(values: Array, groups: Array, rows: Array, count: int) -> Array:
    """Average `values[rows]` over equal `groups`, in float64; (count,) or (count, components)."""
    chosen = values.reshape(len(values), -1)[rows]
    number = np.bincount(groups, minlength=count)
    sums = [np.bincount(groups, weights=column, minlength=count) for column in chosen.T]
    means = np.stack(sums, axis=1) / np.maximum(number, 1)[:, None]
    return means[:, 0] if values.ndim == 1 else means


def _taken(name: str, field: str) -> DataError:
    return DataError(f"{name} already has a field {field!r}; rename it in the file so that it is not overwritten")

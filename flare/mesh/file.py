"""Meshes with fields as other programs write them: read through VTK and meshio, written again with fields added.

    mesh = read_mesh("case_001.vtu")
    mesh.points, mesh.point_fields["pressure"], mesh.cells["tetra"]
    mesh.save("case_001_new.vtu", point_fields={"pressure_predicted": p})

What is saved has the points, cells and fields of the file, bit for bit and in its order, and the new fields.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from flare.mesh.blocks import NUMBERS, end_to_end, leaves, share_field_data
from flare.mesh.incidence import Incidence, incidence
from flare.mesh.readers import MESHES, is_foam, pyvista, read_root, vtk_errors
from flare.utils.errors import DataError
from flare.utils.files import filling, replacing

VTK_NAMES = {3: "line", 5: "triangle", 9: "quad", 10: "tetra", 12: "hexahedron", 13: "wedge", 14: "pyramid"}
"""VTK's numbers of the cells a dataset can hold."""
PLAIN = {8: (9, [0, 1, 3, 2]), 11: (12, [0, 1, 3, 2, 4, 5, 7, 6])}
"""Pixels and voxels: quadrilaterals and hexahedra whose corners come in another order."""
OF_POINTS = (".vtu", ".vtp")
"""What points without cells can be written as."""
OWN_SUFFIX = {
    "UnstructuredGrid": ".vtu",
    "PolyData": ".vtp",
    "ImageData": ".vti",
    "RectilinearGrid": ".vtr",
    "StructuredGrid": ".vts",
    "MultiBlock": ".vtm",
}
UNITS = "units"
"""Field data that tells them, a string such as `pressure=Pa` a field."""
LEGACY = ".vtk"
"""VTK's older format, which holds any of them but blocks."""


@dataclass(frozen=True)
class MeshFile:
    """One mesh, with its blocks end to end where a file has several."""

    name: str
    root: Any
    """The pyvista object as it was read."""
    grid: Any
    """The same as one pyvista.UnstructuredGrid, with the field data of the whole."""
    remarks: tuple[str, ...] = ()
    """What was decided while reading, in sentences."""

    @cached_property
    def points(self) -> np.ndarray:
        """(N, 3), at the precision of the file."""
        return np.asarray(self.grid.points)

    @cached_property
    def point_fields(self) -> dict[str, np.ndarray]:
        """Name -> (N,) or (N, channels)."""
        return _numbers(self.grid.point_data)

    @cached_property
    def cell_fields(self) -> dict[str, np.ndarray]:
        return _numbers(self.grid.cell_data)

    @cached_property
    def parameters(self) -> dict[str, np.ndarray]:
        """Values of the whole mesh, such as VTK's field data: name -> (channels,)."""
        found = _numbers(self.grid.field_data)
        return {name: np.atleast_1d(v.squeeze()) for name, v in found.items() if np.atleast_1d(v.squeeze()).ndim == 1}

    @cached_property
    def unit_words(self) -> list[str]:
        """Field data `units` word by word, whoever wrote it."""
        if UNITS not in self.held:
            return []
        return [str(word) for word in np.atleast_1d(np.asarray(self.grid.field_data[UNITS]))]

    @cached_property
    def units(self) -> dict[str, str]:
        """Name of a field -> its unit, where a prediction of ours wrote them."""
        return told_units(self.unit_words)

    @property
    def held(self) -> list[str]:
        """Names of its field data."""
        return list(self.grid.field_data.keys())

    def holds(self, name: str) -> bool:
        """Whether there is field data of this name that would be lost under a new one; words of units are kept."""
        if name not in self.held:
            return False
        return name != UNITS or np.asarray(self.grid.field_data[name]).dtype.kind != "U"

    @cached_property
    def cells(self) -> dict[str, np.ndarray]:
        """Type -> (cells, corners); `other` -> (cells, 0) counts those a dataset cannot hold, such as polygons."""
        types, ends = np.asarray(self.grid.celltypes), np.asarray(self.grid.cell_offsets)
        corners = np.asarray(self.grid.cell_connectivity, dtype=np.int64)
        found: dict[str, list[np.ndarray]] = {}
        for number in np.unique(types):
            of_type = types == number
            kind, order = PLAIN.get(int(number), (int(number), None))
            if kind in (1, 2):  # vertices are points, not cells
                continue
            if kind not in VTK_NAMES:
                found.setdefault("other", []).append(np.zeros((int(of_type.sum()), 0), np.int64))
                continue
            columns = np.arange(int(np.diff(ends)[of_type][0])) if order is None else np.array(order)
            found.setdefault(VTK_NAMES[kind], []).append(corners[ends[:-1][of_type][:, None] + columns])
        return {name: np.concatenate(parts) for name, parts in found.items()}

    @property
    def dimension(self) -> int:
        """Of the cells of highest dimension, whatever their type: 3 for solids, 2 for surfaces, 0 for points."""
        cell = pyvista()._vtk.vtkGenericCell()
        found = [0]
        for kind in np.unique(np.asarray(self.grid.celltypes)):
            cell.SetCellType(int(kind))
            found.append(cell.GetCellDimension())
        return max(found)

    @property
    def cell_count(self) -> int:
        return int(self.grid.n_cells)

    def centres(self) -> np.ndarray:
        """(cells, 3) float64: the mean of each cell's corners."""
        return self._incidence.to_cells(self.points)

    def averaged_to_points(self, values: np.ndarray) -> np.ndarray:
        """A field of the cells at the points, (N,) or (N, channels): the mean over the cells around each."""
        return self._incidence.to_points(values, self.name)

    def averaged_to_cells(self, values: np.ndarray) -> np.ndarray:
        """A field of the points at the cells: the mean over the corners of each."""
        return self._incidence.to_cells(values)

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        point_fields: Mapping[str, np.ndarray] | None = None,
        cell_fields: Mapping[str, np.ndarray] | None = None,
        of_whole: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        """Write all that was read, these fields, and values `of_whole`, which VTK calls field data.

        By the suffix: as the VTK format it was, .vtk, or .vtu.
        """
        path, vtk = Path(path), pyvista()
        refuse_suffix(path, self.root)
        as_read = path.suffix in (LEGACY, OWN_SUFFIX[type(self.root).__name__])
        root = self.root.copy(deep=False) if as_read else self.grid.copy()
        parts = leaves(root) if isinstance(root, vtk.MultiBlock) else [root]
        for place, fields, counts in (
            ("point_data", point_fields or {}, [part.n_points for part in parts]),
            ("cell_data", cell_fields or {}, [part.n_cells for part in parts]),
        ):
            for name, values in fields.items():
                rows = np.split(np.ascontiguousarray(values), np.cumsum(counts)[:-1])
                for part, own in zip(parts, rows, strict=True):
                    getattr(part, place)[name] = own
        for name, value in (of_whole or {}).items():
            if value.dtype.kind == "U":
                root.GetFieldData().AddArray(_words(name, value))
            else:
                root.field_data[name] = value
        if path.suffix == ".vtm":
            _save_blocks(root, path)
            return
        with replacing(path) as temporary, vtk_errors(str(path), "write"):
            root.save(temporary)

    @cached_property
    def _incidence(self) -> Incidence:
        counts = np.diff(np.asarray(self.grid.cell_offsets))
        return incidence(np.asarray(self.grid.cell_connectivity), counts, len(self.points))


def read_mesh(path: str | os.PathLike[str]) -> MeshFile:
    """A mesh by its suffix; a folder is an OpenFOAM case. Of several times the last is read, and that is remarked."""
    root, remarks = read_root(Path(path))
    return mesh_of(root, str(path), remarks)


def mesh_of(root: Any, name: str = "the mesh", remarks: Sequence[str] = ()) -> MeshFile:
    """The same for a pyvista object that is here already."""
    vtk = pyvista()
    if isinstance(root, vtk.MultiBlock):
        grid, partial = end_to_end(leaves(root))
        remarks = [*remarks, *partial, *share_field_data(root, grid)]
    else:
        grid = root if isinstance(root, vtk.UnstructuredGrid) else root.cast_to_unstructured_grid()
    if grid.n_points == 0:
        raise DataError(f"{name} is damaged or empty: no points in it")
    return MeshFile(name, root, grid, tuple(remarks))


def mesh_of_points(points: np.ndarray, name: str = "the points") -> MeshFile:
    """A cloud, for files that have no cells: a vertex at each point. Planes get z = 0."""
    vtk = pyvista()
    space = np.zeros((len(points), 3), dtype=points.dtype)
    space[:, : points.shape[1]] = points
    return mesh_of(vtk.PolyData(space), name)


def mesh_of_arrays(
    name: str,
    points: np.ndarray,
    cells: Mapping[str, np.ndarray],
    *,
    point_fields: Mapping[str, np.ndarray],
    cell_fields: Mapping[str, np.ndarray],
    parameters: Mapping[str, np.ndarray],
) -> MeshFile:
    """A whole mesh with its fields, where all come as arrays: cells are type -> (cells, corners). Planes get z = 0."""
    numbers = {word: number for number, word in VTK_NAMES.items()}
    space = np.zeros((len(points), 3), dtype=np.result_type(points.dtype, np.float32))
    space[:, : points.shape[1]] = points
    grid = pyvista().UnstructuredGrid({numbers[kind]: corners for kind, corners in cells.items()}, space)
    for place, fields in (
        (grid.point_data, point_fields),
        (grid.cell_data, cell_fields),
        (grid.field_data, parameters),
    ):
        for own, values in fields.items():
            place[own] = np.ascontiguousarray(values)
    return mesh_of(grid, name)


def told_units(words: Iterable[str]) -> dict[str, str]:
    """Name of a field -> its unit, of words such as `pressure=Pa`."""
    parts = [str(word).partition("=") for word in words]
    return {name: unit for name, sign, unit in parts if sign}


def is_mesh(path: str | os.PathLike[str]) -> bool:
    """Whether a file is a mesh by its name, and not a table or a dataset."""
    return Path(path).suffix.lower() in MESHES or is_foam(Path(path))


def refuse_suffix(path: str | os.PathLike[str], root: Any, *, more: Sequence[str] = ()) -> None:
    """Where a mesh of this kind cannot be written so; `more` are those the caller can do himself."""
    own = OWN_SUFFIX[type(root).__name__]
    ways = list(dict.fromkeys([".vtu", own, *([LEGACY] if own != ".vtm" else [])]))
    if Path(path).suffix not in ways:
        *others, last = [*ways, *more]
        raise DataError(f"{path}: this mesh is written as {', '.join(others)} or {last}")


def _save_blocks(root: Any, path: Path) -> None:
    """A .vtm file names the files of a folder beside it; both are moved in when both are whole."""
    blocks = path.with_suffix("")
    if blocks.exists():
        raise DataError(f"{blocks} exists already; the blocks of {path} would go there")
    with filling(path.with_name(f"{path.name}.parts")) as folder:
        with vtk_errors(str(path), "write"):
            root.save(folder / path.name)
        (folder / blocks.name).replace(blocks)
        (folder / path.name).replace(path)
    shutil.rmtree(path.with_name(f"{path.name}.parts"))


def _words(name: str, words: np.ndarray) -> Any:
    """Words as VTK keeps them; pyvista would refuse `°C`."""
    array = pyvista()._vtk.vtkStringArray()
    array.SetName(name)
    for word in words:
        array.InsertNextValue(str(word))
    return array


def _numbers(data: Any) -> dict[str, np.ndarray]:
    """The numeric arrays of VTK data; names of strings, and VTK's own marks, are left out."""
    arrays = {name: np.asarray(data[name]) for name in data.keys()}  # noqa: SIM118
    return {name: a for name, a in arrays.items() if a.dtype.kind in NUMBERS and not name.startswith("vtk")}

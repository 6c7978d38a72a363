"""Meshes with fields as other programs write them: read through VTK and meshio, written again with fields added.

    mesh = read_mesh("case_001.vtu")
    mesh.points, mesh.point_fields["pressure"], mesh.cells["tetra"]
    mesh.save("case_001_new.vtu", point_fields={"pressure_predicted": p})

What is saved has the points, cells and fields of the file, bit for bit and in its order, and the new fields.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import shutil
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from flare.errors import DataError, one_line
from flare.files import filling, replacing
from flare.mesh.incidence import Incidence, incidence

SURFACES = (".stl", ".ply", ".obj")
"""Geometry, as a rule without fields."""
THROUGH_VTK = (".vtu", ".vtp", ".vtk", ".vti", ".vtr", ".vts", ".vtm", ".cgns", ".e", ".exo", ".ex2", ".foam")
THROUGH_MESHIO = (".inp", ".bdf", ".nas", ".fem", ".msh", ".med", ".mdpa", ".su2")
"""Abaqus, Nastran, Ansys and Gmsh, Salome, Kratos, SU2. meshio reads no fields of CGNS and Exodus; VTK does."""
MESHES = (*THROUGH_VTK, *SURFACES, *THROUGH_MESHIO)
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


@dataclass(frozen=True)
class MeshFile:
    """One mesh, with its blocks end to end where a file has several."""

    name: str
    root: Any
    """The pyvista object as it was read."""
    grid: Any
    """The same as one pyvista.UnstructuredGrid."""

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
        found = _numbers(self.root.field_data)
        return {name: np.atleast_1d(v.squeeze()) for name, v in found.items() if np.atleast_1d(v.squeeze()).ndim == 1}

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
    ) -> None:
        """Write all that was read, and these fields. The suffix is that of the VTK format, or .vtu for any mesh."""
        path, vtk = Path(path), _pyvista()
        refuse_suffix(path, self.root)
        root = self.root.copy(deep=False) if path.suffix == OWN_SUFFIX[type(self.root).__name__] else self.grid.copy()
        leaves = list(root.recursive_iterator()) if isinstance(root, vtk.MultiBlock) else [root]
        for place, fields, counts in (
            ("point_data", point_fields or {}, [leaf.n_points for leaf in leaves]),
            ("cell_data", cell_fields or {}, [leaf.n_cells for leaf in leaves]),
        ):
            for name, values in fields.items():
                parts = np.split(np.ascontiguousarray(values), np.cumsum(counts)[:-1])
                for leaf, part in zip(leaves, parts, strict=True):
                    getattr(leaf, place)[name] = part
        if path.suffix == ".vtm":
            _save_blocks(root, path)
            return
        with replacing(path) as temporary, _vtk_errors(str(path), "write"):
            root.save(temporary)

    @cached_property
    def _incidence(self) -> Incidence:
        counts = np.diff(np.asarray(self.grid.cell_offsets))
        return incidence(np.asarray(self.grid.cell_connectivity), counts, len(self.points))


def read_mesh(path: str | os.PathLike[str]) -> MeshFile:
    """A mesh by its suffix; a folder is an OpenFOAM case, at its last time."""
    path = Path(path)
    if not path.exists():
        raise DataError(f"{path} does not exist")
    suffix = path.suffix.lower()
    with _vtk_errors(str(path), "read"):
        if is_foam(path) or suffix == ".foam":
            root = _foam(path)
        elif suffix in (*THROUGH_VTK, *SURFACES):
            root = _pyvista().read(path)
        elif suffix in THROUGH_MESHIO:
            root = _pyvista().from_meshio(_through_meshio(path))
        else:
            raise DataError(f"{path}: cannot read {suffix or 'a name without suffix'}; meshes are {', '.join(MESHES)}")
    return mesh_of(root, str(path))


def mesh_of(root: Any, name: str = "the mesh") -> MeshFile:
    """The same for a pyvista object that is here already."""
    vtk = _pyvista()
    if isinstance(root, vtk.MultiBlock):
        grid = vtk.MultiBlock(list(root.recursive_iterator(skip_none=True))).combine(merge_points=False)
    else:
        grid = root if isinstance(root, vtk.UnstructuredGrid) else root.cast_to_unstructured_grid()
    if grid.n_points == 0:
        raise DataError(f"{name} is damaged or empty: no points in it")
    return MeshFile(name, root, grid)


def mesh_of_points(points: np.ndarray, name: str = "the points") -> MeshFile:
    """A cloud, for files that have no cells: a vertex at each point. Planes get z = 0."""
    vtk = _pyvista()
    space = np.zeros((len(points), 3), dtype=points.dtype)
    space[:, : points.shape[1]] = points
    return mesh_of(vtk.PolyData(space), name)


def is_mesh(path: str | os.PathLike[str]) -> bool:
    """Whether a file is a mesh by its name, and not a table or a dataset."""
    return Path(path).suffix.lower() in MESHES or is_foam(Path(path))


def is_foam(path: Path) -> bool:
    return (path / "system" / "controlDict").is_file()


def refuse_suffix(path: str | os.PathLike[str], root: Any) -> None:
    """Where a mesh of this kind cannot be written under that suffix."""
    suffix, own = Path(path).suffix, OWN_SUFFIX[type(root).__name__]
    if suffix not in (own, ".vtu"):
        raise DataError(f"{path}: this mesh is written as {own}" + (" or .vtu" if own != ".vtu" else ""))


def _foam(path: Path) -> Any:
    reader = _pyvista().OpenFOAMReader(str(path / "system" / "controlDict" if path.is_dir() else path))
    reader.cell_to_point_creation = False  # what is averaged to points is decided and said by the user
    if reader.time_values:
        reader.set_active_time_value(reader.time_values[-1])
    return reader.read()["internalMesh"]


def _through_meshio(path: Path) -> Any:
    try:
        import meshio
    except ImportError:
        raise DataError(
            f"{path}: meshio reads it; it comes with the extra:  pip install 'flare-engine[mesh]'"
        ) from None
    silence = io.StringIO()
    try:
        with contextlib.redirect_stdout(silence), contextlib.redirect_stderr(silence):
            return meshio.read(path)
    except (Exception, SystemExit) as error:  # meshio ends the program where no reader fits
        said = " ".join((silence.getvalue() or str(error)).split())[:200]
        raise DataError(f"{path} cannot be read by meshio: {said or type(error).__name__}") from None


def _pyvista() -> ModuleType:
    try:
        import pyvista
    except ImportError:
        raise DataError("meshes are read through VTK, with the extra:  pip install 'flare-engine[mesh]'") from None
    return pyvista


@contextlib.contextmanager
def _vtk_errors(path: str, verb: str) -> Iterator[None]:
    """VTK prints its errors and goes on with what it has; here the first one is raised, in one line."""
    vtk = _pyvista()._vtk
    vtk.vtkLogger.SetStderrVerbosity(vtk.vtkLogger.VERBOSITY_OFF)
    window, heard = vtk.vtkOutputWindow.GetInstance(), vtk.vtkStringOutputWindow()
    vtk.vtkOutputWindow.SetInstance(heard)
    disabled = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            yield
    except DataError:
        raise
    except Exception as error:  # whatever a reader makes of a damaged file
        raise DataError(f"cannot {verb} {path}: {one_line(error)[:200] or type(error).__name__}") from None
    finally:
        logging.disable(disabled)
        vtk.vtkOutputWindow.SetInstance(window)
    errors = [str(w.message).split("file.")[-1] for w in said if "raised an error" in str(w.message)]
    if heard.GetOutput():
        errors.append(heard.GetOutput().split("):")[-1])
    if errors:
        words = re.sub(r"\(0x[0-9a-f]+\)|Debug: .*", "", one_line(errors[0])).strip(' "')
        raise DataError(f"{path} is damaged or cut short. VTK says: {words[:150]}")


def _save_blocks(root: Any, path: Path) -> None:
    """A .vtm file names the files of a folder beside it; both are moved in when both are whole."""
    blocks = path.with_suffix("")
    if blocks.exists():
        raise DataError(f"{blocks} exists already; the blocks of {path} would go there")
    with filling(path.with_name(f"{path.name}.parts")) as folder:
        with _vtk_errors(str(path), "write"):
            root.save(folder / path.name)
        (folder / blocks.name).replace(blocks)
        (folder / path.name).replace(path)
    shutil.rmtree(path.with_name(f"{path.name}.parts"))


def _numbers(data: Any) -> dict[str, np.ndarray]:
    """The numeric arrays of VTK data; names of strings, and VTK's own marks, are left out."""
    arrays = {name: np.asarray(data[name]) for name in data.keys()}  # noqa: SIM118
    return {name: a for name, a in arrays.items() if a.dtype.kind in "fiub" and not name.startswith("vtk")}

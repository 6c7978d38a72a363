"""Files of other programs through VTK (pyvista) and meshio, written again bit for bit.

The pyvista object that was read stays in the mesh as its private source. Saving adds the new data to a copy of it, so
that everything else, such as strings, polyhedra and blocks, stays as it was.
"""

from __future__ import annotations

import contextlib
import io
import logging
import shutil
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from flare.mesh.io import MESHES, MESHIO, SURFACES, VTK, is_foam
from flare.mesh.io.cad import silenced
from flare.mesh.mesh import NUMERIC, Array, Mesh, in_space, stated_units, written_field_data
from flare.utils.errors import DataError, one_line
from flare.utils.files import create_folder, replace_atomically

SUFFIX_OF_TYPE = {
    "UnstructuredGrid": ".vtu",
    "PolyData": ".vtp",
    "ImageData": ".vti",
    "RectilinearGrid": ".vtr",
    "StructuredGrid": ".vts",
    "MultiBlock": ".vtm",
}
LEGACY = ".vtk"
"""VTK's older format, which holds any single mesh."""
VERTEX = 1
POLYGONS = {5, 7, 9}
"""Triangles, polygons and quadrilaterals, which PolyData can hold."""
BLOCK_MARKS = ("ElementBlockIds", "ispatch", "issurface")
"""Field data that VTK's readers of Exodus and CGNS add to each block."""


@dataclass(frozen=True)
class VTKSource:
    """The pyvista objects behind a mesh."""

    root: Any
    """The object as it was read."""
    grid: Any
    """The same as one pyvista.UnstructuredGrid with the field data of the whole."""


# ---- reading ---------------------------------------------------------------------------------------------------------


def read(path: Path) -> Mesh:
    """Read a file through VTK or meshio; if it has several time steps, the last one."""
    suffix = path.suffix.lower()
    with vtk_errors(str(path), "read"):
        if is_foam(path) or suffix == ".foam":
            root, notes = _read_foam(path)
        elif suffix in (*VTK, *SURFACES):
            root, notes = _read_vtk(path)
        elif suffix in MESHIO:
            root, notes = pyvista().from_meshio(_read_meshio(path)), []
        else:
            raise DataError(f"{path}: cannot read {suffix or 'a file without suffix'}; meshes are {', '.join(MESHES)}")
    return from_pyvista(root, str(path), notes)


def from_pyvista(root: Any, name: str = "the mesh", notes: Sequence[str] = ()) -> Mesh:
    """Convert a pyvista object to a mesh; blocks are joined end to end."""
    vtk = pyvista()
    if not isinstance(root, vtk.DataObject):
        raise DataError(f"a mesh is a file, a flare.Mesh or a pyvista dataset; got {type(root).__name__}")
    if isinstance(root, vtk.MultiBlock):
        grid, partial = _join_blocks(_leaves(root))
        notes = [*notes, *partial, *_share_field_data(root, grid)]
    else:
        grid = root if isinstance(root, vtk.UnstructuredGrid) else root.cast_to_unstructured_grid()
    if grid.n_points == 0:
        raise DataError(f"{name} is damaged or empty: it has no points")
    field_data = _arrays(grid.field_data, NUMERIC + "U")
    return Mesh(
        np.asarray(grid.points),
        np.asarray(grid.cell_connectivity),
        np.asarray(grid.cell_offsets)[1:],
        np.asarray(grid.celltypes),
        _arrays(grid.point_data, NUMERIC),
        _arrays(grid.cell_data, NUMERIC),
        field_data,
        stated_units(field_data),
        name=name,
        notes=tuple(notes),
        _source=VTKSource(root, grid),
    )


def _read_foam(path: Path) -> tuple[Any, list[str]]:
    reader = pyvista().OpenFOAMReader(str(path / "system" / "controlDict" if path.is_dir() else path))
    reader.cell_to_point_creation = False  # whether cell data is averaged to points is the caller's choice
    notes = _select_last_time(reader)
    return reader.read()["internalMesh"], notes


def _read_vtk(path: Path) -> tuple[Any, list[str]]:
    vtk = pyvista()
    noisy = path.suffix.lower() in (".cgns", ".e", ".exo", ".ex2")
    with silenced(2) if noisy else contextlib.nullcontext():  # their libraries print past VTK and Python
        reader = vtk.get_reader(path)
        if isinstance(reader, vtk.CGNSReader):
            reader.load_boundary_patch = False  # its points repeat those of the zone
        notes = _select_last_time(reader)
        return reader.read(), notes


def _select_last_time(reader: Any) -> list[str]:
    """Select the last time step, the result of the simulation; VTK's default is the first."""
    pipeline = pyvista()._vtk.vtkStreamingDemandDrivenPipeline
    reader.reader.UpdateInformation()
    times: Sequence[float] = reader.reader.GetOutputInformation(0).Get(pipeline.TIME_STEPS()) or ()
    if len(times) < 2:
        return []
    reader.reader.UpdateTimeStep(times[-1])
    return [f"read the last of {len(times)} time steps, t = {times[-1]:g}"]


def _read_meshio(path: Path) -> Any:
    try:
        import meshio
    except ImportError:
        raise DataError(f"{path}: reading it needs meshio:  pip install 'flare-engine[mesh]'") from None
    silence = io.StringIO()
    try:
        with contextlib.redirect_stdout(silence), contextlib.redirect_stderr(silence):
            return meshio.read(path)
    except (Exception, SystemExit) as error:  # meshio exits the process if no reader matches
        reason = " ".join((silence.getvalue() or str(error)).split())[:200]
        raise DataError(f"{path} cannot be read by meshio: {reason or type(error).__name__}") from None


def pyvista() -> ModuleType:
    """Import pyvista, or raise DataError with the command that installs it."""
    try:
        import pyvista
    except ImportError:
        raise DataError("mesh files need VTK:  pip install 'flare-engine[mesh]'") from None
    return pyvista


@contextlib.contextmanager
def vtk_errors(path: str, verb: str) -> Iterator[None]:
    """Raise the first error of VTK as a DataError of one line; VTK would print it and continue."""
    vtk = pyvista()._vtk
    vtk.vtkLogger.SetStderrVerbosity(vtk.vtkLogger.VERBOSITY_OFF)
    window, heard = vtk.vtkOutputWindow.GetInstance(), vtk.vtkStringOutputWindow()
    vtk.vtkOutputWindow.SetInstance(heard)
    disabled = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield
    except DataError:
        raise
    except Exception as error:  # readers raise anything for a damaged file
        raise DataError(f"cannot {verb} {path}: {one_line(error)[:200] or type(error).__name__}") from None
    finally:
        logging.disable(disabled)
        vtk.vtkOutputWindow.SetInstance(window)
    errors = [str(w.message) for w in caught if "raised an error" in str(w.message)] + [heard.GetOutput() or ""]
    if reason := one_line(" ".join(errors)):
        raise DataError(f"{path} is damaged or truncated. VTK reports: {reason.split('):')[-1].strip()[:150]}")


def _arrays(data: Any, kinds: str) -> dict[str, Array]:
    """Return the arrays of VTK data whose types are of these kinds, without VTK's own marks."""
    arrays = {name: np.asarray(data[name]) for name in data.keys()}  # noqa: SIM118
    return {name: a for name, a in arrays.items() if a.dtype.kind in kinds and not name.startswith("vtk")}


# ---- blocks ----------------------------------------------------------------------------------------------------------


def _leaves(root: Any) -> list[Any]:
    """Return the meshes of a pyvista.MultiBlock in order, without empty blocks."""
    return list(root.recursive_iterator(skip_none=True))


def _join_blocks(blocks: list[Any]) -> tuple[Any, list[str]]:
    """Join blocks end to end without merging points. Data that a block lacks is NaN there; VTK would drop it."""
    grid, notes = pyvista().MultiBlock(blocks).combine(merge_points=False), list[str]()
    for place, sizes in (("point_data", [b.n_points for b in blocks]), ("cell_data", [b.n_cells for b in blocks])):
        data = [getattr(block, place) for block in blocks]
        for name in dict.fromkeys(name for own in data for name in own.keys()):  # noqa: SIM118
            if name in getattr(grid, place):
                continue
            known = [np.asarray(own[name]) if name in own else None for own in data]
            there = [values for values in known if values is not None]
            if any(v.dtype.kind not in NUMERIC or v.shape[1:] != there[0].shape[1:] for v in there):
                notes.append(f"{name!r} is dropped: it is text in some blocks, or its components differ")
                continue
            missing = [np.full((size, *there[0].shape[1:]), np.nan) for size in sizes]
            rows = [nan if values is None else values for values, nan in zip(known, missing, strict=True)]
            getattr(grid, place)[name] = np.concatenate(rows)
            if len(there) < len(known):
                notes.append(f"{len(known) - len(there)} of {len(known)} blocks have no {name!r}: NaN there")
    return grid, notes


def _share_field_data(root: Any, grid: Any) -> list[str]:
    """Give the joined grid the field data of the root, and that on which all blocks agree.

    Other numbers of single blocks are noted, because they are not parameters of the whole.
    """
    whole, own, blocks, notes = grid.GetFieldData(), root.GetFieldData(), _leaves(root), list[str]()
    whole.Initialize()  # VTK has copied the field data of single blocks here
    parts = [block.field_data for block in blocks]
    for name in dict.fromkeys(name for part in parts for name in part.keys()):  # noqa: SIM118
        known = [np.asarray(part[name]) for part in parts if name in part]
        if own.HasArray(name) or name in BLOCK_MARKS or name.startswith("vtk"):
            continue
        if len(known) == len(parts) and all(np.array_equal(known[0], values) for values in known):
            whole.AddArray(blocks[0].GetFieldData().GetAbstractArray(name))
        elif known[0].dtype.kind in NUMERIC:
            notes.append(f"not all blocks have the same field data {name!r}: it is not a parameter of the file")
    for index in range(own.GetNumberOfArrays()):
        whole.AddArray(own.GetAbstractArray(index))
    return notes


# ---- writing ---------------------------------------------------------------------------------------------------------


def own_suffix(mesh: Mesh) -> str:
    """Return the suffix of the kind of VTK file that a mesh is."""
    source = _vtk_source(mesh)
    if source is not None:
        return SUFFIX_OF_TYPE[type(source.root).__name__]
    types = set(np.unique(mesh.cell_types).tolist())
    return ".vtp" if types <= POLYGONS or types <= {VERTEX} else ".vtu"


def _vtk_source(mesh: Mesh) -> VTKSource | None:
    return mesh._source if isinstance(mesh._source, VTKSource) else None


def to_pyvista(mesh: Mesh, suffix: str) -> Any:
    """Convert a mesh with its data to the pyvista dataset that a file with this suffix holds."""
    vtk, own = pyvista(), own_suffix(mesh)
    source = _vtk_source(mesh) or _without_data(mesh)
    as_read = suffix in (LEGACY, own)
    root = source.root.copy(deep=False) if as_read else source.grid.copy()
    blocks = _leaves(root) if isinstance(root, vtk.MultiBlock) else [root]
    for place, data, counts in (
        ("point_data", mesh.point_data, [block.n_points for block in blocks]),
        ("cell_data", mesh.cell_data, [block.n_cells for block in blocks]),
    ):
        old = getattr(source.grid, place).keys()
        for name, values in data.items():
            if name in old:
                continue
            rows = np.split(np.ascontiguousarray(values), np.cumsum(counts)[:-1])
            for block, part in zip(blocks, rows, strict=True):
                getattr(block, place)[name] = part
    for name, values in written_field_data(mesh).items():
        if _vtk_source(mesh) and values is mesh.field_data.get(name) and name in source.grid.field_data:
            continue
        if values.dtype.kind == "U":
            root.GetFieldData().AddArray(_string_array(name, values))
        else:
            root.field_data[name] = values
    return root


def write(path: Path, mesh: Mesh) -> None:
    """Write a mesh as the kind of VTK file that it is, as .vtk or as .vtu."""
    root = to_pyvista(mesh, path.suffix.lower())
    if path.suffix.lower() == ".vtm":
        _write_blocks(root, path)
        return
    with replace_atomically(path) as temporary, vtk_errors(str(path), "write"):
        root.save(temporary)


def _without_data(mesh: Mesh) -> VTKSource:
    """Build the pyvista objects of a mesh of plain arrays, without its data."""
    vtk, points = pyvista(), in_space(mesh.points)
    ends = mesh.offsets.astype(np.int64)
    lengths = np.diff(ends, prepend=0)
    cells = np.insert(mesh.connectivity.astype(np.int64), ends - lengths, lengths)
    if own_suffix(mesh) == ".vtu":
        grid = vtk.UnstructuredGrid(cells, mesh.cell_types, points)
        return VTKSource(grid, grid)
    root = vtk.PolyData(points, cells) if mesh.cells else vtk.PolyData(points)
    return VTKSource(root, root.cast_to_unstructured_grid())


def _write_blocks(root: Any, path: Path) -> None:
    """Write a .vtm file and the folder of its blocks; both get their names once both are complete."""
    blocks = path.with_suffix("")
    if blocks.exists():
        raise DataError(f"{blocks} already exists; the blocks of {path} would be written there")
    with create_folder(path.with_name(f"{path.name}.parts")) as folder:
        with vtk_errors(str(path), "write"):
            root.save(folder / path.name)
        (folder / blocks.name).replace(blocks)
        (folder / path.name).replace(path)
    shutil.rmtree(path.with_name(f"{path.name}.parts"))


def _string_array(name: str, words: Array) -> Any:
    """Build a VTK string array; pyvista rejects characters outside ASCII, such as in `°C`."""
    array = pyvista()._vtk.vtkStringArray()
    array.SetName(name)
    for word in words:
        array.InsertNextValue(str(word))
    return array


# ---- surfaces --------------------------------------------------------------------------------------------------------


def extract_surface(mesh: Mesh) -> tuple[Array, Array]:
    """Extract the outer surface of a mesh of any cells: (T, 3) points of triangles and (T,) cell of each."""
    source = _vtk_source(mesh) or _without_data(mesh)
    surface = source.grid.extract_surface(
        pass_pointid=True, pass_cellid=True, algorithm="dataset_surface"
    ).triangulate()
    corners = np.asarray(surface.faces).reshape(-1, 4)[:, 1:]
    owners = np.asarray(surface.cell_data["vtkOriginalCellIds"]) if len(corners) else np.zeros(0, np.int64)
    return np.asarray(surface.point_data["vtkOriginalPointIds"])[corners], owners

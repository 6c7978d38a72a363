"""Readers and writers of mesh files, chosen by the suffix. All of them return or take `flare.mesh.Mesh`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flare.utils.errors import DataError

if TYPE_CHECKING:
    from flare.mesh.io.arrays import ArrayLayout
    from flare.mesh.mesh import Mesh

SURFACES = (".stl", ".ply", ".obj")
"""Surface geometry, usually without fields."""
VTK = (".vtu", ".vtp", ".vtk", ".vti", ".vtr", ".vts", ".vtm", ".cgns", ".e", ".exo", ".ex2", ".foam")
MESHIO = (".inp", ".bdf", ".nas", ".fem", ".msh", ".med", ".mdpa", ".su2")
"""Abaqus, Nastran, Ansys and Gmsh, Salome, Kratos and SU2. CGNS and Exodus go through VTK, which reads their fields."""
MESHES = (*VTK, *SURFACES, *MESHIO)
ARRAYS = (".npz", ".h5", ".hdf5", ".zarr")
TABLES = (".csv", ".parquet")
CAD = (".step", ".stp", ".iges", ".igs", ".brep")
POINT_FORMATS = (".vtu", ".vtp")
"""VTK formats in which points without cells are written."""
ROW_FORMATS = (".npz", ".csv")
"""Formats with one row per point."""


@dataclass(frozen=True)
class ReadLimits:
    """Limits for files from untrusted sources. With limits, only our own safe readers are used."""

    points: int
    """Most points of a mesh."""
    bytes: int
    """Most bytes of all arrays together, once unpacked."""


def read_mesh(
    path: str | os.PathLike[str],
    *,
    layout: ArrayLayout | None = None,
    group: str = "",
    row: int | None = None,
    limits: ReadLimits | None = None,
) -> Mesh:
    """Read a mesh with its data; the format is that of the suffix, and a folder is an OpenFOAM case.

    If a file has several time steps, the last one is read and a note is added to the mesh.

    Args:
        path: File or OpenFOAM case.
        layout: Names of coordinates and fields to expect in arrays and tables.
        group: Group of an HDF5 or Zarr file.
        row: Index along the first axis of arrays that hold several meshes.
        limits: Reads with our own safe readers only (.vtu, .stl, .npz, .csv), up to these limits.

    Returns:
        The mesh, with the data and the units that the file states.

    Raises:
        DataError: The file is missing, damaged or of an unknown format.
        TooLarge: The file exceeds the limits.

    Example:
        >>> import numpy as np, tempfile
        >>> from flare import Mesh, read_mesh
        >>> from flare.mesh.io import ReadLimits
        >>> triangle = Mesh.from_cells(np.eye(3), {"triangle": np.array([[0, 1, 2]])})
        >>> folder = tempfile.mkdtemp()
        >>> triangle.save(f"{folder}/a.vtu")
        >>> read_mesh(f"{folder}/a.vtu", limits=ReadLimits(points=10, bytes=10_000)).cells["triangle"].tolist()
        [[0, 1, 2]]
    """
    path = Path(path)
    if not path.exists():
        raise DataError(f"{path} does not exist")
    suffix = path.suffix.lower()
    if suffix in ARRAYS:
        from flare.mesh.io.arrays import read_arrays

        return read_arrays(path, layout=layout, group=group, row=row, limits=limits)
    if suffix in TABLES:
        from flare.mesh.io.tables import read_table

        return read_table(path, layout=layout, limits=limits)
    if suffix == ".stl":
        from flare.mesh.io.stl import read_stl

        return read_stl(path)
    if limits is not None:
        if suffix != ".vtu":
            raise DataError(f"{path}: {suffix} files are not accepted here; use .vtu, .stl, .npz or .csv")
        from flare.mesh.io.vtk_xml import read_vtu

        return read_vtu(path, limits)
    if suffix in CAD:
        from flare.mesh.io.cad import read_cad

        return read_cad(path)
    from flare.mesh.io.vtk_library import read

    return read(path)


def write_mesh(mesh: Mesh, path: str | os.PathLike[str]) -> None:
    """Write a mesh in the format of the suffix; see `Mesh.save`."""
    path = Path(path)
    check_suffix(mesh, path)
    suffix = path.suffix.lower()
    if suffix == ".npz":
        from flare.mesh.io.arrays import write_npz

        write_npz(path, mesh)
    elif suffix == ".csv":
        from flare.mesh.io.tables import write_csv

        write_csv(path, mesh)
    elif suffix == ".stl":
        from flare.mesh.io.stl import write_stl

        write_stl(path, mesh)
    else:
        from flare.mesh.io.vtk_library import VTKSource, write
        from flare.mesh.io.vtk_xml import write_vtu

        if suffix == ".vtu" and not isinstance(mesh._source, VTKSource):
            write_vtu(path, mesh)
        else:
            write(path, mesh)


def vtk_suffixes(mesh: Mesh) -> list[str]:
    """Return the VTK suffixes under which a mesh can be saved, .vtu first."""
    from flare.mesh.io.vtk_library import own_suffix

    own = own_suffix(mesh)
    return list(dict.fromkeys([".vtu", own, *([".vtk"] if own != ".vtm" else [])]))


def check_suffix(mesh: Mesh, path: str | os.PathLike[str]) -> None:
    """Raise DataError if the mesh cannot be written as a file of this name."""
    suffix = Path(path).suffix.lower()
    ways = [*vtk_suffixes(mesh), *ROW_FORMATS]
    if suffix not in ways and not (suffix == ".stl" and "triangle" in mesh.cells):
        raise DataError(f"{path}: this mesh cannot be written as {suffix!r}; use {', '.join(ways)}")


def is_foam(path: Path) -> bool:
    """Return whether a folder is an OpenFOAM case."""
    return (path / "system" / "controlDict").is_file()

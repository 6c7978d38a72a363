"""Files of other programs as pyvista objects, through VTK and meshio: at their last time, or one clear error."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from flare.utils.errors import DataError, one_line

SURFACES = (".stl", ".ply", ".obj")
"""Geometry, as a rule without fields."""
THROUGH_VTK = (".vtu", ".vtp", ".vtk", ".vti", ".vtr", ".vts", ".vtm", ".cgns", ".e", ".exo", ".ex2", ".foam")
THROUGH_MESHIO = (".inp", ".bdf", ".nas", ".fem", ".msh", ".med", ".mdpa", ".su2")
"""Abaqus, Nastran, Ansys and Gmsh, Salome, Kratos, SU2. meshio reads no fields of CGNS and Exodus; VTK does."""
MESHES = (*THROUGH_VTK, *SURFACES, *THROUGH_MESHIO)


def read_root(path: Path) -> tuple[Any, list[str]]:
    """The pyvista object that a file is, and what was decided on the way."""
    if not path.exists():
        raise DataError(f"{path} does not exist")
    suffix = path.suffix.lower()
    with vtk_errors(str(path), "read"):
        if is_foam(path) or suffix == ".foam":
            return _foam(path)
        if suffix in (*THROUGH_VTK, *SURFACES):
            return _through_vtk(path)
        if suffix in THROUGH_MESHIO:
            return pyvista().from_meshio(_through_meshio(path)), []
        raise DataError(f"{path}: cannot read {suffix or 'a name without suffix'}; meshes are {', '.join(MESHES)}")


def is_foam(path: Path) -> bool:
    return (path / "system" / "controlDict").is_file()


def _foam(path: Path) -> tuple[Any, list[str]]:
    reader = pyvista().OpenFOAMReader(str(path / "system" / "controlDict" if path.is_dir() else path))
    reader.cell_to_point_creation = False  # what is averaged to points is decided and said by the user
    remarks = _at_the_last_time(reader)
    return reader.read()["internalMesh"], remarks


def _through_vtk(path: Path) -> tuple[Any, list[str]]:
    vtk = pyvista()
    talkative = path.suffix.lower() in (".cgns", ".e", ".exo", ".ex2")
    with _stderr_heard(path) if talkative else contextlib.nullcontext():
        reader = vtk.get_reader(path)
        if isinstance(reader, vtk.CGNSReader):
            reader.load_boundary_patch = False  # its points are those of the zone, once more
        remarks = _at_the_last_time(reader)
        return reader.read(), remarks


@contextlib.contextmanager
def _stderr_heard(path: Path) -> Iterator[None]:
    """The libraries of CGNS and Exodus know why a file cannot be read, and print it past VTK and Python."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        failed = True
        try:
            yield
            failed = False
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            said = one_line(file.read().decode(errors="replace"))
            if failed and said:
                raise DataError(f"{path} is damaged or cut short. Its library says: {said[:150]}") from None


def _at_the_last_time(reader: Any) -> list[str]:
    """Results are what a simulation ends with; VTK would take what it began with."""
    pipeline = pyvista()._vtk.vtkStreamingDemandDrivenPipeline
    reader.reader.UpdateInformation()
    times: Sequence[float] = reader.reader.GetOutputInformation(0).Get(pipeline.TIME_STEPS()) or ()
    if len(times) < 2:
        return []
    reader.reader.UpdateTimeStep(times[-1])
    return [f"of {len(times)} times the last, {times[-1]:g}, is taken"]


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


def pyvista() -> ModuleType:
    try:
        import pyvista
    except ImportError:
        raise DataError("meshes are read through VTK, with the extra:  pip install 'flare-engine[mesh]'") from None
    return pyvista


@contextlib.contextmanager
def vtk_errors(path: str, verb: str) -> Iterator[None]:
    """VTK prints its errors and goes on with what it has; here the first one is raised, in one line."""
    vtk = pyvista()._vtk
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
        if "ERROR: In vtk" in str(error):
            raise _damaged(path, str(error)) from None
        raise DataError(f"cannot {verb} {path}: {one_line(error)[:200] or type(error).__name__}") from None
    finally:
        logging.disable(disabled)
        vtk.vtkOutputWindow.SetInstance(window)
    errors = [str(w.message).split("file.")[-1] for w in said if "raised an error" in str(w.message)]
    if heard.GetOutput():
        errors.append(heard.GetOutput().split("):")[-1])
    if errors:
        raise _damaged(path, errors[0])


def _damaged(path: str, message: str) -> DataError:
    said = _plain(message)
    kind = Path(path).suffix or "mesh"
    return DataError(
        f"{path} is damaged or cut short" + (f". VTK says: {said}" if said else f", or no {kind} file at all")
    )


def _plain(message: str) -> str:
    """VTK's words without its lines of source, classes and addresses, and without what follows from an earlier failure
    inside its pipeline, which tells nothing of the file."""
    words = re.sub(r"ERROR: In \S+ line \d+ \w+|\(0x[0-9a-f]+\):?|Debug: .*", "", one_line(message))
    words = re.sub(r"No update piece number .*|Algorithm vtk\w+ .*", "", words)
    return words.strip(' "')[:150]

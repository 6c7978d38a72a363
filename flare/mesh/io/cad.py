"""CAD files (STEP, IGES, BREP) through gmsh and its OpenCASCADE kernel, and exact shapes of CSG solids.

    mesh = read_cad("bracket.step")
    triangulated(solid).save("part.stl")
    write_cad("part.step", solid)

gmsh is an optional dependency that is imported when needed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import current_thread, main_thread
from typing import Any

import numpy as np

from flare.mesh.csg import Box, Cylinder, Difference, Placed, Prism, Solid, Union
from flare.mesh.mesh import Mesh
from flare.mesh.surface import GeometryError
from flare.utils.errors import DataError, one_line
from flare.utils.files import replace_atomically

WRITTEN = (".step", ".stp", ".brep")
NO_GMSH = "CAD files need gmsh:  pip install 'flare-engine[cad]', or export the geometry as STL"
TIMEOUT = 300
"""Seconds for one file."""
SEWING_TOLERANCE = 1e-4
"""Edges of faces closer than this, in mm, are joined."""
EDGES_PER_CIRCLE = 48
"""Triangle edges around a full circle; a cylinder loses 0.3 % of its volume."""

Tags = list[tuple[int, int]]


def read_cad(path: str | os.PathLike[str]) -> Mesh:
    """Read the one solid of a STEP, IGES or BREP file as triangles on its faces, in mm.

    The file is read in a separate process, because a damaged file may crash the kernel or never return.

    Raises:
        GeometryError: The file cannot be read, or does not hold exactly one solid.
        DataError: gmsh is not installed.
    """
    if find_spec("gmsh") is None:
        raise DataError(f"{path}: {NO_GMSH}")
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "flare.mesh.io.cad", str(path), folder]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        try:
            subprocess.run(command, env=environment, capture_output=True, timeout=TIMEOUT, check=True)
        except subprocess.SubprocessError as error:  # it crashed or takes too long
            raise GeometryError("unreadable", f"{path} cannot be read as CAD: {one_line(error)[-200:]}") from None
        with np.load(Path(folder) / "read.npz") as read:
            if "reason" in read:
                raise GeometryError(str(read["reason"]), str(read["message"]))
            return Mesh.from_cells(read["points"], {"triangle": read["triangles"]}, name=str(path))


def _read_in_subprocess(path: str, folder: str) -> None:
    """Write the triangles, or the fault, to a file for the parent process."""
    try:
        mesh = _read_solid(path)
        found = {"points": mesh.points, "triangles": mesh.cells["triangle"]}
    except GeometryError as error:
        found = {"reason": np.array(error.reason), "message": np.array(str(error))}
    np.savez(Path(folder) / "read.npz", **found)  # type: ignore[arg-type]


def _read_solid(path: str) -> Mesh:
    with _gmsh() as gmsh:
        try:
            gmsh.model.occ.importShapes(path, highestDimOnly=False)
            if not gmsh.model.occ.getEntities(3):  # IGES files usually have loose faces
                gmsh.model.occ.healShapes(tolerance=SEWING_TOLERANCE, sewFaces=True, makeSolids=True)
            gmsh.model.occ.synchronize()
            solids = len(gmsh.model.getEntities(3))
            if solids == 1:
                return _triangulate(gmsh)
        except Exception as error:  # gmsh raises plain exceptions
            message = f"{path} cannot be read as CAD ({one_line(error)[:200]}); it may be truncated"
            raise GeometryError("unreadable", message) from None
    if solids == 0:
        raise GeometryError("no volume", f"{path} holds no solid, only surfaces or curves; export one solid")
    raise GeometryError("several bodies", f"{path} holds {solids} solids; export one solid")


def triangulated(solid: Solid) -> Mesh:
    """Return the surface of a solid as triangles, exact except for round faces."""
    with _gmsh() as gmsh:
        _build(gmsh.model.occ, solid)
        gmsh.model.occ.synchronize()
        return _triangulate(gmsh)


def write_cad(path: str | os.PathLike[str], solid: Solid) -> None:
    """Write a solid as a STEP or BREP file, which CAD programs can open and edit."""
    if Path(path).suffix.lower() not in WRITTEN:
        raise DataError(f"{path}: a solid can be written as {', '.join(WRITTEN)}; save its triangles as .stl")
    with _gmsh() as gmsh, replace_atomically(path) as temporary:
        _build(gmsh.model.occ, solid)
        gmsh.model.occ.synchronize()
        gmsh.write(str(temporary))


@contextmanager
def _gmsh() -> Iterator[Any]:
    """Yield gmsh with our settings and an empty model; OpenCASCADE's direct writes to standard output are silenced."""
    try:
        import gmsh  # type: ignore[import-untyped]
    except (ImportError, OSError) as error:  # it may be installed but lack a system library
        raise DataError(f"{NO_GMSH} ({one_line(error)})") from None
    with silenced(1):
        gmsh.initialize(["-noenv"], readConfigFiles=False, run=False, interruptible=False)
        if current_thread() is main_thread():  # gmsh resets SIGPIPE, which would kill this process on a broken pipe
            signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        try:
            gmsh.option.setNumber("General.Terminal", 0)
            gmsh.option.setNumber("General.NumThreads", 1)
            gmsh.option.setNumber("Mesh.MeshSizeFromCurvature", EDGES_PER_CIRCLE)
            gmsh.option.setNumber("Mesh.MeshSizeExtendFromBoundary", 0)
            yield gmsh
        finally:
            gmsh.finalize()


@contextmanager
def silenced(descriptor: int) -> Iterator[None]:
    """Discard what libraries write directly to standard output (1) or standard error (2)."""
    (sys.stdout if descriptor == 1 else sys.stderr).flush()
    kept, nowhere = os.dup(descriptor), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, descriptor)
        yield
    finally:
        os.dup2(kept, descriptor)
        os.close(kept)
        os.close(nowhere)


def _triangulate(gmsh: Any) -> Mesh:
    """Mesh all faces of the model with triangles of arbitrary orientation."""
    gmsh.model.mesh.generate(2)
    tags, coordinates, _ = gmsh.model.mesh.getNodes()
    _, corners = gmsh.model.mesh.getElementsByType(2)
    number = np.zeros(int(tags.max()) + 1, dtype=np.int64)
    number[tags.astype(np.int64)] = np.arange(len(tags))
    triangles = number[corners.astype(np.int64)].reshape(-1, 3)
    return Mesh.from_cells(np.asarray(coordinates).reshape(-1, 3), {"triangle": triangles})


def _build(occ: Any, solid: Solid) -> Tags:
    """Build the OpenCASCADE shape of a solid."""
    match solid:
        case Box(low, high):
            return [(3, occ.addBox(*low, *(b - a for a, b in zip(low, high, strict=True))))]
        case Cylinder(axis=axis, centre=centre, radius=radius, low=low, high=high):
            along = np.eye(3)[axis] * (high - low)
            return [(3, occ.addCylinder(*np.insert(centre, axis, low), *along, radius))]
        case Prism(axis=axis, polygon=polygon, low=low, high=high):
            points = [occ.addPoint(*np.insert(corner, axis, low)) for corner in polygon]
            lines = [occ.addLine(a, b) for a, b in zip(points, [*points[1:], points[0]], strict=True)]
            face = occ.addPlaneSurface([occ.addCurveLoop(lines)])
            return [tag for tag in occ.extrude([(2, face)], *(np.eye(3)[axis] * (high - low))) if tag[0] == 3]
        case Union(first, second):
            return list(occ.fuse(_build(occ, first), _build(occ, second))[0])
        case Difference(first, second):
            return list(occ.cut(_build(occ, first), _build(occ, second))[0])
        case Placed(solid=inner):
            return _placed(occ, _build(occ, inner), solid)
    raise DataError(f"a {type(solid).__name__} has no CAD shape")


def _placed(occ: Any, shape: Tags, place: Placed) -> Tags:
    """Place a shape: axes are swapped by mirrors in diagonal planes and flipped by mirrors in coordinate planes."""
    order = list(range(3))  # axis of the solid that currently lies along x, y, z
    for axis in range(2):
        other = order.index(place.axes[axis])
        if other != axis:
            occ.mirror(shape, *(np.eye(3)[axis] - np.eye(3)[other]), 0)
            order[axis], order[other] = order[other], order[axis]
    for axis in range(3):
        if place.signs[axis] < 0:
            occ.mirror(shape, *np.eye(3)[axis], 0)
    if place.scale != 1.0:
        occ.dilate(shape, 0, 0, 0, place.scale, place.scale, place.scale)
    occ.translate(shape, *place.shift)
    return shape


if __name__ == "__main__":
    _read_in_subprocess(*sys.argv[1:])

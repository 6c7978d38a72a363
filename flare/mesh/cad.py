"""CAD solids through gmsh and its OpenCASCADE kernel: STEP, IGES and BREP files, and formulas as exact shapes.

    surface = read_cad("bracket.step")
    write_stl("part.stl", triangulated(part.solid))
    write_cad("part.step", part.solid)

gmsh is an extra, imported when needed.
"""

from __future__ import annotations

import json
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
from flare.mesh.surface import Surface
from flare.mesh.unfit import Unfit
from flare.utils.errors import DataError, one_line
from flare.utils.files import replacing

CAD = (".step", ".stp", ".iges", ".igs", ".brep")
WRITTEN = (".step", ".stp", ".brep")
NO_GMSH = "CAD files need gmsh:  pip install 'flare-engine[cad]', or export the part as STL"
PATIENCE = 300  # seconds for one file
SEW = 1e-4  # mm: edges of faces nearer than this are one
TURNS = 48  # triangle edges around a full circle: 0.3 % of a cylinder's volume is lost

Tags = list[tuple[int, int]]


def read_cad(path: str | os.PathLike[str]) -> Surface:
    """The one solid of a STEP, IGES or BREP file, in mm, its faces covered with triangles.

    Read by another process: a damaged file may crash the kernel, or keep it busy for ever.

    Raises:
        Unfit: the file cannot be read, or does not hold one solid.
        DataError: gmsh is not installed.
    """
    if find_spec("gmsh") is None:
        raise DataError(f"{path}: {NO_GMSH}")
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "flare.mesh.cad", str(path), folder]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        try:
            code = subprocess.run(command, env=environment, capture_output=True, timeout=PATIENCE).returncode
        except subprocess.TimeoutExpired:
            raise Unfit("unreadable", f"{path} cannot be read as CAD within {PATIENCE} s; export it as STL") from None
        fault, triangles = Path(folder) / "fault.json", Path(folder) / "surface.npz"
        if fault.exists():
            reason, message = json.loads(fault.read_text(encoding="utf-8"))
            raise Unfit(reason, message) if reason else DataError(message)
        if code != 0 or not triangles.exists():
            raise Unfit("unreadable", f"{path} cannot be read as CAD: gmsh crashed ({code}); is the file damaged?")
        with np.load(triangles) as arrays:
            return Surface(arrays["vertices"], arrays["faces"])


def _read_for_another(path: str, folder: str) -> None:
    """What the other process does: leave the triangles or the fault in a folder."""
    if hasattr(signal, "alarm"):
        signal.alarm(PATIENCE + 10)  # should the first process be killed meanwhile
    try:
        surface = _read_here(path)
    except DataError as error:
        fault = [getattr(error, "reason", None), str(error)]
        (Path(folder) / "fault.json").write_text(json.dumps(fault), encoding="utf-8")
    else:
        np.savez(Path(folder) / "surface.npz", vertices=surface.vertices, faces=surface.faces)


def _read_here(path: str) -> Surface:
    with _gmsh() as gmsh:
        try:
            gmsh.model.occ.importShapes(path, highestDimOnly=False)
            if not gmsh.model.occ.getEntities(3):  # IGES has loose faces, as a rule
                gmsh.model.occ.healShapes(tolerance=SEW, sewFaces=True, makeSolids=True)
            gmsh.model.occ.synchronize()
            solids = len(gmsh.model.getEntities(3))
            if solids == 1:
                return _covered(gmsh)
        except Exception as error:  # gmsh has no kind of its own
            message = f"{path} cannot be read as CAD ({one_line(error)[:200]}); is it cut short?"
            raise Unfit("unreadable", message) from None
    if solids == 0:
        raise Unfit("no volume", f"{path} holds no solid, only surfaces or curves; export one solid")
    raise Unfit("several bodies", f"{path} holds {solids} solids; export one solid")


def triangulated(solid: Solid) -> Surface:
    """The surface of a solid as triangles, exact but for round faces."""
    with _gmsh() as gmsh:
        _built(gmsh.model.occ, solid)
        gmsh.model.occ.synchronize()
        return _covered(gmsh)


def write_cad(path: str | os.PathLike[str], solid: Solid) -> None:
    """Write a solid as a STEP or BREP file, which other CAD programs open and change."""
    if Path(path).suffix.lower() not in WRITTEN:
        raise DataError(f"{path}: a solid is written as {', '.join(WRITTEN)}; as triangles with write_stl")
    with _gmsh() as gmsh, replacing(path) as temporary:
        _built(gmsh.model.occ, solid)
        gmsh.model.occ.synchronize()
        gmsh.write(str(temporary))


@contextmanager
def _gmsh() -> Iterator[Any]:
    """gmsh with our settings and nothing in it; silent, for OpenCASCADE writes to standard output past all settings."""
    try:
        import gmsh  # type: ignore[import-untyped]
    except (ImportError, OSError) as error:  # installed, it may still lack a system library
        raise DataError(f"{NO_GMSH} ({one_line(error)})") from None
    with _silence():
        gmsh.initialize(["-noenv"], readConfigFiles=False, run=False, interruptible=False)
        if (
            current_thread() is main_thread()
        ):  # gmsh makes a reader who goes away deadly, for all that the process writes
            signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        try:
            gmsh.option.setNumber("General.Terminal", 0)
            gmsh.option.setNumber("General.NumThreads", 1)
            gmsh.option.setNumber("Mesh.MeshSizeFromCurvature", TURNS)
            gmsh.option.setNumber("Mesh.MeshSizeExtendFromBoundary", 0)
            yield gmsh
        finally:
            gmsh.finalize()


@contextmanager
def _silence() -> Iterator[None]:
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


def _covered(gmsh: Any) -> Surface:
    """Triangles on all faces of the model; which way they are turned is left open."""
    gmsh.model.mesh.generate(2)
    tags, coordinates, _ = gmsh.model.mesh.getNodes()
    _, corners = gmsh.model.mesh.getElementsByType(2)
    number = np.zeros(int(tags.max()) + 1, dtype=np.int64)
    number[tags.astype(np.int64)] = np.arange(len(tags))
    return Surface(np.asarray(coordinates).reshape(-1, 3), number[corners.astype(np.int64)].reshape(-1, 3))


def _built(occ: Any, solid: Solid) -> Tags:
    """The solid as a shape of OpenCASCADE."""
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
            return list(occ.fuse(_built(occ, first), _built(occ, second))[0])
        case Difference(first, second):
            return list(occ.cut(_built(occ, first), _built(occ, second))[0])
        case Placed(solid=inner):
            return _placed(occ, _built(occ, inner), solid)
    raise DataError(f"a {type(solid).__name__} has no CAD shape")


def _placed(occ: Any, shape: Tags, place: Placed) -> Tags:
    """Axes are exchanged by mirrors in diagonal planes and turned round by mirrors in the coordinate planes."""
    order = list(range(3))  # which axis of the solid lies along x, y, z by now
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
    _read_for_another(*sys.argv[1:])

"""Reading a part: triangles from STL, PLY, OBJ, OFF, GLB or 3MF files, CAD solids from STEP, IGES or BREP files.

    surface = read_part("bracket.stl", unit="inch")

Files are read, never run and never written: no pickle, no textures or other files that a file may point to, no network.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

from flare.mesh.cad import CAD, read_cad
from flare.mesh.repair import solid_surface
from flare.mesh.stl import is_stl, read_stl
from flare.mesh.surface import Surface
from flare.mesh.unfit import Unfit
from flare.utils.errors import ConfigError, DataError, nearest, one_line

TRIANGLES = (".stl", ".ply", ".obj", ".off", ".glb", ".3mf")
UNITS = {"um": 1e-3, "mm": 1.0, "cm": 10.0, "m": 1000.0, "inch": 25.4}
SMALLEST, LARGEST = 0.5, 2000.0  # mm: a few voxels of the finest powder; twice the largest build chamber
USUAL = 5.0, 400.0  # mm: longest edge of most printed parts


def read_part(source: str | os.PathLike[str] | Surface | Any, *, unit: str | None = "mm") -> Surface:
    """One solid from a file, or from a `Surface` or `trimesh.Trimesh`, in millimetres.

    Args:
        source: a file, by its ending, or the triangles themselves.
        unit: of the coordinates: um, mm, cm, m or inch. CAD files know their own, so for them it must stay mm. None:
            the size does not matter, because the part will be scaled.

    Raises:
        Unfit: there is no such file, it is damaged, or it is not one closed solid of a printable size.
    """
    if unit is not None and unit not in UNITS:
        raise ConfigError(f"unit={unit!r} is unknown; {nearest(unit, UNITS)}")
    if isinstance(source, str | os.PathLike):
        path, name = Path(source), str(source)
        _refuse_folder(path)
        triangles = _cad(path, unit) if path.suffix.lower() in CAD else _triangles(path)
    elif hasattr(source, "vertices") and hasattr(source, "faces"):
        name, triangles = "the part", Surface.of(source)
    else:
        raise DataError(f"a part is a file, a Surface or a trimesh.Trimesh; got {type(source).__name__}")
    part = solid_surface(triangles, name)
    if unit is None:
        return part
    part = Surface(part.vertices * UNITS[unit], part.faces)
    _check_size(part, name, unit)
    return part


def _check_size(part: Surface, name: str, unit: str) -> None:
    longest = float(part.extents.max())
    if SMALLEST <= longest <= LARGEST:
        return
    raise Unfit(
        "size",
        f"{name} is {longest:.4g} mm long, but a printed part is between {SMALLEST:g} and {LARGEST:g} mm; "
        f"{unit_hint(longest, name, unit)}",
    )


def unit_hint(longest: float, name: str, unit: str) -> str:
    """What to do about a part of so many mm that is too large or too small, read from a file in that unit."""
    fits = [u for u, scale in UNITS.items() if u != unit and USUAL[0] <= longest / UNITS[unit] * scale <= USUAL[1]]
    if not fits or Path(name).suffix.lower() in CAD:  # a CAD file knows its unit
        return "have it scaled with --scale fit"
    return f"did you mean --unit {' or '.join(fits)}? If not, have it scaled with --scale fit"


def _refuse_folder(path: Path) -> None:
    if path.is_dir():
        raise Unfit(
            "unreadable",
            f"{path} is a folder; give one file of it, or make a dataset of all with:  flare data make lpbf "
            f"--parts {path}",
        )


def _triangles(path: Path) -> Surface:
    kind = path.suffix.lower()
    if kind not in TRIANGLES:
        known = ", ".join((*TRIANGLES, *CAD))
        what = kind or "a name without ending"
        raise Unfit("unreadable", f"{path}: a part is one of {known}; {what} is none of them")
    data = _bytes(path)
    return read_stl(data, str(path)) if kind == ".stl" else _through_trimesh(path, kind[1:], data)


def _through_trimesh(path: Path, kind: str, data: bytes) -> Surface:
    """From bytes in memory: without a folder, trimesh cannot follow references to other files."""
    import trimesh

    if kind not in trimesh.available_formats():
        raise Unfit("unreadable", f"{path}: trimesh cannot read .{kind} here (3MF needs lxml); export it as STL")
    options = {"skip_materials": True} if kind == "obj" else {}
    quiet, trimesh.util.log.disabled = trimesh.util.log.disabled, True  # our message says it, without a traceback
    try:
        return Surface.of(trimesh.load_mesh(io.BytesIO(data), file_type=kind, process=False, **options))
    except Exception as error:  # whatever a parser makes of a damaged file
        what = one_line(error)[:200] or type(error).__name__
        message = f"{path} cannot be read as {kind.upper()} ({what}); is it cut short, or of another kind?"
        raise Unfit("unreadable", message) from None
    finally:
        trimesh.util.log.disabled = quiet


def _bytes(path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise Unfit("unreadable", f"{path}: no such file") from None
    except OSError as error:
        raise Unfit("unreadable", f"{path} cannot be read: {error.strerror}") from None
    if not data:
        raise Unfit("empty", f"{path} is empty (0 bytes)")
    kind, named = _kind_by_content(data), path.suffix.lower()
    if kind and kind != (".step" if named == ".stp" else named):
        raise Unfit(
            "unreadable", f"{path} holds {kind[1:].upper()}, whatever its name says; rename it {path.stem}{kind}"
        )
    return data


def _kind_by_content(data: bytes) -> str | None:
    """The ending that a file should have, where its first bytes tell beyond doubt."""
    if is_stl(data):
        return ".stl"
    signs = {
        b"ISO-10303-21": ".step",
        b"DBRep_DrawableShape": ".brep",
        b"ply\n": ".ply",
        b"ply\r": ".ply",
        b"glTF": ".glb",
        b"PK\x03\x04": ".3mf",
    }
    head = data[:2000].lstrip()
    return next((kind for sign, kind in signs.items() if head.startswith(sign)), None)


def _cad(path: Path, unit: str | None) -> Surface:
    if unit not in (None, "mm"):
        raise ConfigError(f"{path}: a CAD file knows its unit; leave out --unit {unit}")
    _bytes(path)
    return read_cad(path)

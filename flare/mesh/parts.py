"""Parts for additive manufacturing: one closed solid per file, and folders of such files.

    surface = read_part("bracket.stl", unit="inch")
    files = part_files("s2.0.1_extended_step")

Triangles come from STL, PLY, OBJ, OFF, GLB or 3MF files, CAD solids from STEP, IGES or BREP files. Readers follow no
references to other files, use no pickle and no network.

`part_files` finds those of any folder of parts and the Fusion 360 Gallery segmentation set as it is unpacked
(https://github.com/AutodeskAILab/Fusion360GalleryDataset; for non-commercial research): STEP files in `breps/step`
and meshes in `meshes`.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np

from flare.mesh.io import CAD
from flare.mesh.io.cad import read_cad
from flare.mesh.io.stl import parse_stl
from flare.mesh.mesh import Mesh
from flare.mesh.repair import solid_surface
from flare.mesh.surface import GeometryError, Surface
from flare.utils.errors import ConfigError, DataError, one_line, suggest_name

TRIANGLES = (".stl", ".ply", ".obj", ".off", ".glb", ".3mf")
UNITS = {"um": 1e-3, "mm": 1.0, "cm": 10.0, "m": 1000.0, "inch": 25.4}
SMALLEST, LARGEST = 0.5, 2000.0
"""Accepted longest edges in mm: a few voxels of the finest powder to twice the largest build chamber."""
USUAL = 5.0, 400.0
"""Longest edges of most printed parts, in mm."""
PLACES = ("meshes", "breps/step", "")
"""Subfolders in order of preference; meshes are the fastest to read."""


def read_part(source: str | os.PathLike[str] | Mesh | Surface | Any, *, unit: str | None = "mm") -> Surface:
    """Read one solid, in millimetres.

    Args:
        source: A file, or triangles as a `Mesh`, `Surface` or `trimesh.Trimesh`.
        unit: Unit of the coordinates: um, mm, cm, m or inch. CAD files state their own, so for them it must be mm.
            None skips the check of the size, for parts that will be scaled.

    Raises:
        GeometryError: The file is missing or damaged, or is not one closed solid of a printable size.
    """
    if unit is not None and unit not in UNITS:
        raise ConfigError(f"unit={unit!r} is unknown; {suggest_name(unit, UNITS)}")
    if isinstance(source, str | os.PathLike):
        name = str(source)
        triangles = _read_triangles(Path(source), unit)
    elif isinstance(source, Mesh):
        name, triangles = source.name, source.surface()
    elif hasattr(source, "vertices") and hasattr(source, "faces"):
        name, triangles = "the part", Surface.of(source)
    else:
        raise DataError(f"a part is a file, a Mesh, a Surface or a trimesh.Trimesh; got {type(source).__name__}")
    part = solid_surface(triangles, name)
    if unit is None:
        return part
    part = Surface(part.vertices * UNITS[unit], part.faces)
    longest = float(part.extents.max())
    if not SMALLEST <= longest <= LARGEST:
        limits = f"a printed part is between {SMALLEST:g} and {LARGEST:g} mm; {unit_hint(longest, name, unit)}"
        raise GeometryError("size", f"{name} is {longest:.4g} mm long; {limits}")
    return part


def unit_hint(longest: float, name: str, unit: str) -> str:
    """Suggest a remedy for a part of `longest` mm that is too large or too small, read from a file in `unit`."""
    fits = [u for u, scale in UNITS.items() if u != unit and USUAL[0] <= longest / UNITS[unit] * scale <= USUAL[1]]
    if not fits or Path(name).suffix.lower() in CAD:  # a CAD file states its unit
        return 'scale it with scale="fit"'
    units = " or ".join(f'unit="{fit}"' for fit in fits)
    return f'did you mean {units}? Otherwise scale it with scale="fit"'


def _read_triangles(path: Path, unit: str | None) -> Surface:
    kind = path.suffix.lower()
    if kind in CAD:
        if unit not in (None, "mm"):
            raise ConfigError(f"{path}: a CAD file states its own unit; omit unit={unit!r}")
        return read_cad(path).surface()
    if kind not in TRIANGLES:
        known = ", ".join((*TRIANGLES, *CAD))
        raise GeometryError("unreadable", f"{path}: cannot read {kind or 'a file without suffix'}; use {known}")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise GeometryError("unreadable", f"{path} cannot be read: {error.strerror}") from None
    if kind != ".stl":
        return _read_trimesh(path, kind[1:], data)
    with np.errstate(invalid="ignore"):  # non-finite values are reported later, with their place
        corners = parse_stl(data, str(path)).astype(np.float64)
    return Surface(corners, np.arange(len(corners)).reshape(-1, 3))


def _read_trimesh(path: Path, kind: str, data: bytes) -> Surface:
    """Read bytes in memory: without a folder, trimesh cannot follow references to other files."""
    import trimesh

    options = {"skip_materials": True} if kind == "obj" else {}
    quiet, trimesh.util.log.disabled = trimesh.util.log.disabled, True  # our error replaces its traceback
    try:
        return Surface.of(trimesh.load_mesh(io.BytesIO(data), file_type=kind, process=False, **options))
    except Exception as error:  # parsers raise anything for a damaged file
        message = f"{path} cannot be read as {kind.upper()} ({one_line(error)[:200] or type(error).__name__})"
        raise GeometryError("unreadable", message) from None
    finally:
        trimesh.util.log.disabled = quiet


def part_files(folder: str | os.PathLike[str]) -> dict[str, Path]:
    """Find the parts of a folder: name -> file, sorted by name.

    A part that exists in several formats is read from one of them: triangles before CAD.

    Args:
        folder: Folder of part files, or the root of the Fusion 360 Gallery segmentation set.

    Raises:
        DataError: There is no such folder, or no part in it.
    """
    kinds = (*TRIANGLES, *CAD)
    for place in PLACES:
        here = Path(folder) / place
        found = [p for p in here.iterdir() if p.suffix.lower() in kinds and p.is_file()] if here.is_dir() else []
        if found:
            found.sort(key=lambda p: (p.stem, -kinds.index(p.suffix.lower())))
            return {path.stem: path for path in found}  # of several formats, the last is kept
    raise DataError(f"{folder} has no parts; parts are {', '.join(kinds)}")

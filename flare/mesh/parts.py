"""Parts for additive manufacturing: one closed solid per file, and folders of such files.

    surface = read_part("bracket.stl", unit="inch")

    parts = PartFolder("s2.0.1_extended_step", split="train")
    for name, surface in parts:
        ...
    parts.rejected          # {"open": 3, "several bodies": 12}

Triangles come from STL, PLY, OBJ, OFF, GLB or 3MF files, CAD solids from STEP, IGES or BREP files. Readers follow no
references to other files, use no pickle and no network.

`PartFolder` reads any folder of parts and the Fusion 360 Gallery segmentation set as it is unpacked
(https://github.com/AutodeskAILab/Fusion360GalleryDataset; for non-commercial research): STEP files in `breps/step`,
meshes in `meshes`, and the names of its two splits in `train_test.json`.
"""

from __future__ import annotations

import io
import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from flare.mesh.io import CAD
from flare.mesh.io.cad import read_cad
from flare.mesh.io.stl import is_stl, parse_stl
from flare.mesh.mesh import Mesh
from flare.mesh.repair import solid_surface
from flare.mesh.surface import GeometryError, Surface
from flare.utils.errors import ConfigError, DataError, FlareError, one_line, suggest_name

TRIANGLES = (".stl", ".ply", ".obj", ".off", ".glb", ".3mf")
UNITS = {"um": 1e-3, "mm": 1.0, "cm": 10.0, "m": 1000.0, "inch": 25.4}
SMALLEST, LARGEST = 0.5, 2000.0
"""Accepted longest edges in mm: a few voxels of the finest powder to twice the largest build chamber."""
USUAL = 5.0, 400.0
"""Longest edges of most printed parts, in mm."""
SPLITS = "train_test.json"
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
        path, name = Path(source), str(source)
        if path.is_dir():
            raise GeometryError("unreadable", f"{path} is a folder; pass one file of it")
        triangles = _cad(path, unit) if path.suffix.lower() in CAD else _triangles(path)
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
    _check_size(part, name, unit)
    return part


def _check_size(part: Surface, name: str, unit: str) -> None:
    longest = float(part.extents.max())
    if SMALLEST <= longest <= LARGEST:
        return
    raise GeometryError(
        "size",
        f"{name} is {longest:.4g} mm long; a printed part is between {SMALLEST:g} and {LARGEST:g} mm; "
        f"{unit_hint(longest, name, unit)}",
    )


def unit_hint(longest: float, name: str, unit: str) -> str:
    """Suggest a remedy for a part of `longest` mm that is too large or too small, read from a file in `unit`."""
    fits = [u for u, scale in UNITS.items() if u != unit and USUAL[0] <= longest / UNITS[unit] * scale <= USUAL[1]]
    if not fits or Path(name).suffix.lower() in CAD:  # a CAD file states its unit
        return "scale it with --scale fit"
    return f"did you mean --unit {' or '.join(fits)}? Otherwise scale it with --scale fit"


def _triangles(path: Path) -> Surface:
    kind = path.suffix.lower()
    if kind not in TRIANGLES:
        known = ", ".join((*TRIANGLES, *CAD))
        raise GeometryError(
            "unreadable", f"{path}: cannot read {kind or 'a file without suffix'} as a part; use {known}"
        )
    data = _bytes(path)
    if kind != ".stl":
        return _read_trimesh(path, kind[1:], data)
    with np.errstate(invalid="ignore"):  # non-finite values are reported later, with their place
        corners = parse_stl(data, str(path)).astype(np.float64)
    return Surface(corners, np.arange(len(corners)).reshape(-1, 3))


def _read_trimesh(path: Path, kind: str, data: bytes) -> Surface:
    """Read bytes in memory: without a folder, trimesh cannot follow references to other files."""
    import trimesh

    if kind not in trimesh.available_formats():
        raise GeometryError(
            "unreadable", f"{path}: trimesh cannot read .{kind} here (3MF needs lxml); export it as STL"
        )
    options = {"skip_materials": True} if kind == "obj" else {}
    quiet, trimesh.util.log.disabled = trimesh.util.log.disabled, True  # our error replaces its traceback
    try:
        return Surface.of(trimesh.load_mesh(io.BytesIO(data), file_type=kind, process=False, **options))
    except Exception as error:  # parsers raise anything for a damaged file
        what = one_line(error)[:200] or type(error).__name__
        message = f"{path} cannot be read as {kind.upper()} ({what}); it may be truncated or of another format"
        raise GeometryError("unreadable", message) from None
    finally:
        trimesh.util.log.disabled = quiet


def _bytes(path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise GeometryError("unreadable", f"{path}: no such file") from None
    except OSError as error:
        raise GeometryError("unreadable", f"{path} cannot be read: {error.strerror}") from None
    if not data:
        raise GeometryError("empty", f"{path} is empty (0 bytes)")
    kind, named = _kind_by_content(data), path.suffix.lower()
    if kind and kind != (".step" if named == ".stp" else named):
        raise GeometryError(
            "unreadable", f"{path} holds {kind[1:].upper()}, not {named[1:].upper()}; rename it to {path.stem}{kind}"
        )
    return data


def _kind_by_content(data: bytes) -> str | None:
    """Return the suffix that the first bytes of a file call for, if they are unambiguous."""
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
        raise ConfigError(f"{path}: a CAD file states its own unit; omit unit={unit!r}")
    _bytes(path)
    return read_cad(path).surface()


class PartFolder:
    """Parts of a folder in order of their names; unusable files are counted and skipped.

    A part that exists in several formats is read from one of them: triangles before CAD.
    """

    def __init__(self, folder: str | os.PathLike[str], *, split: str | None = None, unit: str | None = None) -> None:
        """Find the part files; nothing is read yet.

        Args:
            folder: Folder of part files, or the root of the Fusion 360 Gallery segmentation set.
            split: Key of its `train_test.json`, "train" or "test"; None for every part.
            unit: As in `read_part`; None if parts are scaled to the build volume.

        Raises:
            DataError: There is no such folder, or no part in it.
        """
        self.folder, self.unit = Path(folder), unit
        self.files = _part_files(self.folder)
        """Name -> file, sorted by name."""
        if split is not None:
            chosen = _names(self.folder, split)
            self.files = {name: path for name, path in self.files.items() if name in chosen}
        if not self.files:
            kinds = ", ".join((*TRIANGLES, *CAD))
            raise DataError(f"{self.folder}: has no part{f' of split {split!r}' if split else ''}; parts are {kinds}")
        self.faults: dict[str, GeometryError] = {}
        """Name -> error, of the parts read so far."""

    def __len__(self) -> int:
        """Return the number of files, usable or not."""
        return len(self.files)

    def __iter__(self) -> Iterator[tuple[str, Surface]]:
        """Yield name and surface of each part that is one valid solid."""
        for name in self.files:
            try:
                surface = self.read(name)
            except GeometryError as fault:
                self.faults[name] = fault
            else:
                yield name, surface

    def read(self, name: str) -> Surface:
        """Read one part by name.

        Raises:
            GeometryError: It is not one valid solid, or the reader failed.
        """
        if name not in self.files:
            raise DataError(f"{self.folder}: no part {name!r}; {suggest_name(name, self.files)[:200]}")
        try:
            return read_part(self.files[name], unit=self.unit)
        except FlareError:  # unusable, or a reader that is not installed
            raise
        except Exception as error:  # one file in thousands must not stop the others
            message = f"{self.files[name]} cannot be read ({type(error).__name__}: {one_line(error)[:200]})"
            raise GeometryError("unreadable", message) from error

    @property
    def rejected(self) -> dict[str, int]:
        """Reason -> number of parts skipped so far, the most frequent first."""
        return dict(Counter(fault.reason for fault in self.faults.values()).most_common())


def _part_files(folder: Path) -> dict[str, Path]:
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder")
    kinds = (*TRIANGLES, *CAD)
    for place in PLACES:
        here = folder / place
        found = [p for p in here.iterdir() if p.suffix.lower() in kinds and p.is_file()] if here.is_dir() else []
        if found:
            found.sort(key=lambda p: (kinds.index(p.suffix.lower()), p.name))
            first: dict[str, Path] = {}
            for path in found:
                first.setdefault(path.stem, path)
            return dict(sorted(first.items()))
    return {}


def _names(folder: Path, split: str) -> set[str]:
    path = folder / SPLITS
    try:
        splits = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path}: no such file, so there is no split {split!r}; omit it") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {one_line(error)}") from None
    if not isinstance(splits, dict) or not isinstance(splits.get(split), list):
        known = list(splits) if isinstance(splits, dict) else []
        raise ConfigError(f"{path} has no split {split!r}; {suggest_name(split, known)}")
    return {str(name) for name in splits[split]}

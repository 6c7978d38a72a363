"""Simulation files: finding cases in a folder or by a pattern, and reading them one by one.

for location in find_cases("results/*.vtu"):
    mesh = read_case(location)
"""

from __future__ import annotations

import fnmatch
import glob
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flare.data.importing.fields import layout_of
from flare.data.sample import Schema
from flare.mesh.io import ARRAYS, MESHES, TABLES, ReadLimits, is_foam, read_mesh
from flare.mesh.io.arrays import ArrayLayout, find_meshes, mesh_name
from flare.mesh.mesh import Mesh
from flare.utils.errors import DataError

KINDS = (MESHES, ARRAYS, TABLES)
"""In a folder of several kinds, the first that exists is read: a CSV file beside meshes describes them."""
Source = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@dataclass(frozen=True, order=True)
class CaseLocation:
    """The file of a case, and its place in a file of several."""

    path: Path
    group: str = ""
    """Group of an HDF5 or Zarr file."""
    row: int | None = None
    """Index along the first axis of arrays that hold several cases."""

    @property
    def name(self) -> str:
        """File name, with group and row if there are any."""
        return mesh_name(self.path, self.group, self.row)


def find_cases(source: Source, *, points: str | None = None, exclude: Sequence[str] = ()) -> list[CaseLocation]:
    """Find all cases of a folder, a pattern, a file, or a list of them, in natural order (2 before 10).

    Args:
        source: What to search.
        points: Name of the coordinates in files of arrays, if it is an unusual one.
        exclude: Patterns of file names to skip before anything is read.

    Raises:
        DataError: Nothing is found, or a pattern of `exclude` matches nothing.
    """
    files = _files(source)
    names = [str(path) for path in files]
    files = [path for path in files if not any(name_matches(str(path), pattern) for pattern in exclude)]
    found = [location for path in files for location in _cases_in(path, ArrayLayout(points=points))]
    names += [location.name for location in found]
    unused = [pattern for pattern in exclude if not any(name_matches(name, pattern) for name in names)]
    found = [location for location in found if not any(name_matches(location.name, p) for p in exclude)]
    if unused or not found:
        problem = f"no file matches {unused[0]!r}" if unused else f"{', '.join(exclude)} leaves no file of {source}"
        raise DataError(f"exclude: {problem}; the first files are {', '.join(names[:3])}")
    return found


def _cases_in(path: Path, layout: ArrayLayout) -> list[CaseLocation]:
    if path.suffix.lower() not in ARRAYS:
        return [CaseLocation(path)]
    return [CaseLocation(path, group, row) for group, row in find_meshes(path, layout)]


def name_matches(name: str, pattern: str) -> bool:
    """Return whether a pattern such as `plate_5*` matches a file, with or without its folder and its suffix."""
    path = Path(name)
    return any(fnmatch.fnmatchcase(form, pattern) for form in (name, path.name, path.stem))


def read_case(location: CaseLocation, *, points: str | None = None) -> Mesh:
    """Read one case; `points` is the name of the coordinates in files of arrays, if it is an unusual one."""
    return read_mesh(location.path, layout=ArrayLayout(points=points), group=location.group, row=location.row)


def read_single_case(path: Path, schema: Schema, limits: ReadLimits | None = None) -> Mesh:
    """Read the only case of a file for a model; the schema's own field names are recognized.

    Raises:
        DataError: The file is missing, of an unknown format, or holds several cases.
    """
    if not path.exists():
        raise DataError(f"{path} does not exist")
    if not any(path.suffix.lower() in kinds for kinds in KINDS) and not is_foam(path):
        known = ", ".join((*TABLES, *ARRAYS, *MESHES))
        raise DataError(f"{path}: cannot read {path.suffix or 'a file without suffix'}; use one of {known}")
    layout = layout_of(schema)
    locations = _cases_in(path, layout) if limits is None else [CaseLocation(path)]
    if len(locations) > 1:
        raise DataError(f"{path} holds {len(locations)} cases; write the one to predict to a file of its own")
    (only,) = locations
    return read_mesh(path, layout=layout, group=only.group, row=only.row, limits=limits)


def _files(source: Source) -> list[Path]:
    if not isinstance(source, str | os.PathLike):
        return [path for part in source for path in _files(part)]
    path = Path(source)
    if path.is_file() or is_foam(path) or (path.is_dir() and path.suffix.lower() in ARRAYS):
        return [path]
    if path.is_dir():
        found = _of_one_kind(path, sorted(path.iterdir(), key=_natural))
        found = found or _of_one_kind(path, sorted(path.rglob("*"), key=_natural))
    elif any(mark in str(source) for mark in "*?["):
        found = sorted(map(Path, glob.glob(str(source), recursive=True)), key=_natural)  # noqa: PTH207 - may be absolute
    else:
        raise DataError(f"{source} does not exist")
    if not found:
        known = ", ".join(suffix for kind in KINDS for suffix in kind)
        raise DataError(f"{source} has no simulation files; known formats are {known}")
    return found


def _of_one_kind(folder: Path, paths: Sequence[Path]) -> list[Path]:
    cases = [p for p in paths if is_foam(p)]
    for kinds in KINDS:
        found = [p for p in paths if p.suffix.lower() in kinds and not any(c in p.parents for c in cases)]
        groups = [p for p in found if p.suffix.lower() == ".vtm"]
        found = [p for p in found if not any(p.is_relative_to(g.with_suffix("")) for g in groups)]  # their blocks
        suffixes = sorted({p.suffix.lower() for p in found} | ({"OpenFOAM cases"} if cases and found else set()))
        if len(suffixes) > 1:
            kinds_found = f"{folder} has files of several formats ({', '.join(suffixes)})"
            raise DataError(f"{kinds_found}; select one with a pattern such as '{folder}/*{suffixes[-1]}'")
        if found:
            return found
    return cases


def _natural(path: Path) -> list[tuple[int, int, str]]:
    parts = re.split(r"(\d+)", str(path))
    return [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in parts]

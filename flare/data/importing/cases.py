"""Simulations as files hold them: found in a folder or by a glob, and read one by one, nothing changed.

for place in find_cases("results/*.vtu"):
    case = read_case(place)
    case.points, case.point_fields, case.cell_fields, case.parameters
"""

from __future__ import annotations

import fnmatch
import glob
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from flare.data.sample import DIMENSION
from flare.mesh.file import read_mesh
from flare.mesh.readers import MESHES, is_foam
from flare.utils.errors import DataError

if TYPE_CHECKING:
    from flare.data.sample import Schema
    from flare.mesh.file import MeshFile
    from flare.mesh.unstructured import Grid

CONTAINERS = (".npz", ".h5", ".hdf5", ".zarr")
TABLES = (".csv", ".parquet")
KINDS = (MESHES, CONTAINERS, TABLES)
"""Where a folder holds several kinds, the first that is there: a CSV file beside meshes is about them."""
Source = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@dataclass(frozen=True, order=True)
class Place:
    """Where a case is: a file, and within it where it holds several."""

    path: Path
    group: str = ""
    """Of an HDF5 or Zarr file."""
    row: int | None = None
    """Of arrays that hold all cases along their first axis."""

    @property
    def name(self) -> str:
        inside = "/".join(filter(None, [self.group, "" if self.row is None else str(self.row)]))
        return f"{self.path}:{inside}" if inside else str(self.path)


@dataclass(frozen=True)
class Case:
    """One simulation: fields at its points, at its cells, and of the whole."""

    name: str
    points: np.ndarray
    """(N, dimensions)."""
    point_fields: Mapping[str, np.ndarray]
    """Name -> (N,) or (N, channels)."""
    cell_fields: Mapping[str, np.ndarray] = field(default_factory=dict)
    parameters: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Name -> (channels,)."""
    cells: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Type -> (cells, corners)."""
    units: Mapping[str, str] = field(default_factory=dict)
    """Where the file tells."""
    mesh: MeshFile | None = None
    """What knows the neighbours of cells and points, where the file is a mesh."""
    grid: Grid | None = None
    """The same of a mesh that was read without VTK."""
    remarks: Sequence[str] = ()
    """What was decided while reading."""

    @property
    def dimension(self) -> int | None:
        """Of its cells; None where it has none."""
        if self.mesh is not None:
            return self.mesh.dimension or None
        return max((DIMENSION[kind] for kind in self.cells), default=None)

    @property
    def neighbours(self) -> MeshFile | Grid | None:
        return self.mesh or self.grid


def find_cases(source: Source, *, points: str | None = None, exclude: Sequence[str] = ()) -> list[Place]:
    """Every case of a folder, a glob, a file, or a list of them, in the order of their names (2 before 10).

    `exclude`: patterns of names that are left out, before anything of those files is read.
    """
    from flare.data.importing.containers import cases_inside

    files = _files(source)
    unused = {pattern for pattern in exclude if not any(is_called(str(path), pattern) for path in files)}
    files = [path for path in files if not any(is_called(str(path), pattern) for pattern in exclude)]
    found = [
        place for path in files for place in (cases_inside(path, points) if _holds_arrays(path) else [Place(path)])
    ]
    unused -= {pattern for pattern in unused if any(is_called(place.name, pattern) for place in found)}
    if unused:
        first = ", ".join(place.name for place in found[:3])
        raise DataError(f"exclude: no file is called {sorted(unused)[0]!r}; the first are {first}")
    found = [place for place in found if not any(is_called(place.name, pattern) for pattern in exclude)]
    if not found:
        raise DataError(f"exclude: {', '.join(exclude)} leaves no file of {source}")
    return found


def is_called(name: str, pattern: str) -> bool:
    """Whether a pattern such as `plate_5*` fits a file, with or without its folder and its suffix."""
    path = Path(name)
    return any(fnmatch.fnmatchcase(form, pattern) for form in (name, path.name, path.stem))


def only_case(path: Path, schema: Schema) -> Case:
    """What a file for a prediction holds, read as an import would read it; the schema's own names are known, too."""
    if not path.exists():
        raise DataError(f"{path} does not exist")
    if not any(path.suffix.lower() in kinds for kinds in KINDS) and not is_foam(path):
        known = ", ".join((*TABLES, *CONTAINERS, *MESHES))
        raise DataError(f"{path}: cannot read {path.suffix or 'a file without a suffix'}; use one of {known}")
    from flare.data.importing.containers import cases_inside

    places = cases_inside(path, schema=schema) if _holds_arrays(path) else [Place(path)]
    if len(places) > 1:
        raise DataError(f"{path} holds {len(places)} cases; a prediction is for one: write it to a file of its own")
    return read_case(places[0], schema=schema)


def read_case(place: Place, *, points: str | None = None, schema: Schema | None = None) -> Case:
    """One case. `points` names the coordinates where a file of arrays does not call them so that one can tell."""
    from flare.data.importing.containers import read_container, read_point_table

    if _holds_arrays(place.path):
        return read_container(place, points, schema)
    if place.path.suffix.lower() in TABLES:
        return read_point_table(place, points, schema)
    return case_of(read_mesh(place.path), place.name)


def case_of(mesh: MeshFile, name: str) -> Case:
    return Case(
        name,
        mesh.points,
        mesh.point_fields,
        mesh.cell_fields,
        mesh.parameters,
        mesh.cells,
        mesh.units,
        mesh=mesh,
        remarks=mesh.remarks,
    )


def _holds_arrays(path: Path) -> bool:
    return path.suffix.lower() in CONTAINERS


def _files(source: Source) -> list[Path]:
    if not isinstance(source, str | os.PathLike):
        return [path for part in source for path in _files(part)]
    path = Path(source)
    if path.is_file() or is_foam(path) or (path.is_dir() and _holds_arrays(path)):
        return [path]
    if path.is_dir():
        found = _of_one_kind(path, sorted(path.iterdir(), key=_natural))
        found = found or _of_one_kind(path, sorted(path.rglob("*"), key=_natural))
    elif any(mark in str(source) for mark in "*?["):
        found = sorted(map(Path, glob.glob(str(source), recursive=True)), key=_natural)  # noqa: PTH207 - may be absolute
    else:
        raise DataError(f"{source} does not exist")
    if not found:
        raise DataError(f"{source}: no files of fields found; known are {', '.join(k for kind in KINDS for k in kind)}")
    return found


def _of_one_kind(folder: Path, paths: Sequence[Path]) -> list[Path]:
    cases = [p for p in paths if is_foam(p)]
    for kinds in KINDS:
        found = [p for p in paths if p.suffix.lower() in kinds and not any(c in p.parents for c in cases)]
        groups = [p for p in found if p.suffix.lower() == ".vtm"]
        found = [p for p in found if not any(p.is_relative_to(g.with_suffix("")) for g in groups)]  # blocks of those
        suffixes = sorted({p.suffix.lower() for p in found} | ({"OpenFOAM cases"} if cases and found else set()))
        if len(suffixes) > 1:
            raise DataError(
                f"{folder} holds files of several kinds ({', '.join(suffixes)}); say which with a pattern, such as "
                f"'{folder}/*{suffixes[-1]}'"
            )
        if found:
            return found
    return cases


def _natural(path: Path) -> list[tuple[int, int, str]]:
    parts = re.split(r"(\d+)", str(path))
    return [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in parts]

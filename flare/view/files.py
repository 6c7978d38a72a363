"""One file as a sample to look at: a mesh with its fields, a surface without any, or a table of points."""

from __future__ import annotations

import re
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flare.data.tables import read_table
from flare.errors import DataError, one_line
from flare.view.source import VERSION, Arrays, NotThere, drawable

MESHES = (".vtu", ".vtp", ".vtk", ".vtm", ".vts", ".vtr", ".vti")
SURFACES = (".stl", ".ply", ".obj", ".off")
TABLES = (".csv", ".npz")
ENDINGS = (*MESHES, *SURFACES, *TABLES)


@dataclass(frozen=True)
class FileContent:
    """What a file shows."""

    points: np.ndarray
    triangles: np.ndarray | None
    fields: dict[str, np.ndarray]
    """Channel -> (N,)."""
    units: dict[str, str]
    remarks: tuple[str, ...] = ()


class FileSource:
    """A file as a dataset of one sample, number 0."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.content = read_content(self.path)

    def catalogue(self) -> dict[str, Any]:
        content = self.content
        return {
            "version": VERSION,
            "title": self.path.name,
            "facts": [["file", self.path.name], *(["note", remark] for remark in content.remarks)],
            "dimension": content.points.shape[1],
            "length_unit": "",
            "fields": [{"name": n, "unit": content.units.get(n, ""), "role": "extra"} for n in content.fields],
            "parameters": [],
            "samples": [{"id": 0, "split": "file", "points": len(content.points)}],
            "spectra": None,
        }

    def geometry(self, sample: int) -> Arrays:
        self._refuse(sample)
        arrays = {"points": self.content.points}
        if self.content.triangles is not None and len(self.content.triangles):
            arrays["triangles"] = self.content.triangles.astype(np.uint32)
        return arrays

    def field(self, sample: int, name: str) -> Arrays:
        self._refuse(sample)
        if name not in self.content.fields:
            raise NotThere(f"{self.path.name} has no field {name!r}")
        return {"truth": self.content.fields[name]}

    def spectra(self, sample: int) -> Arrays:
        raise NotThere("spectra are those of a trained model; look at a run")

    def modes(self, sample: int, block: int, head: int) -> Arrays:
        return self.spectra(sample)

    def _refuse(self, sample: int) -> None:
        if sample != 0:
            raise NotThere(f"a file has sample 0 only, not {sample}")


def read_content(path: Path) -> FileContent:
    """Points, outer triangles and fields of a file, by its ending."""
    kind = path.suffix.lower()
    if kind not in ENDINGS:
        raise DataError(f"{path}: cannot look at {kind or 'a name without ending'}; use {', '.join(ENDINGS)}")
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    if kind in MESHES:
        content = _mesh(path)
    elif kind in SURFACES:
        content = _surface(path)
    else:
        content = _csv(path) if kind == ".csv" else _npz(path)
    points = drawable(np.asarray(content.points), str(path))
    if not np.isfinite(points).all():
        raise DataError(f"{path}: {np.count_nonzero(~np.isfinite(points)):,} coordinates are not finite numbers")
    return content


def _mesh(path: Path) -> FileContent:
    try:
        import pyvista
    except ImportError:
        raise DataError(f"{path}: VTK files need the extra 'mesh':  pip install 'flare-engine[mesh]'") from None
    try:
        mesh: Any = pyvista.read(path)
    except Exception as error:  # whatever a parser makes of a damaged file
        raise DataError(f"{path} cannot be read ({one_line(error)[:200]}); is it damaged?") from None
    remarks = []
    if isinstance(mesh, pyvista.MultiBlock):
        remarks.append(f"{len(mesh)} blocks, shown as one")
        mesh = mesh.combine()
    if not mesh.n_points:
        raise DataError(f"{path} holds no points; is it damaged?")
    fields = _channels(mesh.point_data)
    by_cell = [name for name in mesh.cell_data.keys() if name not in mesh.point_data]
    if by_cell:
        remarks.append(f"cell data, shown as the mean of the cells around a point: {', '.join(by_cell)}")
        averaged = mesh.cell_data_to_point_data()
        fields |= _channels({name: averaged.point_data[name] for name in by_cell})
    points = np.asarray(mesh.points)
    flat = bool(np.ptp(points[:, 2]) == 0)
    return FileContent(points[:, :2] if flat else points, _outside(mesh), fields, {}, tuple(remarks))


def _outside(mesh: Any) -> np.ndarray | None:
    """(T, 3) triangles of the outer faces, in the numbers of the mesh's own points."""
    surface = mesh.extract_surface(pass_pointid=True, algorithm="dataset_surface").triangulate()
    faces = surface.faces.reshape(-1, 4)[:, 1:] if surface.n_cells and len(surface.faces) else np.zeros((0, 3), int)
    return np.asarray(surface.point_data["vtkOriginalPointIds"])[faces] if len(faces) else None


def _surface(path: Path) -> FileContent:
    from flare.mesh.read import read_triangles

    surface = read_triangles(path)
    return FileContent(surface.vertices, surface.faces, {}, {})


def _csv(path: Path) -> FileContent:
    header, table = read_table(path)
    axes = [header.index(name) for name in ("x", "y", "z") if name in header]
    if len(axes) < 2:
        raise DataError(f"{path} has no columns x and y (and z); it has {', '.join(header)}")
    fields = {name: table[:, i] for i, name in enumerate(header) if i not in axes}
    with path.open(encoding="utf-8-sig") as file:
        units = dict(re.findall(r"([^,]+?) \[(.*?)\]", file.readline()))  # `stress [MPa]`, as `flare predict` writes
    return FileContent(table[:, axes], None, fields, units)


def _npz(path: Path) -> FileContent:
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive}
    except (ValueError, OSError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} is damaged or not an .npz file: {error}") from None
    name = next((n for n in ("points", "position", "pos") if n in arrays), None)
    if name is None:
        raise DataError(f"{path} has no array 'points' or 'position'; it has {', '.join(arrays)}")
    points = arrays.pop(name)
    return FileContent(points, None, _channels({n: a for n, a in arrays.items() if a.shape[:1] == points.shape[:1]}), {})


def _channels(arrays: Any) -> dict[str, np.ndarray]:
    """One entry a component; numbers only, at least 32 bits of them."""
    found = {}
    for name, values in arrays.items():
        array = np.asarray(values)
        if array.dtype.kind not in "fiub" or array.ndim > 2:
            continue
        array = array if array.dtype in (np.float32, np.float64) else array.astype(np.float64)
        columns = array.reshape(len(array), -1)
        letters = "xyz" if columns.shape[1] <= 3 else [str(i) for i in range(columns.shape[1])]
        for letter, column in zip(letters, columns.T, strict=False):
            found[name if columns.shape[1] == 1 else f"{name}.{letter}"] = column
    return found

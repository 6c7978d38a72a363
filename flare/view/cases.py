"""Files of other programs as samples to look at: a mesh with its fields, a surface without any, a table of points.

Where a file has `pressure` and `pressure_predicted`, as `flare predict` writes it, they are compared. Numbers of the
whole file are its parameters.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from flare.data.importing.cases import Place, find_cases, read_case
from flare.data.importing.meshed import outer_triangles
from flare.utils.errors import DataError
from flare.view.source import VERSION, Arrays, NotThere, drawable, unit_of

PREDICTED = "_predicted"
KEPT = 4
"""Files whose content is remembered."""
FEW = 6
"""Numbers of a parameter that the top of the page has room for; longer field data is not shown."""


class CaseSource:
    """One file, or those of a folder or pattern, numbered in the order of their names. The first tells the fields."""

    def __init__(self, what: str | os.PathLike[str]) -> None:
        self.title = str(what)
        self.places = find_cases(what)
        self.read = lru_cache(KEPT)(lambda sample: _Shown(self.places[sample]))
        self.first = self.read(0)

    def catalogue(self) -> dict[str, Any]:
        fields, length = self.first.channels, unit_of(self.first.case.units.get("points", "1"))
        return {
            "version": VERSION,
            "title": self.title,
            "facts": [["note", remark] for remark in self.first.remarks],
            "dimension": self.first.points.shape[1],
            "length_unit": length,
            "fields": [
                {
                    "name": name,
                    "unit": unit_of(self.first.units.get(name, "1")),
                    "role": "extra",
                    "compared": name + PREDICTED in fields,
                }
                for name in fields
                if name.removesuffix(PREDICTED) == name or name.removesuffix(PREDICTED) not in fields
            ],
            "parameters": [
                {"name": name, "unit": unit_of(self.first.case.units.get(name, "1"))} for name in self.first.parameters
            ],
            "samples": [{"id": i, "split": "files", "name": p.path.name} for i, p in enumerate(self.places)],
            "spectra": None,
        }

    def geometry(self, sample: int) -> Arrays:
        shown = self._find(sample)
        triangles = shown.triangles()
        arrays = {"points": shown.points} | {f"parameter/{name}": values for name, values in shown.parameters.items()}
        return arrays | ({} if triangles is None else {"triangles": triangles.astype(np.uint32)})

    def field(self, sample: int, name: str) -> Arrays:
        channels = self._find(sample).channels
        if name not in channels:
            raise NotThere(f"{self.places[sample].name} has no field {name!r}; it has {', '.join(channels)}")
        compared = {"prediction": channels[name + PREDICTED]} if name + PREDICTED in channels else {}
        return {"truth": channels[name], **compared}

    def spectra(self, sample: int) -> Arrays:
        raise NotThere("spectra are those of a trained model; look at a run")

    def modes(self, sample: int, block: int, head: int) -> Arrays:
        return self.spectra(sample)

    def _find(self, sample: int) -> _Shown:
        if not 0 <= sample < len(self.places):
            raise NotThere(f"there is no file {sample} here; there are {len(self.places)}, counted from 0")
        return self.read(sample)


class _Shown:
    """What a file shows: points, and a channel for every component of every field, at the points."""

    def __init__(self, place: Place) -> None:
        self.case = case = read_case(place)
        points = drawable(np.asarray(case.points), case.name)
        if not np.isfinite(points).all():
            raise DataError(f"{case.name}: {np.count_nonzero(~np.isfinite(points)):,} coordinates are not finite")
        flat = points.shape[1] == 3 and bool(np.ptp(points[:, 2]) == 0)
        self.points = _floats(points[:, :2] if flat else points)
        few = {name: np.atleast_1d(values).ravel() for name, values in case.parameters.items()}
        self.parameters = {name: _floats(values) for name, values in few.items() if values.size <= FEW}
        self.remarks: list[str] = []
        self.channels, self.units = _channels(case.point_fields, case.units)
        by_cell = {name: values for name, values in case.cell_fields.items() if name not in case.point_fields}
        if by_cell and case.neighbours is not None:
            self.remarks.append(f"cell data, shown as the mean of the cells around a point: {', '.join(by_cell)}")
            averaged = {name: case.neighbours.averaged_to_points(values) for name, values in by_cell.items()}
            self.channels |= _channels(averaged, {})[0]

    def triangles(self) -> np.ndarray | None:
        """(T, 3) triangles of the outer faces of a mesh of any cells, polyhedra and curved ones too; VTK finds them."""
        if self.case.mesh is None:
            return outer_triangles(self.case.cells)
        surface = self.case.mesh.grid.extract_surface(pass_pointid=True, algorithm="dataset_surface").triangulate()
        corners = np.asarray(surface.faces).reshape(-1, 4)[:, 1:]
        return np.asarray(surface.point_data["vtkOriginalPointIds"])[corners] if len(corners) else None


def _channels(
    fields: Mapping[str, np.ndarray], units: Mapping[str, str]
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Channel -> (N,), and its unit; components are called x, y, z, or numbered where there are more."""
    found, told = {}, {}
    for name, values in fields.items():
        columns = _floats(values).reshape(len(values), -1)
        count = columns.shape[1]
        letters = "xyz"[:count] if count <= 3 else [str(i) for i in range(count)]
        for letter, column in zip(letters, columns.T, strict=True):
            channel = name if count == 1 else f"{name}.{letter}"
            found[channel], told[channel] = column, units.get(name, "1")
    return found, told


def _floats(values: np.ndarray) -> np.ndarray:
    """As they are, if the page can read them; integers and the like in float64."""
    array = np.asarray(values)
    return array if array.dtype in (np.float32, np.float64) else array.astype(np.float64)

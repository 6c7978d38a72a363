"""Simulation files as samples to view: meshes with fields, surfaces, tables of points.

If a file has `pressure` and `pressure_predicted`, as `flare predict` writes it, they are compared. Numeric field data
is shown as parameters.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any

import numpy as np

from flare.data.importing.cases import CaseLocation, find_cases, read_case
from flare.mesh.io.tables import component_names
from flare.mesh.topology import outer_triangles
from flare.utils.errors import DataError
from flare.view.source import VERSION, Arrays, NotThere, Source, unit_of

PREDICTED = "_predicted"
KEPT = 4
"""Files that are kept in memory."""
MAX_SHOWN = 6
"""Most numbers of a parameter that the page shows."""


class CaseSource(Source):
    """One file, or those of a folder or pattern, in natural order. The fields are those of the first file."""

    def __init__(self, what: str | os.PathLike[str]) -> None:
        self.title = str(what)
        self.places = find_cases(what)
        self.read = lru_cache(KEPT)(lambda sample: _MeshView(self.places[sample]))
        self.first = self.read(0)

    def catalogue(self) -> dict[str, Any]:
        """Return the title, fields and samples; see `Source`."""
        first, fields = self.first, self.first.channels
        return {
            "version": VERSION,
            "title": self.title,
            "facts": [["note", note] for note in first.notes],
            "dimension": first.points.shape[1],
            "length_unit": unit_of(first.mesh.units.get("points", "1")),
            "fields": [
                {"name": name, "unit": unit, "role": "extra", "compared": name + PREDICTED in fields}
                for name, unit in first.units.items()
                if name.removesuffix(PREDICTED) == name or name.removesuffix(PREDICTED) not in fields
            ],
            "parameters": [
                {"name": name, "unit": unit_of(first.mesh.units.get(name, "1"))} for name in first.parameters
            ],
            "samples": [{"id": i, "split": "files", "name": p.path.name} for i, p in enumerate(self.places)],
            "spectra": None,
        }

    def geometry(self, sample: int) -> Arrays:
        """Return points, triangles and parameters; see `Source`."""
        shown = self._find(sample)
        arrays = {"points": shown.points} | {f"parameter/{name}": values for name, values in shown.parameters.items()}
        surface = outer_triangles(shown.mesh)
        return arrays | ({} if surface is None else {"triangles": surface[0].astype(np.uint32)})

    def field(self, sample: int, name: str) -> Arrays:
        """Return one channel; see `Source`."""
        channels = self._find(sample).channels
        if name not in channels:
            raise NotThere(f"{self.places[sample].name} has no field {name!r}; it has {', '.join(channels)}")
        compared = {"prediction": channels[name + PREDICTED]} if name + PREDICTED in channels else {}
        return {"truth": channels[name], **compared}

    def _find(self, sample: int) -> _MeshView:
        if not 0 <= sample < len(self.places):
            raise NotThere(f"there is no file {sample}; there are {len(self.places)}, counted from 0")
        return self.read(sample)


class _MeshView:
    """The points of a file, and a channel for every component of every field at the points."""

    def __init__(self, location: CaseLocation) -> None:
        self.mesh = mesh = read_case(location)
        points = np.asarray(mesh.points)
        if points.shape[1] not in (2, 3) or not len(points) or not np.isfinite(points).all():
            raise DataError(f"{mesh.name}: points of shape {points.shape} cannot be drawn, or some are not finite")
        flat = points.shape[1] == 3 and bool(np.ptp(points[:, 2]) == 0)
        self.points = _floats(points[:, :2] if flat else points)
        few = {name: values for name, values in mesh.parameters.items() if values.size <= MAX_SHOWN}
        self.parameters = {name: _floats(values) for name, values in few.items()}
        by_cell = {name: values for name, values in mesh.cell_data.items() if name not in mesh.point_data}
        self.notes = [f"cell data, averaged to the points: {', '.join(by_cell)}"] if by_cell else []
        fields = {**mesh.point_data, **{name: mesh.to_points(values) for name, values in by_cell.items()}}
        self.channels: dict[str, np.ndarray] = {}
        self.units: dict[str, str] = {}
        for name, values in fields.items():
            columns = _floats(values).reshape(len(values), -1).T
            for component, column in zip(component_names(len(columns)), columns, strict=True):
                channel = name if len(columns) == 1 else f"{name}.{component}"
                self.channels[channel], self.units[channel] = column, unit_of(mesh.units.get(name, "1"))


def _floats(values: np.ndarray) -> np.ndarray:
    """Return float32 and float64 arrays as they are, others as float64."""
    array = np.asarray(values)
    return array if array.dtype in (np.float32, np.float64) else array.astype(np.float64)

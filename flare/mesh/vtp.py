"""Polygons with fields from VTP files (VTK XML PolyData), as CFD codes and ParaView write surfaces.

    car = read_vtp("boundary_1.vtp", fields=["pMeanTrim"])
    some = car.select(np.arange(1000))
    some.centres(), some.area_vectors(), some.fields["pMeanTrim"]

Only the fields asked for are unpacked: files of a gigabyte are welcome.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from flare.mesh.vtkxml import Damaged, XMLFile, open_xml

OTHER_CELLS = ("NumberOfVerts", "NumberOfLines", "NumberOfStrips")

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Polygons:
    """Flat cells in space, each of any number of corners, with fields."""

    points: NDArray[Any]
    """(N, 3)."""
    corners: NDArray[np.int64]
    """(C,) points of all polygons, one after the other."""
    ends: NDArray[np.int64]
    """(P,) where in `corners` each polygon ends."""
    fields: Mapping[str, NDArray[Any]]
    """Name -> (P,) or (P, components), of the cells."""

    def __len__(self) -> int:
        return len(self.ends)

    def select(self, chosen: NDArray[np.integer]) -> Polygons:
        """Some of the polygons, in this order, on the same points."""
        starts, counts = (self.ends - self.counts)[chosen], self.counts[chosen]
        ends = np.cumsum(counts)
        places = np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - (ends - counts), counts)
        return Polygons(self.points, self.corners[places], ends, {name: f[chosen] for name, f in self.fields.items()})

    @property
    def counts(self) -> NDArray[np.int64]:
        """(P,) corners of each."""
        return np.diff(self.ends, prepend=0)

    def centres(self) -> Array:
        """(P, 3) means of the corners."""
        return self._sums(self._places) / self.counts[:, None]

    def area_vectors(self) -> Array:
        """(P, 3) area times normal; the corners are counter-clockwise seen from its tip."""
        away = self._places - np.repeat(self.centres(), self.counts, axis=0)
        following = np.arange(1, len(away) + 1)
        following[self.ends - 1] = self.ends - self.counts
        return self._sums(np.cross(away, away[following])) / 2

    @property
    def _places(self) -> Array:
        return self.points[self.corners].astype(np.float64)

    def _sums(self, of_corners: Array) -> Array:
        if not len(self):
            return np.zeros((0, 3))
        return np.add.reduceat(of_corners, self.ends - self.counts, axis=0)


def read_vtp(path: str | os.PathLike[str], fields: Iterable[str] = ()) -> Polygons:
    """The polygons of a file, with the cell fields that are named.

    Raises:
        DataError: no such file, no polygons, a field that it lacks, or damage of any kind.
    """
    with open_xml(path, "VTP") as file:
        return _polygons(file, list(fields))


def _polygons(file: XMLFile, fields: list[str]) -> Polygons:
    pieces = [_piece(file, piece, fields) for piece in file.root.iterfind("PolyData/Piece")]
    if not pieces:
        raise Damaged(f"it holds {file.root.get('type', 'something else')}; PolyData is expected")
    before = np.cumsum([0, *(len(piece.points) for piece in pieces)])
    earlier = np.cumsum([0, *(len(piece.corners) for piece in pieces)])
    return Polygons(
        np.concatenate([piece.points for piece in pieces]),
        np.concatenate([piece.corners + n for piece, n in zip(pieces, before, strict=False)]),
        np.concatenate([piece.ends + n for piece, n in zip(pieces, earlier, strict=False)]),
        {name: np.concatenate([piece.fields[name] for piece in pieces]) for name in fields},
    )


def _piece(file: XMLFile, piece: ElementTree.Element, fields: list[str]) -> Polygons:
    if any(int(piece.get(kind, "0")) for kind in OTHER_CELLS):
        raise Damaged("it has vertices, lines or strips beside its polygons; keep the polygons only")
    count, nodes = int(piece.attrib["NumberOfPolys"]), int(piece.attrib["NumberOfPoints"])
    found = {a.get("Name", ""): a for a in piece.iterfind("CellData/DataArray")}
    for name in fields:
        if name not in found:
            raise Damaged(f"it has no cell field {name!r}; it has {', '.join(sorted(found)) or 'none at all'}")
    about = {a.get("Name", ""): a for a in piece.iterfind("Polys/DataArray")}
    place = piece.find("Points/DataArray")
    if place is None or not {"connectivity", "offsets"} <= about.keys():
        raise Damaged("it lacks points or polygons")
    points = file.array(place).reshape(-1, 3)
    corners, ends = (file.array(about[key]).astype(np.int64) for key in ("connectivity", "offsets"))
    values = {name: file.array(found[name]) for name in fields}
    if len(points) != nodes or any(len(array) != count for array in (ends, *values.values())):
        raise Damaged(f"its arrays are not of {nodes:,} points and {count:,} polygons, as it says")
    if count and (ends[-1] != len(corners) or np.diff(ends, prepend=0).min() < 3):
        raise Damaged("its polygons do not fit their list of corners")
    if count and not 0 <= corners.min() <= corners.max() < nodes:
        raise Damaged(f"its polygons name points {corners.min()} to {corners.max()}, but there are {nodes:,}")
    return Polygons(points, corners, ends, values)

"""Readers of DrivAerML: the point sets that the authors of the paper drew from it, and the original surfaces.

    train/run_1.npz, test/run_3.npz, ...    surface_mesh_centers (N, 3) m, surface_fields (N, 4): p, wall shear x, y, z
    run_1/boundary_1.vtp, ...               polygons with the cell fields pMeanTrim, wallShearStressMeanTrim

Fields are in kinematic units, m²/s². Nothing is unpickled.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from flare.data.benchmarks.cards import Archive, card
from flare.data.benchmarks.published import (
    SPLITS,
    PublishedFiles,
    SplitFolders,
    check_numbers,
    checksum_of_list,
    reading_npz,
)
from flare.data.sample import Field, Sample, Schema
from flare.mesh.io.vtk_xml import read_vtp
from flare.mesh.topology import area_vectors, extract_cells
from flare.utils.errors import ConfigError, DataError

PointSetSize = Literal["10k", "40k", "100k", "200k", "300k", "400k", "500k", "1m"]
POINTS = {size: int(size.replace("k", "000").replace("1m", "1000000")) for size in get_args(PointSetSize)}
"""Size -> number of points of every run."""
CENTRES, FIELDS = "surface_mesh_centers", "surface_fields"
PRESSURE, SHEAR = "pMeanTrim", "wallShearStressMeanTrim"
MISSING = (167, 211, 218, 221, 248, 282, 291, 295, 316, 325, 329, 364, 370, 376, 403, 473)
RUNS = tuple(run for run in range(1, 501) if run not in MISSING)
"""Numbers of the 484 runs that exist."""
TRAIN = 387
"""Number of training runs; the other 97 are test runs."""
BOUNDARY = Archive(repository="neashton/drivaerml", file="run_*/boundary_*.vtp", folder="drivaerml")
AREA = Field(role="extra", components=("x", "y", "z"), unit="m²", description="area of the cell times its normal")


@dataclass(frozen=True, kw_only=True)
class DrivAerMLFiles(SplitFolders):
    """Points that the authors of the paper drew uniformly from the cells of each run, split by folder."""

    name: ClassVar[str] = "drivaerml"
    pattern: ClassVar[str] = "run_*.npz"

    size: PointSetSize = "40k"
    """Number of points of each run in the set."""

    @classmethod
    def archive(cls, options: Mapping[str, Any]) -> Archive:
        published, size = super().archive(options), options["size"]
        return replace(
            published, file=published.file.replace("40k", size), folder=published.folder.replace("40k", size)
        )

    def origin(self) -> dict[str, Any]:
        other: dict[str, Any] = {"size": self.size} if self.size != "40k" else {}
        least, most = self._points
        if least != most or most != POINTS[self.size]:
            other["points"] = most if least == most else f"{least} to {most}"
        return {"kind": "published", "departures": other | _departures(*self.counts())}

    def fetch(self) -> str:
        return f"{super().fetch()} --size {self.size}"

    def sample(self, index: int) -> Sample:
        file = self.files()[index]
        centres, fields = _read_points(self.path(file))
        values = {"points": centres, "pressure": fields[:, :1], "wall_shear": fields[:, 1:]}
        return Sample(values, notes={"published index": _number(file), "file": file})

    @staticmethod
    def sort_key(file: str) -> int:
        return _number(file)

    @cached_property
    def _points(self) -> tuple[int, int]:
        """Smallest and largest number of points of a run."""
        counts = [_count_points(self.path(file)) for file in self.files()]
        return min(counts), max(counts)


@dataclass(frozen=True, kw_only=True)
class DrivAerMLBoundary(PublishedFiles):
    """Points drawn uniformly from the cells of the original surfaces. The draw depends on the run number alone."""

    name: ClassVar[str] = "drivaerml-boundary"
    runs: str = ""
    """Runs, such as `1-20,33`, or `all` (484 runs, 300 GB); empty for those in the folder."""
    points: int = 40_000
    """Number of cells to draw from each run; 0 for all, about 8.8 million."""
    split_like: str = ""
    """Folder of a point set of the authors whose split is used; empty for our fixed split of 387 and 97 runs."""

    @classmethod
    def archive(cls, options: Mapping[str, Any]) -> Archive:
        if not options["runs"]:
            raise ConfigError("all 484 runs are 300 GB; choose some, such as `runs=1-20`, or `runs=all`")
        chosen = chosen_runs(options["runs"])
        return BOUNDARY if len(chosen) == len(RUNS) else replace(BOUNDARY, only=tuple(_file(run) for run in chosen))

    def files(self) -> list[str]:
        return [_file(run) for part in self._split for run in part]

    def counts(self) -> tuple[int, int]:
        return len(self._split[0]), len(self._split[1])

    def schema(self) -> Schema:
        known = card("drivaerml").schema()
        return Schema(name=known.name, fields={**known.fields, "area": AREA})

    def origin(self) -> dict[str, Any]:
        other: dict[str, Any] = {"points": self.points} if self.points != card("drivaerml").points else {}
        if not self.split_like:
            other["split"] = "ours"
        return {"kind": "published", "departures": other | _departures(*self.counts())}

    def fetch(self) -> str:
        return f"{super().fetch()} --runs {self.runs}"

    def checksums(self) -> dict[str, str]:
        return {BOUNDARY.file: checksum_of_list(self, self.files())}

    def sample(self, index: int) -> Sample:
        file = self.files()[index]
        car = read_vtp(self.path(file), [PRESSURE, SHEAR])
        if self.points:
            car = extract_cells(car, drawn_cells(_number(file), car.cell_count, self.points, self.path(file)))
        pressure, shear = car.cell_data[PRESSURE], car.cell_data[SHEAR]
        if pressure.ndim != 1 or shear.shape != (car.cell_count, 3):
            shapes = f"{PRESSURE} {pressure.shape}, {SHEAR} {shear.shape}"
            raise DataError(f"{self.path(file)}: {shapes}; expected 1 and 3 components")
        values = {"points": car.cell_centers(), "pressure": pressure[:, None], "wall_shear": shear}
        return Sample(values | {"area": area_vectors(car)}, notes={"published index": _number(file), "file": file})

    @cached_property
    def _split(self) -> tuple[list[int], list[int]]:
        """Training runs and test runs among the chosen runs, or among those in the folder if none is chosen."""
        there = {_number(path.name) for path in Path(self.folder).glob(BOUNDARY.file)}
        wanted = set(chosen_runs(self.runs)) if self.runs else there
        train, test = _split_of(self.split_like) if self.split_like else own_split()
        if not wanted & set(train):
            command = f"flare data download {self.name} --runs {','.join(map(str, train[:5]))}"
            raise DataError(f"{self.folder} has no training run of {self.runs or BOUNDARY.file}; use:  {command}")
        return [run for run in train if run in wanted], [run for run in test if run in wanted]


def own_split() -> tuple[list[int], list[int]]:
    """Return our fixed split into 387 training and 97 test runs. The split of the paper is not published."""
    order = np.random.RandomState(0).permutation(RUNS)  # its stream is frozen; that of a Generator is not
    return sorted(order[:TRAIN].tolist()), sorted(order[TRAIN:].tolist())


def drawn_cells(run: int, cells: int, count: int, path: Path) -> np.ndarray:
    """Draw distinct cells, shape (count,), with numpy's legacy generator seeded with the run number.

    The authors of the paper used this seed. Whether they used the same call is not known, so the cells may differ.
    """
    if count > cells:
        raise DataError(f"{path} has {cells:,} cells; fewer than `points={count}`; use fewer")
    return np.random.RandomState(run).choice(cells, count, replace=False)


def chosen_runs(words: str) -> list[int]:
    """Return the run numbers of a list such as `1-20,33`, or of `all`."""
    if words == "all":
        return list(RUNS)
    chosen: set[int] = set()
    for part in filter(None, words.split(",")):
        ends = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        found = {run for run in RUNS if ends and int(ends[1]) <= run <= int(ends[2] or ends[1])}
        if not found:
            raise ConfigError(f"`runs={words!r}`: there is no run {part!r}; give a list such as 1-20,33, or all")
        chosen |= found
    return sorted(chosen)


def _split_of(folder: str) -> tuple[list[int], list[int]]:
    files = DrivAerMLFiles(folder=folder)
    train, test = ([_number(file) for file in files.by_split[split]] for split in SPLITS)
    return train, test


def _departures(train: int, test: int) -> dict[str, Any]:
    """Return the departure of a set that has not all runs: the error in the paper is for 387 and 97 runs."""
    whole = card("drivaerml").samples
    return {} if (train, test) == (whole["train"], whole["test"]) else {"runs": f"{train}, {test}"}


def _file(run: int) -> str:
    return f"run_{run}/boundary_{run}.vtp"


def _number(file: str) -> int:
    found = re.search(r"_(\d+)\.\w+$", file)
    if not found:
        raise DataError(f"{file} has no run number in its name; the published files are run_1.npz, run_2.npz, ...")
    return int(found[1])


def _count_points(path: Path) -> int:
    """Return the number of points from the header of the array."""
    with reading_npz(path), zipfile.ZipFile(path) as archive, archive.open(f"{CENTRES}.npy") as file:
        header = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}
        shape = header[np.lib.format.read_magic(file)[0]](file)[0]
    return shape[0] if shape else 0


def _read_points(path: Path) -> tuple[np.ndarray, np.ndarray]:
    with reading_npz(path), path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        centres, fields = archive.get(CENTRES), archive.get(FIELDS)
    if centres is None or fields is None:
        raise DataError(f"{path} has no array {CENTRES if centres is None else FIELDS}; both are needed")
    if centres.shape != (*fields.shape[:1], 3) or fields.shape[1:] != (4,) or not fields.size:
        raise DataError(f"{path}: {CENTRES} {centres.shape} and {FIELDS} {fields.shape} must be (N, 3) and (N, 4)")
    return check_numbers(centres, path), check_numbers(fields, path)

"""What a build leaves on disk: the released part, the series of its groups, a table of them."""

from __future__ import annotations

import csv
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from flare.mesh.octree import merged
from flare.mesh.vtu import write_pvd, write_vtu
from flare.physics.lpbf.build import Build, Frame, State
from flare.physics.lpbf.corners import Corners
from flare.physics.lpbf.hexahedron import Array
from flare.physics.lpbf.setup import Setup
from flare.utils.errors import ConfigError, nearest
from flare.utils.files import replacing

FIELDS = ("displacement", "elastic_strain", "stress", "von_mises", "temperature")
"""Of a `Frame`, at the nodes."""
TRACKED = ("mean_temperature", "peak_von_mises", "largest_displacement", "iterations")
"""Of every group, besides what the state tracks: °C over the part, MPa at centres, mm, of conjugate gradients."""
Mesh = Literal["voxels", "octree"]
MESHES = ("voxels", "octree")
COLUMNS = (
    "group",
    "top_mm",
    "interference_mm",
    "x_mm",
    "y_mm",
    "z_mm",
    "peak_temperature_C",
    "mean_temperature_C",
    "peak_von_mises_MPa",
    "largest_displacement_mm",
    "iterations",
)
"""Of the table: interference is at (x, y, z)."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What of a build is written; see `flare.physics.lpbf.job.run`."""

    mesh: Mesh = "voxels"
    series: bool = True
    steps: int | None = None
    fields: Collection[str] = FIELDS

    def __post_init__(self) -> None:
        if self.steps is not None and self.steps < 1:
            raise ConfigError(f"steps={self.steps}: keep at least one, or use --series false")
        if self.mesh not in MESHES:
            raise ConfigError(f"mesh={self.mesh!r} is unknown; {nearest(str(self.mesh), MESHES)}")
        for name in self.fields:
            if name not in FIELDS:
                raise ConfigError(f"fields: there is no {name!r}; {nearest(str(name), FIELDS)}")
        if not self.fields:
            raise ConfigError("fields: keep at least one, or use --series false")

    def record(self) -> dict[str, Any]:
        fields = [name for name in FIELDS if name in self.fields]
        return {"mesh": self.mesh, "series": self.series, "steps": self.steps, "fields": fields}

    def groups(self, count: int) -> set[int]:
        """Those in the series, counted from one, of so many."""
        if not self.series:
            return set()
        return set(np.linspace(count, 1, min(self.steps or count, count)).round().astype(int).tolist())


def tracked_of(frame: Frame) -> tuple[float, ...]:
    """The `TRACKED` numbers of a group."""
    return (
        float(frame.temperature.mean()),
        float(frame.centre_von_mises.max()),
        float(np.linalg.norm(frame.displacement, axis=1).max()),
        frame.iterations,
    )


def step_name(group: int) -> str:
    return f"group_{group:03d}.vtu"


def write_step(path: Path, build: Build, frame: Frame, fields: Collection[str]) -> None:
    """What exists by then, on its voxels, in single precision: a series is for looking at."""
    points, cells = build.positions[: len(frame.displacement)], build.cells[: len(frame.centre_von_mises)]
    small = {name: getattr(frame, name).astype(np.float32) for name in FIELDS if name in fields}
    write_vtu(path, points.astype(np.float32), cells, point_fields=small)


def write_series(folder: Path, build: Build, groups: set[int], cooled: Frame, released: Frame, choice: Choice) -> None:
    """The end of a series whose groups are written already."""
    write_step(folder / "cooled.vtu", build, cooled, choice.fields)
    write_step(folder / "released.vtu", build, released, choice.fields)
    times = {float(group): step_name(group) for group in sorted(groups)}
    write_pvd(folder / "build.pvd", times | {build.groups + 1.0: "cooled.vtu", build.groups + 2.0: "released.vtu"})


def write_table(path: Path, setup: Setup, state: State, tracked: Array) -> None:
    """A row for each group, its numbers to six digits."""
    columns = np.column_stack([setup.tops, state.interference, state.peak_temperature, tracked[:, :-1]])
    with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(COLUMNS)
        for group, (row, iterations) in enumerate(zip(columns.tolist(), tracked[:, -1], strict=True), 1):
            table.writerow([group, *(f"{number + 0.0:.6g}" for number in row), int(iterations)])


def write_part(path: Path, setup: Setup, build: Build, frame: Frame, mesh: Mesh) -> None:
    """All fields, in double precision. On the octree's mesh, a hexahedron has the largest stress of its voxels."""
    fields = {name: getattr(frame, name) for name in FIELDS}
    if mesh == "voxels":
        peaks = {"von_mises": frame.centre_von_mises}
        write_vtu(path, build.positions, build.cells, point_fields=fields, cell_fields=peaks)
        return
    octree = merged(setup.voxels)
    corners = Corners(setup.voxels, octree, build.positions)
    picked = {name: corners(values) for name, values in fields.items()}
    peaks = {"von_mises": corners.peaks(frame.centre_von_mises, build.cells)}
    write_vtu(path, octree.points, octree.hexahedra, point_fields=picked, cell_fields=peaks)

"""Results of a build: summary numbers, VTU files of the part and of every layer group, and a table of the groups."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from flare.mesh.io.vtk_xml import write_pvd, write_vtu
from flare.mesh.mesh import Mesh
from flare.mesh.octree import HexMesh, merged
from flare.mesh.voxels import Voxels
from flare.physics.lpbf.build import Build, BuildState, Frame
from flare.physics.lpbf.grid import Ints
from flare.physics.lpbf.hexahedron import Array
from flare.physics.lpbf.setup import Setup
from flare.utils.errors import ConfigError
from flare.utils.files import replace_atomically
from flare.utils.text import counted

FIELDS = ("displacement", "elastic_strain", "stress", "von_mises", "temperature")
"""Node fields of a `Frame` that are written to files."""
TRACKED = ("mean_temperature", "peak_von_mises", "largest_displacement", "iterations")
"""Numbers of a group that the state does not hold: °C over the part, MPa at voxel centers, mm, CG iterations."""
MeshKind = Literal["voxels", "octree"]
COLUMNS = (
    *("group", "top_mm", "interference_mm", "x_mm", "y_mm", "z_mm"),
    *("peak_temperature_C", "mean_temperature_C", "peak_von_mises_MPa", "largest_displacement_mm", "iterations"),
)
"""Columns of `groups.csv`; the interference is at (x, y, z)."""


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """Options of the files that a build writes; see `flare.physics.lpbf.job.run`."""

    mesh: MeshKind = "voxels"
    series: bool = True
    steps: int | None = None
    fields: Collection[str] = FIELDS

    def __post_init__(self) -> None:
        if self.steps is not None and self.steps < 1:
            raise ConfigError(f"steps={self.steps}: must be at least 1")
        for name, values, known in (("mesh", [self.mesh], ("voxels", "octree")), ("fields", self.fields, FIELDS)):
            if not values or not set(values) <= set(known):
                raise ConfigError(f"{name}={', '.join(values)}: must be of {', '.join(known)}")

    def groups(self, count: int) -> set[int]:
        """Return the groups to write, numbered from 1, of a build with `count` groups."""
        if not self.series:
            return set()
        return set(np.linspace(count, 1, min(self.steps or count, count)).round().astype(int).tolist())


@dataclass(frozen=True)
class FinishedBuild:
    """A finished simulation with its setup and the history of its groups."""

    setup: Setup
    positions: Array
    """Nominal node positions in mm, shape (N, 3)."""
    cells: Ints
    """Nodes of every voxel, shape (E, 8)."""
    cooled: Frame
    released: Frame
    interference: Array
    """Height above the nominal top in mm and its position, shape (groups, 4)."""
    peak_temperature: Array
    """Highest temperature of part and plate after each group in °C, shape (groups,)."""
    tracked: Array
    """The numbers named by `TRACKED`, shape (groups, 4)."""

    @property
    def recoater_interference(self) -> Array:
        """Interference of all groups but the last, on which no layer is spread, shape (groups − 1, 4)."""
        return self.interference[:-1]

    @property
    def recoater_hits(self) -> int:
        """Number of groups that stand more than a powder layer above their nominal top."""
        return int((self.recoater_interference[:, 0] > self.setup.process.machine.layer).sum())

    @property
    def recoater_status(self) -> str:
        """Either "passes" or "hits in n of N groups"."""
        hits = self.recoater_hits
        return f"hits in {hits} of {counted(len(self.interference), 'group')}" if hits else "passes"

    def voxel_center(self, voxel: int) -> Array:
        """Return the nominal center of a voxel, shape (3,)."""
        return np.asarray(self.positions[self.cells[voxel]].mean(0))

    def summary(self) -> str:
        """Return two lines: largest displacements and peak stress with their positions; recoater interference."""
        rise, stress = self.released.displacement[:, 2], self.released.center_von_mises
        up, down, worst = int(rise.argmax()), int(rise.argmin()), int(stress.argmax())
        return (
            f"rises {rise[up]:.3f} mm at {format_position(self.positions[up])}, "
            f"sinks {-rise[down]:.3f} mm at {format_position(self.positions[down])}; "
            f"peak stress {stress[worst]:.0f} MPa at {format_position(self.voxel_center(worst))}\n"
            f"recoater {self.recoater_status}; {self._highest_group()}"
        )

    def _highest_group(self) -> str:
        above = self.recoater_interference
        if not (above[:, 0] > 0).any():
            return "no group below the last stands above its nominal top"
        worst = int(above[:, 0].argmax())
        height, *place = above[worst]
        layers = height / self.setup.process.machine.layer
        where = format_position(place)
        return f"highest after group {worst + 1}: {height:.3f} mm ({layers:.1f} layers) above nominal at {where}"


def format_position(position: ArrayLike) -> str:
    """Format a position in mm as `(12.0, -3.5, 0.6)`."""
    return "({:.1f}, {:.1f}, {:.1f})".format(*(np.asarray(position) + 0.0))


def group_file(group: int) -> str:
    """Return the file name of a layer group, such as `group_001.vtu`."""
    return f"group_{group:03d}.vtu"


def write_frame(path: Path, build: Build, frame: Frame, fields: Collection[str]) -> None:
    """Write the voxels that exist in a frame in single precision, for viewing."""
    points, cells = build.positions[: len(frame.displacement)], build.cells[: len(frame.center_von_mises)]
    single = {name: getattr(frame, name).astype(np.float32) for name in FIELDS if name in fields}
    write_vtu(path, Mesh.from_cells(points.astype(np.float32), {"hexahedron": cells}, point_data=single))


def write_series(
    folder: Path, build: Build, groups: set[int], cooled: Frame, released: Frame, options: OutputOptions
) -> None:
    """Write the cooled and released frames and the PVD file of a series whose groups have been written."""
    write_frame(folder / "cooled.vtu", build, cooled, options.fields)
    write_frame(folder / "released.vtu", build, released, options.fields)
    times = {float(group): group_file(group) for group in sorted(groups)}
    write_pvd(folder / "build.pvd", times | {build.groups + 1.0: "cooled.vtu", build.groups + 2.0: "released.vtu"})


def write_table(path: Path, setup: Setup, state: BuildState, tracked: Array) -> None:
    """Write one CSV row per group, with six significant digits."""
    groups = np.arange(1, state.group + 1)
    columns = np.column_stack([groups, setup.tops, state.interference, state.peak_temperature, tracked])
    with replace_atomically(path) as temporary:
        np.savetxt(temporary, columns + 0.0, fmt="%.6g", delimiter=",", header=",".join(COLUMNS), comments="")


def write_part(path: Path, setup: Setup, build: Build, frame: Frame, mesh: MeshKind) -> None:
    """Write all fields of the part in double precision.

    On the octree mesh, the cell field of a merged hexahedron is the largest von Mises stress of its voxels.
    """
    fields = {name: getattr(frame, name) for name in FIELDS}
    if mesh == "voxels":
        peaks = {"von_mises": frame.center_von_mises}
        cells = {"hexahedron": build.cells}
        write_vtu(path, Mesh.from_cells(build.positions, cells, point_data=fields, cell_data=peaks))
        return
    octree = merged(setup.voxels)
    nodes = NodeMap(setup.voxels, octree, build.positions)
    picked = {name: nodes(values) for name, values in fields.items()}
    peaks = {"von_mises": nodes.peaks(frame.center_von_mises, build.cells)}
    write_vtu(path, octree.to_mesh().with_data(point_data=picked, cell_data=peaks))


class NodeMap:
    """Map from the nodes and voxels of a build to those of the part's merged mesh.

    Args:
        voxels: The part.
        mesh: Its merged mesh.
        positions: Node positions of the build, shape (nodes, 3).
    """

    def __init__(self, voxels: Voxels, mesh: HexMesh, positions: Array) -> None:
        lattice = np.rint((positions - voxels.origin) / voxels.size).astype(int)
        number = np.full([n + 1 for n in voxels.solid.shape], -1)
        number[tuple(lattice.T)] = np.arange(len(lattice))
        self._lattice, self._mesh = lattice, mesh
        self._number = mesh.pick(number)

    def __call__(self, field: np.ndarray) -> np.ndarray:
        """Pick a field at the nodes of the merged mesh.

        Args:
            field: Values at the first nodes of the build, shape (n, ...).

        Returns:
            Shape (N, ...), zero at nodes that do not exist yet.
        """
        picked = np.zeros((len(self._number), *field.shape[1:]))
        exists = self._number < len(field)
        picked[exists] = field[self._number[exists]]
        return picked

    def peaks(self, values: Array, cells: Ints) -> Array:
        """Return the largest of the voxel values (V,) in each merged hexahedron, shape (E,).

        Args:
            values: One value per voxel of the build.
            cells: Nodes of these voxels, shape (V, 8).
        """
        low = self._mesh.corners[self._mesh.hexahedra[:, 0]]
        owner = np.zeros(tuple(self._mesh.corners.max(0)), np.int64)
        for size in np.unique(self._mesh.sizes):
            of_size = np.flatnonzero(self._mesh.sizes == size)
            for step in np.ndindex(size, size, size):
                owner[tuple((low[of_size] + step).T)] = of_size
        largest = np.full(len(low), -np.inf)
        np.maximum.at(largest, owner[tuple(self._lattice[cells[:, 0]].T)], values)
        return largest

"""A build, layer group by layer group: heat, equilibrium, cool-down, release from the plate.

    result = simulate(voxels, process_preset("ti64-am250"))
    result.released.displacement            # (N, 3) mm at the corners of the voxels, result.positions

or one group at a time, with a state that consists of arrays only:

    build = Build(voxels, process)
    state = build.start()
    while state.group < build.groups:
        state, frame = build.advance(state)
        save_state(path, state)             # load_state(path) resumes from here
    cooled, released = build.finish(state)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from flare.mesh.mesh import Mesh
from flare.mesh.surface import to_vector
from flare.mesh.voxels import Voxels, one_piece_on_plate, pieces
from flare.physics.lpbf import mechanics, plasticity
from flare.physics.lpbf.grid import Hierarchy, Ints, corners_of, plate_depths
from flare.physics.lpbf.hexahedron import Array, Size
from flare.physics.lpbf.mechanics import Body, Equilibrium, elastic_equilibrium, von_mises_3d, without_rigid_motion
from flare.physics.lpbf.plasticity import PlasticState, plastic_equilibrium
from flare.physics.lpbf.process import Process, process_preset
from flare.physics.lpbf.thermal import find_faces, group_heating, heat_step
from flare.utils.errors import ConfigError, DataError, suggest_name
from flare.utils.files import replace_atomically

Mode = Literal["benchmark", "refined"]
TOLERANCES = {"benchmark": mechanics.TOLERANCE, "refined": plasticity.TOLERANCE}
"""Residual force of each equilibrium relative to the load, by mode."""


@dataclass(frozen=True)
class Frame:
    """Fields at the nodes of the part that exist at one moment, the first n of `Result.positions`.

    All fields but the displacement are averaged from the centers of the boxes.
    """

    displacement: Array
    """In mm, shape (n, 3)."""
    elastic_strain: Array
    """Components xx, yy, zz, yz, zx, xy with engineering shears, shape (n, 6)."""
    stress: Array
    """In MPa, shape (n, 6)."""
    von_mises: Array
    """Mean of the boxes' von Mises stresses in MPa, shape (n,)."""
    temperature: Array
    """In °C, shape (n,)."""
    center_von_mises: Array
    """Von Mises stress at the centers of the boxes in MPa, shape (boxes,). Peaks are taken from it."""
    interference: float
    """Height of the part above its nominal top when the next layer is spread, in mm; 0 if it stays below."""
    interference_position: tuple[float, float, float]
    """Nominal position of the highest node in mm."""
    iterations: int
    """Iterations of conjugate gradients."""
    residual: float
    """Residual force relative to the load."""


@dataclass(frozen=True)
class BuildState:
    """State of a build after some of its groups, as arrays in the build's own numbering."""

    group: int
    """Number of finished groups."""
    displacement: Array
    """Displacement of plate and part, shape (N, 3)."""
    temperature: Array
    """Temperature of plate and part, shape (E,)."""
    reference: Array
    """Displacement in which each box was added, shape (part boxes, 8, 3)."""
    inherent: Array
    """Share of the inherent strain in each box, shape (part boxes,); 1 in benchmark mode."""
    plastic_strain: Array
    """Shape (E, 6); zero in benchmark mode."""
    hardening: Array
    """Accumulated plastic strain, shape (E,)."""
    interference: Array
    """See `Result`, shape (group, 4)."""
    peak_temperature: Array
    """Highest temperature at the end of each group in °C, shape (group,)."""


@dataclass(frozen=True)
class Result:
    """Result of a whole build. Nodes are ordered by the group that added them, so each frame covers a prefix."""

    positions: Array
    """Nominal positions in mm, shape (N, 3)."""
    cells: Ints
    """Boxes in VTK order, from the bottom up, shape (E, 8)."""
    frames: list[Frame]
    """Frame after each group, with the plate and the groups below still warm. A resumed build has only the new ones.
    Empty if they were not kept."""
    cooled: Frame
    """The part at ambient temperature, still on the plate."""
    released: Frame
    """The part off the plate, without its best-fit rigid motion."""
    interference: Array
    """Height above the nominal top after each group in mm, and its position x, y, z, shape (groups, 4)."""
    peak_temperature: float
    """Highest temperature at the end of any group in °C."""


def simulate(
    voxels: Voxels,
    process: Process | None = None,
    *,
    mode: Mode = "benchmark",
    on_group: Callable[[int, int, BuildState, Frame], None] | None = None,
    state: BuildState | None = None,
    keep_frames: bool = True,
    tolerance: float | None = None,
) -> Result:
    """Simulate a build: distortion and residual stress after every layer group, after cooling and after release.

    Args:
        voxels: The part in mm, standing on z = 0, one connected piece.
        process: Machine and material. None is Ti-6Al-4V on the Renishaw AM250.
        mode: "benchmark" is linear with an inherent strain; "refined" adds temperature-dependent properties and plastic
            flow.
        on_group: Called as on_group(finished, groups, state, frame) after each group.
        state: State to resume from, for the same voxels, process and mode.
        keep_frames: Whether to keep the frames between; False saves memory.
        tolerance: Residual force of each equilibrium relative to the load. None is the mode's default.

    Raises:
        DataError: The voxels are not a printable part.
        ConfigError: The process does not fit the voxels.
        NotConverged: A solver did not converge.
    """
    build = Build(voxels, process or process_preset("ti64-am250"), mode=mode, tolerance=tolerance)
    now = build.start() if state is None else build.check_state(state)
    frames = []
    with threadpool_limits(1):  # BLAS threads gain nothing here and may change the last bit
        while now.group < build.groups:
            now, frame = build.advance(now)
            if keep_frames:
                frames.append(frame)
            if on_group:
                on_group(now.group, build.groups, now, frame)
        cooled, released = build.finish(now)
    peak = float(now.peak_temperature.max())
    return Result(build.positions, build.cells, frames, cooled, released, now.interference, peak)


class Build:
    """One part on one machine. It holds no progress; that is the `BuildState`."""

    def __init__(
        self, voxels: Voxels, process: Process, *, mode: Mode = "benchmark", tolerance: float | None = None
    ) -> None:
        if mode not in TOLERANCES:
            raise ConfigError(f"mode={mode!r} is unknown; {suggest_name(str(mode), TOLERANCES)}")
        self.tolerance = TOLERANCES[mode] if tolerance is None else tolerance
        self.solid, self.origin = check_printable(voxels)
        self.size: Size = to_vector(voxels.size)
        self.process, self.mode = process, mode
        self.material = process.material if mode == "refined" else process.material.without_curves()
        ratio = process.group_height / self.size[2]
        self.group_layers = round(ratio)
        if self.group_layers < 1 or abs(ratio - self.group_layers) > 1e-6 * ratio:
            raise ConfigError(f"voxels of {self.size[2]:g} mm do not fill layer groups of {process.group_height:g} mm")
        self.plate = plate_depths(process.machine.plate_thickness, self.size[2])
        self.groups = -(-self.solid.shape[2] // self.group_layers)
        machine, material = process.machine, self.material
        self._plate_start = machine.ambient if machine.plate_temperature is None else machine.plate_temperature
        heat = self._plate_start - machine.ambient
        swelling = float(self.material.at("expansion", np.array(self._plate_start))) * heat
        confined = (1 + material.poisson) / (1 - material.poisson)
        self.datum = confined * swelling * machine.plate_thickness
        """Height in mm of the warm plate's top above the cold one's; 0 without a heater."""
        self._part = self._hierarchy(self.solid, on_plate=False)
        self.positions = self._part.levels[0].positions
        self.cells = self._part.levels[0].cells

    def start(self) -> BuildState:
        """Return the state before the first group."""
        shapes = [(0, 3), (0,), (0, 8, 3), (0,), (0, 6), (0,), (0, 4), (0,)]
        return BuildState(0, *(np.zeros(shape) for shape in shapes))

    def check_state(self, state: BuildState) -> BuildState:
        """Return the state if it fits this build.

        Raises:
            DataError: It belongs to another build.
        """
        boxes = int(self.solid[:, :, : state.group * self.group_layers].sum())
        if len(state.reference) != boxes:
            raise DataError(f"the state has {len(state.reference):,} voxels, this build {boxes:,} after as many groups")
        return state

    def advance(self, state: BuildState) -> tuple[BuildState, Frame]:
        """Print the next group."""
        machine, material = self.process.machine, self.material
        bottom = state.group * self.group_layers
        top = min(bottom + self.group_layers, self.solid.shape[2])
        hierarchy = self._hierarchy(self.solid[:, :, :top], on_plate=True)
        level = hierarchy.levels[0]
        boxes = len(level.cells)

        old = self._bare_plate(hierarchy) if state.group == 0 else state
        added = boxes - len(old.temperature)
        temperature = np.concatenate([old.temperature, np.full(added, machine.ambient)])
        height = (top - bottom) * self.size[2]
        volume = added * float(np.prod(self.size))
        laser = group_heating(machine, area=volume / height, height=height)
        source = np.where(np.arange(boxes) >= boxes - added, laser.energy / laser.duration / max(added, 1), 0.0)
        heat = heat_step(
            find_faces(hierarchy),
            temperature,
            duration=laser.duration,
            source=source,
            material=material,
            machine=machine,
        )

        starting = self._starting_displacement(hierarchy, old.displacement, bottom, top)
        reference = np.concatenate([state.reference, starting[level.cells[boxes - added :]]])
        guess = np.concatenate([old.displacement, starting[len(old.displacement) :]])
        inherent = np.concatenate([state.inherent, self._inherent_share(heat.temperature[boxes - added :])])
        grown = BuildState(
            state.group + 1,
            guess,
            heat.temperature,
            reference,
            inherent,
            np.concatenate([old.plastic_strain, np.zeros((added, 6))]),
            np.concatenate([old.hardening, np.zeros(added)]),
            state.interference,
            np.append(state.peak_temperature, heat.temperature.max()),
        )
        new, equilibrium = self._equilibrium(hierarchy, grown)
        frame = self._frame(hierarchy, new, equilibrium, top)
        met = np.array([[frame.interference, *frame.interference_position]])
        return replace(new, interference=np.concatenate([state.interference, met])), frame

    def finish(self, state: BuildState) -> tuple[Frame, Frame]:
        """Cool to ambient temperature on the plate, then release the part.

        Returns:
            The cooled and the released frame.
        """
        if state.group < self.groups:
            raise DataError(f"only {state.group} of {self.groups} groups are printed; call advance for the others")
        cold = replace(state, temperature=np.full_like(state.temperature, self.process.machine.ambient))
        attached = self._hierarchy(self.solid, on_plate=True)
        cold, equilibrium = self._equilibrium(attached, cold)
        cooled = self._frame(attached, cold, equilibrium, self.solid.shape[2])

        plate = attached.levels[0].plate_cells
        free = replace(
            cold,
            displacement=cold.displacement[self._part_nodes(attached)],
            temperature=cold.temperature[plate:],
            plastic_strain=cold.plastic_strain[plate:],
            hardening=cold.hardening[plate:],
        )
        free, equilibrium = self._equilibrium(self._part, free)
        free = replace(free, displacement=without_rigid_motion(free.displacement, self.positions))
        return cooled, self._frame(self._part, free, equilibrium, self.solid.shape[2])

    def _hierarchy(self, solid: NDArray[np.bool_], *, on_plate: bool) -> Hierarchy:
        plate, floating = (self.plate, _find_floating(solid)) if on_plate else (None, None)
        elastic = {"young": self.material.young, "poisson": self.material.poisson}
        modes = self.process.incompatible_modes
        return Hierarchy(solid, self.size, self.origin, plate=plate, floating=floating, incompatible=modes, **elastic)

    def _bare_plate(self, hierarchy: Hierarchy) -> BuildState:
        """Return the heated plate before the first group: held at the sides, it expands only upwards."""
        machine, level = self.process.machine, hierarchy.levels[0]
        count = level.plate_nodes + hierarchy.x[0].size * hierarchy.y[0].size
        displacement = np.zeros((count, 3))
        displacement[:, 2] = self.datum * (1 + level.positions[:count, 2] / machine.plate_thickness)
        cells = level.plate_cells
        return replace(
            self.start(),
            displacement=displacement,
            temperature=np.full(cells, self._plate_start),
            plastic_strain=np.zeros((cells, 6)),
            hardening=np.zeros(cells),
        )

    def _starting_displacement(self, hierarchy: Hierarchy, displacement: Array, bottom: int, top: int) -> Array:
        """Return the displacement in which a new group is added, shape (N, 3).

        Its nodes follow the metal under them at the interface and return linearly to nominal at the top, where the
        recoater has leveled the powder. Over powder they start at nominal. Nominal is relative to the top of the warm
        plate, where the machine was zeroed.
        """
        level = hierarchy.levels[0]
        interface = level.upper[bottom]
        known = (interface >= 0) & (interface < len(displacement))
        nominal = np.array([0.0, 0.0, self.datum])
        moved = np.broadcast_to(nominal, (*interface.shape, 3)).copy()
        moved[known] = displacement[interface[known]]
        start = np.zeros((len(level.positions), 3))
        for k in range(bottom, top + 1):
            nodes = level.upper[k]
            share = (k - bottom) / (top - bottom)
            start[nodes[nodes >= 0]] = (1 - share) * moved[nodes >= 0] + share * nominal
        return start

    def _inherent_share(self, temperature: Array) -> Array:
        if self.mode == "benchmark":
            return np.ones(temperature.shape)
        relaxed, ambient = self.material.relaxation_temperature, self.process.machine.ambient
        return np.clip((relaxed - temperature) / (relaxed - ambient), 0.0, 1.0)

    def _equilibrium(self, hierarchy: Hierarchy, state: BuildState) -> tuple[BuildState, Equilibrium]:
        material = self.material
        body = Body(hierarchy, state.reference)
        eigenstrain = np.zeros((len(state.temperature), 6))
        heat = self.material.at("expansion", state.temperature) * (state.temperature - self.process.machine.ambient)
        eigenstrain[:, :3] = heat[:, None]
        eigenstrain[body.level.plate_cells :, :3] += np.outer(state.inherent, material.inherent_strain)
        if self.mode == "benchmark":
            found = elastic_equilibrium(body, eigenstrain, state.displacement, tolerance=self.tolerance)
            return replace(state, displacement=found.displacement), found
        warm = state.temperature
        metal = PlasticState(
            state.plastic_strain,
            state.hardening,
            young=material.at("young", warm),
            poisson=material.poisson,
            yield_stress=material.at("yield", warm) if material.yield_curve else np.full(warm.shape, np.inf),
            hardening=material.hardening,
        )
        found, flowed = plastic_equilibrium(body, eigenstrain, state.displacement, metal, tolerance=self.tolerance)
        yielded = replace(state, plastic_strain=flowed.plastic_strain, hardening=flowed.accumulated)
        return replace(yielded, displacement=found.displacement), found

    def _part_nodes(self, hierarchy: Hierarchy) -> NDArray[np.int64]:
        """Return the numbers in `hierarchy` of the part's existing nodes, in the order of `positions`."""
        upper, part = hierarchy.levels[0].upper, self._part.levels[0].upper[: len(hierarchy.levels[0].upper)]
        used = corners_of(hierarchy.solid)
        nodes = np.empty(int(used.sum()), np.int64)
        nodes[part[used]] = upper[used]
        return nodes

    def _frame(self, hierarchy: Hierarchy, state: BuildState, found: Equilibrium, top: int) -> Frame:
        nodes, plate = self._part_nodes(hierarchy), hierarchy.levels[0].plate_cells
        displacement = state.displacement[nodes]
        boxes = len(state.temperature) - plate
        center = von_mises_3d(found.stress[plate:])
        columns = [found.elastic_strain[plate:], found.stress[plate:], center[:, None], state.temperature[plate:, None]]
        mesh = Mesh.from_cells(self.positions[: len(nodes)], {"hexahedron": self.cells[:boxes]})
        averaged = mesh.to_points(np.concatenate(columns, 1))
        strain, stress, mises, temperature = averaged[:, :6], averaged[:, 6:12], averaged[:, 12], averaged[:, 13]
        above = mesh.points[:, 2] + displacement[:, 2] - top * self.size[2] - self.datum
        highest = int(above.argmax())
        interference = max(0.0, float(above[highest])), to_vector(mesh.points[highest])
        fields = displacement, strain, stress, mises, temperature, center
        return Frame(*fields, *interference, found.iterations, found.residual)


def save_state(path: Path, state: BuildState, **extra: Array) -> None:
    """Write a state, and extra arrays beside it, to an NPZ file."""
    with replace_atomically(path) as temporary:
        np.savez(temporary, **{**extra, **vars(state)})


def load_state(path: Path, *extra: str) -> tuple[BuildState, list[Array]]:
    """Read what `save_state` wrote.

    Args:
        path: The NPZ file.
        *extra: Names of the extra arrays to return.

    Raises:
        DataError: The file is damaged.
    """
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            arrays = dict(file)
        more = [arrays.pop(name) for name in extra]
        return BuildState(int(arrays.pop("group")), **arrays), more
    except (OSError, ValueError, KeyError, TypeError, EOFError, BadZipFile):
        raise DataError(f"{path} is damaged; remove {path.parent} to start from scratch") from None


def _find_floating(solid: NDArray[np.bool_]) -> NDArray[np.bool_] | None:
    """Return voxels that no chain of shared faces connects to the plate; None if there are none."""
    numbers, _ = pieces(solid)
    floating = ~np.isin(numbers, np.unique(numbers[:, :, 0])) & solid
    return floating if floating.any() else None


def check_printable(voxels: Voxels) -> tuple[NDArray[np.bool_], tuple[float, float]]:
    """Crop a part to its bounding box in x and y and below its top.

    Returns:
        The solid, and x and y of the low corner of its box.

    Raises:
        DataError: The part is empty, in pieces or off the plate.
    """
    if abs(voxels.origin[2]) > 1e-6 * voxels.size[2]:
        raise DataError(f"the part must stand on the plate z = 0, but its voxels begin at z = {voxels.origin[2]:g} mm")
    solid = one_piece_on_plate(voxels, max_fragments=0.0).solid
    x, y = (np.nonzero(solid.any(axis))[0] for axis in ((1, 2), (0, 2)))
    cropped = np.ascontiguousarray(solid[x[0] : x[-1] + 1, y[0] : y[-1] + 1])
    return cropped, (float(voxels.origin[0] + x[0] * voxels.size[0]), float(voxels.origin[1] + y[0] * voxels.size[1]))

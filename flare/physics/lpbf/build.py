"""A build, layer group by layer group: heat, equilibrium, cool-down, release from the plate.

    result = simulate(voxels, process_preset("ti64-am250"))
    result.released.displacement            # (N, 3) mm at the corners of the voxels, result.positions

or, one group at a time, with a state that is nothing but arrays:

    build = Build(voxels, process)
    state = build.start()
    while state.group < build.groups:
        state, frame = build.advance(state)
        np.savez(f"group{state.group:03d}.npz", **state.arrays())       # State.from_arrays(...) goes on from here
    cooled, released = build.finish(state)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import label
from threadpoolctl import threadpool_limits

from flare.mesh.voxels import Voxels
from flare.physics.lpbf import mechanics, plasticity
from flare.physics.lpbf.grid import Hierarchy, Ints, plate_for
from flare.physics.lpbf.hexahedron import CORNERS, Array, Size
from flare.physics.lpbf.mechanics import Body, Equilibrium, elastic_equilibrium, von_mises, without_rigid_motion
from flare.physics.lpbf.plasticity import plastic_equilibrium
from flare.physics.lpbf.process import Process, process_preset
from flare.physics.lpbf.thermal import faces_of, heat_step, heating
from flare.utils.errors import ConfigError, DataError, nearest

Mode = Literal["benchmark", "refined"]
MODES = ("benchmark", "refined")
TOLERANCES = {"benchmark": mechanics.TOLERANCE, "refined": plasticity.TOLERANCE}
"""Mode -> force left over in each equilibrium, relative to the load."""


@dataclass(frozen=True)
class Frame:
    """Fields at the nodes of the part that exist at one moment: the first n of `Result.positions`."""

    displacement: Array
    """(n, 3) mm."""
    elastic_strain: Array
    """(n, 6): xx, yy, zz, yz, zx, xy, engineering shears; like every field below averaged from the boxes' centres."""
    stress: Array
    """(n, 6) MPa."""
    von_mises: Array
    """(n,) MPa, averaged from the boxes' own von Mises stresses."""
    temperature: Array
    """(n,) °C."""
    centre_von_mises: Array
    """(boxes,) MPa at the centres, before averaging: what peaks are read from."""
    interference: float
    """How far the part stands above its nominal top when the next layer is spread, mm; 0 if it stays below."""
    interference_place: tuple[float, float, float]
    """Nominal position of the highest node, mm."""
    iterations: int
    """Of conjugate gradients."""
    residual: float
    """Force left over, relative to the load."""


@dataclass(frozen=True)
class State:
    """A build after some of its groups. Arrays only; rows are in the order of the build's own numbering."""

    group: int
    """Finished groups."""
    displacement: Array
    """(N, 3) of plate and part."""
    temperature: Array
    """(E,) of plate and part."""
    reference: Array
    """(part boxes, 8, 3) displacement in which each box was added."""
    inherent: Array
    """(part boxes,) share of the inherent strain each box has; 1 in benchmark mode."""
    plastic_strain: Array
    """(E, 6), zero in benchmark mode."""
    hardening: Array
    """(E,) accumulated plastic strain."""
    interference: Array
    """(group, 4) as in `Result`."""
    peak_temperature: Array
    """(group,) of any box at the end of each group, °C."""

    def arrays(self) -> dict[str, NDArray]:
        return {item.name: np.asarray(getattr(self, item.name)) for item in fields(self)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray]) -> State:
        missing = [item.name for item in fields(cls) if item.name not in arrays]
        if missing:
            raise DataError(f"this is no saved state of a build: it has no {', '.join(missing)}")
        group = int(arrays["group"])
        return cls(group, *(np.asarray(arrays[item.name], np.float64) for item in fields(cls) if item.name != "group"))


@dataclass(frozen=True)
class Result:
    """A whole build. Nodes are ordered by the group that made them, so each frame covers a prefix."""

    positions: Array
    """(N, 3) mm, nominal."""
    cells: Ints
    """(E, 8) boxes in VTK order, from the bottom up."""
    frames: list[Frame]
    """After each group, the plate and the groups below still warm; of a resumed build only those since; empty if not
    kept."""
    cooled: Frame
    """All at ambient temperature, still on the plate."""
    released: Frame
    """Off the plate, less the best-fit rigid motion."""
    interference: Array
    """(groups, 4) of each group: height above the nominal top (mm), and x, y, z of the place."""
    peak_temperature: float
    """Of any box at the end of any group, °C."""


def simulate(
    voxels: Voxels,
    process: Process | None = None,
    *,
    mode: Mode = "benchmark",
    on_group: Callable[[int, int, State, Frame], None] | None = None,
    state: State | None = None,
    keep_frames: bool = True,
    tolerance: float | None = None,
) -> Result:
    """Print a part: distortion and residual stress after every layer group, after cooling, after release.

    Args:
        voxels: the part in mm, resting on z = 0, one connected piece.
        process: None is Ti-6Al-4V on the Renishaw AM250.
        mode: "benchmark" is linear with an inherent strain; "refined" adds properties that depend on temperature and
            plastic flow.
        on_group: called as on_group(finished, groups, state, frame) after each group.
        state: go on from here, for the same voxels, process and mode.
        keep_frames: False saves the memory of the frames between.
        tolerance: of the force left over in each equilibrium, relative to the load; None is the mode's own.

    Raises:
        DataError: the voxels are no printable part.
        ConfigError: the process does not fit the voxels.
        NotConverged: a solver did not reach its answer.
    """
    build = Build(voxels, process or process_preset("ti64-am250"), mode=mode, tolerance=tolerance)
    now = build.start() if state is None else build.checked(state)
    frames = []
    with threadpool_limits(1):  # threads of BLAS wait for each other more than they help, and may change a last bit
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
    """One part on one machine; see the module. Nothing of the progress is in here: that is the `State`."""

    def __init__(
        self, voxels: Voxels, process: Process, *, mode: Mode = "benchmark", tolerance: float | None = None
    ) -> None:
        if mode not in MODES:
            raise ConfigError(f"mode={mode!r} is unknown; {nearest(str(mode), MODES)}")
        self.tolerance = TOLERANCES[mode] if tolerance is None else tolerance
        self.solid, self.origin = printable(voxels)
        x, y, z = map(float, voxels.size)
        self.size: Size = (x, y, z)
        self.process, self.mode = process, mode
        ratio = process.group_height / self.size[2]
        self.group_layers = round(ratio)
        if self.group_layers < 1 or abs(ratio - self.group_layers) > 1e-6 * ratio:
            fits = process.group_height / max(1, round(ratio))
            raise ConfigError(
                f"voxels {self.size[2]:g} mm high do not fill a layer group of {process.group_height:g} mm; "
                f"use {fits:g} mm"
            )
        self.plate = plate_for(process.machine.plate_thickness, self.size[2])
        self.groups = -(-self.solid.shape[2] // self.group_layers)
        machine, material = process.machine, process.material
        self._plate_start = machine.ambient if machine.plate_temperature is None else machine.plate_temperature
        swelling = float(self._expansion(np.array(self._plate_start))) * (self._plate_start - machine.ambient)
        confined = (1 + material.poisson) / (1 - material.poisson)
        self.datum = confined * swelling * machine.plate_thickness
        """Height of the warm plate's top above the cold one's, mm; 0 without a heater."""
        self._part = self._hierarchy(self.solid, on_plate=False)
        self.positions = self._part.levels[0].positions
        self.cells = self._part.levels[0].cells

    def start(self) -> State:
        """Nothing printed yet."""
        shapes = [(0, 3), (0,), (0, 8, 3), (0,), (0, 6), (0,), (0, 4), (0,)]
        return State(0, *(np.zeros(shape) for shape in shapes))

    def checked(self, state: State) -> State:
        """The state, if it can be one of this build."""
        if not 0 <= state.group <= self.groups:
            raise DataError(f"the saved state has {state.group} groups, this build {self.groups}")
        boxes = int(self.solid[:, :, : state.group * self.group_layers].sum())
        if len(state.reference) != boxes:
            raise DataError(f"the saved state has {len(state.reference):,} voxels, this build {boxes:,} by then")
        return state

    def advance(self, state: State) -> tuple[State, Frame]:
        """Print the next group."""
        machine, material = self.process.machine, self.process.material
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
        laser = heating(machine, area=volume / height, height=height)
        source = np.where(np.arange(boxes) >= boxes - added, laser.energy / laser.duration / max(added, 1), 0.0)
        heat = heat_step(
            faces_of(hierarchy),
            temperature,
            duration=laser.duration,
            source=source,
            material=material,
            machine=machine,
            curves=self.mode == "refined",
        )

        levelled = self._levelled(hierarchy, old.displacement, bottom, top)
        reference = np.concatenate([state.reference, levelled[level.cells[boxes - added :]]])
        guess = np.concatenate([old.displacement, levelled[len(old.displacement) :]])
        inherent = np.concatenate([state.inherent, self._inherent_share(heat.temperature[boxes - added :])])
        grown = State(
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
        met = np.array([[frame.interference, *frame.interference_place]])
        return _replaced(new, interference=np.concatenate([state.interference, met])), frame

    def finish(self, state: State) -> tuple[Frame, Frame]:
        """Cool to ambient temperature on the plate, then cut the part off."""
        if state.group < self.groups:
            raise DataError(f"{state.group} of {self.groups} groups are printed; advance to the last one first")
        cold = _replaced(state, temperature=np.full_like(state.temperature, self.process.machine.ambient))
        attached = self._hierarchy(self.solid, on_plate=True)
        cold, equilibrium = self._equilibrium(attached, cold)
        cooled = self._frame(attached, cold, equilibrium, self.solid.shape[2])

        plate = attached.levels[0].plate_cells
        free = _replaced(
            cold,
            displacement=cold.displacement[self._part_nodes(attached)],
            temperature=cold.temperature[plate:],
            plastic_strain=cold.plastic_strain[plate:],
            hardening=cold.hardening[plate:],
        )
        free, equilibrium = self._equilibrium(self._part, free)
        free = _replaced(free, displacement=without_rigid_motion(free.displacement, self.positions))
        return cooled, self._frame(self._part, free, equilibrium, self.solid.shape[2])

    def _hierarchy(self, solid: NDArray[np.bool_], *, on_plate: bool) -> Hierarchy:
        material = self.process.material
        return Hierarchy(
            solid,
            self.size,
            self.origin,
            plate=self.plate if on_plate else None,
            young=material.young,
            poisson=material.poisson,
            floating=_floating(solid) if on_plate else None,
            incompatible=self.process.incompatible_modes,
        )

    def _bare_plate(self, hierarchy: Hierarchy) -> State:
        """The plate before the first group, warmed through: held at the sides, it expands only upwards."""
        machine, level = self.process.machine, hierarchy.levels[0]
        count = level.plate_nodes + hierarchy.x[0].size * hierarchy.y[0].size
        displacement = np.zeros((count, 3))
        displacement[:, 2] = self.datum * (1 + level.positions[:count, 2] / machine.plate_thickness)
        cells = level.plate_cells
        return _replaced(
            self.start(),
            displacement=displacement,
            temperature=np.full(cells, self._plate_start),
            plastic_strain=np.zeros((cells, 6)),
            hardening=np.zeros(cells),
        )

    def _levelled(self, hierarchy: Hierarchy, displacement: Array, bottom: int, top: int) -> Array:
        """(N, 3) where the nodes of a new group start: they follow what lies under them at the interface, and come
        back to nominal at the top, where the recoater has levelled the powder. Over powder they start at nominal.
        Nominal is measured from the top of the warm plate, where the machine was zeroed."""
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

    def _expansion(self, temperature: Array) -> Array:
        material = self.process.material
        if self.mode == "refined":
            return material.at("expansion", temperature)
        return np.full(temperature.shape, material.expansion)

    def _inherent_share(self, temperature: Array) -> Array:
        if self.mode == "benchmark":
            return np.ones(temperature.shape)
        relaxed, ambient = self.process.material.relaxation_temperature, self.process.machine.ambient
        return np.clip((relaxed - temperature) / (relaxed - ambient), 0.0, 1.0)

    def _equilibrium(self, hierarchy: Hierarchy, state: State) -> tuple[State, Equilibrium]:
        material = self.process.material
        body = Body(hierarchy, state.reference, young=material.young, poisson=material.poisson)
        eigenstrain = np.zeros((len(state.temperature), 6))
        heat = self._expansion(state.temperature) * (state.temperature - self.process.machine.ambient)
        eigenstrain[:, :3] = heat[:, None]
        eigenstrain[body.level.plate_cells :, :3] += np.outer(state.inherent, material.inherent_strain)
        if self.mode == "benchmark":
            found = elastic_equilibrium(body, eigenstrain, state.displacement, tolerance=self.tolerance)
            return _replaced(state, displacement=found.displacement), found
        warm = state.temperature
        found, flowed = plastic_equilibrium(
            body,
            eigenstrain,
            state.displacement,
            plastic_strain=state.plastic_strain,
            accumulated=state.hardening,
            young=material.at("young", warm),
            poisson=material.poisson,
            yield_stress=material.at("yield", warm) if material.yield_curve else np.full(warm.shape, np.inf),
            hardening=material.hardening,
            tolerance=self.tolerance,
        )
        changes = {"plastic_strain": flowed.plastic_strain, "hardening": flowed.accumulated}
        return _replaced(state, displacement=found.displacement, **changes), found

    def _part_nodes(self, hierarchy: Hierarchy) -> NDArray[np.int64]:
        """Number in `hierarchy` of the part's nodes that exist there, in the order of `positions`."""
        upper, part = hierarchy.levels[0].upper, self._part.levels[0].upper[: len(hierarchy.levels[0].upper)]
        solid = hierarchy.solid
        used = np.zeros(upper.shape, bool)
        for a, b, c in CORNERS:
            used[c : c + solid.shape[0], b : b + solid.shape[1], a : a + solid.shape[2]] |= solid
        nodes = np.empty(int(used.sum()), np.int64)
        nodes[part[used]] = upper[used]
        return nodes

    def _frame(self, hierarchy: Hierarchy, state: State, found: Equilibrium, top: int) -> Frame:
        nodes, plate = self._part_nodes(hierarchy), hierarchy.levels[0].plate_cells
        displacement = state.displacement[nodes]
        boxes = len(state.temperature) - plate
        centre = von_mises(found.stress[plate:])
        columns = [found.elastic_strain[plate:], found.stress[plate:], centre[:, None], state.temperature[plate:, None]]
        averaged = _averaged(np.concatenate(columns, 1), self.cells[:boxes], len(nodes))
        position = self.positions[: len(nodes)]
        above = position[:, 2] + displacement[:, 2] - top * self.size[2] - self.datum
        highest = int(above.argmax())
        x, y, z = map(float, position[highest])
        return Frame(
            displacement,
            averaged[:, :6],
            averaged[:, 6:12],
            averaged[:, 12],
            averaged[:, 13],
            centre,
            max(0.0, float(above[highest])),
            (x, y, z),
            found.iterations,
            found.residual,
        )


def _replaced(state: State, **changes: Array) -> State:
    return State(**{**{item.name: getattr(state, item.name) for item in fields(state)}, **changes})


def _averaged(values: Array, cells: Ints, nodes: int) -> Array:
    """(nodes, columns) mean of the boxes around each node."""
    flat, count = cells.ravel(), np.bincount(cells.ravel(), minlength=nodes)
    columns = [np.bincount(flat, np.repeat(column, 8), nodes) / count for column in values.T]
    return np.stack(columns, 1)


def _floating(solid: NDArray[np.bool_]) -> NDArray[np.bool_] | None:
    """Voxels that no chain of shared faces ties to the plate; None if there are none."""
    pieces, count = label(solid)
    tied = np.isin(pieces, np.unique(pieces[:, :, 0]))
    return None if count == 0 or tied.all() else ~tied & solid


def printable(voxels: Voxels) -> tuple[NDArray[np.bool_], tuple[float, float]]:
    """The solid cropped to its bounding box in x and y and below its top, and the low corner of that box.

    Raises:
        DataError: it is empty, in pieces, off the plate, or no such array at all.
    """
    solid, size, origin = np.asarray(voxels.solid), np.asarray(voxels.size, float), np.asarray(voxels.origin, float)
    if solid.ndim != 3 or solid.dtype != np.bool_:
        raise DataError(f"the voxels have shape {solid.shape} and type {solid.dtype}; (nx, ny, nz) bool is needed")
    if size.shape != (3,) or not (np.isfinite(size).all() and (size > 0).all()):
        raise DataError(f"voxel size {voxels.size}: three finite lengths above zero are needed, in mm")
    if origin.shape != (3,) or not np.isfinite(origin).all():
        raise DataError(f"voxel origin {voxels.origin}: three finite numbers are needed, in mm")
    if not solid.any():
        raise DataError(f"the part is empty: none of its {solid.size:,} voxels is solid")
    if abs(origin[2]) > 1e-6 * size[2] or not solid[:, :, 0].any():
        lowest = origin[2] + size[2] * int(np.nonzero(solid.any((0, 1)))[0][0])
        raise DataError(f"the part does not touch the plate: its lowest voxel is at z = {lowest:g} mm, not 0; move it")
    pieces, count = label(solid)
    if count > 1:
        sizes = np.sort(np.bincount(pieces.ravel())[1:])[::-1]
        raise DataError(
            f"the part is in {count} pieces that share no face ({sizes[0]:,} voxels and {sizes[1:].sum():,} in the "
            f"others); keep the largest, or use smaller voxels"
        )
    (x, y, z) = (np.nonzero(solid.any(axis))[0] for axis in ((1, 2), (0, 2), (0, 1)))
    cropped = solid[x[0] : x[-1] + 1, y[0] : y[-1] + 1, : z[-1] + 1]
    return np.ascontiguousarray(cropped), (float(origin[0] + x[0] * size[0]), float(origin[1] + y[0] * size[1]))

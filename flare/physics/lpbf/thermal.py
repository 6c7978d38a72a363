"""Heat in the part and its plate: ρc ∂T/∂t = ∇·(k∇T) + Q, finite volumes, one implicit step per layer group.

A layer group is scanned in t_scan = layers · area / (hatch · speed) and takes t = layers · dwell + t_scan in all; the
laser leaves η P t_scan in it, spread evenly. Every exposed face loses heat to the gas. Powder carries none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from flare.errors import NotConverged
from flare.physics.lpbf.grid import Hierarchy, owner_of
from flare.physics.lpbf.hexahedron import Array
from flare.physics.lpbf.process import Machine, Material

TOLERANCE = 1e-12  # of the residual against the heat that flows; the energy balance closes to this


@dataclass(frozen=True)
class Heating:
    """What the laser does to one layer group."""

    duration: float
    """s, scanning and dwell."""
    energy: float
    """J absorbed."""


def heating(machine: Machine, *, area: float, height: float) -> Heating:
    """Time and energy of a group of mean cross-section `area` (mm²) and `height` (mm)."""
    layers = height / machine.layer
    scan = layers * area / (machine.hatch * machine.speed)
    return Heating(layers * machine.dwell + scan, machine.absorptivity * machine.power * scan)


@dataclass(frozen=True)
class Faces:
    """Which boxes touch, and which faces are bare. Lengths in mm, boxes in the order of the finest level."""

    first: NDArray[np.int64]
    second: NDArray[np.int64]
    area: Array
    first_distance: Array
    """From the face to the centre of the first box."""
    second_distance: Array
    bare: NDArray[np.int64]
    """Boxes with a bare face, once per face."""
    bare_area: Array
    bare_distance: Array
    bottom: NDArray[np.bool_]
    """Whether a bare face is the plate's bottom."""
    volumes: Array


def faces_of(hierarchy: Hierarchy) -> Faces:
    """All faces of the part on its plate, or of the part alone."""
    inner: list[tuple[NDArray[np.int64], NDArray[np.int64], Array, Array, Array]] = []
    bare: list[tuple[NDArray[np.int64], Array, Array, bool]] = []
    finest = hierarchy.levels[0]

    def side_by_side(numbers: NDArray[np.int64], widths: Array, areas: Array, axis: int) -> None:
        """Neighbours along an axis of a lattice of boxes; −1 is powder, and so is what lies outside."""
        numbers, areas = np.moveaxis(numbers, axis, -1), np.moveaxis(areas, axis, -1)
        low, high = numbers[..., :-1], numbers[..., 1:]
        distance = np.broadcast_to(widths / 2, numbers.shape)
        both = (low >= 0) & (high >= 0)
        inner.append((low[both], high[both], areas[..., :-1][both], distance[..., :-1][both], distance[..., 1:][both]))
        padded = np.pad(numbers, [(0, 0)] * (numbers.ndim - 1) + [(1, 1)], constant_values=-1)
        for other in (padded[..., :-2], padded[..., 2:]):
            alone = (numbers >= 0) & (other < 0)
            bare.append((numbers[alone], areas[alone], distance[alone], False))

    x, y = np.diff(hierarchy.x[0]), np.diff(hierarchy.y[0])
    z = np.full(len(hierarchy.solid), hierarchy.size[2])
    part = np.full(hierarchy.solid.shape, -1, np.int64)
    part[hierarchy.solid] = finest.plate_cells + np.arange(hierarchy.solid.sum())
    area_x = np.broadcast_to(y[:, None] * z[:, None, None], part.shape)
    area_y = np.broadcast_to(x * z[:, None, None], part.shape)
    area_z = np.broadcast_to(y[:, None] * x, part.shape)
    side_by_side(part, x, area_x, 2)
    side_by_side(part, y, area_y, 1)
    if not hierarchy.plate:
        side_by_side(part, z, area_z, 0)
    else:
        top = np.arange(finest.plate_cells - y.size * x.size, finest.plate_cells).reshape(1, y.size, x.size)
        heights = np.concatenate([[hierarchy.depth(0)], z])
        side_by_side(np.concatenate([top, part]), heights, np.broadcast_to(area_z[:1], (1 + z.size, y.size, x.size)), 0)
        below = bare.pop(-2)  # the lower face of the top plate layer is not bare: plate goes on under it
        hidden = below[0] < finest.plate_cells
        bare.insert(-1, (below[0][~hidden], below[1][~hidden], below[2][~hidden], False))
        above, above_height, first = top[0], hierarchy.depth(0), int(top[0, 0, 0])
        for plane in range(hierarchy.plate.layers):
            wx, wy = np.diff(hierarchy.x[plane]), np.diff(hierarchy.y[plane])
            if plane:
                count = (hierarchy.y[plane - 1].size - 1) * (hierarchy.x[plane - 1].size - 1)
                first -= count
                lower_height = hierarchy.depth(plane) - hierarchy.depth(plane - 1)
                wx, wy = np.diff(hierarchy.x[plane - 1]), np.diff(hierarchy.y[plane - 1])
                layer = np.arange(first, first + count).reshape(wy.size, wx.size)
                owner_x = np.arange(wx.size) if plane == 1 else owner_of(hierarchy.keep_x[plane - 2])
                owner_y = np.arange(wy.size) if plane == 1 else owner_of(hierarchy.keep_y[plane - 2])
                upper = above.ravel()
                under = layer[owner_y[:, None], owner_x].ravel()
                area = np.outer(
                    np.diff(hierarchy.y[max(plane - 2, 0)]), np.diff(hierarchy.x[max(plane - 2, 0)])
                ).ravel()
                half_up, half_down = np.full(area.size, above_height / 2), np.full(area.size, lower_height / 2)
                inner.append((upper, under, area, half_up, half_down))
                above, above_height = layer, lower_height
            side_by_side(above, wx, np.broadcast_to(wy[:, None] * above_height, above.shape), 1)
            side_by_side(above, wy, np.broadcast_to(wx * above_height, above.shape), 0)
        bare.append((above.ravel(), np.outer(wy, wx).ravel(), np.full(above.size, above_height / 2), True))
    first_box, second_box, area, first_distance, second_distance = (np.concatenate(a) for a in zip(*inner, strict=True))
    return Faces(
        first_box,
        second_box,
        area,
        first_distance,
        second_distance,
        np.concatenate([b[0] for b in bare]),
        np.concatenate([b[1] for b in bare]),
        np.concatenate([b[2] for b in bare]),
        np.concatenate([np.full(len(b[0]), b[3]) for b in bare]),
        finest.volumes[finest.kinds],
    )


@dataclass(frozen=True)
class Heat:
    """A finished step."""

    temperature: Array
    """(E,), °C."""
    stored: float
    """J taken up by the boxes."""
    lost: float
    """J that left through bare faces and the heater; negative where the heater gives."""
    iterations: int


def heat_step(
    faces: Faces,
    temperature: Array,
    *,
    duration: float,
    source: Array,
    material: Material,
    machine: Machine,
    curves: bool = False,
) -> Heat:
    """One backward-Euler step, (C/t + K + H) T = C T_old/t + H T_gas + q.

    Args:
        faces: of the boxes that exist now.
        temperature: (E,) before the step, °C.
        duration: s.
        source: (E,) W.
        material: conductivity and heat capacity.
        machine: gas and heater.
        curves: properties at the temperature before the step (refined mode) instead of constants.

    Raises:
        NotConverged: the linear solve did not reach its tolerance.
    """
    size = temperature.size
    k = (material.at("conductivity", temperature) if curves else np.full(size, material.conductivity)) * 1e-3
    c = material.at("specific_heat", temperature) if curves else np.full(size, material.specific_heat)
    capacity = material.density * 1e-9 * c * faces.volumes  # J/K
    between = faces.area / (faces.first_distance / k[faces.first] + faces.second_distance / k[faces.second])
    heated = faces.bottom & (machine.plate_temperature is not None)
    film = np.full(faces.bare.size, machine.convection * 1e-6)
    with np.errstate(divide="ignore"):
        resistance = np.where(heated, 0.0, 1 / film) + faces.bare_distance / k[faces.bare]
    outward = faces.bare_area / resistance
    outside = np.where(heated, machine.plate_temperature or 0.0, machine.ambient)

    loss = np.bincount(faces.bare, outward, size)
    diagonal = capacity / duration + loss
    diagonal += np.bincount(faces.first, between, size) + np.bincount(faces.second, between, size)
    rows = np.concatenate([np.arange(size), faces.first, faces.second])
    columns = np.concatenate([np.arange(size), faces.second, faces.first])
    matrix = csr_array((np.concatenate([diagonal, -between, -between]), (rows, columns)), shape=(size, size))
    right = capacity / duration * temperature + source + np.bincount(faces.bare, outward * outside, size)
    # Solved as a change from the old temperature, so that a uniform state with nothing to do stays exact.
    change, iterations = _solve(matrix, diagonal, right - matrix @ temperature)
    new = temperature + change
    stored = float(capacity @ change)
    lost = float(outward @ (new[faces.bare] - outside)) * duration
    return Heat(new, stored, lost, iterations)


def _solve(matrix: csr_array, diagonal: Array, right: Array) -> tuple[Array, int]:
    """Conjugate gradients, preconditioned by the diagonal."""
    x, residual = np.zeros_like(right), right.copy()
    scale, limit = float(np.abs(right).sum()), 20 * int(right.size ** (1 / 3)) + 500
    direction, previous = np.zeros_like(right), 1.0
    for iteration in range(limit):
        if float(np.abs(residual).sum()) <= TOLERANCE * scale:
            return x, iteration
        step = residual / diagonal
        energy = float(residual @ step)
        direction = step + (energy / previous if iteration else 0.0) * direction
        product = matrix @ direction
        length = energy / float(direction @ product)
        x += length * direction
        residual -= length * product
        previous = energy
    raise NotConverged(f"the temperature did not converge in {limit} iterations")

"""Heat in the part and its plate: ρc ∂T/∂t = ∇·(k∇T) + Q, finite volumes, one implicit step per layer group.

A layer group is scanned in t_scan = layers · area / (hatch · speed) and takes t = layers · dwell + t_scan. The laser
deposits η P t_scan in it, uniformly. Every exposed face loses heat to the gas. Powder does not conduct.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from flare.physics.lpbf.grid import Hierarchy
from flare.physics.lpbf.hexahedron import Array
from flare.physics.lpbf.process import Machine, Material
from flare.utils.errors import NotConverged

Numbers = NDArray[np.int64]

TOLERANCE = 1e-12  # residual relative to the heat flow; the energy balance closes to this


@dataclass(frozen=True)
class GroupHeating:
    """Duration and energy of one layer group."""

    duration: float
    """Scanning and dwell time in s."""
    energy: float
    """Absorbed energy in J."""


def group_heating(machine: Machine, *, area: float, height: float) -> GroupHeating:
    """Compute time and energy of a group of mean cross-section `area` (mm²) and `height` (mm)."""
    layers = height / machine.layer
    scan = layers * area / (machine.hatch * machine.speed)
    return GroupHeating(layers * machine.dwell + scan, machine.absorptivity * machine.power * scan)


@dataclass(frozen=True)
class BoxFaces:
    """Faces between boxes and bare faces. Lengths in mm, boxes in the order of the finest level."""

    first: Numbers
    second: Numbers
    area: Array
    first_distance: Array
    """Distance from the face to the center of the first box."""
    second_distance: Array
    bare: Numbers
    """Boxes with a bare face, once per face."""
    bare_area: Array
    bare_distance: Array
    bottom: NDArray[np.bool_]
    """Whether a bare face is the plate's bottom."""
    volumes: Array


class _Collector:
    """Faces found so far: between two boxes, and bare."""

    def __init__(self) -> None:
        self.inner: list[tuple[NDArray, ...]] = []
        self.bare: list[tuple[Numbers, Array, Array, bool]] = []

    def along(self, axis: int, boxes: Numbers, widths: Array, areas: Array, *, standing: bool = False) -> None:
        """Add the faces across one axis of a lattice of boxes, with −1 for powder.

        Everything outside the lattice is powder, except the low end of boxes that are `standing` on something.
        """
        boxes, areas = np.moveaxis(boxes, axis, -1), np.moveaxis(np.broadcast_to(areas, boxes.shape), axis, -1)
        distance = np.broadcast_to(widths / 2, boxes.shape)
        outside = np.full((*boxes.shape[:-1], 1), -1)
        padded = np.concatenate([outside + standing, boxes, outside], -1)
        solid, joined = boxes >= 0, (boxes[..., :-1] >= 0) & (boxes[..., 1:] >= 0)
        low, high = np.s_[..., :-1], np.s_[..., 1:]
        pairs = (boxes[low], boxes[high], areas[high], distance[low], distance[high])
        self.inner.append(tuple(values[joined] for values in pairs))
        for neighbor in (padded[..., :-2], padded[..., 2:]):
            alone = solid & (neighbor < 0)
            self.bare.append((boxes[alone], areas[alone], distance[alone], False))


def find_faces(hierarchy: Hierarchy) -> BoxFaces:
    """Find all faces of the part on its plate, or of the part alone."""
    found, finest = _Collector(), hierarchy.levels[0]
    x, y, height = np.diff(hierarchy.x[0]), np.diff(hierarchy.y[0]), hierarchy.size[2]
    part = np.full(hierarchy.solid.shape, -1, np.int64)
    part[hierarchy.solid] = finest.plate_cells + np.arange(hierarchy.solid.sum())
    found.along(2, part, x, y[:, None] * height)
    found.along(1, part, y, x * height)
    layers = hierarchy.plate_layers()
    if not layers:
        found.along(0, part, np.full(len(part), height), np.outer(y, x))
    else:
        stack = np.concatenate([layers[0].boxes[None], part])
        heights = np.concatenate([[layers[0].height], np.full(len(part), height)])
        found.along(0, stack, heights, np.outer(y, x), standing=True)
        for layer in layers:
            found.along(1, layer.boxes, layer.x, layer.y[:, None] * layer.height)
            found.along(0, layer.boxes, layer.y, layer.x * layer.height)
        for layer, below in pairwise(layers):
            under = below.boxes[layer.row_below[:, None], layer.column_below].ravel()
            half = np.full((2, under.size), [[layer.height / 2], [below.height / 2]])
            found.inner.append((layer.boxes.ravel(), under, np.outer(layer.y, layer.x).ravel(), half[0], half[1]))
        last = layers[-1]
        half_last = np.full(last.boxes.size, last.height / 2)
        found.bare.append((last.boxes.ravel(), np.outer(last.y, last.x).ravel(), half_last, True))
    inner = [np.concatenate(column) for column in zip(*found.inner, strict=True)]
    bare, bare_area, bare_distance = (np.concatenate([face[i] for face in found.bare]) for i in range(3))
    bottom = np.concatenate([np.full(len(face[0]), face[3]) for face in found.bare])
    first, second, area, near, far = inner
    volumes = finest.volumes[finest.kinds]
    return BoxFaces(first, second, area, near, far, bare, bare_area, bare_distance, bottom, volumes)


@dataclass(frozen=True)
class HeatStep:
    """Result of one time step."""

    temperature: Array
    """In °C, shape (E,)."""
    stored: float
    """Energy taken up by the boxes in J."""
    lost: float
    """Energy lost through bare faces and the heater in J; negative if the heater supplies energy."""


def heat_step(
    faces: BoxFaces, temperature: Array, *, duration: float, source: Array, material: Material, machine: Machine
) -> HeatStep:
    """Take one backward-Euler step, (C/t + K + H) T = C T_old/t + H T_gas + q.

    Args:
        faces: Faces of the boxes that exist now.
        temperature: Temperature before the step in °C, shape (E,).
        duration: Time step in s.
        source: Heat source in W, shape (E,).
        material: Conductivity and heat capacity, at the temperature before the step.
        machine: Gas and heater.

    Raises:
        NotConverged: The linear solver did not reach its tolerance.
    """
    size = temperature.size
    k = material.at("conductivity", temperature) * 1e-3
    capacity = material.density * 1e-9 * material.at("specific_heat", temperature) * faces.volumes  # J/K
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
    # Solve for the change of temperature, so that a uniform state stays exact.
    change = _solve(matrix, diagonal, right - matrix @ temperature)
    new = temperature + change
    stored = float(capacity @ change)
    lost = float(outward @ (new[faces.bare] - outside)) * duration
    return HeatStep(new, stored, lost)


def _solve(matrix: csr_array, diagonal: Array, right: Array) -> Array:
    """Solve by conjugate gradients with a diagonal preconditioner."""
    x, residual = np.zeros_like(right), right.copy()
    # Iterations grow with the longest path through the boxes, which in a thin wall is far above their cube root.
    scale, limit = float(np.abs(right).sum()), 500 + right.size
    direction, previous = np.zeros_like(right), 1.0
    for iteration in range(limit):
        if float(np.abs(residual).sum()) <= TOLERANCE * scale:
            return x
        step = residual / diagonal
        energy = float(residual @ step)
        direction = step + (energy / previous if iteration else 0.0) * direction
        product = matrix @ direction
        length = energy / float(direction @ product)
        x += length * direction
        residual -= length * product
        previous = energy
    raise NotConverged(f"the temperature did not converge in {limit} iterations")

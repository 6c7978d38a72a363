"""Transonic flow around a wing section on a C-mesh."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import ArrayLike

from flare.physics.airfoil.dual import Array, DualMesh, Indices, dual_mesh, structured_cells
from flare.physics.airfoil.euler import GAMMA, free_stream, mach_number
from flare.physics.airfoil.mesh import c_mesh
from flare.physics.airfoil.steady import SteadyFlow, steady_flow
from flare.utils.errors import DataError

COARSE_TARGET = 1e-3
"""Residual at which the flow on a coarser mesh is good enough to begin with."""
DRIFT = 1e-5
"""Of lift and drag coefficients in the last step, at most."""


@dataclass(frozen=True)
class Flow:
    """Steady flow at the nodes of a C-mesh, in units of the far field's density and pressure. (I, J) are its nodes."""

    points: Array
    """(I, J, 2), in chords."""
    density: Array
    """(I, J)."""
    velocity: Array
    """(I, J, 2), in units of √(p∞/ρ∞)."""
    pressure: Array
    """(I, J)."""
    mach: Array
    """(I, J)."""
    lift: float
    """Coefficient: force across the far flow / (½ ρ∞ u∞² chord)."""
    drag: float
    """Coefficient: force along the far flow / (½ ρ∞ u∞² chord)."""
    residual: float
    """Of that of uniform flow."""
    steps: int
    """Of Newton's method, on the finest mesh."""


def solve(points: ArrayLike, *, mach: float = 0.8, alpha: float = 0.0, target: float = 1e-8) -> Flow:
    """Steady flow of a perfect gas, γ = 1.4, without friction, around the wing section inside a C-mesh.

    Where a mesh of every second node still has the wake and both sides of the section whole, the flow there is found
    first, roughly, and begun with.

    Args:
        points: (I, J, 2) nodes, of `c_mesh` for example: j outwards, i counterclockwise; the nodes (i, 0) and
            (I−1−i, 0) coincide along the wake, up to the trailing edge.
        mach: of the far field.
        alpha: angle of attack in degrees.
        target: residual to reach, of that of uniform flow.

    Raises:
        DataError: the array is no C-mesh, or cells are folded.
        NotConverged: the residual or the forces did not settle.
    """
    grid = np.asarray(points, dtype=np.float64)
    if not (mach > 0 and np.isfinite([mach, alpha]).all() and target > 0):
        raise DataError(f"mach={mach}, alpha={alpha}, target={target}: all finite, mach and target above zero, please")
    numbers, mesh = _dual_of(grid)
    far, dynamic_pressure = free_stream(mach, alpha), GAMMA * mach**2 / 2
    flow = _settle(grid, numbers, mesh, far, target=target, drift=DRIFT * dynamic_pressure)
    across, along = np.array([-far[2], far[1]]), far[1:3]
    coefficient = flow.w[mesh.wall, 3] @ mesh.wall_normals / (dynamic_pressure * mach * np.sqrt(GAMMA))
    w = flow.w[numbers]
    return Flow(
        points=grid,
        density=w[..., 0],
        velocity=w[..., 1:3],
        pressure=w[..., 3],
        mach=mach_number(w),
        lift=float(coefficient @ across),
        drag=float(coefficient @ along),
        residual=flow.residual,
        steps=flow.steps,
    )


def compile_loops() -> None:
    """A rough flow on a coarse mesh, by way of every compiled loop."""
    _, mesh = _dual_of(c_mesh(resolution="half"))
    steady_flow(mesh, free_stream(0.8, 0.0), target=0.5)


def _dual_of(grid: Array) -> tuple[Indices, DualMesh]:
    """(I, J) numbers of the nodes, equal where nodes coincide, and the dual mesh."""
    wake = _wake_cells(grid)
    rows = len(grid)
    numbers = np.arange(rows * grid.shape[1]).reshape(grid.shape[:2])
    numbers[rows - 1 - wake :, 0] = numbers[wake::-1, 0]
    kept, numbers = np.unique(numbers, return_inverse=True)
    wall = np.zeros(len(kept), dtype=bool)
    wall[numbers[wake : rows - wake, 0]] = True
    return numbers, dual_mesh(grid.reshape(-1, 2)[kept], structured_cells(numbers), wall)


def _wake_cells(grid: Array) -> int:
    """Number of cells along the wake."""
    if grid.ndim != 3 or grid.shape[2] != 2 or min(grid.shape[:2]) < 3 or not np.isfinite(grid).all():
        raise DataError(f"points have shape {grid.shape}; give the finite nodes of a C-mesh, (I, J, 2), as c_mesh does")
    same = (grid[:, 0] == grid[::-1, 0]).all(axis=1)
    wake = int(np.argmin(same)) - 1
    if same.all() or wake < 1:
        raise DataError("points are no C-mesh: the nodes (0, 0), (1, 0) … and (I−1, 0), (I−2, 0) … must coincide")
    return wake


def _settle(
    grid: Array, numbers: Indices, mesh: DualMesh, far: Array, *, target: float, drift: float = inf
) -> SteadyFlow:
    """The steady flow, begun on a coarser mesh where there is one."""
    start = None
    if (np.array([*grid.shape[:2], _wake_cells(grid) + 1]) % 2 == 1).all():
        coarse = grid[::2, ::2]
        coarse_numbers, coarse_mesh = _dual_of(coarse)
        rough = _settle(coarse, coarse_numbers, coarse_mesh, far, target=COARSE_TARGET)
        start = np.empty((len(mesh.points), 4))
        start[numbers] = _between(_between(rough.w[coarse_numbers], axis=0), axis=1)
    return steady_flow(mesh, far, start=start, target=target, drift=drift)


def _between(values: Array, *, axis: int) -> Array:
    """A new value in the middle of any two along an axis: n become 2n − 1."""
    v = np.moveaxis(values, axis, 0)
    finer = np.empty((2 * len(v) - 1, *v.shape[1:]))
    finer[::2], finer[1::2] = v, (v[:-1] + v[1:]) / 2
    return np.moveaxis(finer, 0, axis)

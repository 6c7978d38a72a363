"""Transonic flow around an airfoil on a C-mesh."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from flare.data.benchmarks.cards import card
from flare.data.sample import Sample, Schema
from flare.physics.airfoil.dual import Array, DualMesh, Indices, dual_mesh, structured_cells
from flare.physics.airfoil.euler import GAMMA, free_stream, mach_number
from flare.physics.airfoil.geometry import c_mesh, grid_shape, random_displacements
from flare.physics.airfoil.newton import SteadyFlow, steady_flow
from flare.physics.grids import check_stride, every, insert_means
from flare.utils.errors import ConfigError, DataError

COARSE_TARGET = 1e-3
"""Residual to reach on a coarser mesh that provides the initial state."""
FORCE_TOLERANCE = 1e-5


@dataclass(frozen=True)
class AirfoilFlow:
    """Steady flow at the nodes (I, J) of a C-mesh, in units of the far field's density and pressure."""

    points: Array
    """Node positions in chords, shape (I, J, 2)."""
    density: Array
    """Shape (I, J)."""
    velocity: Array
    """Shape (I, J, 2), in units of √(p∞/ρ∞)."""
    pressure: Array
    """Shape (I, J)."""
    mach: Array
    """Shape (I, J)."""
    lift: float
    """Lift coefficient: force across the far flow / (½ ρ∞ u∞² chord)."""
    drag: float
    """Drag coefficient: force along the far flow / (½ ρ∞ u∞² chord)."""
    residual: float
    """Residual relative to that of uniform flow."""
    steps: int
    """Newton steps on the finest mesh."""


def solve(
    points: ArrayLike,
    *,
    mach: float = 0.8,
    alpha: float = 0.0,
    target: float = 1e-8,
    force_tolerance: float = FORCE_TOLERANCE,
) -> AirfoilFlow:
    """Compute the steady inviscid flow of a perfect gas, γ = 1.4, around the airfoil inside a C-mesh.

    If every second node also makes a C-mesh, the flow is first solved there, roughly, as the initial state.

    Args:
        points: Nodes, shape (I, J, 2), as `c_mesh` returns them: j outwards, i counterclockwise. The nodes (i, 0) and
            (I−1−i, 0) coincide along the wake, up to the trailing edge.
        mach: Mach number of the far field.
        alpha: Angle of attack in degrees.
        target: Residual to reach, relative to that of uniform flow.
        force_tolerance: Largest change of lift and drag coefficients in the last step.

    Raises:
        DataError: The array is not a C-mesh, or cells are folded.
        NotConverged: The residual or the forces did not converge.
    """
    grid = np.asarray(points, dtype=np.float64)
    if not 0 < mach < inf:
        raise DataError(f"mach={mach}: must be positive and finite")
    numbers, mesh = _build_dual_mesh(grid)
    far, dynamic_pressure = free_stream(mach, alpha), GAMMA * mach**2 / 2
    flow = _solve_steady(grid, numbers, mesh, far, target=target, force_tolerance=force_tolerance * dynamic_pressure)
    across, along = np.array([-far[2], far[1]]), far[1:3]
    coefficient = flow.w[mesh.wall, 3] @ mesh.wall_normals / (dynamic_pressure * mach * np.sqrt(GAMMA))
    w = flow.w[numbers]
    return AirfoilFlow(
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


def _build_dual_mesh(grid: Array) -> tuple[Indices, DualMesh]:
    """Return the node numbers, shape (I, J), equal where nodes coincide, and the dual mesh."""
    wake = _count_wake_cells(grid)
    rows = len(grid)
    numbers = np.arange(rows * grid.shape[1]).reshape(grid.shape[:2])
    numbers[rows - 1 - wake :, 0] = numbers[wake::-1, 0]
    kept, numbers = np.unique(numbers, return_inverse=True)
    wall = np.zeros(len(kept), dtype=bool)
    wall[numbers[wake : rows - wake, 0]] = True
    return numbers, dual_mesh(grid.reshape(-1, 2)[kept], structured_cells(numbers), wall)


def _count_wake_cells(grid: Array) -> int:
    """Return the number of cells along the wake."""
    if grid.ndim != 3 or grid.shape[2] != 2:
        raise DataError(f"points have shape {grid.shape}; they must be (I, J, 2), as c_mesh returns")
    same = (grid[:, 0] == grid[::-1, 0]).all(axis=1)
    wake = int(np.argmin(same)) - 1
    if same.all() or wake < 1:
        raise DataError("points are not a C-mesh: the nodes (0, 0), (1, 0) … and (I−1, 0), (I−2, 0) … must coincide")
    return wake


def _solve_steady(
    grid: Array, numbers: Indices, mesh: DualMesh, far: Array, *, target: float, force_tolerance: float = inf
) -> SteadyFlow:
    """Solve for the steady flow, starting from a coarser mesh if there is one."""
    start = None
    if (np.array([*grid.shape[:2], _count_wake_cells(grid) + 1]) % 2 == 1).all():
        coarse = grid[::2, ::2]
        coarse_numbers, coarse_mesh = _build_dual_mesh(coarse)
        rough = _solve_steady(coarse, coarse_numbers, coarse_mesh, far, target=COARSE_TARGET)
        start = np.empty((len(mesh.points), 4))
        start[numbers] = insert_means(insert_means(rough.w[coarse_numbers], 0), 1)
    return steady_flow(mesh, far, start=start, target=target, force_tolerance=force_tolerance)


@dataclass(frozen=True, kw_only=True)
class Airfoil:
    """The Airfoil benchmark: points of a mesh around an airfoil -> Mach number. The defaults are its published form."""

    resolution: Literal["full", "half"] = "full"
    """full: 221 x 51 nodes; half: every second of them, 111 x 26, six times faster."""
    stride: int = 1
    """Solve on all nodes and keep every stride-th: 5 leaves 45 x 11, both ends included."""
    residual: float = 1e-8
    """Residual at which the solver stops, relative to that of uniform flow."""

    def __post_init__(self) -> None:
        check_stride(self.stride, grid_shape(self.resolution))
        if not 0 < self.residual <= 1e-4:
            raise ConfigError(f"residual={self.residual}: must be above 0 and at most 1e-4")

    def schema(self) -> Schema:
        """Return the fields and grid of a sample."""
        rows, columns = ((nodes - 1) // self.stride + 1 for nodes in grid_shape(self.resolution))
        return card("airfoil").schema(grid=(rows, columns))

    def sample(self, rng: np.random.Generator) -> Sample:
        """Solve the flow around a random airfoil."""
        displacements = random_displacements(rng)
        flow = solve(c_mesh(displacements, resolution=self.resolution), target=self.residual)
        fields = {name: getattr(flow, name) for name in ("points", "mach", "density", "velocity", "pressure")}
        numbers = {name: getattr(flow, name) for name in ("lift", "drag", "residual", "steps")}
        notes = {"displacements": displacements.tolist(), **numbers}
        return Sample(every(self.stride, fields), notes=notes)

    def prepare(self) -> None:
        """Compile the solver's loops before worker processes start, by solving a rough flow on a coarse mesh."""
        solve(c_mesh(resolution="half"), target=0.5, force_tolerance=np.inf)

    def provenance(self) -> dict[str, Any]:
        """Return how the dataset was made."""
        return {"kind": "recreated", "generator": "flare.physics.airfoil"}

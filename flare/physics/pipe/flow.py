"""Steady incompressible flow: (v·∇)v = −∇p + ν∇²v, ∇·v = 0, by Newton's method from the Stokes flow.

The density is 1. Borders without prescribed velocity are free: ν ∂v/∂n − p n = 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csc_array
from scipy.sparse.linalg import SuperLU, splu

from flare.data.benchmarks.cards import card
from flare.data.sample import Sample, Schema
from flare.physics.grids import check_stride, every, insert_means
from flare.physics.pipe.geometry import check_nodes, mesh, random_parameters
from flare.physics.pipe.taylor_hood import TaylorHoodElements
from flare.utils.errors import ConfigError, DataError, NotConverged

Array = NDArray[np.float64]

TOLERANCE = 1e-10  # of the residual, relative to that of the prescribed velocities and zero elsewhere
MAX_NEWTON_STEPS = 12  # the pipes of the benchmark take 3 or 4


@dataclass(frozen=True)
class PipeFlow:
    """Steady flow on the I × J nodes of a mesh."""

    points: Array
    """Node positions, shape (I, J, 2)."""
    u: Array
    """Velocity along x, shape (I, J)."""
    v: Array
    """Velocity along y, shape (I, J)."""
    p: Array
    """Pressure over density, shape (I, J): solved at every second node of every second line, bilinear between them."""
    residuals: tuple[float, ...]
    """Relative residual of the Stokes flow and after every Newton step; the last is below 1e-10."""


def solve(points: ArrayLike, *, viscosity: float = 0.005) -> PipeFlow:
    """Solve for the flow through a pipe with no slip at both walls, a horizontal inflow and a free outlet.

    The inflow is u = t(1−t) with t the share of the inlet's width, of maximum 1/4 and flux 1/6 for width 1.

    Args:
        points: Nodes, shape (I, J, 2), I and J odd, indexed [along the pipe from the inlet, across from wall to wall].
        viscosity: ν. The Reynolds number of the benchmark is 0.25 / ν = 50.

    Raises:
        DataError: `points` has the wrong shape, is not finite or is folded.
        ConfigError: Another argument is invalid.
        NotConverged: Newton's method failed.
    """
    x = _checked_points(points)
    across = np.linalg.norm(x[0] - x[0, 0], axis=1)
    t = across / across[-1]
    prescribed = np.full(x.shape, np.nan)
    prescribed[0, :, 0] = t * (1 - t)
    prescribed[0, :, 1] = 0.0
    prescribed[:, [0, -1]] = 0.0
    return navier_stokes(x, prescribed, viscosity=viscosity)


def navier_stokes(points: ArrayLike, prescribed: ArrayLike, *, viscosity: float) -> PipeFlow:
    """Solve for the flow in any domain that a grid can be mapped to.

    Args:
        points: Nodes, shape (I, J, 2), I and J odd; two steps each way span an element.
        prescribed: Given velocities, NaN where unknown, shape (I, J, 2). If the whole border is given, the pressure is
            fixed to zero at node [0, 0], where any remaining flux leaves.
        viscosity: ν, positive.

    Raises:
        DataError: An array has the wrong shape, is not finite or is folded.
        NotConverged: The residual is not below 1e-10 after 12 Newton steps; a larger viscosity or finer mesh may help.
    """
    x, given = _checked_points(points), np.asarray(prescribed, dtype=np.float64)
    if given.shape != x.shape:
        raise DataError(f"prescribed has shape {given.shape}, points {x.shape}; they must agree")
    if not 0 < viscosity < np.inf:
        raise ConfigError(f"viscosity={viscosity}: must be positive and finite")

    elements = TaylorHoodElements(x, viscosity)
    count = x.shape[0] * x.shape[1]
    state, fixed = np.zeros(elements.topology.size), np.zeros(elements.topology.size, dtype=bool)
    fixed[: 2 * count] = np.isfinite(np.moveaxis(given, -1, 0)).ravel()
    state[: 2 * count] = np.nan_to_num(np.moveaxis(given, -1, 0)).ravel()
    fixed[2 * count] = np.isfinite(given[[0, -1]]).all() and np.isfinite(given[:, [0, -1]]).all()

    state, residuals = _newton(elements, state, fixed)
    u, v = state[: 2 * count].reshape(2, *x.shape[:2])
    pressure = state[2 * count :].reshape(x.shape[0] // 2 + 1, -1)
    return PipeFlow(x, u, v, insert_means(insert_means(pressure, 0), 1), residuals)


def _newton(elements: TaylorHoodElements, state: Array, fixed: NDArray[np.bool_]) -> tuple[Array, tuple[float, ...]]:
    """Iterate from a state with the fixed values to a solution for all others; return it and the residuals."""
    order = elements.topology.order
    scale = float(np.linalg.norm(elements.equations(state)[0][~fixed])) or 1.0
    residuals: list[float] = []
    for step in range(MAX_NEWTON_STEPS + 2):  # the first one solves the Stokes equations
        residual, derivative = elements.equations(state, inertia=step > 0)
        residual[fixed] = 0.0
        if step > 0:
            residuals.append(float(np.linalg.norm(residual)) / scale)
        converged = step > 1 and residuals[-1] <= TOLERANCE
        if not converged:
            factors = _factors(elements.assemble(derivative, fixed))
        state[order] -= factors.solve(residual[order])
        if converged:  # this last correction, with the existing factors, is exact to rounding
            return state, tuple(residuals)
    raise NotConverged(f"residual {residuals[-1]:.1e} of Newton's method; use a larger viscosity or a finer mesh")


def _factors(matrix: csc_array) -> SuperLU:
    """Factorize with pivots on the diagonal: in this order they are good at any viscosity, and others would cause
    fill."""
    try:
        return splu(matrix, permc_spec="NATURAL", diag_pivot_thresh=0.0)
    except RuntimeError:  # a pivot is exactly zero
        raise NotConverged("singular equations; prescribe more velocities on the border or fewer inside") from None


def _checked_points(points: ArrayLike) -> Array:
    x = np.asarray(points, dtype=np.float64)
    if x.ndim != 3 or x.shape[2] != 2 or min(x.shape[:2]) < 3 or x.shape[0] % 2 == 0 or x.shape[1] % 2 == 0:
        raise DataError(f"points has shape {x.shape}; must be (I, J, 2) with I and J odd, 3 or more")
    if not np.isfinite(x).all():
        raise DataError("points is not finite everywhere")
    return x


@dataclass(frozen=True, kw_only=True)
class Pipe:
    """The Pipe benchmark: shape of a pipe -> horizontal velocity. The defaults are its published form."""

    nodes: int = 129
    """Nodes along the pipe and across it, odd: (nodes - 1) / 2 elements each way. 65 takes a sixth of the time."""
    stride: int = 1
    """Solve on all nodes and keep every stride-th: 49 nodes and 2 leave 25 x 25, both ends included."""
    viscosity: float = 0.005
    """Kinematic viscosity; the Reynolds number is 0.25 over this, 50."""

    def __post_init__(self) -> None:
        check_nodes(self.nodes)
        check_stride(self.stride, (self.nodes, self.nodes))
        if not 0 < self.viscosity < np.inf:
            raise ConfigError(f"viscosity={self.viscosity}: must be positive and finite")

    def schema(self) -> Schema:
        """Return the fields and grid of a sample."""
        kept = (self.nodes - 1) // self.stride + 1
        return card("pipe").schema(grid=(kept, kept))

    def sample(self, rng: np.random.Generator) -> Sample:
        """Solve the flow through a random pipe."""
        parameters = random_parameters(rng)
        flow = solve(mesh(parameters, nodes=self.nodes), viscosity=self.viscosity)
        fields = {"points": flow.points, "velocity": flow.u, "cross_velocity": flow.v, "pressure": flow.p}
        notes = {"parameters": parameters.tolist(), "steps": len(flow.residuals) - 1, "residual": flow.residuals[-1]}
        return Sample(every(self.stride, fields), notes=notes)

    def provenance(self) -> dict[str, Any]:
        """Return how the dataset was made."""
        return {"kind": "recreated", "generator": "flare.physics.pipe"}

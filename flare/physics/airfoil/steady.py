"""Steady flow by Newton's method, with pseudo time steps that grow as the residual falls.

Each step solves  (S / CFL + ∂R/∂q) δ = −R,  S the wave speeds of the nodes (volume / time step at CFL = 1), by GMRES.
That takes ∂R/∂q times vectors only: difference quotients of the second-order residual. The first-order Jacobian,
incompletely factorised, preconditions it. Time steps of an explicit scheme would number ten thousand; these, twenty.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from flare.physics.airfoil.dual import Array, DualMesh
from flare.physics.airfoil.euler import add_first_order_jacobian, conserved, primitive, residual, wave_speeds
from flare.physics.airfoil.linear import Pattern, factorise, gmres, pattern_of, solve_factorised
from flare.utils.errors import NotConverged

SOFTNESS = 8.0
"""Of the limiter. At 1 it also flattens slopes around the nose, and NACA-0012 gets more drag; at 12 the Mach number
overshoots before its shock. Chosen in between, by lift and largest Mach number."""

FIRST_CFL = 10.0
LAST_CFL = 1e8
LEAST_CFL = 0.01
EAGER = 1.4  # growth of CFL over the fall of the residual, in a step of full length
FASTEST = 10.0  # growth of CFL in a step
REDUCTION = 0.1  # of a linear residual
KRYLOV = 100  # iterations of GMRES at most; most steps need 20 to 40, a few shapes all
NUDGE = 1e-8  # of q, root mean square, for difference quotients
LARGEST_CHANGE = 0.3  # of density or pressure in a step
LARGEST_RISE = 1.5  # of the residual in a step: it need not fall while a shock is under way to its place
SHORTEST = 1 / 64  # of a step, before CFL is lowered instead


@dataclass(frozen=True)
class SteadyFlow:
    """Where and how Newton's method ended."""

    w: Array
    """(P, 4) ρ, u, v, p at the nodes."""
    residual: float
    """‖R‖, of the one that uniform flow has."""
    steps: int


def steady_flow(
    mesh: DualMesh,
    far: Array,
    *,
    start: Array | None = None,
    target: float = 1e-8,
    drift: float = inf,
    softness: float = SOFTNESS,
    most: int = 100,
) -> SteadyFlow:
    """The flow in which nothing changes, with the given far state.

    Args:
        far: (4,) primitive values ρ, u, v, p at open boundaries.
        start: (P, 4) primitive values to begin with; None for uniform flow.
        target: stop at this fraction of the residual of uniform flow ...
        drift: ... once a step changes no component of the force on the walls by more than this.
        softness: of the limiter, see `euler`; large values switch it off.
        most: steps at most.

    Raises:
        NotConverged: after that many steps, or where no time step is small enough.
    """
    problem = _Problem(mesh, far, softness, pattern_of(len(mesh.points), mesh.edges))
    uniform = np.tile(conserved(far), (len(mesh.points), 1))
    scale = float(np.linalg.norm(problem.residual(uniform)))
    q = uniform if start is None else conserved(start)
    r = problem.residual(q)
    norm, force, change = float(np.linalg.norm(r)), _force(mesh, q), inf
    cfl, steps = FIRST_CFL, 0
    while norm > target * scale or change > drift:
        if steps == most or cfl < LEAST_CFL:
            raise NotConverged(
                f"the flow did not converge: residual {norm / scale:.2g}, target {target:g}, after {steps} of at most "
                f"{most} steps, at CFL {cfl:.2g}; deform the shape less or lower the Mach number"
            )
        steps += 1
        direction = _newton_direction(problem, q, r, cfl)
        length, ahead, r_ahead = _line_search(problem, q, r, direction)
        if length == 0:
            cfl /= FASTEST
            continue
        norm_ahead, force_ahead = float(np.linalg.norm(r_ahead)), _force(mesh, ahead)
        growth = np.clip(EAGER * norm / norm_ahead, 1 / 2, FASTEST) if length == 1 else max(length, 1 / 5)
        cfl = min(cfl * float(growth), LAST_CFL)
        change = float(np.abs(force_ahead - force).max(initial=0.0))
        q, r, norm, force = ahead, r_ahead, norm_ahead, force_ahead
    return SteadyFlow(primitive(q), norm / (scale or 1.0), steps)


@dataclass(frozen=True)
class _Problem:
    mesh: DualMesh
    far: Array
    softness: float
    pattern: Pattern

    def residual(self, q: Array) -> Array:
        return residual(self.mesh, self.far, self.softness, q)

    def preconditioner(self, q: Array, inertia: Array) -> Array:
        """Factors of inertia + first-order Jacobian."""
        blocks, diagonal = np.zeros((len(self.pattern.column), 4, 4)), self.pattern.diagonal
        add_first_order_jacobian(self.mesh, self.far, q, blocks, diagonal, self.pattern.slots)
        blocks[diagonal] += inertia[:, None, None] * np.eye(4)
        factorise(self.pattern, blocks)
        return blocks


def _newton_direction(problem: _Problem, q: Array, r: Array, cfl: float) -> Array:
    inertia = wave_speeds(problem.mesh, q) / cfl
    factors = problem.preconditioner(q, inertia)
    nudge = NUDGE * np.linalg.norm(q)

    def apply(v: Array) -> Array:
        h = nudge / np.linalg.norm(v)
        return inertia[:, None] * v + (problem.residual(q + h * v) - r) / h

    def precondition(v: Array) -> Array:
        return solve_factorised(problem.pattern, factors, v)

    return gmres(apply, precondition, -r, reduction=REDUCTION, most=KRYLOV)[0]


def _line_search(problem: _Problem, q: Array, r: Array, direction: Array) -> tuple[float, Array, Array]:
    """The longest of the steps 1, ½, ¼, … that is sound, where it leads and the residual there; length 0 for none."""
    before, norm = primitive(q)[:, [0, 3]], np.linalg.norm(r)
    length = 1.0
    while length >= SHORTEST:
        ahead = q + length * direction
        if (np.abs(primitive(ahead)[:, [0, 3]] / before - 1) <= LARGEST_CHANGE).all():
            r_ahead = problem.residual(ahead)
            if np.linalg.norm(r_ahead) <= LARGEST_RISE * norm:
                return length, ahead, r_ahead
        length /= 2
    return 0.0, q, r


def _force(mesh: DualMesh, q: Array) -> Array:
    """(2,) that the fluid exerts on the walls."""
    return primitive(q[mesh.wall])[:, 3] @ mesh.wall_normals

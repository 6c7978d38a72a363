"""Steady flow by Newton's method, with pseudo time steps that grow as the residual falls.

Each step solves  (S / CFL + ∂R/∂q) δ = −R  by GMRES, where S are the wave speeds of the nodes (volume / time step at
CFL = 1). GMRES needs only products of ∂R/∂q with vectors, which are difference quotients of the second-order residual.
The incomplete LU factors of the first-order Jacobian precondition it. About 20 steps suffice, where an explicit scheme
would need 10,000.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import numpy as np

from flare.physics.airfoil.dual import Array, DualMesh, Indices
from flare.physics.airfoil.euler import add_first_order_jacobian, conserved, primitive, residual, wave_speeds
from flare.utils.errors import NotConverged
from flare.utils.numba_cache import compiled

SOFTNESS = 8.0
"""Softness of the limiter. At 1 it also flattens slopes around the nose and adds drag to NACA-0012; at 12 the Mach
number overshoots before the shock. 8 was chosen by lift and largest Mach number.
"""

FIRST_CFL = 10.0
MAX_CFL = 1e8
MIN_CFL = 0.01
CFL_GROWTH = 1.4  # growth of CFL relative to the fall of the residual, in a full step
MAX_CFL_GROWTH = 10.0  # growth of CFL in one step
REDUCTION = 0.1  # of the linear residual
MAX_KRYLOV = 100  # GMRES iterations; most steps need 20 to 40, a few shapes all
DIFFERENCE_STEP = 1e-8  # root mean square, relative to q, for difference quotients
MAX_CHANGE = 0.3  # relative change of density or pressure in one step
MAX_RESIDUAL_GROWTH = 1.5  # in one step: the residual may rise while a shock moves to its place
MIN_STEP_LENGTH = 1 / 64  # below this CFL is lowered instead


@dataclass(frozen=True)
class SteadyFlow:
    """Final state of Newton's method."""

    w: Array
    """Primitive values ρ, u, v, p at the nodes, shape (P, 4)."""
    residual: float
    """‖R‖ relative to that of uniform flow."""
    steps: int


def steady_flow(
    mesh: DualMesh,
    far: Array,
    *,
    start: Array | None = None,
    target: float = 1e-8,
    force_tolerance: float = inf,
    softness: float = SOFTNESS,
    max_steps: int = 100,
) -> SteadyFlow:
    """Find the steady flow for a given far state.

    Args:
        mesh: Dual mesh.
        far: Primitive values ρ, u, v, p at open boundaries, shape (4,).
        start: Initial primitive values, shape (P, 4). None starts from uniform flow.
        target: Residual to reach, relative to that of uniform flow.
        force_tolerance: Largest change of a component of the force on the walls in the last step.
        softness: Softness of the limiter, see `euler`; large values switch it off.
        max_steps: Largest number of Newton steps.

    Raises:
        NotConverged: The limit of steps is reached, or no time step is small enough.
    """
    problem = _Problem(mesh, far, softness, block_pattern(len(mesh.points), mesh.edges))
    uniform = np.tile(conserved(far), (len(mesh.points), 1))
    scale = float(np.linalg.norm(problem.residual(uniform)))
    q = uniform if start is None else conserved(start)
    r = problem.residual(q)
    norm, force, change = float(np.linalg.norm(r)), _force(mesh, q), inf
    cfl, steps = FIRST_CFL, 0
    while norm > target * scale or change > force_tolerance:
        if steps == max_steps or cfl < MIN_CFL:
            raise NotConverged(f"the flow did not converge: residual {norm / scale:.2g} after {steps} steps")
        steps += 1
        direction = _newton_direction(problem, q, r, cfl)
        length, ahead, r_ahead = _line_search(problem, q, r, direction)
        if length == 0:
            cfl /= MAX_CFL_GROWTH
            continue
        norm_ahead, force_ahead = float(np.linalg.norm(r_ahead)), _force(mesh, ahead)
        growth = np.clip(CFL_GROWTH * norm / norm_ahead, 1 / 2, MAX_CFL_GROWTH) if length == 1 else max(length, 1 / 5)
        cfl = min(cfl * float(growth), MAX_CFL)
        change = float(np.abs(force_ahead - force).max(initial=0.0))
        q, r, norm, force = ahead, r_ahead, norm_ahead, force_ahead
    return SteadyFlow(primitive(q), norm / (scale or 1.0), steps)


@dataclass(frozen=True)
class _Problem:
    mesh: DualMesh
    far: Array
    softness: float
    pattern: BlockPattern

    def residual(self, q: Array) -> Array:
        return residual(self.mesh, self.far, self.softness, q)

    def preconditioner(self, q: Array, inertia: Array) -> Array:
        """Return the incomplete factors of inertia + first-order Jacobian."""
        blocks, diagonal = np.zeros((len(self.pattern.column), 4, 4)), self.pattern.diagonal
        add_first_order_jacobian(self.mesh, self.far, q, blocks, diagonal, self.pattern.slots)
        blocks[diagonal] += inertia[:, None, None] * np.eye(4)
        factorize(self.pattern, blocks)
        return blocks


def _newton_direction(problem: _Problem, q: Array, r: Array, cfl: float) -> Array:
    inertia = wave_speeds(problem.mesh, q) / cfl
    factors = problem.preconditioner(q, inertia)
    nudge = DIFFERENCE_STEP * np.linalg.norm(q)

    def apply(v: Array) -> Array:
        h = nudge / np.linalg.norm(v)
        return inertia[:, None] * v + (problem.residual(q + h * v) - r) / h

    def precondition(v: Array) -> Array:
        return solve_factorized(problem.pattern, factors, v)

    return gmres(apply, precondition, -r, reduction=REDUCTION, max_iterations=MAX_KRYLOV)[0]


def _line_search(problem: _Problem, q: Array, r: Array, direction: Array) -> tuple[float, Array, Array]:
    """Try steps 1, ½, ¼, … and return the first acceptable length with its state and residual; length 0 if none is."""
    before, norm = primitive(q)[:, [0, 3]], np.linalg.norm(r)
    length = 1.0
    while length >= MIN_STEP_LENGTH:
        ahead = q + length * direction
        if (np.abs(primitive(ahead)[:, [0, 3]] / before - 1) <= MAX_CHANGE).all():
            r_ahead = problem.residual(ahead)
            if np.linalg.norm(r_ahead) <= MAX_RESIDUAL_GROWTH * norm:
                return length, ahead, r_ahead
        length /= 2
    return 0.0, q, r


def _force(mesh: DualMesh, q: Array) -> Array:
    """Return the force of the fluid on the walls, shape (2,)."""
    return primitive(q[mesh.wall])[:, 3] @ mesh.wall_normals


class BlockPattern(NamedTuple):
    """Sparsity pattern of a structurally symmetric block matrix: row by row, columns in order."""

    start: Indices
    """First block of each row, and the end, shape (P+1,)."""
    column: Indices
    """Column of each block, shape (B,)."""
    diagonal: Indices
    """Diagonal block of each row, shape (P,)."""
    slots: Indices
    """Blocks of the edges, shape (E, 2): (row of the first node, column of the second) and its transpose."""


def block_pattern(nodes: int, edges: Indices) -> BlockPattern:
    """Build the pattern with a block for every node and for both directions of every edge, (E, 2)."""
    a, b = edges.T
    itself = np.arange(nodes)
    row, column = np.concatenate([itself, a, b]), np.concatenate([itself, b, a])
    order = np.lexsort([column, row])
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    start = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=nodes))])
    return BlockPattern(start, column[order], place[:nodes], place[nodes:].reshape(2, -1).T.copy())


@compiled
def factorize(pattern: BlockPattern, blocks: Array) -> None:
    """Overwrite the blocks (B, 4, 4) by incomplete LU factors without fill; diagonal blocks become their inverses."""
    nodes = len(pattern.diagonal)
    place = np.full(nodes, -1)  # block of each column in this row
    for i in range(nodes):
        for s in range(pattern.start[i], pattern.start[i + 1]):
            place[pattern.column[s]] = s
        for s in range(pattern.start[i], pattern.diagonal[i]):
            k = pattern.column[s]
            blocks[s] = _product(blocks[s], blocks[pattern.diagonal[k]])
            for t in range(pattern.diagonal[k] + 1, pattern.start[k + 1]):
                target = place[pattern.column[t]]
                if target >= 0:
                    blocks[target] -= _product(blocks[s], blocks[t])
        for s in range(pattern.start[i], pattern.start[i + 1]):
            place[pattern.column[s]] = -1
        blocks[pattern.diagonal[i]] = np.linalg.inv(blocks[pattern.diagonal[i]])


@compiled
def solve_factorized(pattern: BlockPattern, factors: Array, b: Array) -> Array:
    """Solve with the factors for a right-hand side b, (P, 4); returns the same shape."""
    x = b.copy()
    for i in range(len(x)):
        for s in range(pattern.start[i], pattern.diagonal[i]):
            _subtract_product(x[i], factors[s], x[pattern.column[s]])
    for i in range(len(x) - 1, -1, -1):
        for s in range(pattern.diagonal[i] + 1, pattern.start[i + 1]):
            _subtract_product(x[i], factors[s], x[pattern.column[s]])
        y0, y1, y2, y3 = x[i, 0], x[i, 1], x[i, 2], x[i, 3]
        inverse = factors[pattern.diagonal[i]]
        for k in range(4):
            x[i, k] = inverse[k, 0] * y0 + inverse[k, 1] * y1 + inverse[k, 2] * y2 + inverse[k, 3] * y3
    return x


@compiled
def _product(a: Array, b: Array) -> Array:
    c = np.empty((4, 4))
    for i in range(4):
        for j in range(4):
            c[i, j] = a[i, 0] * b[0, j] + a[i, 1] * b[1, j] + a[i, 2] * b[2, j] + a[i, 3] * b[3, j]
    return c


@compiled
def _subtract_product(y: Array, a: Array, x: Array) -> None:
    for i in range(4):
        y[i] -= a[i, 0] * x[0] + a[i, 1] * x[1] + a[i, 2] * x[2] + a[i, 3] * x[3]


def gmres(
    apply: Callable[[Array], Array],
    precondition: Callable[[Array], Array],
    b: Array,
    *,
    reduction: float,
    max_iterations: int,
) -> tuple[Array, int]:
    """Solve A x = b from x = 0, preconditioned from the right, until ‖b − A x‖ ≤ reduction · ‖b‖.

    Args:
        apply: v ↦ A v.
        precondition: v ↦ M⁻¹ v, with M near A.
        b: Right-hand side of any shape; x has the same.
        reduction: Relative residual to reach.
        max_iterations: Largest number of iterations. If it is reached, the current x is returned.

    Returns:
        x and the number of iterations.
    """
    norm = float(np.linalg.norm(b))
    basis = np.empty((max_iterations + 1, b.size))
    hessenberg = np.zeros((max_iterations + 1, max_iterations))
    rhs = norm * np.eye(1, max_iterations + 1)[0]
    basis[0] = b.ravel() / norm
    for k in range(1, max_iterations + 1):
        v = apply(precondition(basis[k - 1].reshape(b.shape))).ravel()
        for _ in range(2):  # a second pass removes the rounding error of the first
            along = basis[:k] @ v
            v = v - along @ basis[:k]
            hessenberg[:k, k - 1] += along
        hessenberg[k, k - 1] = np.linalg.norm(v)
        y = np.asarray(np.linalg.lstsq(hessenberg[: k + 1, :k], rhs[: k + 1])[0], dtype=np.float64)
        left = float(np.linalg.norm(hessenberg[: k + 1, :k] @ y - rhs[: k + 1]))
        if left <= reduction * norm or hessenberg[k, k - 1] == 0.0:
            break
        basis[k] = v / hessenberg[k, k - 1]
    return precondition((y @ basis[:k]).reshape(b.shape)), k

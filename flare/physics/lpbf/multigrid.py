"""Conjugate gradients for the displacement, preconditioned by one multigrid V-cycle in single precision.

The operator is never assembled: boxes of one kind share a 24 × 24 matrix, and sixteen of them are multiplied at once,
one per vector lane. Forces of boxes are stored, then summed node by node in a fixed order, so the result has the same
bytes at any number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.linalg import splu

from flare.physics.lpbf.grid import Bools, Hierarchy, Index, Ints, Level
from flare.physics.lpbf.hexahedron import Array
from flare.physics.lpbf.loops import compiled_loop, run_loop
from flare.utils.errors import NotConverged

Floats = NDArray[Any]
Apply = Callable[[Array], Array]

LANES = 16
SMOOTHING = 2  # degree of the Chebyshev polynomial before and after the coarse correction
SMOOTHED = 10.0  # the polynomial damps eigenvalues from 1/10 of the largest to the largest
POWER_ITERATIONS = 10
MAX_DENSE = 1200  # unknowns of the coarsest level up to which a dense inverse is faster


@compiled_loop
def _forces_of_blocks(
    start: int, end: int, x: Floats, cells: Ints, kinds: Ints, matrices: Floats, forces: Floats
) -> None:
    """Set forces[e] = K x[cells[e]] for boxes in blocks of LANES, each block of one kind."""
    inside, outside = np.empty((24, LANES), x.dtype), np.empty((24, LANES), x.dtype)
    for block in range(start, end):
        first = block * LANES
        for lane in range(LANES):
            for corner in range(8):
                node = cells[first + lane, corner]
                for component in range(3):
                    inside[3 * corner + component, lane] = x[node, component]
        matrix = matrices[kinds[block]]
        for i in range(24):
            for lane in range(LANES):
                total = x.dtype.type(0)
                for j in range(24):
                    total += matrix[i, j] * inside[j, lane]
                outside[i, lane] = total
        for lane in range(LANES):
            for i in range(24):
                forces[first + lane, i] = outside[i, lane]


@compiled_loop
def _forces_one_by_one(
    start: int, end: int, x: Floats, cells: Ints, kinds: Ints, matrices: Floats, forces: Floats
) -> None:
    """Do the same for boxes whose kind is too rare to fill a block."""
    inside = np.empty(24, x.dtype)
    for e in range(start, end):
        for corner in range(8):
            for component in range(3):
                inside[3 * corner + component] = x[cells[e, corner], component]
        for i in range(24):
            total = x.dtype.type(0)
            for j in range(24):
                total += matrices[kinds[e], i, j] * inside[j]
            forces[e, i] = total


@compiled_loop
def _sum_at_nodes(start: int, end: int, forces: Floats, slots: Ints, fixed: Bools, y: Floats) -> None:
    """Set y[n] to the sum of the corner forces listed in slots[n] (−1: none), 0 where fixed."""
    zero = forces.dtype.type(0)
    for n in range(start, end):
        a = b = c = zero
        for s in range(slots.shape[1]):
            slot = slots[n, s]
            if slot < 0:
                break
            a += forces[slot, 0]
            b += forces[slot, 1]
            c += forces[slot, 2]
        y[n, 0] = zero if fixed[n, 0] else a
        y[n, 1] = zero if fixed[n, 1] else b
        y[n, 2] = zero if fixed[n, 2] else c


@compiled_loop
def _prolong(start: int, end: int, coarse: Floats, nodes: Ints, weights: Floats, fine: Floats) -> None:
    """Add Σ weights[n, c] coarse[nodes[n, c]] to fine[n]."""
    for n in range(start, end):
        for s in range(8):
            weight = weights[n, s]
            if weight != 0:
                node = nodes[n, s]
                fine[n, 0] += weight * coarse[node, 0]
                fine[n, 1] += weight * coarse[node, 1]
                fine[n, 2] += weight * coarse[node, 2]


@compiled_loop
def _restrict(
    start: int,
    end: int,
    fine: Floats,
    row: NDArray[np.int64],
    nodes: Ints,
    weights: Floats,
    fixed: Bools,
    coarse: Floats,
) -> None:
    """Apply the transpose of `_prolong`, row by row of the coarse nodes; 0 where fixed."""
    zero = coarse.dtype.type(0)
    for n in range(start, end):
        a = b = c = zero
        for s in range(row[n], row[n + 1]):
            a += weights[s] * fine[nodes[s], 0]
            b += weights[s] * fine[nodes[s], 1]
            c += weights[s] * fine[nodes[s], 2]
        coarse[n, 0] = zero if fixed[n, 0] else a
        coarse[n, 1] = zero if fixed[n, 1] else b
        coarse[n, 2] = zero if fixed[n, 2] else c


def sum_at_nodes(forces: Floats, slots: Ints, fixed: Bools) -> Floats:
    """Sum corner forces (E, 24) at the nodes, shape (N, 3); 0 where fixed."""
    y = np.empty(fixed.shape, forces.dtype)
    run_loop(_sum_at_nodes, len(slots), forces.reshape(-1, 3), slots, fixed, y)
    return y


class Operator:
    """y = K x on one level, matrix-free; rows and columns of fixed displacements are zero."""

    def __init__(self, level: Level, dtype: type[np.floating[Any]]) -> None:
        order, count, rank = _sorted_groups(level.kinds, len(level.matrices))
        in_blocks = rank < np.repeat(count // LANES * LANES, count)
        self.order = np.concatenate([order[in_blocks], order[~in_blocks]])
        """Box at each position of `cells`."""
        self.cells = np.ascontiguousarray(level.cells[self.order])
        kinds = level.kinds[self.order]
        self.blocked = int(in_blocks.sum())
        self.block_kinds = np.ascontiguousarray(kinds[: self.blocked : LANES])
        self.kinds = np.ascontiguousarray(kinds)
        self.matrices = level.matrices.astype(dtype)
        self.fixed = level.fixed
        self.slots = node_slots(self.cells, len(level.positions))
        self.forces = np.empty((len(self.cells), 24), dtype)

    def box_forces(self, x: Floats) -> Floats:
        """Return the force of every box on its corners in the order of `cells`, shape (E, 24). The next call
        overwrites it."""
        blocks, arrays = self.blocked // LANES, (self.matrices, self.forces)
        run_loop(_forces_of_blocks, blocks, x, self.cells, self.block_kinds, *arrays, min_rows=150)
        _forces_one_by_one(self.blocked, len(self.cells), x, self.cells, self.kinds, *arrays)
        return self.forces

    def __call__(self, x: Floats) -> Floats:
        return sum_at_nodes(self.box_forces(x), self.slots, self.fixed)

    def diagonal(self) -> Floats:
        """Return the diagonal of K, 1 where fixed, shape (N, 3)."""
        own = np.diagonal(self.matrices, axis1=1, axis2=2)[self.kinds]
        y = sum_at_nodes(np.ascontiguousarray(own), self.slots, self.fixed)
        y[self.fixed] = 1
        return y


def node_slots(cells: Ints, nodes: int) -> Ints:
    """Return the flat (box, corner) numbers around each node, ascending, filled with −1, shape (N, most boxes at a
    node)."""
    flat = cells.ravel()
    order, count, rank = _sorted_groups(flat, nodes)
    slots = np.full((nodes, int(count.max())), -1, np.int32)
    slots[flat[order], rank] = order
    return slots


def _sorted_groups(numbers: Ints, groups: int) -> tuple[Index, Index, Index]:
    """Return a stable order that sorts by group number, the size of each group, and the rank of each in its group."""
    count, order = np.bincount(numbers, minlength=groups), np.argsort(numbers, kind="stable")
    return order, count, np.arange(order.size) - np.repeat(np.cumsum(count) - count, count)


class _Smoothed:
    """One level of the V-cycle: its operator, its smoother, and the transfer to the next level."""

    def __init__(self, level: Level, coarse_fixed: Bools) -> None:
        self.operator = Operator(level, np.float32)
        self.inverse_diagonal = 1 / self.operator.diagonal()
        self.largest = _largest_eigenvalue(self.operator, self.inverse_diagonal)
        self.nodes, self.weights = level.parent_nodes, level.parent_weights.astype(np.float32)
        used = np.nonzero(self.weights.ravel())[0]
        parent = self.nodes.ravel()[used]
        order = used[np.argsort(parent, kind="stable")]
        self.start = np.concatenate([[0], np.cumsum(np.bincount(parent, minlength=len(coarse_fixed)))])
        self.children, self.child_weights = (order // 8).astype(np.int32), self.weights.ravel()[order]
        self.coarse_fixed = coarse_fixed

    def smooth(self, x: Floats | None, b: Floats) -> Floats:
        """Apply a Chebyshev iteration on D⁻¹K; x = None starts from zero and saves a product."""
        center, half = self.largest * (1 + 1 / SMOOTHED) / 2, self.largest * (1 - 1 / SMOOTHED) / 2
        step = np.zeros_like(b)
        rho = half / center
        for sweep in range(SMOOTHING):
            residual = b if x is None else b - self.operator(x)
            if sweep == 0:
                step = self.inverse_diagonal * residual * np.float32(1 / center)
            else:
                following = 1 / (2 * center / half - rho)
                step = np.float32(following * rho) * step
                step += np.float32(2 * following / half) * (self.inverse_diagonal * residual)
                rho = following
            x = step if x is None else x + step
        assert x is not None
        return x

    def restrict(self, x: Floats) -> Floats:
        y = np.empty(self.coarse_fixed.shape, np.float32)
        run_loop(_restrict, len(y), x, self.start, self.children, self.child_weights, self.coarse_fixed, y)
        return y


def _largest_eigenvalue(operator: Operator, inverse_diagonal: Floats) -> float:
    """Estimate the largest eigenvalue of D⁻¹K by a few power iterations, plus 10 %."""
    x = np.sin(1.0 + np.arange(inverse_diagonal.size, dtype=np.float64) ** 2).astype(np.float32)
    x = np.where(operator.fixed, np.float32(0), x.reshape(inverse_diagonal.shape))
    for _ in range(POWER_ITERATIONS):
        x = inverse_diagonal * operator(x / np.linalg.norm(x))
    return 1.1 * float(np.linalg.norm(x))


class Multigrid:
    """One symmetric V-cycle as an approximate inverse. Without supports it is a pseudo-inverse."""

    def __init__(self, hierarchy: Hierarchy) -> None:
        levels = hierarchy.levels
        self.levels = [_Smoothed(fine, coarse.fixed) for fine, coarse in pairwise(levels)]
        self.coarsest = _direct(levels[-1])

    def __call__(self, residual: Array) -> Array:
        # Scale to one, so that single precision neither overflows nor underflows.
        scale = float(np.abs(residual).max()) or 1.0
        return self._cycle((residual / scale).astype(np.float32), 0).astype(np.float64) * scale

    def _cycle(self, b: Floats, depth: int) -> Floats:
        if depth == len(self.levels):
            return self.coarsest(b)
        level = self.levels[depth]
        x = level.smooth(None, b)
        correction = self._cycle(level.restrict(b - level.operator(x)), depth + 1)
        run_loop(_prolong, len(x), correction, level.nodes, level.weights, x)
        return level.smooth(x, b)


def _direct(level: Level) -> Callable[[Floats], Floats]:
    """Return r -> K⁻¹ r on the coarsest level: a dense pseudo-inverse, or sparse factors if a wide plate has many
    nodes."""
    dofs = (3 * level.cells[:, :, None] + np.arange(3)).reshape(len(level.cells), 24)
    rows, columns = np.repeat(dofs, 24, axis=1).ravel(), np.tile(dofs, (1, 24)).ravel()
    matrix = coo_array((level.matrices[level.kinds].ravel(), (rows, columns)), shape=(level.fixed.size,) * 2).tocsc()
    free = np.nonzero(~level.fixed.ravel())[0]
    matrix = matrix[free][:, free]
    if free.size > MAX_DENSE and level.fixed.any():
        solve = splu(matrix, permc_spec="MMD_AT_PLUS_A", options={"SymmetricMode": True}).solve
    else:
        values, vectors = np.linalg.eigh(matrix.toarray())
        inverse = (vectors * np.where(values > 1e-11 * values[-1], 1 / values, 0.0)) @ vectors.T
        solve = inverse.__matmul__

    def apply(residual: Floats) -> Floats:
        result = np.zeros(residual.size, residual.dtype)
        result[free] = solve(residual.ravel()[free].astype(np.float64))
        return result.reshape(residual.shape)

    return apply


@dataclass(frozen=True)
class LinearSolution:
    """Solution of a linear system."""

    x: Array
    iterations: int
    residual: float
    """Final ‖b − Kx‖ / ‖b‖."""


def conjugate_gradients(
    operator: Apply,
    b: Array,
    x: Array,
    preconditioner: Apply,
    *,
    tolerance: float,
    limit: int = 2000,
    rigid_modes: Array | None = None,
) -> LinearSolution:
    """Solve K x = b from the guess x, to ‖b − Kx‖ ≤ tolerance · ‖b‖.

    Args:
        operator: x -> K x, symmetric, positive semi-definite.
        b: Right-hand side in the range of K, shape (N, 3).
        x: Initial guess, shape (N, 3).
        preconditioner: r -> approximate K⁻¹ r.
        tolerance: Relative to ‖b‖, or to the first residual if b is zero.
        limit: Largest number of iterations.
        rigid_modes: Orthonormal motions without strain, shape (modes, N, 3), which the search excludes.

    Raises:
        NotConverged: The limit was reached.
    """
    residual = b - operator(x)
    size = float(np.linalg.norm(b)) or float(np.linalg.norm(residual)) or 1.0
    direction, previous, change = np.zeros_like(b), 1.0, residual
    for iteration in range(limit + 1):
        norm = float(np.linalg.norm(residual)) / size
        if norm <= tolerance:
            return LinearSolution(x, iteration, norm)
        step = preconditioner(residual)
        if rigid_modes is not None:
            step = step - np.tensordot(np.tensordot(rigid_modes, step, 2), rigid_modes, 1)
        energy = float(np.vdot(residual, step))
        # Polak and Ribière's formula, because the single-precision preconditioner varies slightly between steps.
        beta = 0.0 if iteration == 0 else float(np.vdot(change, step)) / previous
        direction = step + beta * direction
        product = operator(direction)
        length = energy / float(np.vdot(direction, product))
        x = x + length * direction
        change = -length * product
        residual = residual + change
        previous = energy
    raise NotConverged(f"conjugate gradients reached {norm:.2g} instead of {tolerance:g} in {limit} iterations")

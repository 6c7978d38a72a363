"""Taylor-Hood elements on a mapped grid: biquadratic velocity and geometry, bilinear continuous pressure (Q2-Q1).

    ∫ ν ∇v:∇w + γ ∇·v ∇·w + (v·∇)v·w − p ∇·w = 0 for all w,      −∫ q ∇·v = 0 for all q

The bulk viscosity γ = 4ν has no effect on a divergence-free flow. The discrete flow is divergence-free only on average
over every q, and γ keeps the remainder small: on the 64 × 64 elements of the benchmark the flux through any section is
within 0.3 % of the inlet's, which it is not with γ = 0, and v_x is closer to that of a finer mesh.

A grid of I × J nodes, both odd, has (I−1)/2 × (J−1)/2 elements of 3 × 3 velocity nodes; every second node of every
second line has a pressure. The unknowns of a flow are one vector: v_x at the I·J nodes, then v_y, then the pressures.

Nested dissection orders the elimination: the grid is cut in two along a line between elements. Unknowns on one side
share no element with those on the other, so each half is eliminated by itself, cut in the same way, and the line comes
last. On the benchmark's grid factorization takes half the time of SuperLU's minimum-degree order.

    E elements, each with Q quadrature points, A = 9 velocity nodes, V = 2A velocities, C = 4 pressures and L = V + C
    unknowns; D, K = 2 directions
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csc_array

from flare.utils.errors import DataError

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

GAUSS = 3  # quadrature points each way; a fourth would change the flow in a pipe by 3e-7
BULK_VISCOSITY = 4.0  # γ/ν
SMALLEST_BOX = 2  # nodes along the longer side of a box that is not divided


@dataclass(frozen=True)
class Topology:
    """Sparsity structure that all meshes of one shape share."""

    nodes_EA: Indices
    """Nodes of every element, as indices into the I·J nodes."""
    unknowns_EL: Indices
    """Unknowns of every element: v_x at its nodes, v_y, its pressures."""
    size: int
    """Total number of unknowns."""
    order: Indices
    """Elimination order of the unknowns, shape (size,); rows and columns of the matrix follow it."""
    rows: Indices
    starts: Indices
    """Matrix compressed by columns: row of every value (`rows`), and start of each column."""
    slots: Indices
    """Value of the sparse matrix to which each entry of an element matrix is added, shape (E·L·L,)."""


@lru_cache(maxsize=4)
def topology(along: int, across: int) -> Topology:
    """Return the structure of a grid of `along` × `across` nodes."""
    node = np.arange(along * across).reshape(along, across)
    pressure = 2 * node.size + np.arange((along // 2 + 1) * (across // 2 + 1)).reshape(along // 2 + 1, -1)
    nodes_EA = _patches(node, width=3, step=2)
    unknowns_EL = np.concatenate([nodes_EA, nodes_EA + node.size, _patches(pressure, width=2, step=1)], axis=1)

    order = elimination_order(node, pressure)
    place_EL = np.argsort(order)[unknowns_EL]
    entries, slots = np.unique((order.size * place_EL[:, None, :] + place_EL[:, :, None]).ravel(), return_inverse=True)
    starts = np.searchsorted(entries, order.size * np.arange(order.size + 1))
    return Topology(nodes_EA, unknowns_EL, order.size, order, entries % order.size, starts, slots)


def elimination_order(velocity: Indices, pressure: Indices) -> Indices:
    """Return the unknowns of a flow in elimination order, shape (size,).

    In a box the pressures come after the velocities, because their diagonal is zero before.

    Args:
        velocity: Unknown v_x of every node, shape (I, J); its v_y comes I·J after it.
        pressure: Unknown of every second node of every second line, shape (I//2+1, J//2+1).
    """
    groups: list[Indices] = []
    for i, i_end, j, j_end in _boxes(0, velocity.shape[0], 0, velocity.shape[1]):
        v = velocity[i:i_end, j:j_end].ravel()
        p = pressure[(i + 1) // 2 : (i_end + 1) // 2, (j + 1) // 2 : (j_end + 1) // 2].ravel()
        groups += [v, v + velocity.size, p]
    return np.concatenate(groups)


def _boxes(i: int, i_end: int, j: int, j_end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the boxes of nodes [i, i_end) × [j, j_end) that make up this one, each after all that it separates."""
    if i >= i_end or j >= j_end:
        return
    if max(i_end - i, j_end - j) <= SMALLEST_BOX:
        yield i, i_end, j, j_end
    elif i_end - i >= j_end - j:
        cut = (i + i_end) // 4 * 2  # even, as lines between elements are
        yield from _boxes(i, cut, j, j_end)
        yield from _boxes(cut + 1, i_end, j, j_end)
        yield cut, cut + 1, j, j_end
    else:
        cut = (j + j_end) // 4 * 2
        yield from _boxes(i, i_end, j, cut)
        yield from _boxes(i, i_end, cut + 1, j_end)
        yield i, i_end, cut, cut + 1


class TaylorHoodElements:
    """Discrete Navier-Stokes equations on one mesh.

    Args:
        points: Nodes, shape (I, J, 2), I and J odd.
        viscosity: ν.

    Raises:
        DataError: An element is folded.
    """

    def __init__(self, points: Array, viscosity: float) -> None:
        self.topology = topology(points.shape[0], points.shape[1])
        position, weight = np.polynomial.legendre.leggauss(GAUSS)
        (n2, dn2), (n1, _) = _lagrange(np.array([-1.0, 0.0, 1.0]), position), _lagrange(np.array([-1.0, 1.0]), position)
        self.shape_QA, pressure_QC = np.kron(n2, n2), np.kron(n1, n1)
        slope_KQA = np.stack([np.kron(dn2, n2), np.kron(n2, dn2)])

        # In an element x = Σ N_a(ξ) x_a, hence ∇N = (∂x/∂ξ)⁻ᵀ ∂N/∂ξ at every quadrature point.
        x_EAD = points.reshape(-1, 2)[self.topology.nodes_EA]
        x_EAD = x_EAD - x_EAD[:, 4:5]  # relative to its center: an element is small and may be far from the origin
        jacobian_EQDK = np.einsum("ead,kqa->eqdk", x_EAD, slope_KQA, optimize=True)
        det_EQ = np.linalg.det(jacobian_EQDK)
        folded = (det_EQ * np.sign(det_EQ[0, 0]) <= 0).any(axis=1)
        if folded.any():
            raise DataError(f"{folded.sum():,} of {folded.size:,} elements are folded; grid lines must not cross")
        self.weight_EQ = np.abs(det_EQ) * np.kron(weight, weight)
        self.gradient_EDQA = np.einsum("eqkd,kqa->edqa", np.linalg.inv(jacobian_EQDK), slope_KQA, optimize=True)

        # The 2A shape functions of a velocity, (N_a, 0) and (0, N_a), have the divergence ∂N_a/∂x and ∂N_a/∂y.
        div_EQV = self.gradient_EDQA.transpose(0, 2, 1, 3).reshape(-1, len(self.shape_QA), 18)
        weighted_EVQ = (self.weight_EQ[..., None] * div_EQV).transpose(0, 2, 1)
        divergence_EVC = weighted_EVQ @ pressure_QC
        viscous_EVV = BULK_VISCOSITY * weighted_EVQ @ div_EQV
        gradients = self.gradient_EDQA.reshape(-1, 2 * len(self.shape_QA), 9)
        laplace_EAA = (gradients * np.tile(self.weight_EQ, 2)[..., None]).transpose(0, 2, 1) @ gradients
        viscous_EVV[:, :9, :9] += laplace_EAA
        viscous_EVV[:, 9:, 9:] += laplace_EAA
        zero_ECC = np.zeros((len(x_EAD), 4, 4))
        self.linear_ELL = np.block(
            [[viscosity * viscous_EVV, -divergence_EVC], [-divergence_EVC.transpose(0, 2, 1), zero_ECC]]
        )

    def equations(self, state: Array, *, inertia: bool = True) -> tuple[Array, Array]:
        """Evaluate the left-hand sides of the equations and their derivative.

        Args:
            state: Velocities and pressures, shape (size,).
            inertia: False leaves out (v·∇)v, which gives the linear Stokes equations.

        Returns:
            One value per unknown, shape (size,), and the element contributions to the derivative, shape (E, L, L).
        """
        local_EL = state[self.topology.unknowns_EL]
        v_EDA = local_EL[:, :18].reshape(-1, 2, 9)
        # Velocities relative to an element's center have the same derivatives with less rounding error.
        relative_EDA = v_EDA - v_EDA[..., 4:5]
        matrix_ELL = self.linear_ELL.copy()
        unknowns_EL1 = np.concatenate([relative_EDA.reshape(-1, 18), local_EL[:, 18:]], axis=1)[..., None]
        residual_EL = (matrix_ELL @ unknowns_EL1)[..., 0]
        if inertia:
            v_EDQ = v_EDA @ self.shape_QA.T
            gradient_EAP = self.gradient_EDQA.reshape(len(v_EDA), -1, 9).transpose(0, 2, 1)
            grad_v_EDKQ = (relative_EDA @ gradient_EAP).reshape(len(v_EDA), 2, 2, -1)  # ∂v_d/∂x_k
            weight_E1Q = self.weight_EQ[:, None]
            acceleration_EDQ = np.einsum("ekq,edkq->edq", weight_E1Q * v_EDQ, grad_v_EDKQ)  # (v·∇)v
            residual_EL[:, :18] += (acceleration_EDQ @ self.shape_QA).reshape(-1, 18)
            # Its derivative: (v·∇)N_b, the same for both components, and N_b ∂v_d/∂x_k.
            carried_EAA = self.shape_QA.T @ np.einsum("edq,edqa->eqa", weight_E1Q * v_EDQ, self.gradient_EDQA)
            matrix_ELL[:, :9, :9] += carried_EAA
            matrix_ELL[:, 9:18, 9:18] += carried_EAA
            products_QB = np.einsum("qa,qb->qab", self.shape_QA, self.shape_QA).reshape(-1, 81)
            mixed_EDKAA = ((weight_E1Q[:, None] * grad_v_EDKQ) @ products_QB).reshape(-1, 2, 2, 9, 9)
            matrix_ELL[:, :18, :18] += mixed_EDKAA.transpose(0, 1, 3, 2, 4).reshape(-1, 18, 18)
        residual = np.bincount(self.topology.unknowns_EL.ravel(), residual_EL.ravel(), self.topology.size)
        return np.asarray(residual, dtype=np.float64), matrix_ELL

    def assemble(self, matrix_ELL: Array, fixed: NDArray[np.bool_]) -> csc_array:
        """Sum the element matrices, with rows and columns in `topology.order`.

        Args:
            matrix_ELL: Element matrices.
            fixed: Unknowns with given values, shape (size,): their equation reads "correction = 0".
        """
        top = self.topology
        fixed_EL = fixed[top.unknowns_EL]
        values_ELL = np.where(fixed_EL[:, :, None] | fixed_EL[:, None, :], 0.0, matrix_ELL)
        values_ELL[:, range(22), range(22)] += fixed_EL
        values = np.bincount(top.slots, values_ELL.ravel(), top.rows.size)
        return csc_array((values, top.rows, top.starts), shape=(top.size, top.size))


def _patches(grid: Indices, *, width: int, step: int) -> Indices:
    """Return the squares of `width` × `width` nodes that begin at every `step`-th node, shape (E, width²)."""
    windows = np.lib.stride_tricks.sliding_window_view(grid, (width, width))[::step, ::step]
    return windows.reshape(-1, width * width)


def _lagrange(nodes: Array, position: Array) -> tuple[Array, Array]:
    """Return values and slopes of the Lagrange polynomials, both (positions, nodes)."""
    basis = [np.poly1d(np.delete(nodes, a), r=True) / np.prod(x - np.delete(nodes, a)) for a, x in enumerate(nodes)]
    return np.stack([b(position) for b in basis], 1), np.stack([b.deriv()(position) for b in basis], 1)

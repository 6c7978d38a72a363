"""Taylor-Hood elements on a mapped grid: biquadratic velocity and geometry, bilinear continuous pressure (Q2-Q1).

    ∫ ν ∇v:∇w + γ ∇·v ∇·w + (v·∇)v·w − p ∇·w = 0 for all w,      −∫ q ∇·v = 0 for all q

The bulk viscosity γ = 4ν does nothing to a flow without divergence. Ours has none only on average, as seen by every q,
and γ keeps small what is left: on the 64 × 64 elements of the benchmark the flux through any section is then within
0.3 % of the inlet's, which it is not with γ = 0, and v_x is closer to that of a finer mesh.

A grid of I × J nodes, both odd, has (I−1)/2 × (J−1)/2 elements of 3 × 3 velocity nodes; every second node of every
second line has a pressure. The unknowns of a flow are one vector: v_x at the I·J nodes, then v_y, then the pressures.

    E elements, each with Q quadrature points, A = 9 velocity nodes, V = 2A velocities, C = 4 pressures and L = V + C
    unknowns; D, K = 2 directions
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csc_array

from flare.physics.pipe.dissection import elimination_order
from flare.utils.errors import DataError

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

GAUSS = 3  # quadrature points each way; a fourth would change the flow in a pipe by 3e-7
BULK_VISCOSITY = 4.0  # γ/ν


@dataclass(frozen=True)
class Topology:
    """What all meshes of one shape share, worked out once: all of a sparse matrix but its values."""

    nodes_EA: Indices
    """The nodes of every element, as indices into the I·J nodes."""
    unknowns_EL: Indices
    """The unknowns of every element: v_x at its nodes, v_y, its pressures."""
    size: int
    """Unknowns in total."""
    order: Indices
    """(size,) the order in which to eliminate them; rows and columns of the matrix are in it."""
    rows: Indices
    starts: Indices
    """The matrix compressed by columns: the row of every value, and where the values of each column start."""
    slots: Indices
    """(E·L·L,) to which value of the sparse matrix an entry of an element's matrix is added."""


@lru_cache(maxsize=4)
def topology(along: int, across: int) -> Topology:
    """Of a grid of `along` × `across` nodes."""
    node = np.arange(along * across).reshape(along, across)
    pressure = 2 * node.size + np.arange((along // 2 + 1) * (across // 2 + 1)).reshape(along // 2 + 1, -1)
    nodes_EA = _patches(node, width=3, step=2)
    unknowns_EL = np.concatenate([nodes_EA, nodes_EA + node.size, _patches(pressure, width=2, step=1)], axis=1)

    order = elimination_order(node, pressure)
    place_EL = np.argsort(order)[unknowns_EL]
    entries, slots = np.unique((order.size * place_EL[:, None, :] + place_EL[:, :, None]).ravel(), return_inverse=True)
    starts = np.searchsorted(entries, order.size * np.arange(order.size + 1))
    return Topology(nodes_EA, unknowns_EL, order.size, order, entries % order.size, starts, slots)


class Elements:
    """The elements of one mesh, filled with one fluid: the equations of its flow."""

    def __init__(self, points: Array, viscosity: float) -> None:
        """`points` is (I, J, 2), I and J odd.

        Raises:
            DataError: an element is folded.
        """
        self.topology = topology(points.shape[0], points.shape[1])
        position, weight = np.polynomial.legendre.leggauss(GAUSS)
        (n2, dn2), (n1, _) = _lagrange(np.array([-1.0, 0.0, 1.0]), position), _lagrange(np.array([-1.0, 1.0]), position)
        self.shape_QA, pressure_QC = np.kron(n2, n2), np.kron(n1, n1)
        slope_KQA = np.stack([np.kron(dn2, n2), np.kron(n2, dn2)])

        # In an element x = Σ N_a(ξ) x_a, hence ∇N = (∂x/∂ξ)⁻ᵀ ∂N/∂ξ at every quadrature point.
        x_EAD = points.reshape(-1, 2)[self.topology.nodes_EA]
        x_EAD = x_EAD - x_EAD[:, 4:5]  # from its centre: an element is small and may be far from the origin
        jacobian_EQDK = np.einsum("ead,kqa->eqdk", x_EAD, slope_KQA, optimize=True)
        det_EQ = np.linalg.det(jacobian_EQDK)
        folded = (det_EQ * np.sign(det_EQ[0, 0]) <= 0).any(axis=1)
        if folded.any():
            i, j = divmod(int(folded.argmax()), points.shape[1] // 2)
            raise DataError(
                f"{np.count_nonzero(folded):,} of {folded.size:,} elements of the mesh are folded (first: the one "
                f"around node [{2 * i + 1}, {2 * j + 1}]); lines of nodes must not cross"
            )
        self.weight_EQ = np.abs(det_EQ) * np.kron(weight, weight)
        self.gradient_EDQA = np.einsum("eqkd,kqa->edqa", np.linalg.inv(jacobian_EQDK), slope_KQA, optimize=True)

        # Of the 2A shape functions of a velocity, (N_a, 0) and (0, N_a), the divergence is ∂N_a/∂x and ∂N_a/∂y.
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
        """Left-hand sides of the equations at a flow, and their derivative.

        Args:
            state: (size,) velocities and pressures.
            inertia: False leaves out (v·∇)v: the equations of Stokes, which are linear.

        Returns:
            (size,) one for each unknown; (E, L, L) what the elements add to their derivative.
        """
        local_EL = state[self.topology.unknowns_EL]
        v_EDA = local_EL[:, :18].reshape(-1, 2, 9)
        # Derivatives do not see a constant: with velocities relative to an element's centre they round off less.
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
        """The sum of the elements' matrices, rows and columns in `topology.order`.

        Args:
            fixed: (size,) unknowns that are to stay as they are: an equation of theirs reads "correction = 0".
        """
        top = self.topology
        fixed_EL = fixed[top.unknowns_EL]
        values_ELL = np.where(fixed_EL[:, :, None] | fixed_EL[:, None, :], 0.0, matrix_ELL)
        values_ELL[:, range(22), range(22)] += fixed_EL
        values = np.bincount(top.slots, values_ELL.ravel(), top.rows.size)
        return csc_array((values, top.rows, top.starts), shape=(top.size, top.size))


def _patches(grid: Indices, *, width: int, step: int) -> Indices:
    """(E, width²) the squares of `width` × `width` nodes that begin at every `step`-th node."""
    windows = np.lib.stride_tricks.sliding_window_view(grid, (width, width))[::step, ::step]
    return windows.reshape(-1, width * width)


def _lagrange(nodes: Array, position: Array) -> tuple[Array, Array]:
    """(positions, nodes) values and slopes of the polynomials that are 1 at one node and 0 at the others."""
    basis = [np.poly1d(np.delete(nodes, a), r=True) / np.prod(x - np.delete(nodes, a)) for a, x in enumerate(nodes)]
    return np.stack([b(position) for b in basis], 1), np.stack([b.deriv()(position) for b in basis], 1)

"""Quasi-static equilibrium of what has been printed so far, on its plate or cut off: ∫ Bᵀ σ = 0.

A body holds, for every box, the displacement in which it was added free of stress (its reference u₀). Stress comes from
the strain since then, less what heat and printing account for: σ = C (ε(u) − ε(u₀) − α(T − T_a) I − ε*).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from flare.physics.lpbf.grid import Hierarchy, Ints
from flare.physics.lpbf.hexahedron import Array, elasticity_matrix
from flare.physics.lpbf.loops import compiled, over
from flare.physics.lpbf.multigrid import Multigrid, Operator, conjugate_gradients, sum_at_nodes

TOLERANCE = 1e-8  # of the residual force against the load


@compiled
def _mean_strains(start: int, end: int, u: Array, cells: Ints, kinds: Ints, strains: Array, result: Array) -> None:
    """result[e] = B u at the nodes of box e."""
    for e in range(start, end):
        for i in range(6):
            total = 0.0
            for corner in range(8):
                for component in range(3):
                    total += strains[kinds[e], i, 3 * corner + component] * u[cells[e, corner], component]
            result[e, i] = total


@compiled
def _forces_of_stress(
    start: int, end: int, stress: Array, kinds: Ints, strains: Array, volumes: Array, forces: Array
) -> None:
    """forces[e] = V Bᵀ σ, for a stress that is uniform in the box."""
    for e in range(start, end):
        volume = volumes[kinds[e]]
        for j in range(24):
            total = 0.0
            for i in range(6):
                total += strains[kinds[e], i, j] * stress[e, i]
            forces[e, j] = volume * total


class Body:
    """Boxes tied together, with or without a plate, and the means to find their equilibrium.

    Box arrays are in the order of `hierarchy.levels[0].cells`, the plate's boxes first.
    """

    def __init__(self, hierarchy: Hierarchy, reference: Array, *, young: float, poisson: float) -> None:
        """`reference` is (part boxes, 8, 3); the plate's is zero."""
        self.hierarchy = hierarchy
        self.level = hierarchy.levels[0]
        self.operator = Operator(self.level, np.float64)
        self.elastic_young = young
        self.elasticity = elasticity_matrix(young, poisson)
        self.reference = reference.reshape(-1, 24)
        self.part_kinds = self.level.kinds[self.level.plate_cells :]

    @cached_property
    def multigrid(self) -> Multigrid:
        return Multigrid(self.hierarchy)

    @cached_property
    def rest(self) -> Array | None:
        """(6, N, 3) orthonormal rigid motions of a body without supports; None if it has them."""
        return None if self.level.fixed.any() else rigid_motions(self.level.positions)

    @cached_property
    def reference_strain(self) -> Array:
        """(E, 6) of u₀."""
        strain = np.zeros((len(self.level.cells), 6))
        strain[self.level.plate_cells :] = self.reference @ self.level.strains[0].T
        return strain

    @cached_property
    def reference_force(self) -> Array:
        """(E, 24) K u₀."""
        force = np.zeros((len(self.level.cells), 24))
        for kind in np.unique(self.part_kinds):
            chosen = np.nonzero(self.part_kinds == kind)[0]
            force[self.level.plate_cells + chosen] = self.reference[chosen] @ self.level.matrices[kind]
        return force

    def strain(self, displacement: Array) -> Array:
        """(E, 6) mean strain of every box since it was added."""
        strain = np.empty((len(self.level.cells), 6))
        level = self.level
        over(_mean_strains, len(strain), displacement, level.cells, level.kinds, level.strains, strain, least=2000)
        return strain - self.reference_strain

    def forces_of_stress(self, stress: Array) -> Array:
        """(E, 24) of stresses uniform in each box, (E, 6)."""
        forces = np.empty((len(stress), 24))
        level = self.level
        over(_forces_of_stress, len(forces), stress, level.kinds, level.strains, level.volumes, forces, least=2000)
        return forces

    def at_nodes(self, forces: Array) -> Array:
        """(N, 3) sum of the boxes' corner forces (E, 24), 0 where a displacement is held."""
        return sum_at_nodes(forces[self.operator.order], self.operator.slots, self.level.fixed)


@dataclass(frozen=True)
class Equilibrium:
    """Displacement of the nodes, and strain and stress at the centres of the boxes."""

    displacement: Array
    """(N, 3) mm."""
    elastic_strain: Array
    """(E, 6)."""
    stress: Array
    """(E, 6) MPa."""
    iterations: int
    """Of conjugate gradients."""
    residual: float


def elastic_equilibrium(body: Body, eigenstrain: Array, guess: Array, *, tolerance: float = TOLERANCE) -> Equilibrium:
    """Linear elasticity, with the same stiffness at every temperature: one solve.

    Args:
        body: what there is.
        eigenstrain: (E, 6) strain that costs no stress, of heat and of printing.
        guess: (N, 3) displacement to start from.
        tolerance: of the force left over, relative to the load.

    Raises:
        NotConverged: the solve did not reach it.
    """
    load = body.at_nodes(body.reference_force + body.forces_of_stress(eigenstrain @ body.elasticity))
    solved = conjugate_gradients(body.operator, load, guess, body.multigrid, tolerance=tolerance, rest=body.rest)
    strain = body.strain(solved.x) - eigenstrain
    return Equilibrium(solved.x, strain, strain @ body.elasticity, solved.iterations, solved.residual)


def rigid_motions(positions: Array) -> Array:
    """(6, N, 3) translations and linearised rotations about the centroid, orthonormal."""
    arm = positions - positions.mean(0)
    motions = np.zeros((6, *positions.shape))
    for axis, unit in enumerate(np.eye(3)):
        motions[axis] = unit
        motions[3 + axis] = np.cross(unit, arm)
    basis, _ = np.linalg.qr(motions.reshape(6, -1).T)
    return np.ascontiguousarray(basis.T).reshape(motions.shape)


def without_rigid_motion(displacement: Array, positions: Array) -> Array:
    """The displacement less its best-fit translation and linearised rotation, least squares over nodes."""
    motions = rigid_motions(positions)
    return displacement - np.tensordot(np.tensordot(motions, displacement, 2), motions, 1)


def von_mises(stress: NDArray[np.float64]) -> Array:
    """(...,) equivalent stress of (..., 6)."""
    xx, yy, zz, yz, zx, xy = np.moveaxis(stress, -1, 0)
    return np.sqrt(((xx - yy) ** 2 + (yy - zz) ** 2 + (zz - xx) ** 2) / 2 + 3 * (yz**2 + zx**2 + xy**2))

"""Quasi-static equilibrium of the printed boxes, on the plate or cut off: ∫ Bᵀ σ = 0.

Every box has a reference u₀, the displacement in which it was added free of stress. Stress comes from the strain since
then, without thermal and inherent strain: σ = C (ε(u) − ε(u₀) − α(T − T_a) I − ε*).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from flare.physics.lpbf.grid import Hierarchy, Ints
from flare.physics.lpbf.hexahedron import Array, elasticity_matrix
from flare.physics.lpbf.loops import compiled_loop, run_loop
from flare.physics.lpbf.multigrid import Multigrid, Operator, conjugate_gradients, sum_at_nodes

TOLERANCE = 1e-8  # residual force relative to the load


@compiled_loop
def _mean_strains(start: int, end: int, u: Array, cells: Ints, kinds: Ints, strains: Array, result: Array) -> None:
    """Set result[e] = B u at the nodes of box e."""
    for e in range(start, end):
        for i in range(6):
            total = 0.0
            for corner in range(8):
                for component in range(3):
                    total += strains[kinds[e], i, 3 * corner + component] * u[cells[e, corner], component]
            result[e, i] = total


@compiled_loop
def _forces_of_stress(
    start: int, end: int, stress: Array, kinds: Ints, strains: Array, volumes: Array, forces: Array
) -> None:
    """Set forces[e] = V Bᵀ σ for a uniform stress in the box."""
    for e in range(start, end):
        volume = volumes[kinds[e]]
        for j in range(24):
            total = 0.0
            for i in range(6):
                total += strains[kinds[e], i, j] * stress[e, i]
            forces[e, j] = volume * total


class Body:
    """Connected boxes, with or without a plate, and the operators of their equilibrium.

    Box arrays are in the order of `hierarchy.levels[0].cells`, the plate's boxes first.

    Args:
        hierarchy: Mesh and its coarser levels.
        reference: Displacement in which each box of the part was added, shape (part boxes, 8, 3); the plate's is zero.
    """

    def __init__(self, hierarchy: Hierarchy, reference: Array) -> None:
        self.hierarchy = hierarchy
        self.level = hierarchy.levels[0]
        self.operator = Operator(self.level, np.float64)
        self.elasticity = elasticity_matrix(hierarchy.young, hierarchy.poisson)
        self.reference = reference.reshape(-1, 24)
        self.part_kinds = self.level.kinds[self.level.plate_cells :]

    @cached_property
    def multigrid(self) -> Multigrid:
        """The preconditioner."""
        return Multigrid(self.hierarchy)

    @cached_property
    def rigid_modes(self) -> Array | None:
        """Orthonormal rigid motions of a body without supports, shape (6, N, 3); None if it has supports."""
        return None if self.level.fixed.any() else rigid_motions(self.level.positions)

    @cached_property
    def reference_strain(self) -> Array:
        """Strain of u₀, shape (E, 6)."""
        strain = np.zeros((len(self.level.cells), 6))
        strain[self.level.plate_cells :] = self.reference @ self.level.strains[0].T
        return strain

    @cached_property
    def reference_force(self) -> Array:
        """K u₀, shape (E, 24)."""
        force = np.zeros((len(self.level.cells), 24))
        for kind in np.unique(self.part_kinds):
            chosen = np.nonzero(self.part_kinds == kind)[0]
            force[self.level.plate_cells + chosen] = self.reference[chosen] @ self.level.matrices[kind]
        return force

    def strain(self, displacement: Array) -> Array:
        """Return the mean strain of every box since it was added, shape (E, 6)."""
        level, strain = self.level, np.empty((len(self.level.cells), 6))
        arrays = (displacement, level.cells, level.kinds, level.strains, strain)
        run_loop(_mean_strains, len(strain), *arrays, min_rows=2000)
        return strain - self.reference_strain

    def forces_of_stress(self, stress: Array) -> Array:
        """Return the corner forces (E, 24) of uniform stresses (E, 6)."""
        level, forces = self.level, np.empty((len(stress), 24))
        arrays = (stress, level.kinds, level.strains, level.volumes, forces)
        run_loop(_forces_of_stress, len(forces), *arrays, min_rows=2000)
        return forces

    def at_nodes(self, forces: Array) -> Array:
        """Sum corner forces (E, 24) at the nodes, shape (N, 3); 0 where a displacement is fixed."""
        return sum_at_nodes(forces[self.operator.order], self.operator.slots, self.level.fixed)


@dataclass(frozen=True)
class Equilibrium:
    """Displacement of the nodes, and strain and stress at the centers of the boxes."""

    displacement: Array
    """In mm, shape (N, 3)."""
    elastic_strain: Array
    """Shape (E, 6)."""
    stress: Array
    """In MPa, shape (E, 6)."""
    iterations: int
    """Iterations of conjugate gradients."""
    residual: float


def elastic_equilibrium(body: Body, eigenstrain: Array, guess: Array, *, tolerance: float = TOLERANCE) -> Equilibrium:
    """Solve for the linear elastic equilibrium, with the same stiffness at every temperature.

    Args:
        body: The boxes.
        eigenstrain: Stress-free strain of heat and printing, shape (E, 6).
        guess: Initial displacement, shape (N, 3).
        tolerance: Residual force relative to the load.

    Raises:
        NotConverged: The solver did not reach the tolerance.
    """
    load = body.at_nodes(body.reference_force + body.forces_of_stress(eigenstrain @ body.elasticity))
    solved = conjugate_gradients(
        body.operator, load, guess, body.multigrid, tolerance=tolerance, rigid_modes=body.rigid_modes
    )
    strain = body.strain(solved.x) - eigenstrain
    return Equilibrium(solved.x, strain, strain @ body.elasticity, solved.iterations, solved.residual)


def rigid_motions(positions: Array) -> Array:
    """Return orthonormal translations and linearized rotations around the centroid, shape (6, N, 3)."""
    arm = positions - positions.mean(0)
    motions = np.zeros((6, *positions.shape))
    for axis, unit in enumerate(np.eye(3)):
        motions[axis] = unit
        motions[3 + axis] = np.cross(unit, arm)
    basis, _ = np.linalg.qr(motions.reshape(6, -1).T)
    return np.ascontiguousarray(basis.T).reshape(motions.shape)


def without_rigid_motion(displacement: Array, positions: Array) -> Array:
    """Subtract the best-fit translation and linearized rotation (least squares over nodes) from a displacement."""
    motions = rigid_motions(positions)
    return displacement - np.tensordot(np.tensordot(motions, displacement, 2), motions, 1)


def von_mises_3d(stress: NDArray[np.float64]) -> Array:
    """Return the equivalent stress (...) of stresses (..., 6)."""
    xx, yy, zz, yz, zx, xy = np.moveaxis(stress, -1, 0)
    return np.sqrt(((xx - yy) ** 2 + (yy - zz) ** 2 + (zz - xx) ** 2) / 2 + 3 * (yz**2 + zx**2 + xy**2))

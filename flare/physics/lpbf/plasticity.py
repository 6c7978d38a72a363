"""Von Mises plasticity and the equilibrium of a yielding body: the refined mode.

Plastic flow is evaluated at the center of every box, where the strain is the box's mean; bending and twisting of a box
about its center stay elastic. The force of a box is therefore that of linear elasticity plus V Bᵀ (σ − C ε).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flare.physics.lpbf.grid import Ints
from flare.physics.lpbf.hexahedron import Array
from flare.physics.lpbf.loops import compiled_loop, run_loop
from flare.physics.lpbf.mechanics import Body, Equilibrium
from flare.physics.lpbf.multigrid import conjugate_gradients, sum_at_nodes
from flare.utils.errors import NotConverged

TOLERANCE = 1e-6  # residual force relative to the load
NEWTON_LIMIT = 40
FORCING = 0.02  # how far each linear solve reduces the residual

_TENSOR = np.array([1.0, 1.0, 1.0, 2.0, 2.0, 2.0])  # tensor products count shears twice
_TRACE = np.array([1.0, 1.0, 1.0, 0.0, 0.0, 0.0])
_DEVIATOR = np.diag([1.0, 1.0, 1.0, 0.5, 0.5, 0.5]) - np.outer(_TRACE, _TRACE) / 3


@dataclass(frozen=True)
class ReturnMapping:
    """Stress on or inside the yield surface."""

    stress: Array
    """Shape (E, 6)."""
    plastic_strain: Array
    """With engineering shears, shape (E, 6)."""
    accumulated: Array
    """Equivalent plastic strain, shape (E,)."""
    yielding: NDArray[np.int64]
    """Boxes that flow in this step."""
    tangent: Array
    """Consistent tangent of the yielding boxes, shape (len(yielding), 6, 6)."""


@dataclass(frozen=True)
class PlasticState:
    """Yielding boxes at the last state and their current properties."""

    plastic_strain: Array
    """Shape (E, 6)."""
    accumulated: Array
    """Equivalent plastic strain, shape (E,)."""
    young: Array
    """Current Young's modulus in MPa, shape (E,)."""
    poisson: float
    yield_stress: Array
    """Current yield stress before hardening in MPa, shape (E,)."""
    hardening: float
    """MPa per unit of plastic strain."""


def return_to_yield_surface(strain: Array, last: PlasticState) -> ReturnMapping:
    """Apply the radial return with linear isotropic hardening, exact for a straight strain path since the last state.

    Args:
        strain: Current elastic and plastic strain, shape (E, 6).
        last: The last state.
    """
    young, poisson, hardening = last.young, last.poisson, last.hardening
    shear, bulk = young / (2 * (1 + poisson)), young / (3 * (1 - 2 * poisson))
    elastic = strain - last.plastic_strain
    volume = elastic @ _TRACE
    deviator = 2 * shear[:, None] * (elastic @ _DEVIATOR)
    norm = np.sqrt((deviator**2) @ _TENSOR)
    equivalent = np.sqrt(1.5) * norm
    excess = equivalent - last.yield_stress - hardening * last.accumulated
    yielding = np.nonzero(excess > 0)[0]

    g, q = shear[yielding], equivalent[yielding]
    flow = excess[yielding] / (3 * g + hardening)
    normal = deviator[yielding] / norm[yielding, None]
    stress = deviator + (bulk * volume)[:, None] * _TRACE
    stress[yielding] -= (3 * g * flow / q)[:, None] * deviator[yielding]
    plastic, total = last.plastic_strain.copy(), last.accumulated.copy()
    plastic[yielding] += np.sqrt(1.5) * flow[:, None] * normal * _TENSOR
    total[yielding] += flow
    tangent = bulk[yielding, None, None] * np.outer(_TRACE, _TRACE)
    tangent = tangent + (2 * g * (1 - 3 * g * flow / q))[:, None, None] * _DEVIATOR
    along = 6 * g**2 * (flow / q - 1 / (3 * g + hardening))
    tangent += along[:, None, None] * normal[:, :, None] * normal[:, None, :]
    return ReturnMapping(stress, plastic, total, yielding, tangent)


@compiled_loop
def _add_softening(
    start: int,
    end: int,
    x: Array,
    boxes: NDArray[np.int64],
    cells: Ints,
    kinds: Ints,
    strains: Array,
    loss: Array,
    forces: Array,
) -> None:
    """Add Bᵀ D B x to forces[e] for the listed boxes."""
    strain, stress = np.empty(6), np.empty(6)
    for b in range(start, end):
        e = boxes[b]
        kind = kinds[e]
        for i in range(6):
            total = 0.0
            for corner in range(8):
                for component in range(3):
                    total += strains[kind, i, 3 * corner + component] * x[cells[e, corner], component]
            strain[i] = total
        for i in range(6):
            total = 0.0
            for j in range(6):
                total += loss[b, i, j] * strain[j]
            stress[i] = total
        for j in range(24):
            total = 0.0
            for i in range(6):
                total += strains[kind, i, j] * stress[i]
            forces[e, j] += total


class _Tangent:
    """x -> (derivative of the internal force) x, at one state."""

    def __init__(self, body: Body, softness: Array, returned: ReturnMapping) -> None:
        operator = body.operator
        self.body, self.scale = body, softness[operator.order][:, None]
        position = np.empty(len(operator.order), np.int64)
        position[operator.order] = np.arange(len(operator.order))
        self.boxes = position[returned.yielding]
        elastic = softness[returned.yielding, None, None] * body.elasticity
        volumes = body.level.volumes[body.level.kinds[returned.yielding]]
        self.loss = volumes[:, None, None] * (returned.tangent - elastic)

    def __call__(self, x: Array) -> Array:
        operator, level = self.body.operator, self.body.level
        forces = operator.box_forces(x)
        forces *= self.scale
        arrays = (self.boxes, operator.cells, operator.kinds, level.strains, self.loss, forces)
        run_loop(_add_softening, len(self.boxes), x, *arrays, min_rows=1000)
        return sum_at_nodes(forces, operator.slots, level.fixed)


def plastic_equilibrium(
    body: Body, eigenstrain: Array, guess: Array, last: PlasticState, *, tolerance: float = TOLERANCE
) -> tuple[Equilibrium, ReturnMapping]:
    """Solve ∫ Bᵀ σ = 0 by Newton's method from the last state; all linear steps share the elastic preconditioner.

    Args:
        body: The boxes, with their stiffness at room temperature.
        eigenstrain: Strain of heat and printing, shape (E, 6).
        guess: Initial displacement, shape (N, 3).
        last: The last state.
        tolerance: Residual force relative to the load.

    Raises:
        NotConverged: Newton's method did not reach the tolerance.
    """
    softness = last.young / body.hierarchy.young
    stretch = softness[:, None]
    stress = (eigenstrain + last.plastic_strain) @ body.elasticity
    load = float(np.linalg.norm(body.at_nodes(body.reference_force + body.forces_of_stress(stress))))

    def state_at(u: Array) -> tuple[ReturnMapping, Array, float]:
        strain = body.strain(u)
        returned = return_to_yield_surface(strain - eigenstrain, last)
        boxes = np.empty_like(body.reference_force)
        boxes[body.operator.order] = body.operator.box_forces(u)
        boxes = stretch * (boxes - body.reference_force)
        boxes += body.forces_of_stress(returned.stress - stretch * (strain @ body.elasticity))
        residual = -body.at_nodes(boxes)
        return returned, residual, float(np.linalg.norm(residual))

    u, iterations = guess, 0
    returned, residual, norm = state_at(u)
    size = load or norm or 1.0
    for _ in range(NEWTON_LIMIT):
        if norm <= tolerance * size:
            strain = body.strain(u) - eigenstrain - returned.plastic_strain
            return Equilibrium(u, strain, returned.stress, iterations, norm / size), returned
        tangent = _Tangent(body, softness, returned)
        step = conjugate_gradients(
            tangent, residual, np.zeros_like(u), body.multigrid, tolerance=FORCING, rigid_modes=body.rigid_modes
        )
        iterations += step.iterations
        length = 1.0
        while True:
            trial = state_at(u + length * step.x)
            if trial[2] < (1 - 0.1 * length) * norm or length < 0.05:
                break
            length /= 2
        u = u + length * step.x
        returned, residual, norm = trial
    raise NotConverged(f"plastic flow did not converge: residual {norm / size:.2g} after {NEWTON_LIMIT} steps")

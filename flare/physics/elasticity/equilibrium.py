"""Equilibrium of a sheet by finite elements and Newton's method: find u with ∫ P(∂u/∂X) : ∂v/∂X = load(v) for all v.

A linear material needs one step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.sparse import csc_array
from scipy.sparse.linalg import splu

from flare.data.benchmarks.cards import card
from flare.data.sample import Sample, Schema
from flare.physics.elasticity.elements import (
    GAUSS_POINTS,
    LINE_POINTS,
    LINE_WEIGHTS,
    Array,
    Indices,
    QuadMesh,
    line_shape,
    shape,
)
from flare.physics.elasticity.material import LinearElastic, Rubber, SheetMaterial, von_mises
from flare.physics.elasticity.void import OGrid, random_void
from flare.utils.errors import ConfigError, DataError, NotConverged, suggest_name

MATERIALS: dict[str, SheetMaterial] = {"linear": LinearElastic(), "rubber": Rubber()}
TRACTION = {"top": (0.0, 100.0)}
"""Traction of the benchmark."""
TOLERANCE = 1e-10  # of the out-of-balance force; rounding leaves 1e-13 to 1e-12
MAX_NEWTON_STEPS = 20  # in one load step; the benchmark takes 4


@dataclass(frozen=True)
class Solution:
    """A sheet in equilibrium."""

    mesh: QuadMesh
    material: SheetMaterial
    displacement: Array
    """Shape (nodes, 2)."""
    reactions: Array
    """Force of the support on each node, zero at free nodes, shape (nodes, 2)."""
    residuals: tuple[tuple[float, ...], ...]
    """For each load step, the relative out-of-balance force before each Newton step and at the end."""

    def stress(self, element: Indices, local: Array) -> Array:
        """Return the Cauchy stress (..., 2, 2) at local coordinates (..., 2) of elements (...)."""
        u = self.displacement[self.mesh.elements[element]]
        return self.material.cauchy(u.swapaxes(-2, -1) @ self.mesh.gradients(element, local))

    def gauss_stress(self) -> Array:
        """Return the Cauchy stress at the Gauss points element by element, shape (9 · elements, 2, 2)."""
        return self.stress(self.mesh.all_elements, GAUSS_POINTS).reshape(-1, 2, 2)


def clamped(mesh: QuadMesh, edge: str = "bottom") -> Array:
    """Return supports for `solve` with no displacement along an edge."""
    held = np.full(mesh.nodes.shape, np.nan)
    held[_edge(mesh, edge)] = 0.0
    return held


def solve(
    mesh: QuadMesh,
    *,
    material: SheetMaterial | str = "linear",
    held: Array | None = None,
    traction: Mapping[str, tuple[float, float]] = TRACTION,
    body_force: Callable[[Array], Array] | None = None,
    load_steps: int = 1,
) -> Solution:
    """Compute displacements and reactions of a supported and loaded sheet.

    Args:
        mesh: Undeformed mesh.
        material: "linear" (plane stress, ν = ½), "rubber" (Rivlin–Saunders at finite strain), or a `SheetMaterial`.
        held: Displacement of the supports, NaN at free nodes, shape (nodes, 2). None: `clamped(mesh)`.
        traction: Force per undeformed length and thickness on each named edge; other edges are free.
        body_force: Force per undeformed volume at points (..., 2). None: no force.
        load_steps: Number of equal steps in which loads and support displacements grow. One suffices at small strain.

    Raises:
        ConfigError: The material or an edge is unknown.
        DataError: The supports allow a rigid motion.
        NotConverged: Newton's method did not reach 1e-10 in 20 steps, or an element of rubber is inverted.
    """
    if isinstance(material, str):
        if material not in MATERIALS:
            raise ConfigError(f"material={material!r} is unknown; {suggest_name(material, MATERIALS)}")
        material = MATERIALS[material]
    support = clamped(mesh) if held is None else np.asarray(held, dtype=np.float64)
    if not _is_supported(mesh, support):
        raise DataError("held allows a rigid motion of the sheet; fix two translations and a rotation")

    sheet, load = _Sheet(mesh, material), _load(mesh, traction, body_force)
    u, residuals = np.zeros_like(mesh.nodes), []
    for step in range(1, load_steps + 1):
        u, residual = _balance(sheet, u, support * (step / load_steps), load * (step / load_steps))
        residuals.append(tuple(residual))
    reactions = np.where(np.isnan(support), 0.0, sheet.forces(u) - load)
    return Solution(mesh, material, u, reactions, tuple(residuals))


class _Sheet:
    """Nodal forces and stiffness, summed over the elements."""

    def __init__(self, mesh: QuadMesh, material: SheetMaterial) -> None:
        self.elements, self.material, self.size = mesh.elements, material, mesh.nodes.size
        self.shape_gradients = mesh.gradients(mesh.all_elements, GAUSS_POINTS)  # egak
        self.weights = mesh.gauss_weights()  # eg
        self.freedoms = (2 * mesh.elements[..., None] + np.arange(2)).reshape(-1, 18)  # node a, direction i -> 2a + i

    def gradient(self, u: Array) -> Array:
        """Return ∂u_i/∂X_k, egik."""
        return u[self.elements].swapaxes(1, 2)[:, None] @ self.shape_gradients

    def forces(self, u: Array) -> Array:
        """Return the nodal forces that hold the displacement u: ∫ P_ik ∂N_a/∂X_k, shape (nodes, 2)."""
        stress = self.material.stress(self.gradient(u)) * self.weights[..., None, None]
        of_elements = (self.shape_gradients @ stress.swapaxes(-2, -1)).sum(1)  # eai
        total = np.zeros_like(u)
        np.add.at(total, self.elements, of_elements)
        return total

    def stiffness(self, u: Array) -> csc_array:
        """Return the derivative of the forces: ∫ ∂N_a/∂X_k A_ikjl ∂N_b/∂X_l."""
        tangent = self.material.tangent(self.gradient(u)) * self.weights[..., None, None, None, None]  # egikjl
        # Sum over l, then over g and k as a matrix product.
        half = np.einsum("egikjl,egbl->egkibj", tangent, self.shape_gradients).reshape(-1, 18, 36)
        both = self.shape_gradients.transpose(0, 2, 1, 3).reshape(-1, 9, 18) @ half  # eaibj
        rows = np.broadcast_to(self.freedoms[:, :, None], (len(self.elements), 18, 18))
        columns = np.broadcast_to(self.freedoms[:, None, :], rows.shape)
        return csc_array((both.ravel(), (rows.ravel(), columns.ravel())), shape=(self.size, self.size))


def _balance(sheet: _Sheet, u: Array, support: Array, load: Array) -> tuple[Array, list[float]]:
    """Iterate by Newton's method from u to equilibrium with the load; return u and the residuals."""
    free, held = np.flatnonzero(np.isnan(support)), np.flatnonzero(~np.isnan(support))
    residuals: list[float] = []
    while True:
        forces = sheet.forces(u)
        missing = (load - forces).ravel()[free]
        to_go = (support - u).ravel()[held]
        scale = float(max(np.linalg.norm(forces), np.linalg.norm(load)))
        residuals.append(float(np.linalg.norm(missing)) / (scale or 1.0))
        if residuals[-1] <= TOLERANCE and not to_go.any():
            return u, residuals
        if len(residuals) > MAX_NEWTON_STEPS or not np.isfinite(residuals[-1]):
            raise NotConverged(
                f"residual {residuals[-1]:.2g} of Newton's method; reduce the load or use more load_steps"
            )
        rows = sheet.stiffness(u)[free]
        u = np.where(np.isnan(support), u, support)
        try:
            # Minimum degree on A + Aᵀ has a fraction of the fill of the default order.
            u.ravel()[free] += splu(rows[:, free], permc_spec="MMD_AT_PLUS_A").solve(missing - rows[:, held] @ to_go)
        except RuntimeError:  # a pivot is exactly zero
            raise NotConverged("the stiffness is singular (buckling); reduce the load or use more load_steps") from None


def _is_supported(mesh: QuadMesh, support: Array) -> bool:
    """Return whether the supports exclude every rigid motion."""
    motions = np.zeros((*mesh.nodes.shape, 3))  # along x, along y, a turn
    motions[:, 0, 0] = motions[:, 1, 1] = 1.0
    motions[..., 2] = (mesh.nodes - mesh.nodes.mean(0)) @ [[0, 1], [-1, 0]]
    return int(np.linalg.matrix_rank(motions[~np.isnan(support)])) == 3


def _load(
    mesh: QuadMesh, traction: Mapping[str, tuple[float, float]], body_force: Callable[[Array], Array] | None
) -> Array:
    """Return the force on each node, shape (nodes, 2)."""
    load = np.zeros_like(mesh.nodes)
    along, slope = line_shape(LINE_POINTS)  # (3 points, 3 nodes)
    for name, force in traction.items():
        edge = _edge(mesh, name)
        length = np.linalg.norm(slope @ mesh.nodes[edge], axis=-1) * LINE_WEIGHTS  # of a point, (edges, 3)
        np.add.at(load, edge, (length @ along)[..., None] * np.asarray(force))
    if body_force is not None:
        density = body_force(mesh.position(mesh.all_elements, GAUSS_POINTS)) * mesh.gauss_weights()[..., None]
        np.add.at(load, mesh.elements, np.einsum("ga,egi->eai", shape(GAUSS_POINTS)[0], density))
    return load


def _edge(mesh: QuadMesh, name: str) -> Indices:
    if name not in mesh.edges:
        raise ConfigError(f"the mesh has no edge {name!r}; {suggest_name(name, mesh.edges)}")
    return mesh.edges[name]


@dataclass(frozen=True, kw_only=True)
class Elasticity:
    """The Elasticity benchmark: points around a hole -> von Mises stress. The defaults are its published form."""

    material: Literal["linear", "rubber"] = "linear"
    """linear: plane stress with Poisson's ratio 1/2; rubber: Rivlin-Saunders at finite strain, about 0.1 %
    different."""
    fine: bool = False
    """Solve on 144 x 12 elements and take the stress at the same points: an error of 0.4 %, against 4 % on the 36 x
    3 elements of the published form."""

    def schema(self) -> Schema:
        """Return the fields of a sample."""
        return card("elasticity").schema()

    def sample(self, rng: np.random.Generator) -> Sample:
        """Compute the stress around a random hole."""
        void = random_void(rng)
        mesh = OGrid(void.radius).mesh()
        points = mesh.gauss_points()
        if self.fine:
            grid = OGrid(void.radius, around=144, across=12, grading=1.0)
            solution = solve(grid.mesh(), material=self.material)
            stress = solution.stress(*grid.locate(solution.mesh, points))
        else:
            solution = solve(mesh, material=self.material)
            stress = solution.gauss_stress()
        notes = {"iterations": len(solution.residuals[0]) - 1, "residual": solution.residuals[0][-1]}
        return Sample({"points": points, "stress": von_mises(stress)[:, None]}, notes=notes)

    def provenance(self) -> dict[str, Any]:
        """Return how the dataset was made."""
        return {"kind": "recreated", "generator": "flare.physics.elasticity"}

"""Equilibrium of a sheet by finite elements and Newton's method: find u with ∫ P(∂u/∂X) : ∂v/∂X = load(v) for all v.

A linear material is the case that takes one step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csc_array
from scipy.sparse.linalg import splu

from flare.physics.elasticity.elements import (
    GAUSS_POINTS,
    LINE_POINTS,
    LINE_WEIGHTS,
    Array,
    Indices,
    Mesh,
    line_shape,
    shape,
)
from flare.physics.elasticity.material import Linear, Material, Rubber
from flare.utils.errors import ConfigError, DataError, NotConverged, nearest

MATERIALS: dict[str, Material] = {"linear": Linear(), "rubber": Rubber()}
TRACTION = {"top": (0.0, 100.0)}
"""Of the benchmark."""
TOLERANCE = 1e-10  # of out-of-balance force; rounding leaves 1e-13 to 1e-12
MOST_STEPS = 20  # of Newton, in one load step; the benchmark takes 4


@dataclass(frozen=True)
class Solution:
    """A sheet in equilibrium."""

    mesh: Mesh
    material: Material
    displacement: Array
    """(nodes, 2)."""
    reactions: Array
    """(nodes, 2) force of the support on each node; zero where it is free."""
    residuals: tuple[tuple[float, ...], ...]
    """For each load step, the relative out-of-balance force before each Newton step and at the end."""

    def stress(self, element: Indices, local: Array) -> Array:
        """Cauchy stress (..., 2, 2) at local coordinates (..., 2) of elements (...)."""
        u = self.displacement[self.mesh.elements[element]]
        return self.material.cauchy(u.swapaxes(-2, -1) @ self.mesh.gradients(element, local))

    def gauss_stress(self) -> Array:
        """Cauchy stress at the Gauss points, (9 · elements, 2, 2), element by element."""
        return self.stress(self.mesh.every_element, GAUSS_POINTS).reshape(-1, 2, 2)


def clamped(mesh: Mesh, edge: str = "bottom") -> Array:
    """Support for `solve`: no displacement along an edge."""
    held = np.full(mesh.nodes.shape, np.nan)
    held[_edge(mesh, edge)] = 0.0
    return held


def on_rollers(mesh: Mesh, edge: str = "bottom") -> Array:
    """Support for `solve`: no vertical displacement along an edge, and no horizontal one of its first node."""
    held = np.full(mesh.nodes.shape, np.nan)
    held[_edge(mesh, edge), 1] = 0.0
    held[_edge(mesh, edge)[0, 0], 0] = 0.0
    return held


def solve(
    mesh: Mesh,
    *,
    material: Material | str = "linear",
    held: Array | None = None,
    traction: Mapping[str, tuple[float, float]] = TRACTION,
    body_force: Callable[[Array], Array] | None = None,
    load_steps: int = 1,
) -> Solution:
    """Displacement and reactions of a sheet that is held and pulled.

    Args:
        mesh: undeformed.
        material: "linear" (plane stress, ν = ½), "rubber" (Rivlin–Saunders at finite strain), or one of your own.
        held: (nodes, 2) displacement of the supports, NaN where a node is free to move. None: `clamped(mesh)`.
        traction: edge -> force per unit of undeformed length and thickness; edges not named are free.
        body_force: force per unit of undeformed volume at points (..., 2); None for none.
        load_steps: all loads and displacements of supports grow in as many equal steps. One is enough for small strain.

    Raises:
        ConfigError, DataError: an argument makes no sense.
        NotConverged: Newton's method found no balance of forces to 1e-10 in 20 steps, or turned rubber inside out.
    """
    if isinstance(material, str):
        if material not in MATERIALS:
            raise ConfigError(f"material={material!r} is unknown; {nearest(material, MATERIALS)}")
        material = MATERIALS[material]
    if load_steps < 1:
        raise ConfigError(f"load_steps={load_steps}: at least 1, please")
    support = clamped(mesh) if held is None else np.asarray(held, dtype=np.float64)
    if support.shape != mesh.nodes.shape:
        raise DataError(f"held has shape {support.shape}; it must be that of the nodes, {mesh.nodes.shape}")
    if not _fixed(mesh, support):
        raise DataError("the supports let the sheet move as a whole; hold it against two shifts and a turn")

    sheet, load = _Sheet(mesh, material), _load(mesh, traction, body_force)
    u, residuals = np.zeros_like(mesh.nodes), []
    for step in range(1, load_steps + 1):
        u, residual = _balance(sheet, u, support * (step / load_steps), load * (step / load_steps))
        residuals.append(tuple(residual))
    reactions = np.where(np.isnan(support), 0.0, sheet.forces(u) - load)
    return Solution(mesh, material, u, reactions, tuple(residuals))


class _Sheet:
    """Forces and stiffness of all nodes, summed over the elements."""

    def __init__(self, mesh: Mesh, material: Material) -> None:
        self.elements, self.material, self.size = mesh.elements, material, mesh.nodes.size
        self.shape_gradients = mesh.gradients(mesh.every_element, GAUSS_POINTS)  # egak
        self.weights = mesh.gauss_weights()  # eg
        self.freedoms = (2 * mesh.elements[..., None] + np.arange(2)).reshape(-1, 18)  # node a, direction i -> 2a + i

    def gradient(self, u: Array) -> Array:
        """∂u_i/∂X_k, egik."""
        return u[self.elements].swapaxes(1, 2)[:, None] @ self.shape_gradients

    def forces(self, u: Array) -> Array:
        """What each node must be pushed with to hold the displacement u: ∫ P_ik ∂N_a/∂X_k, (nodes, 2)."""
        stress = self.material.stress(self.gradient(u)) * self.weights[..., None, None]
        of_elements = (self.shape_gradients @ stress.swapaxes(-2, -1)).sum(1)  # eai
        total = np.zeros_like(u)
        np.add.at(total, self.elements, of_elements)
        return total

    def stiffness(self, u: Array) -> csc_array:
        """Derivative of the forces: ∫ ∂N_a/∂X_k A_ikjl ∂N_b/∂X_l."""
        tangent = self.material.tangent(self.gradient(u)) * self.weights[..., None, None, None, None]  # egikjl
        # The sum over l, then that over g and k as a product of matrices
        half = np.einsum("egikjl,egbl->egkibj", tangent, self.shape_gradients).reshape(-1, 18, 36)
        both = self.shape_gradients.transpose(0, 2, 1, 3).reshape(-1, 9, 18) @ half  # eaibj
        rows = np.broadcast_to(self.freedoms[:, :, None], (len(self.elements), 18, 18))
        columns = np.broadcast_to(self.freedoms[:, None, :], rows.shape)
        return csc_array((both.ravel(), (rows.ravel(), columns.ravel())), shape=(self.size, self.size))


def _balance(sheet: _Sheet, u: Array, support: Array, load: Array) -> tuple[Array, list[float]]:
    """Newton's method from u to forces in balance with the load. Also the residuals on the way."""
    free = np.flatnonzero(np.isnan(support))
    held = np.flatnonzero(~np.isnan(support))
    residuals: list[float] = []
    while True:
        forces = sheet.forces(u)
        missing = (load - forces).ravel()[free]
        to_go = (support - u).ravel()[held]
        scale = float(max(np.linalg.norm(forces), np.linalg.norm(load)))
        residuals.append(float(np.linalg.norm(missing)) / (scale or 1.0))
        if residuals[-1] <= TOLERANCE and not to_go.any():
            return u, residuals
        if len(residuals) > MOST_STEPS or not np.isfinite(residuals[-1]):
            raise NotConverged(
                f"Newton's method did not converge: relative residual {residuals[-1]:.2g} after {len(residuals) - 1} "
                f"steps, limit {TOLERANCE:g}; pull less, or in more load steps"
            )
        rows = sheet.stiffness(u)[free]
        u = np.where(np.isnan(support), u, support)
        try:
            # Ordered by minimum degree on A + Aᵀ: a fraction of the fill of the default
            u.ravel()[free] += splu(rows[:, free], permc_spec="MMD_AT_PLUS_A").solve(missing - rows[:, held] @ to_go)
        except RuntimeError:  # a pivot is exactly zero
            raise NotConverged("the stiffness is singular, the sheet buckles; pull less, or in more steps") from None


def _fixed(mesh: Mesh, support: Array) -> bool:
    """Whether no rigid motion leaves all supports in place."""
    motions = np.zeros((*mesh.nodes.shape, 3))  # along x, along y, a turn
    motions[:, 0, 0] = motions[:, 1, 1] = 1.0
    motions[..., 2] = (mesh.nodes - mesh.nodes.mean(0)) @ [[0, 1], [-1, 0]]
    return int(np.linalg.matrix_rank(motions[~np.isnan(support)])) == 3


def _load(
    mesh: Mesh, traction: Mapping[str, tuple[float, float]], body_force: Callable[[Array], Array] | None
) -> Array:
    """Force on each node, (nodes, 2)."""
    load = np.zeros_like(mesh.nodes)
    along, slope = line_shape(LINE_POINTS)  # (3 points, 3 nodes)
    for name, force in traction.items():
        edge, vector = _edge(mesh, name), np.asarray(force, dtype=np.float64)
        if vector.shape != (2,):
            raise DataError(f"the traction of {name!r} has shape {vector.shape}; give its x and y")
        length = np.linalg.norm(slope @ mesh.nodes[edge], axis=-1) * LINE_WEIGHTS  # of a point, (edges, 3)
        np.add.at(load, edge, (length @ along)[..., None] * vector)
    if body_force is not None:
        density = body_force(mesh.position(mesh.every_element, GAUSS_POINTS)) * mesh.gauss_weights()[..., None]
        np.add.at(load, mesh.elements, np.einsum("ga,egi->eai", shape(GAUSS_POINTS)[0], density))
    return load


def _edge(mesh: Mesh, name: str) -> Indices:
    if name not in mesh.edges:
        raise ConfigError(f"the mesh has no edge {name!r}; {nearest(name, mesh.edges)}")
    return mesh.edges[name]

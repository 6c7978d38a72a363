"""A square sheet of rubber with a hole of random shape, clamped at the bottom, pulled at the top, in plane stress.

    void = random_void(np.random.default_rng(0))
    mesh = OGrid(void.radius).mesh()                    # 108 quadratic elements
    solution = solve(mesh)                              # or solve(mesh, material="rubber")
    points, stress = mesh.gauss_points(), von_mises(solution.gauss_stress())        # (972, 2), (972,)

The square has side 1 and thickness 1; the traction is 100 in the unit of the material's constants. Strains stay near
1e-3, so the linear solution is within some 0.1 % of the rubber's, and its stress does not depend on the modulus.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from flare.data.benchmarks.cards import card
from flare.data.sample import Sample, Schema
from flare.physics.elasticity.elements import Mesh
from flare.physics.elasticity.equilibrium import MATERIALS, Solution, clamped, on_rollers, solve
from flare.physics.elasticity.material import Linear, Material, Rubber, von_mises
from flare.physics.elasticity.void import OGrid, Void, random_void
from flare.utils.errors import ConfigError, nearest

__all__ = [
    "Elasticity",
    "Linear",
    "Material",
    "Mesh",
    "OGrid",
    "Rubber",
    "Solution",
    "Void",
    "clamped",
    "on_rollers",
    "random_void",
    "solve",
    "von_mises",
]


@dataclass(frozen=True, kw_only=True)
class Elasticity:
    """The Elasticity benchmark: points around a hole -> von Mises stress. Defaults are its published form."""

    material: Literal["linear", "rubber"] = "linear"
    """linear: plane stress with Poisson's ratio 1/2; rubber: Rivlin-Saunders at finite strain, some 0.1 % away."""
    fine: bool = False
    """Solve on 144 x 12 elements and take the stress at the same points: 0.4 % from the truth; the 36 x 3 elements of
    the published form are 4 % away from it."""

    def __post_init__(self) -> None:
        if self.material not in MATERIALS:
            raise ConfigError(f"material={self.material!r} is unknown; {nearest(str(self.material), MATERIALS)}")

    def schema(self) -> Schema:
        return card("elasticity").schema()

    def sample(self, rng: np.random.Generator) -> Sample:
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
        return {"kind": "recreated", "generator": "flare.physics.elasticity"}

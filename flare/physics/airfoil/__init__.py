"""Transonic flow around deformed NACA-0012 wing sections: steady Euler equations on a C-mesh of 221 × 51 nodes.

    rng = np.random.default_rng(0)
    points = c_mesh(random_displacements(rng))     # (221, 51, 2), in chords
    flow = solve(points, mach=0.8, alpha=0.0)      # flow.mach, flow.pressure, ... (221, 51); flow.lift, flow.drag

`shape` has the wing section, `mesh` its mesh, `dual` the control volumes, `euler` the finite-volume scheme on any dual
mesh, `steady` and `linear` Newton's method, `solve` the flow around the section.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from flare.data.benchmarks.cards import card
from flare.data.sample import Sample, Schema
from flare.physics.airfoil.mesh import c_mesh, grid_of
from flare.physics.airfoil.shape import naca0012, random_displacements
from flare.physics.airfoil.solve import Flow, compile_loops, solve
from flare.utils.errors import ConfigError

__all__ = ["Airfoil", "Flow", "c_mesh", "naca0012", "random_displacements", "solve"]


@dataclass(frozen=True, kw_only=True)
class Airfoil:
    """The Airfoil benchmark: points of a mesh around a wing section -> Mach number. Defaults are its published form."""

    resolution: Literal["full", "half"] = "full"
    """full: 221 x 51 nodes; half: every second of them, 111 x 26, six times faster."""
    stride: int = 1
    """Solve on all nodes and keep every stride-th: 5 leaves 45 x 11, both ends included."""
    residual: float = 1e-8
    """Where to stop, of the residual of uniform flow."""

    def __post_init__(self) -> None:
        if self.resolution not in ("full", "half"):
            raise ConfigError(f"resolution={self.resolution!r} is unknown; known: full, half")
        if self.stride < 1 or any((nodes - 1) % self.stride for nodes in grid_of(self.resolution)):
            fits = [n for n in range(1, 51) if not any((nodes - 1) % n for nodes in grid_of(self.resolution))]
            raise ConfigError(f"stride={self.stride} does not reach both ends of the mesh; use one of {fits}")
        if not 0 < self.residual <= 1e-4:
            raise ConfigError(f"residual={self.residual}: above zero and at most 1e-4, please")

    def schema(self) -> Schema:
        rows, columns = ((nodes - 1) // self.stride + 1 for nodes in grid_of(self.resolution))
        return card("airfoil").schema(grid=(rows, columns))

    def sample(self, rng: np.random.Generator) -> Sample:
        displacements = random_displacements(rng)
        flow = solve(c_mesh(displacements, resolution=self.resolution), target=self.residual)
        fields = {
            "points": flow.points,
            "mach": flow.mach,
            "density": flow.density,
            "velocity": flow.velocity,
            "pressure": flow.pressure,
        }
        kept = {name: value[:: self.stride, :: self.stride] for name, value in fields.items()}
        return Sample(
            {name: value.reshape(kept["mach"].size, -1) for name, value in kept.items()},
            notes={
                "displacements": displacements.tolist(),
                "lift": flow.lift,
                "drag": flow.drag,
                "residual": flow.residual,
                "steps": flow.steps,
            },
        )

    def prepare(self) -> None:
        compile_loops()

    def provenance(self) -> dict[str, Any]:
        return {"kind": "recreated", "generator": "flare.physics.airfoil"}

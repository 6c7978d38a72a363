"""Generator of the Airfoil benchmark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from flare.data.benchmarks.cards import card
from flare.data.sample import Sample, Schema
from flare.physics.airfoil.flow import compile_loops, solve
from flare.physics.airfoil.geometry import c_mesh, grid_shape, random_displacements
from flare.utils.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Airfoil:
    """The Airfoil benchmark: points of a mesh around an airfoil -> Mach number. The defaults are its published form."""

    resolution: Literal["full", "half"] = "full"
    """full: 221 x 51 nodes; half: every second of them, 111 x 26, six times faster."""
    stride: int = 1
    """Solve on all nodes and keep every stride-th: 5 leaves 45 x 11, both ends included."""
    residual: float = 1e-8
    """Residual at which the solver stops, relative to that of uniform flow."""

    def __post_init__(self) -> None:
        if self.resolution not in ("full", "half"):
            raise ConfigError(f"resolution={self.resolution!r} is unknown; known: full, half")
        if self.stride < 1 or any((nodes - 1) % self.stride for nodes in grid_shape(self.resolution)):
            fits = [n for n in range(1, 51) if not any((nodes - 1) % n for nodes in grid_shape(self.resolution))]
            raise ConfigError(f"stride={self.stride} does not reach both ends of the mesh; use one of {fits}")
        if not 0 < self.residual <= 1e-4:
            raise ConfigError(f"residual={self.residual}: must be above 0 and at most 1e-4")

    def schema(self) -> Schema:
        """Return the fields and grid of a sample."""
        rows, columns = ((nodes - 1) // self.stride + 1 for nodes in grid_shape(self.resolution))
        return card("airfoil").schema(grid=(rows, columns))

    def sample(self, rng: np.random.Generator) -> Sample:
        """Solve the flow around a random airfoil."""
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
        """Compile the solver's loops before worker processes start."""
        compile_loops()

    def provenance(self) -> dict[str, Any]:
        """Return how the dataset was made."""
        return {"kind": "recreated", "generator": "flare.physics.airfoil"}

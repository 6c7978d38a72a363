"""Generator of the Pipe benchmark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from flare.data.benchmarks.cards import card
from flare.data.sample import Sample, Schema
from flare.physics.pipe.flow import solve
from flare.physics.pipe.geometry import check_nodes, mesh, random_parameters
from flare.utils.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Pipe:
    """The Pipe benchmark: shape of a pipe -> horizontal velocity. The defaults are its published form."""

    nodes: int = 129
    """Nodes along the pipe and across it, odd: (nodes - 1) / 2 elements each way. 65 takes a sixth of the time."""
    stride: int = 1
    """Solve on all nodes and keep every stride-th: 49 nodes and 2 leave 25 x 25, both ends included."""
    viscosity: float = 0.005
    """Kinematic viscosity; the Reynolds number is 0.25 over this, 50."""

    def __post_init__(self) -> None:
        check_nodes(self.nodes)
        if self.stride < 1 or (self.nodes - 1) % self.stride:
            fits = [n for n in range(1, self.nodes) if (self.nodes - 1) % n == 0]
            raise ConfigError(f"stride={self.stride} does not reach both ends of {self.nodes} nodes; use one of {fits}")
        if not 0 < self.viscosity < np.inf:
            raise ConfigError(f"viscosity={self.viscosity}: must be positive and finite")

    def schema(self) -> Schema:
        """Return the fields and grid of a sample."""
        kept = (self.nodes - 1) // self.stride + 1
        return card("pipe").schema(grid=(kept, kept))

    def sample(self, rng: np.random.Generator) -> Sample:
        """Solve the flow through a random pipe."""
        parameters = random_parameters(rng)
        flow = solve(mesh(parameters, nodes=self.nodes), viscosity=self.viscosity)
        fields = {"points": flow.points, "velocity": flow.u, "cross_velocity": flow.v, "pressure": flow.p}
        kept = {name: value[:: self.stride, :: self.stride] for name, value in fields.items()}
        notes = {"parameters": parameters.tolist(), "steps": len(flow.residuals) - 1, "residual": flow.residuals[-1]}
        return Sample({name: value.reshape(kept["velocity"].size, -1) for name, value in kept.items()}, notes=notes)

    def provenance(self) -> dict[str, Any]:
        """Return how the dataset was made."""
        return {"kind": "recreated", "generator": "flare.physics.pipe"}

"""The Pipe benchmark, made by our solver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from flare.data.cards import card
from flare.data.sample import Sample, Schema
from flare.errors import ConfigError
from flare.physics.pipe.flow import solve
from flare.physics.pipe.geometry import check_nodes, mesh, random_parameters


@dataclass(frozen=True, kw_only=True)
class Pipe:
    """The Pipe benchmark: shape of a pipe -> horizontal velocity. Defaults are its published form."""

    nodes: int = 129
    """Nodes along the pipe and across it, odd: (nodes - 1) / 2 elements each way. 65 costs a sixth."""
    viscosity: float = 0.005
    """Kinematic; the Reynolds number is 0.25 over this, 50."""

    def __post_init__(self) -> None:
        check_nodes(self.nodes)
        if not 0 < self.viscosity < np.inf:
            raise ConfigError(f"viscosity={self.viscosity}: it must be positive and finite")

    def schema(self) -> Schema:
        return card("pipe").schema(grid=(self.nodes, self.nodes))

    def sample(self, rng: np.random.Generator) -> Sample:
        parameters = random_parameters(rng)
        flow = solve(mesh(parameters, nodes=self.nodes), viscosity=self.viscosity)
        columns = {"points": flow.points, "velocity": flow.u, "cross_velocity": flow.v, "pressure": flow.p}
        notes = {"parameters": parameters.tolist(), "steps": len(flow.residuals) - 1, "residual": flow.residuals[-1]}
        return Sample({name: value.reshape(self.nodes**2, -1) for name, value in columns.items()}, notes=notes)

    def provenance(self) -> dict[str, Any]:
        return {"kind": "recreated", "generator": "flare.physics.pipe"}

"""Generator of `car-potential`, a stand-in for DrivAerML. It is another problem: never compare it with the paper's
numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from flare.data.benchmarks.cards import card
from flare.data.sample import Sample, Schema
from flare.physics.cars.flow import car_flow
from flare.physics.cars.shape import random_car
from flare.utils.errors import ConfigError, NotConverged

SPEED = 38.889
"""Speed of the stream in m/s, as in DrivAerML."""
MAX_POINTS = 10_000_000
MAX_DRAG = 0.03
"""Largest drag coefficient of a sample. The exact flow has none, so a larger one means that the panels are too
coarse."""


@dataclass(frozen=True, kw_only=True)
class CarPotential:
    """STAND-IN, inviscid panel flow, not DrivAerML: points of a car-like body -> pressure."""

    points: int = 40_000
    """Points on the surface of each car, drawn uniformly by area; up to 10 million."""
    refinement: float = 1.0
    """Refinement of the panels: 1 has 6,144 triangles. Time and memory grow with its fourth power."""

    def __post_init__(self) -> None:
        if not 1 <= self.points <= MAX_POINTS:
            raise ConfigError(f"points={self.points:,}: must be 1 to {MAX_POINTS:,}")
        if not 0.25 <= self.refinement <= 4:
            raise ConfigError(f"refinement={self.refinement:g}: must be 0.25 to 4")

    def schema(self) -> Schema:
        """Return the fields of a sample."""
        return card("car-potential").schema()

    def sample(self, rng: np.random.Generator) -> Sample:
        """Compute the pressure on a random car."""
        car = random_car(rng)
        flow = car_flow(car, refinement=self.refinement)
        drag, _, lift = flow.forces.tolist()
        if abs(drag) > MAX_DRAG:
            raise NotConverged(f"the drag coefficient is {drag:.3g}, but a flow without friction has none")
        points, cp, normals = flow.sample(self.points, rng)
        values = {"points": points, "pressure": cp * np.float32(SPEED**2 / 2), "normal": normals}
        notes = {"parameters": car.parameters, "panels": len(flow.surface.faces), "drag": drag, "lift": lift}
        return Sample(values, notes=notes)

    def provenance(self) -> dict[str, Any]:
        """Return how the dataset was made."""
        return {"kind": "stand-in", "generator": "flare.physics.cars", "stands_in_for": "drivaerml"}

"""`car-potential`: a stand-in for DrivAerML. Another problem in its place, never shown beside the paper's numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from flare.data.benchmarks.cards import card
from flare.data.sample import Sample, Schema
from flare.physics.cars.flow import past
from flare.physics.cars.shape import random_car
from flare.utils.errors import ConfigError, NotConverged

SPEED = 38.889
"""m/s, of the stream: that of DrivAerML."""
MOST_POINTS = 10_000_000
MOST_DRAG = 0.03
"""Of the exact flow it is zero; panels that give more are too coarse for the body."""


@dataclass(frozen=True, kw_only=True)
class CarPotential:
    """STAND-IN, inviscid panel flow, not DrivAerML: points of a car-like body -> pressure."""

    points: int = 40_000
    """Points on the surface of each car, drawn evenly by area; up to 10 million."""
    refinement: float = 1.0
    """Of the panels: 1 has 6,144 triangles. Time and memory grow with its fourth power."""

    def __post_init__(self) -> None:
        if not 1 <= self.points <= MOST_POINTS:
            raise ConfigError(f"points={self.points:,}: 1 to {MOST_POINTS:,}")
        if not 0.25 <= self.refinement <= 4:
            raise ConfigError(f"refinement={self.refinement:g}: a quarter to 4")

    def schema(self) -> Schema:
        return card("car-potential").schema()

    def sample(self, rng: np.random.Generator) -> Sample:
        car = random_car(rng)
        flow = past(car, refinement=self.refinement)
        drag, _, lift = flow.forces.tolist()
        if abs(drag) > MOST_DRAG:
            raise NotConverged(f"the drag coefficient of a flow without drag came out as {drag:.3g}")
        points, cp, normals = flow.sample(self.points, rng)
        values = {"points": points, "pressure": cp * np.float32(SPEED**2 / 2), "normal": normals}
        notes = {"parameters": car.parameters, "panels": len(flow.surface.faces), "drag": drag, "lift": lift}
        return Sample(values, notes=notes)

    def provenance(self) -> dict[str, Any]:
        return {"kind": "stand-in", "generator": "flare.physics.cars", "stands_in_for": "drivaerml"}

"""Pressure on a body from the potential at its vertices, and the flow past a car."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flare.data.benchmarks.cards import card
from flare.data.sample import Sample, Schema
from flare.mesh.sampling import scatter
from flare.mesh.surface import Surface, surface_gradient
from flare.physics.cars.panels import PotentialFlow, solve
from flare.physics.cars.shape import ROAD, Car, mirror, random_car
from flare.utils.errors import ConfigError, NotConverged

SPEED = 38.889
"""Speed of the stream in m/s, as in DrivAerML."""
MAX_POINTS = 10_000_000
MAX_DRAG = 0.03
"""Largest drag coefficient of a sample. The exact flow has none, so a larger one means that the panels are too
coarse."""
CHUNK = 1 << 20
"""Number of points sampled at a time."""

Array = NDArray[np.float64]
Floats = NDArray[np.float32]


def pressure_coefficient(surface: Surface, potential: ArrayLike, *, speed: float = 1.0) -> Array:
    """Return Cp = 1 − |v|²/U² at the vertices (Bernoulli), shape (V,); v is the surface gradient of the potential."""
    return 1 - np.square(surface_gradient(surface, potential) / speed).sum(axis=1)


def force_coefficients(surface: Surface, cp: Array) -> Array:
    """Return drag, side force and lift on a closed body over ½ρU² and its frontal area, shape (3,)."""
    outward = surface.normals / 2
    frontal = outward[:, 0].clip(min=0).sum()
    return -cp[surface.faces].mean(axis=1) @ outward / frontal


@dataclass(frozen=True)
class CarFlow:
    """Flow past a car in a stream of speed 1 over a road."""

    car: Car
    surface: Surface
    """Surface of the whole body, both sides."""
    cp: Array
    """Pressure coefficient at the vertices, linear between them, shape (V,)."""
    flow: PotentialFlow
    """Flow past the half y ≥ 0."""

    @property
    def forces(self) -> Array:
        """Drag, side force and lift coefficients, shape (3,). The exact drag is zero (d'Alembert)."""
        return force_coefficients(self.surface, self.cp)

    def sample(self, count: int, rng: np.random.Generator) -> tuple[Floats, Floats, Floats]:
        """Draw random points on the surface, uniformly by area.

        Returns:
            Points (count, 3), their pressure coefficients (count, 1) and normals (count, 3).
        """
        corners, normals = self.surface.vertices[self.surface.faces], self.surface.normals
        normals /= np.linalg.norm(normals, axis=1)[:, None]
        at_corners = self.cp[self.surface.faces]
        points, cp, normal = (np.empty((count, width), dtype=np.float32) for width in (3, 1, 3))
        for start in range(0, count, CHUNK):
            rows = slice(start, min(start + CHUNK, count))
            faces, weights = scatter(self.surface, rows.stop - start, rng)
            points[rows] = np.einsum("nc,ncd->nd", weights, corners[faces])
            cp[rows, 0] = np.einsum("nc,nc->n", weights, at_corners[faces])
            normal[rows] = normals[faces]
        return points, cp, normal


def car_flow(car: Car, *, refinement: float = 1.0) -> CarFlow:
    """Compute the flow past a car over the road. Time and memory grow with the fourth power of `refinement`."""
    flow = solve(car.half(refinement), ground=ROAD, symmetric=True)
    surface, same = mirror(flow.panels.surface)
    return CarFlow(car, surface, pressure_coefficient(surface, flow.potential[same]), flow)


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

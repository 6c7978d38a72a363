"""Pressure on a body, from the potential at its vertices; on a car, and at any number of points of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flare.mesh.gradient import surface_gradient
from flare.mesh.scatter import scatter
from flare.mesh.surface import Surface
from flare.physics.cars.panels import Flow, solve
from flare.physics.cars.shape import ROAD, Car, mirrored

Array = NDArray[np.float64]
Floats = NDArray[np.float32]

CHUNK = 1 << 20
"""Points sampled at a time."""


def pressure_coefficient(surface: Surface, potential: ArrayLike, *, speed: float = 1.0) -> Array:
    """(V,) Cp = 1 − |v|²/U² at the vertices, v the gradient of the potential along the surface (Bernoulli)."""
    return 1 - np.square(surface_gradient(surface, potential) / speed).sum(axis=1)


def force_coefficients(surface: Surface, cp: Array) -> Array:
    """(3,) force on a closed body over ½ρU² and its frontal area: drag, side force, lift."""
    a, b, c = np.moveaxis(surface.vertices[surface.faces], 1, 0)
    outward = np.cross(b - a, c - a) / 2
    frontal = outward[:, 0].clip(min=0).sum()
    return -cp[surface.faces].mean(axis=1) @ outward / frontal


@dataclass(frozen=True)
class CarFlow:
    """A car in a stream of speed 1 over a road."""

    car: Car
    surface: Surface
    """The whole body, both sides."""
    cp: Array
    """(V,) at its vertices, linear between."""
    flow: Flow
    """Of the half y ≥ 0."""

    @property
    def forces(self) -> Array:
        """(3,) drag, which is zero but for the error of the panels (d'Alembert), side force and lift coefficient."""
        return force_coefficients(self.surface, self.cp)

    def sample(self, count: int, rng: np.random.Generator) -> tuple[Floats, Floats, Floats]:
        """(count, 3) random points of the surface, evenly by area, (count, 1) Cp and (count, 3) normals there."""
        corners = self.surface.vertices[self.surface.faces]
        normals = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
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


def past(car: Car, *, refinement: float = 1.0) -> CarFlow:
    """The flow past a car over the road. Time and memory grow with the fourth power of `refinement`."""
    flow = solve(car.half(refinement), ground=ROAD, symmetric=True)
    surface, same = mirrored(flow.panels.surface)
    return CarFlow(car, surface, pressure_coefficient(surface, flow.potential[same]), flow)

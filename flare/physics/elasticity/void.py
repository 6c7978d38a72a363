"""The unit square with a central hole: a random hole, and an O-grid of quadratic elements around it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from flare.physics.elasticity.elements import Array, Indices, QuadMesh
from flare.utils.errors import ConfigError, DataError, NotConverged

MODES = 5
AMPLITUDE = 4 / np.sqrt(np.pi)  # cos kφ/√π and sin kφ/√π have unit norm on the circle
SIDES = ("bottom", "right", "top", "left")
CORNERS = np.array([[0, 0], [1, 0], [1, 1], [0, 1], [0, 0]], dtype=np.float64)
MIDDLE = np.array([0.5, 0.5])
SLACK = 0.01  # by which a local coordinate of a point inside an element may exceed ±1


@dataclass(frozen=True)
class Void:
    """A star-shaped hole around (½, ½) of radius r(φ) = 0.2 + 0.2 / (1 + exp g(φ)), hence between 0.2 and 0.4.

    g(φ) = 4/√π Σ_k (k² + 9)^(−½) (a_k cos kφ + b_k sin kφ), k = 1 … 5.
    """

    coefficients: Array
    """a_k and b_k, shape (5, 2)."""

    def radius(self, angle: Array) -> Array:
        """Return r at polar angles (...) in radians around (½, ½)."""
        k = np.arange(1, MODES + 1)
        wave = np.stack([np.cos(k * angle[..., None]), np.sin(k * angle[..., None])], -1)  # (..., 5, 2)
        g = AMPLITUDE * ((k**2 + 9.0) ** -0.5 * (wave * self.coefficients).sum(-1)).sum(-1)
        return 0.2 + 0.2 / (1 + np.exp(g))


def random_void(rng: np.random.Generator) -> Void:
    """Draw the benchmark's hole: g ~ N(0, 4² (−∇² + 3²)⁻¹) on the circle, truncated to modes 1 to 5."""
    return Void(rng.standard_normal((MODES, 2)))


@dataclass(frozen=True)
class OGrid:
    """Elements in rings around a hole of the unit square, between straight rays from its center.

    The rays meet the outer square at equal distances, with one at each corner. Along every ray, rings end at the same
    fractions of the way from hole to square.
    """

    radius: Callable[[Array], Array]
    """Radius of the hole at polar angles around (½, ½)."""
    around: int = 36
    """Elements in a ring, a multiple of 4."""
    across: int = 3
    """Number of rings."""
    grading: float = 0.8
    """Ring j ends at (j / across)^grading; below 1, rings get thinner towards the square."""

    def __post_init__(self) -> None:
        if self.around < 4 or self.around % 4:
            raise ConfigError(f"around={self.around}: must be a multiple of 4")

    def levels(self) -> Array:
        """Return the fractions of the way from hole to square at which rings end, shape (across + 1,)."""
        return (np.arange(self.across + 1) / self.across) ** self.grading

    def mesh(self) -> QuadMesh:
        """Build the mesh, ring by ring from the hole; in a ring, counterclockwise from the corner (0, 0).

        Raises:
            DataError: The hole has no size or reaches the square.
            NotConverged: The hole is so curved that an element is inverted.
        """
        side, along = np.divmod(2 * np.arange(2 * self.around), self.around)
        along = along[:, None] / self.around
        ray = (1 - along) * CORNERS[side] + along * CORNERS[side + 1] - MIDDLE
        reach = np.linalg.norm(ray, axis=1)
        angle = np.arctan2(ray[:, 1], ray[:, 0])
        radius = self.radius(angle)
        if not ((radius > 0) & (radius < reach)).all():
            raise DataError("the hole must have a positive radius and end within the square")
        # Mid-nodes lie halfway: graded ones would distort the first ring on every mesh and reduce the order.
        fraction = np.interp(np.arange(2 * self.across + 1) / 2, np.arange(self.across + 1), self.levels())[:, None]
        distance = (1 - fraction) * radius + fraction * reach  # (2 across + 1, 2 around)
        nodes = MIDDLE + distance[..., None] * (ray / reach[:, None])

        number = np.arange(distance.size).reshape(distance.shape)
        triple = (2 * np.arange(self.around)[:, None] + np.arange(3)) % (2 * self.around)  # nodes of a sector
        rings = 2 * np.arange(self.across)[:, None] + np.arange(3)
        elements = number[rings[:, None, :, None], triple[None, :, None, :]].reshape(-1, 9)
        edges = dict(zip(SIDES, number[-1][triple].reshape(4, -1, 3), strict=True))
        return QuadMesh(nodes.reshape(-1, 2), elements, edges | {"void": number[0][triple]})

    def locate(self, mesh: QuadMesh, points: Array) -> tuple[Indices, Array]:
        """Find points (p, 2) in `mesh`, which is `self.mesh()`: their elements (p,) and local coordinates (p, 2).

        Angle and distance determine the element. Its edges are curved slightly differently from the hole, so a local
        coordinate may exceed ±1 slightly.

        Raises:
            NotConverged: A point is in the hole or outside the square.
        """
        x, y = (points - MIDDLE).T
        to_square = 0.5 / np.maximum(np.maximum(abs(x), abs(y)), 1e-9)
        u, v = x * to_square + 0.5, y * to_square + 0.5  # where the ray of each point meets the square
        perimeter = np.select([-y >= abs(x), x >= abs(y), y >= abs(x)], [u, 1 + v, 3 - u], 4 - v)
        position = perimeter * self.around / 4
        sector = np.minimum(position.astype(np.int64), self.around - 1)

        levels, distance = self.levels(), np.hypot(x, y)
        radius, reach = self.radius(np.arctan2(y, x)), distance * to_square
        fraction = (distance - radius) / (reach - radius)
        ring = np.clip(np.searchsorted(levels, fraction, side="right") - 1, 0, self.across - 1)
        inside = (fraction - levels[ring]) / (levels[ring + 1] - levels[ring])

        element = ring * self.around + sector
        local = mesh.local_coordinates(points, element, 2 * np.stack([inside, position - sector], -1) - 1)
        outside = abs(local).max(-1) > 1 + SLACK
        if outside.any():
            raise NotConverged(f"{outside.sum()} of {len(points)} points are in the hole or outside the square")
        return element, local

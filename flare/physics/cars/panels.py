"""Potential flow past a closed body, with sources on the flat triangles of its surface; ground and symmetry by images.

The sources σ make the velocity tangent to every panel at its centroid: Σⱼ nᵢ·Vᵢⱼ σⱼ = −U·nᵢ. Two choices make the
result converge with second order:

* **The flux is closed.** The whole outflow of panel j passes through the surface: Σᵢ Aᵢ nᵢ·Vᵢⱼ = Aⱼ. A sum over
  centroids of flat panels misses this by O(h), because it neglects the curvature between neighbors. The diagonal term
  nⱼ·Vⱼⱼ is therefore not ½ but the value that closes the flux of its column.
* **The velocity is the surface gradient of the potential**, not the sum of Vᵢⱼ σⱼ, whose terms jump from panel to
  panel. That sum would have to include the panel's own in-plane velocity: only an equilateral triangle has none, and it
  does not vanish as the panel shrinks.

The image of a panel in a plane acts at a point as the panel itself acts at the image of the point, so the loops below
reflect points, never panels.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse.linalg import gmres

from flare.mesh.surface import Surface
from flare.physics.cars.triangle import potential, solid_angle, velocity
from flare.utils.errors import ConfigError, DataError, NotConverged
from flare.utils.numba_cache import compiled

Array = NDArray[np.float64]

REACH = 3.0
"""Distance, in longest edges of a panel, beyond which seven points replace it: see `RULE`."""
TOLERANCE, STEPS = 1e-12, 200
"""Relative residual of the sources and largest number of GMRES steps."""
_INNER, _OUTER = (((6 + root) / 21, (155 + root) / 1200) for root in (-np.sqrt(15), np.sqrt(15)))
_POINTS = [[*np.roll([1 - 2 * a, a, a], corner), weight] for a, weight in (_INNER, _OUTER) for corner in range(3)]
RULE = np.array([[1 / 3, 1 / 3, 1 / 3, 0.225], *_POINTS])
"""Radon's rule of degree 5 on a triangle: barycentric coordinates and weight, shape (7, 4)."""


@dataclass(frozen=True)
class Panels:
    """Flat triangles with sources, and their mirror planes."""

    surface: Surface
    ground: float | None = None
    """Height of an impermeable ground z = ground. None: no ground."""
    symmetric: bool = False
    """Whether the surface is the half y ≥ 0 of a body symmetric in y, open where it is cut."""

    @cached_property
    def corners(self) -> Array:
        """Corners relative to the ground, shape (F, 3, 3)."""
        return np.ascontiguousarray(self._above_ground(self.surface.vertices)[self.surface.faces])

    @cached_property
    def centroids(self) -> Array:
        """Centroids, shape (F, 3)."""
        return self.corners.mean(axis=1)

    @cached_property
    def areas(self) -> Array:
        """Areas, shape (F,)."""
        return np.linalg.norm(self._cross, axis=1) / 2

    @cached_property
    def normals(self) -> Array:
        """Unit normals, shape (F, 3)."""
        return self._cross / (2 * self.areas[:, None])

    @cached_property
    def reflections(self) -> Array:
        """Signs of the coordinates of each image, shape (images, 3); the first image is the panel itself."""
        y = [1.0, -1.0] if self.symmetric else [1.0]
        z = [1.0, -1.0] if self.ground is not None else [1.0]
        return np.array([[1.0, b, c] for c in z for b in y])

    @cached_property
    def quadrature(self) -> Array:
        """Quadrature points of each panel and their share of its area, shape (F, 7, 4)."""
        points = np.einsum("qc,fcd->fqd", RULE[:, :3], self.corners)
        weights = np.multiply.outer(self.areas, RULE[:, 3])
        return np.concatenate([points, weights[..., None]], axis=2)

    @cached_property
    def reaches(self) -> Array:
        """Squared distance from the centroid beyond which the quadrature replaces a panel, shape (F,)."""
        longest = np.linalg.norm(self.corners - np.roll(self.corners, 1, axis=1), axis=2).max(axis=1)
        return np.square(REACH * longest)

    @cached_property
    def _cross(self) -> Array:
        a, b, c = np.moveaxis(self.corners, 1, 0)
        return np.cross(b - a, c - a)

    def _above_ground(self, points: Array) -> Array:
        return np.ascontiguousarray(points - np.array([0.0, 0.0, self.ground or 0.0]))

    def check(self) -> None:
        """Check that the panels bound a body on the right side of the ground and of the symmetry plane.

        Raises:
            DataError: They do not.
        """
        if self.ground is not None and self.corners[..., 2].min() <= 0:
            raise DataError(f"the body reaches {-self.corners[..., 2].min():.3g} below the ground; move it up")
        if self.symmetric and self.corners[..., 1].min() < 0:
            raise DataError("symmetric=True requires the half y ≥ 0 of the body, but the surface reaches below y = 0")
        open_edges = self._open_edges()
        if len(open_edges):
            raise DataError(f"the surface is open: {len(open_edges):,} edges have no neighbor")
        if self.areas @ (self.normals[:, 1] * self.centroids[:, 1]) <= 0:  # the volume, by the divergence theorem
            raise DataError("the faces point inwards; they must be counterclockwise seen from the fluid")

    def _open_edges(self) -> NDArray[np.int64]:
        """Return edges without an opposite neighbor, except those in the symmetry plane, shape (E, 2)."""
        edges = np.stack([self.surface.faces, np.roll(self.surface.faces, -1, axis=1)], axis=2).reshape(-1, 2)
        count = len(self.surface.vertices)
        single = edges[~np.isin(edges @ [count, 1], edges @ [1, count])]
        return single[(self.surface.vertices[single, 1] != 0).any(axis=1)] if self.symmetric else single

    def normal_velocities(self, *, exact: bool = False) -> Array:
        """Return nᵢ·Vᵢⱼ including the images of j, with the flux of every column closed, shape (F, F).

        Args:
            exact: Use the closed form for distant panels, too.
        """
        matrix = np.zeros((len(self.corners), len(self.corners)))
        reaches = np.full_like(self.reaches, np.inf) if exact else self.reaches
        panels = (self.corners, self.quadrature, reaches)
        _normal_velocities(self.centroids, self.normals, self.reflections, *panels, matrix)
        np.fill_diagonal(matrix, (self.areas - self.areas @ matrix) / self.areas)
        return matrix

    def potentials(self, sources: Array, points: Array) -> Array:
        """Return the potential at any points, also on the surface, shape (P,)."""
        out, panels = np.empty(len(points)), (self.corners, self.normals, self.centroids, self.quadrature, self.reaches)
        _potentials(self._above_ground(points), self.reflections, *panels, sources, out)
        return out

    def velocities(self, sources: Array, points: Array) -> Array:
        """Return the velocity at points off the surface in closed form, shape (P, 3)."""
        out = np.zeros((len(points), 3))
        _velocities(self._above_ground(points), self.reflections, self.corners, self.normals, sources, out)
        return out


@dataclass(frozen=True)
class PotentialFlow:
    """Flow past a body: sources of its panels, and the potential at its vertices."""

    panels: Panels
    stream: Array
    """Far velocity U, shape (3,)."""
    sources: Array
    """Source strengths σ, shape (F,): the velocity that leaves a panel to both sides together."""
    potential: Array
    """Potential at the vertices of the surface including U·x, shape (V,)."""

    def velocity(self, points: ArrayLike) -> Array:
        """Return the velocity at points outside the body, shape (P, 3)."""
        return self.stream + self.panels.velocities(self.sources, np.asarray(points, dtype=np.float64))


def solve(
    surface: Surface, *, stream: ArrayLike = (1.0, 0.0, 0.0), ground: float | None = None, symmetric: bool = False
) -> PotentialFlow:
    """Compute the incompressible, inviscid, irrotational flow without circulation past a body. Memory is 8 F² bytes.

    Args:
        surface: Closed, F triangles, counterclockwise seen from the fluid. Of a symmetric body, the half y ≥ 0.
        stream: Far velocity, parallel to the ground and to the symmetry plane.
        ground: Height of the ground.
        symmetric: Solve for half of the body, in a quarter of the memory and half of the time.

    Raises:
        ConfigError: The stream crosses the ground or the symmetry plane.
        DataError: Panels have no area or lie on the wrong side of a plane.
    """
    far = np.asarray(stream, dtype=np.float64)
    if (ground is not None and far[2]) or (symmetric and far[1]):
        raise ConfigError(f"stream={far.tolist()} crosses the ground or the symmetry plane")
    panels = Panels(surface, ground, symmetric)
    panels.check()
    through = -panels.normals @ far
    sources, failure = gmres(panels.normal_velocities(), through, rtol=TOLERANCE, restart=STEPS, maxiter=1)
    if failure:
        raise NotConverged(f"sources of {len(through):,} panels did not converge; does the surface intersect itself?")
    disturbed = panels.potentials(sources, surface.vertices)
    return PotentialFlow(panels, far, sources, surface.vertices @ far + disturbed)


@compiled
def _normal_velocities(
    centroids: Array, normals: Array, signs: Array, corners: Array, quadrature: Array, reaches: Array, out: Array
) -> None:
    """Fill all entries but the diagonal, which closing the flux provides."""
    v = np.empty(3)
    for i in range(len(centroids)):
        for image in range(len(signs)):
            p, n = signs[image] * centroids[i], signs[image] * normals[i]
            for j in range(len(corners)):
                if j == i:
                    continue
                dx, dy, dz = p[0] - centroids[j, 0], p[1] - centroids[j, 1], p[2] - centroids[j, 2]
                if dx * dx + dy * dy + dz * dz > reaches[j]:
                    total = 0.0
                    for q in range(quadrature.shape[1]):
                        x, y, z = p[0] - quadrature[j, q, 0], p[1] - quadrature[j, q, 1], p[2] - quadrature[j, q, 2]
                        r2 = x * x + y * y + z * z
                        total += quadrature[j, q, 3] * (x * n[0] + y * n[1] + z * n[2]) / (r2 * np.sqrt(r2))
                    out[i, j] += total / (4 * np.pi)
                else:
                    v[:] = 0.0
                    height = dx * normals[j, 0] + dy * normals[j, 1] + dz * normals[j, 2]
                    velocity(p, corners[j], normals[j], solid_angle(p, corners[j], height), v)
                    out[i, j] += v[0] * n[0] + v[1] * n[1] + v[2] * n[2]


@compiled
def _potentials(
    points: Array,
    signs: Array,
    corners: Array,
    normals: Array,
    centroids: Array,
    quadrature: Array,
    reaches: Array,
    sources: Array,
    out: Array,
) -> None:
    for i in range(len(points)):
        total = 0.0
        for image in range(len(signs)):
            p = signs[image] * points[i]
            for j in range(len(corners)):
                dx, dy, dz = p[0] - centroids[j, 0], p[1] - centroids[j, 1], p[2] - centroids[j, 2]
                if dx * dx + dy * dy + dz * dz > reaches[j]:
                    share = 0.0
                    for q in range(quadrature.shape[1]):
                        x, y, z = p[0] - quadrature[j, q, 0], p[1] - quadrature[j, q, 1], p[2] - quadrature[j, q, 2]
                        share += quadrature[j, q, 3] / np.sqrt(x * x + y * y + z * z)
                else:
                    share = potential(p, corners[j], normals[j])
                total += sources[j] * share
        out[i] = -total / (4 * np.pi)


@compiled
def _velocities(points: Array, signs: Array, corners: Array, normals: Array, sources: Array, out: Array) -> None:
    v = np.empty(3)
    for i in range(len(points)):
        for image in range(len(signs)):
            p = signs[image] * points[i]
            for j in range(len(corners)):
                v[:] = 0.0
                height = 0.0
                for k in range(3):
                    height += (p[k] - corners[j, 0, k]) * normals[j, k]
                velocity(p, corners[j], normals[j], solid_angle(p, corners[j], height), v)
                for k in range(3):
                    out[i, k] += sources[j] * signs[image, k] * v[k]

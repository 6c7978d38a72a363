"""Potential flow past a closed body, by sources on the flat triangles of its surface; ground and symmetry by images.

The sources σ make the velocity of the fluid tangent to every panel at its centroid: Σⱼ nᵢ·Vᵢⱼ σⱼ = −U·nᵢ. Two things
make the result converge, to second order instead of not at all:

* **The flux is closed.** All that panel j gives passes through the surface: Σᵢ Aᵢ nᵢ·Vᵢⱼ = Aⱼ. A sum over centroids of
  flat panels misses this by O(h), the curvature between neighbours that each of them lacks. The own term nⱼ·Vⱼⱼ is
  therefore not ½ but what closes the flux of its column.
* **The velocity is the gradient of the potential along the surface**, not the sum of Vᵢⱼ σⱼ, whose terms jump from
  panel to panel. Where that sum is taken all the same, the panel's own in-plane velocity is part of it: no triangle but
  an equilateral one has none, and it does not become smaller with the panel.

An image of a panel in a plane acts at a point as the panel itself does at the image of the point, so the loops below
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
"""Panels further away than this many of their longest edges are seven points: see `RULE`."""
TOLERANCE, STEPS = 1e-12, 200
"""Of the sources: relative residual, and steps of GMRES at most."""
RULE = np.array(
    [
        [1 / 3, 1 / 3, 1 / 3, 0.225],
        *np.array(
            [
                [1 - 2 * a if k == corner else a for k in range(3)] + [weight]
                for a, weight in (
                    ((6 - np.sqrt(15)) / 21, (155 - np.sqrt(15)) / 1200),
                    ((6 + np.sqrt(15)) / 21, (155 + np.sqrt(15)) / 1200),
                )
                for corner in range(3)
            ]
        ),
    ]
)
"""(7, 4) barycentric coordinates and weight: integrates polynomials of degree 5 over a triangle (Radon)."""


@dataclass(frozen=True)
class Panels:
    """Flat triangles that carry sources, and the planes in which they are mirrored."""

    surface: Surface
    ground: float | None = None
    """Height of a ground z = ground, through which nothing flows. None: no ground."""
    symmetric: bool = False
    """The surface is the half y ≥ 0 of a body that is symmetric in y, open where it is cut."""

    @cached_property
    def corners(self) -> Array:
        """(F, 3, 3), with the ground at z = 0."""
        return np.ascontiguousarray(self._above_ground(self.surface.vertices)[self.surface.faces])

    @cached_property
    def centroids(self) -> Array:
        return self.corners.mean(axis=1)

    @cached_property
    def areas(self) -> Array:
        return np.linalg.norm(self._cross, axis=1) / 2

    @cached_property
    def normals(self) -> Array:
        return self._cross / (2 * self.areas[:, None])

    @cached_property
    def reflections(self) -> Array:
        """(images, 3) signs of the coordinates; the first image is the panel itself."""
        y = [1.0, -1.0] if self.symmetric else [1.0]
        z = [1.0, -1.0] if self.ground is not None else [1.0]
        return np.array([[1.0, b, c] for c in z for b in y])

    @cached_property
    def quadrature(self) -> Array:
        """(F, 7, 4): points of each panel and their share of its area."""
        points = np.einsum("qc,fcd->fqd", RULE[:, :3], self.corners)
        weights = np.multiply.outer(self.areas, RULE[:, 3])
        return np.concatenate([points, weights[..., None]], axis=2)

    @cached_property
    def reaches(self) -> Array:
        """(F,) squared distance from the centroid beyond which the quadrature stands for a panel."""
        longest = np.linalg.norm(self.corners - np.roll(self.corners, 1, axis=1), axis=2).max(axis=1)
        return np.square(REACH * longest)

    @cached_property
    def _cross(self) -> Array:
        a, b, c = np.moveaxis(self.corners, 1, 0)
        return np.cross(b - a, c - a)

    def _above_ground(self, points: Array) -> Array:
        return np.ascontiguousarray(points - np.array([0.0, 0.0, self.ground or 0.0]))

    def check(self) -> None:
        """Refuse what bounds no body, or lies below the ground or on the wrong side of the plane of symmetry."""
        if not len(self.surface.faces):
            raise DataError("the surface has no triangles, so there is nothing to flow around")
        if not np.isfinite(self.corners).all():
            raise DataError("the surface has corners that are not finite")
        flat = self.areas <= 1e-14 * self.areas.max()
        if flat.any():
            raise DataError(f"{flat.sum():,} of {flat.size:,} panels have no area (first: {int(np.argmax(flat))})")
        lowest = float(self.corners[..., 2].min())
        if self.ground is not None and lowest <= 0:
            raise DataError(f"the body reaches {-lowest:.3g} below the ground; it must stay above")
        if self.symmetric and self.corners[..., 1].min() < 0:
            raise DataError("symmetric=True takes the half y ≥ 0 of the body; this surface reaches below y = 0")
        rims = self._open_edges()
        if len(rims):
            where = self.surface.vertices[rims[0]].mean(axis=0).round(4).tolist()
            raise DataError(
                f"the surface is open: {len(rims):,} edges lack a neighbour, the first at {where}; close it"
            )
        if self.areas @ (self.normals[:, 1] * self.centroids[:, 1]) <= 0:  # its volume, by the divergence theorem
            raise DataError("the faces are turned inwards; they must be counter-clockwise seen from the fluid")

    def _open_edges(self) -> NDArray[np.int64]:
        """(E, 2) edges that no other panel passes the other way, but for those in the plane of symmetry."""
        edges = np.stack([self.surface.faces, np.roll(self.surface.faces, -1, axis=1)], axis=2).reshape(-1, 2)
        count = len(self.surface.vertices)
        single = edges[~np.isin(edges @ [count, 1], edges @ [1, count])]
        return single[(self.surface.vertices[single, 1] != 0).any(axis=1)] if self.symmetric else single

    def normal_velocities(self, *, exact: bool = False) -> Array:
        """(F, F) nᵢ·Vᵢⱼ with the images of j; the flux of every column is closed.

        Args:
            exact: use the closed form for far panels, too.
        """
        matrix = np.zeros((len(self.corners), len(self.corners)))
        reaches = np.full_like(self.reaches, np.inf) if exact else self.reaches
        _normal_velocities(
            self.centroids, self.normals, self.reflections, self.corners, self.quadrature, reaches, matrix
        )
        np.fill_diagonal(matrix, (self.areas - self.areas @ matrix) / self.areas)
        return matrix

    def potentials(self, sources: Array, points: Array, *, exact: bool = False) -> Array:
        """(P,) potential at any points, on the surface too."""
        out = np.empty(len(points))
        reaches = np.full_like(self.reaches, np.inf) if exact else self.reaches
        _potentials(
            *(self._above_ground(points), self.reflections, self.corners, self.normals, self.centroids),
            *(self.quadrature, reaches, sources, out),
        )
        return out

    def velocities(self, sources: Array, points: Array) -> Array:
        """(P, 3) velocity at points that are not on the surface, in closed form."""
        out = np.zeros((len(points), 3))
        _velocities(self._above_ground(points), self.reflections, self.corners, self.normals, sources, out)
        return out


@dataclass(frozen=True)
class Flow:
    """The flow past a body: sources of its panels, and the potential at its vertices."""

    panels: Panels
    stream: Array
    """(3,) velocity far away, U."""
    sources: Array
    """(F,) σ: velocity that leaves a panel to both sides together."""
    potential: Array
    """(V,) at the vertices of the surface, U·x included."""

    def velocity(self, points: ArrayLike) -> Array:
        """(P, 3) in the fluid, outside the body and not on it."""
        places = np.asarray(points, dtype=np.float64)
        if places.ndim != 2 or places.shape[1] != 3:
            raise DataError(f"points have shape {places.shape}; give (P, 3)")
        return self.stream + self.panels.velocities(self.sources, places)


def solve(
    surface: Surface, *, stream: ArrayLike = (1.0, 0.0, 0.0), ground: float | None = None, symmetric: bool = False
) -> Flow:
    """Incompressible flow without friction, rotation or lift past a body. Memory 8 F², F its triangles.

    Args:
        surface: closed, faces counter-clockwise seen from the fluid; of a symmetric body the half y ≥ 0.
        stream: velocity far away. It has no component through the ground, nor across the plane of symmetry.
        ground: height of the ground.
        symmetric: solve for half of the body: a quarter of the memory, half of the time.

    Raises:
        ConfigError: the stream flows through the ground or across the plane of symmetry.
        DataError: panels without area, or on the wrong side of a plane.
    """
    far = np.asarray(stream, dtype=np.float64)
    if far.shape != (3,) or not np.isfinite(far).all() or not far.any():
        raise ConfigError(f"stream={stream!r}: give three numbers, not all of them zero")
    if (ground is not None and far[2]) or (symmetric and far[1]):
        raise ConfigError(f"stream={far.tolist()} flows through the ground or across the plane of symmetry")
    panels = Panels(surface, ground, symmetric)
    panels.check()
    sources = _balanced(panels.normal_velocities(), -panels.normals @ far)
    disturbed = panels.potentials(sources, surface.vertices)
    return Flow(panels, far, sources, surface.vertices @ far + disturbed)


def _balanced(matrix: Array, through: Array) -> Array:
    """Sources that send `through` through each panel: in some twenty steps, however fine the panels are."""
    sources, failure = gmres(matrix, through, rtol=TOLERANCE, restart=STEPS, maxiter=1)
    if failure:
        raise NotConverged(
            f"the sources of {len(through):,} panels did not converge in {STEPS} steps; does the surface meet itself, "
            f"or nearly touch the ground? Use a finer one"
        )
    return np.asarray(sources)


@compiled
def _normal_velocities(
    centroids: Array, normals: Array, signs: Array, corners: Array, quadrature: Array, reaches: Array, out: Array
) -> None:
    """Every entry but those of a panel itself on itself, which the closing of the flux gives."""
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

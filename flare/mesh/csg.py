"""Constructive solid geometry: boxes, cylinders and prisms, joined, cut, turned and scaled.

    plate = Box((0, 0, 0), (60, 40, 5)) - Cylinder(axis=2, centre=(30, 20), radius=8, low=0, high=5)
    voxels = voxelize(plate, 0.5)

A solid decides whether points are inside it, so it can be voxelized at any size without a surface. Low faces belong to
it, high faces do not: solids that share a face fill space once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from flare.mesh.surface import Array, Mask, Vector
from flare.utils.errors import ConfigError


class Solid(ABC):
    """A set of points in space."""

    @property
    @abstractmethod
    def bounds(self) -> Array:
        """Low and high corner of a bounding box, (2, 3); tight except for what was cut away."""

    @abstractmethod
    def inside(self, x: Array, y: Array, z: Array) -> Mask:
        """Return whether points are inside; coordinates are arrays that broadcast against each other."""

    @property
    def extents(self) -> Array:
        """Edge lengths of the bounding box, (3,)."""
        low, high = self.bounds
        return high - low

    def __or__(self, other: Solid) -> Solid:
        return Union(self, other)

    def __sub__(self, other: Solid) -> Solid:
        return Difference(self, other)


@dataclass(frozen=True)
class Box(Solid):
    """An axis-aligned box between two corners."""

    low: Vector
    high: Vector

    def __post_init__(self) -> None:
        if not all(a < b for a, b in zip(self.low, self.high, strict=True)):
            raise ConfigError(f"low={self.low}, high={self.high}: high must be above low on each axis of a box")

    @property
    def bounds(self) -> Array:
        return np.array([self.low, self.high])

    def inside(self, x: Array, y: Array, z: Array) -> Mask:
        (x0, y0, z0), (x1, y1, z1) = self.low, self.high
        return ((x0 <= x) & (x < x1)) & ((y0 <= y) & (y < y1)) & ((z0 <= z) & (z < z1))


@dataclass(frozen=True, kw_only=True)
class Cylinder(Solid):
    """A cylinder along a coordinate axis."""

    axis: int
    """0, 1, 2 for x, y, z."""
    centre: tuple[float, float]
    """Center along the two other axes, in the order x, y, z."""
    radius: float
    low: float
    high: float

    def __post_init__(self) -> None:
        if not (self.radius > 0 and self.low < self.high):
            raise ConfigError(f"a cylinder needs a positive radius and low < high; got {self}")

    @property
    def bounds(self) -> Array:
        around = np.add(self.centre, [[-self.radius], [self.radius]])
        return np.insert(around, self.axis, [self.low, self.high], axis=1)

    def inside(self, x: Array, y: Array, z: Array) -> Mask:
        along, (u, v) = _along(self.axis, x, y, z)
        round_ = (u - self.centre[0]) ** 2 + (v - self.centre[1]) ** 2 < self.radius**2
        return round_ & ((self.low <= along) & (along < self.high))


@dataclass(frozen=True, kw_only=True)
class Prism(Solid):
    """A convex polygon extruded along an axis."""

    axis: int
    """0, 1, 2 for x, y, z."""
    polygon: tuple[tuple[float, float], ...]
    """Corners along the two other axes, in the order x, y, z, of either orientation."""
    low: float
    high: float

    def __post_init__(self) -> None:
        corners = np.array(self.polygon)
        side = np.roll(corners, -1, 0) - corners
        turn = side[:, 0] * np.roll(side, -1, 0)[:, 1] - side[:, 1] * np.roll(side, -1, 0)[:, 0]
        if len(corners) < 3 or not ((turn > 0).all() or (turn < 0).all()) or self.low >= self.high:
            raise ConfigError(f"a prism needs a convex polygon and low < high; got {self}")

    @property
    def bounds(self) -> Array:
        corners = np.array(self.polygon)
        return np.insert([corners.min(0), corners.max(0)], self.axis, [self.low, self.high], axis=1)

    def inside(self, x: Array, y: Array, z: Array) -> Mask:
        along, (u, v) = _along(self.axis, x, y, z)
        corners = np.array(self.polygon)
        (ax, ay), (bx, by), (cx, cy) = corners[:3]
        if (bx - ax) * (cy - by) < (by - ay) * (cx - bx):
            corners = corners[::-1]
        within = (self.low <= along) & (along < self.high)
        for (ax, ay), (bx, by) in zip(corners, np.roll(corners, -1, 0), strict=True):
            left = (bx - ax) * (v - ay) - (by - ay) * (u - ax)
            # A point on an edge belongs to the side of larger coordinates, as for boxes.
            within = within & (left >= 0 if by < ay or (by == ay and bx > ax) else left > 0)
        return within


@dataclass(frozen=True)
class Union(Solid):
    """The union of two solids."""

    first: Solid
    second: Solid

    @property
    def bounds(self) -> Array:
        a, b = self.first.bounds, self.second.bounds
        return np.stack([np.minimum(a[0], b[0]), np.maximum(a[1], b[1])])

    def inside(self, x: Array, y: Array, z: Array) -> Mask:
        return self.first.inside(x, y, z) | self.second.inside(x, y, z)


@dataclass(frozen=True)
class Difference(Solid):
    """The first solid without the second."""

    first: Solid
    second: Solid

    @property
    def bounds(self) -> Array:
        return self.first.bounds

    def inside(self, x: Array, y: Array, z: Array) -> Mask:
        return self.first.inside(x, y, z) & ~self.second.inside(x, y, z)


@dataclass(frozen=True, kw_only=True)
class Placed(Solid):
    """A solid with its axes swapped and flipped, then scaled, then shifted."""

    solid: Solid
    axes: tuple[int, int, int] = (0, 1, 2)
    """Axes of the solid that become x, y, z."""
    signs: tuple[int, int, int] = (1, 1, 1)
    """Direction of each, 1 or -1."""
    scale: float = 1.0
    shift: Vector = (0.0, 0.0, 0.0)

    @property
    def bounds(self) -> Array:
        corners = self.solid.bounds[:, self.axes] * (np.array(self.signs) * self.scale) + self.shift
        return np.sort(corners, axis=0)

    def inside(self, x: Array, y: Array, z: Array) -> Mask:
        own = [x, y, z]
        for axis, sign, shift, value in zip(self.axes, self.signs, self.shift, (x, y, z), strict=True):
            own[axis] = (value - shift) * (sign / self.scale)
        return self.solid.inside(own[0], own[1], own[2])


def on_plate(solid: Solid, *, longest: float | None = 60.0) -> Placed:
    """Center a solid, rest it on z = 0 and scale its longest edge to `longest` mm; None keeps the size."""
    low, high = solid.bounds
    scale = 1.0 if longest is None else longest / float((high - low).max())
    x, y = -scale * (low + high)[:2] / 2
    return Placed(solid=solid, scale=scale, shift=(float(x), float(y), float(-scale * low[2])))


def _along(axis: int, x: Array, y: Array, z: Array) -> tuple[Array, list[Array]]:
    others = [x, y, z]
    return others.pop(axis), others

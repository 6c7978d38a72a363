"""Car-like bodies: twenty parameters -> a smooth closed triangle surface, in meters.

A rounded box is deformed in steps. Each step moves points along one axis by an amount that depends on the other two and
grows with the first, so the surface never intersects itself.

    (s_x, s_y, s_z)   the rounded box: |s_x|^p + (|s_y|^q + |s_z|^q)^(p/q) = 1
    x = length (s_x + 1) / 2
    z between underbody(x) and roofline(x), in proportion to s_z
    y = s_y times half the width, reduced by plan view, greenhouse and wheel arches: a function of x and z

Finally the body is pitched and moved into the frame of DrivAerML: origin at the front axle, x downstream, z up, road at
z = −0.3176. It has no wheels.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from flare.mesh.surface import Surface
from flare.mesh.voxels import Voxels, skin
from flare.utils.errors import ConfigError

Array = NDArray[np.float64]

ROAD = -0.3176
"""Height of the road in m."""
ALONG, ROUND = 4.0, 3.0
"""Exponents p and q of the rounded box."""
WHEEL, ARCH = 0.32, 0.36
"""Height of the axles over the road and radius of the wheel arches in m."""
SOFT = 0.12
"""Share of the length of a slope over which it starts and ends."""
CELLS = (48, 16, 12)
"""Quadrilaterals of the box along, across and up at `refinement=1`."""


def _drawn(default: float, low: float, high: float) -> float:
    """Declare a parameter with its default and the range in which it is drawn uniformly."""
    return field(default=default, metadata={"range": (low, high)})


@dataclass(frozen=True, kw_only=True)
class Car:
    """A car body. Lengths in meters, heights over the road, angles in degrees; the defaults are an ordinary sedan."""

    length: float = _drawn(4.61, 4.40, 4.90)
    width: float = _drawn(1.84, 1.74, 1.94)
    height: float = _drawn(1.42, 1.32, 1.52)
    """Height of the roof."""
    ride_height: float = _drawn(0.16, 0.12, 0.22)
    """Height of the underbody."""
    pitch: float = _drawn(0.0, -1.0, 1.0)
    """Positive with the nose down."""
    front_overhang: float = _drawn(0.85, 0.75, 0.95)
    """Distance from the nose to the front axle."""
    wheelbase: float = _drawn(2.78, 2.65, 2.90)
    nose_height: float = _drawn(0.68, 0.62, 0.74)
    """Height of the deck line at the nose, before rounding."""
    hood_height: float = _drawn(0.92, 0.84, 0.98)
    """Height at the cowl, where the windscreen begins."""
    cowl: float = _drawn(1.35, 1.20, 1.50)
    """Distance from the nose to the cowl."""
    windscreen_run: float = _drawn(0.80, 0.65, 0.95)
    """Horizontal length of the windscreen; a long one is flat."""
    roof_run: float = _drawn(1.15, 0.90, 1.40)
    backlight_run: float = _drawn(0.75, 0.55, 0.95)
    """Horizontal length of the rear window."""
    decklid_height: float = _drawn(0.98, 0.88, 1.08)
    """Height at the tail."""
    front_planview: float = _drawn(0.08, 0.00, 0.16)
    """Relative loss of width towards the nose."""
    rear_tapering: float = _drawn(0.08, 0.00, 0.16)
    """Relative loss of width towards the tail."""
    greenhouse_tapering: float = _drawn(0.16, 0.08, 0.26)
    """Relative loss of width from the belt line up to the roof."""
    approach_angle: float = _drawn(5.0, 0.0, 12.0)
    """Angle of the underbody in front."""
    diffuser_angle: float = _drawn(5.0, 0.0, 12.0)
    """Angle of the underbody at the rear."""
    arch_depth: float = _drawn(0.08, 0.02, 0.14)
    """Depth of the wheel arches relative to half the width."""

    def __post_init__(self) -> None:
        for name, (low, high) in RANGES.items():
            value = getattr(self, name)
            slack = 0.5 * (high - low)  # the body is still valid slightly outside the ranges
            if not low - slack <= value <= high + slack:
                raise ConfigError(f"{name}={value:g} is out of range; use {low:g} to {high:g}")

    @property
    def parameters(self) -> dict[str, float]:
        """All parameters by name."""
        return asdict(self)

    def place(self, box: Array) -> Array:
        """Map points of the cube [−1, 1]³ to points of the body, shape (N, 3); surface points map to surface points."""
        s = _rounded(box)
        x = self.length * (s[:, 0] + 1) / 2
        low, high = self._underbody(x), self._roofline(x)
        z = low + (high - low) * (s[:, 2] + 1) / 2
        y = s[:, 1] * self.width / 2 * self._breadth(x, z)
        middle = self.front_overhang + self.wheelbase / 2
        turn = np.deg2rad(self.pitch)
        along, up = x - middle, z - self.ride_height
        x, z = middle + along * np.cos(turn) - up * np.sin(turn), along * np.sin(turn) + up * np.cos(turn)
        return np.stack([x - self.front_overhang, y, z + self.ride_height + ROAD], axis=1)

    def half(self, refinement: float = 1.0) -> Surface:
        """Return the side y ≥ 0 of the surface, open where it is cut: 3,072 triangles times `refinement` squared."""
        if not 0.25 <= refinement <= 8:
            raise ConfigError(f"refinement={refinement:g}: must be 0.25 to 8")
        along, across, up = (max(2, round(cells * refinement / 2) * 2) for cells in CELLS)
        solid = Voxels(np.ones((along, across // 2, up), dtype=bool), (1.0, 1.0, 1.0), (0.0, 0.0, 0.0))
        box = skin(solid)
        outside = box.vertices[box.faces][:, :, 1].any(axis=1)  # not in the plane of symmetry
        cube = box.vertices / [along / 2, across / 2, up / 2] - [1, 0, 1]
        # Equal angles rather than equal steps give cells of similar size after rounding.
        used, faces = np.unique(box.faces[outside], return_inverse=True)
        return Surface(self.place(np.tan(np.pi / 4 * cube[used])), faces.reshape(-1, 3))

    @cached_property
    def _cabin_end(self) -> float:
        """Distance from the nose to where the rear window meets the deck."""
        return self.cowl + self.windscreen_run + self.roof_run + self.backlight_run

    def _deck(self, x: Array) -> Array:
        """Return the height of hood, belt line and decklid."""
        hood = self.hood_height - self.nose_height
        rear = self.decklid_height - self.hood_height
        return self.nose_height + hood * _slope(x, 0.0, self.cowl) + rear * _slope(x, self.cowl, self._cabin_end)

    def _roofline(self, x: Array) -> Array:
        front = _slope(x, self.cowl, self.cowl + self.windscreen_run)
        back = 1 - _slope(x, self._cabin_end - self.backlight_run, self._cabin_end)
        return self._deck(x) + (self.height - self._deck(x)) * front * back

    def _underbody(self, x: Array) -> Array:
        front = np.tan(np.deg2rad(self.approach_angle)) * _ramp(0.7 * self.front_overhang - x, 0.08)
        rear = np.tan(np.deg2rad(self.diffuser_angle)) * _ramp(x - (self.length - 0.8), 0.08)
        return self.ride_height + front + rear

    def _breadth(self, x: Array, z: Array) -> Array:
        """Return the width relative to the full width."""
        front = self.front_planview * _ramp(1 - x / 1.2, 0.1) ** 2
        rear = self.rear_tapering * _ramp(1 - (self.length - x) / 1.5, 0.1) ** 2
        above = self.greenhouse_tapering * _ramp((z - self._deck(x)) / (self.height - self.hood_height), 0.1)
        return (1 - front - rear) * (1 - above) * (1 - self.arch_depth * self._arches(x, z))

    def _arches(self, x: Array, z: Array) -> Array:
        """Return 1 within the wheel arches, 0 outside, smooth between."""
        found = np.zeros_like(x)
        for axle in (self.front_overhang, self.front_overhang + self.wheelbase):
            distance = np.hypot(x - axle, z - WHEEL)
            found += 1 / (1 + np.exp((distance - ARCH) / 0.07))
        return found


RANGES: dict[str, tuple[float, float]] = {item.name: item.metadata["range"] for item in fields(Car)}
"""Smallest and largest value of each parameter, drawn uniformly."""


def random_car(rng: np.random.Generator) -> Car:
    """Draw a body with every parameter uniform in its range."""
    return Car(**{name: float(rng.uniform(*low_high)) for name, low_high in RANGES.items()})


def mirror(half: Surface) -> tuple[Surface, NDArray[np.int64]]:
    """Return the whole body and, for each of its vertices, the vertex of the half that it is or mirrors."""
    off = np.flatnonzero(half.vertices[:, 1] != 0)
    number = np.arange(len(half.vertices))
    number[off] = len(half.vertices) + np.arange(len(off))
    vertices = np.concatenate([half.vertices, half.vertices[off] * [1, -1, 1]])
    faces = np.concatenate([half.faces, number[half.faces[:, ::-1]]])
    return Surface(vertices, faces), np.concatenate([np.arange(len(half.vertices)), off])


def _rounded(box: Array) -> Array:
    x, y, z = np.abs(box).T
    size = (x**ALONG + (y**ROUND + z**ROUND) ** (ALONG / ROUND)) ** (1 / ALONG)
    depth = np.abs(box).max(axis=1)
    return box * (depth / np.where(size == 0, 1.0, size))[:, None]


def _ramp(x: Array, width: float) -> Array:
    """Return max(x, 0), rounded over a few times `width`."""
    return width * np.logaddexp(0.0, x / width)


def _slope(x: Array, start: float, end: float) -> Array:
    """Return 0 before `start`, 1 after `end`, linear between, with both corners rounded."""
    width = SOFT * (end - start)
    return (_ramp(x - start, width) - _ramp(x - end, width)) / (end - start)

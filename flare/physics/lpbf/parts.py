"""Random parts that look like CAD models, in place of the Fusion 360 Gallery: a base shape with a few features.

    drawn = draw_part(np.random.default_rng(0))
    drawn.part.description                  # "tube Ø60 × 22 (z up); bore Ø41; hole Ø7.1; chamfer 3.2"
    drawn.voxels, drawn.mesh, drawn.rejected

A part is a formula (`flare.mesh.csg`), so it can be voxelized at any size. Lengths are in mm before the last step,
which scales the longest edge of the part to 60 mm. Probabilities and ranges were tuned by hand until node counts,
heights and aspect ratios of 300 parts approached the published table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import numpy as np

from flare.mesh.benchmark_mesh import mesh_part
from flare.mesh.csg import Box, Cylinder, Placed, Prism, Solid, on_plate
from flare.mesh.octree import HexMesh
from flare.mesh.surface import GeometryError, to_vector
from flare.mesh.voxels import Voxels
from flare.utils.errors import NotConverged

LONGEST = 60.0  # mm, edge of the build volume
FAMILIES = {"plate": 0.35, "bracket": 0.20, "round": 0.25, "block": 0.20}
MAX_FEATURES = 6
ATTEMPTS = 200  # parts drawn for one within the limits, which two in three are
AXES = "xyz"

Rng = np.random.Generator


@dataclass(frozen=True)
class RandomPart:
    """A solid on the plate, centered in x and y, in mm."""

    solid: Solid
    family: str
    """plate, bracket, round or block."""
    description: str
    """Base shape, orientation and features; lengths before the part is scaled to 60 mm."""


@dataclass(frozen=True)
class DrawnPart:
    """A part within the limits, and the number of rejected ones before it."""

    part: RandomPart
    voxels: Voxels
    mesh: HexMesh
    rejected: dict[str, int]
    """Number of rejected parts by reason."""


def draw_part(rng: Rng, *, layers: int = 15) -> DrawnPart:
    """Draw parts until one is within the limits; voxels and merged mesh follow the benchmark's rules.

    Args:
        rng: Generator. How many numbers are drawn depends on the part, so give every sample its own.
        layers: Powder layers per voxel.

    Raises:
        NotConverged: None of `ATTEMPTS` parts is within the limits.
    """
    rejected: Counter[str] = Counter()
    for _ in range(ATTEMPTS):
        part = random_part(rng)
        try:
            voxels, mesh = mesh_part(part.solid, layers=layers)
        except GeometryError as fault:
            rejected[fault.reason] += 1
        else:
            return DrawnPart(part, voxels, mesh, dict(rejected))
    raise NotConverged(f"none of {ATTEMPTS} parts is within the limits ({dict(rejected)})")


def random_part(rng: Rng) -> RandomPart:
    """Draw a base shape, up to six features and an orientation, with a longest edge of 60 mm. It may violate the
    limits."""
    family = str(rng.choice(list(FAMILIES), p=list(FAMILIES.values())))
    draft = BASES[family](rng)
    kinds = rng.choice(list(FEATURES), size=rng.choice(MAX_FEATURES + 1, p=FEATURE_COUNTS))
    for kind in kinds:
        slab = draft.slabs[rng.integers(len(draft.slabs))]
        FEATURES[kind](draft, slab, rng)
    turned, orientation = _turned(draft.solid, draft.upright, rng)
    text = [f"{draft.text[0]} ({orientation})", *draft.text[1:]]
    return RandomPart(on_plate(turned, longest=LONGEST), family, "; ".join(text))


@dataclass(frozen=True)
class Slab(Box):
    """A box of the part on which features are placed, seen from its broad side."""

    @property
    def thin(self) -> int:
        """Shortest axis."""
        return int(np.argmin(self.extents))

    @property
    def u(self) -> int:
        """First of the other two axes."""
        return 1 if self.thin == 0 else 0

    @property
    def v(self) -> int:
        """Second of the other two axes."""
        return 1 if self.thin == 2 else 2

    def length(self, axis: int) -> float:
        """Return the length along an axis."""
        return self.high[axis] - self.low[axis]

    def somewhere(self, axis: int, margin: float, rng: Rng) -> float:
        """Draw a position along an axis, at least `margin` from both ends, or return the middle if there is no such
        position."""
        low, high = self.low[axis] + margin, self.high[axis] - margin
        return float(rng.uniform(low, high)) if low < high else (low + high) / 2


@dataclass
class PartDraft:
    """A part being drawn: its solid, the slabs for features, and its description."""

    solid: Solid
    slabs: list[Slab]
    text: list[str]
    upright: float
    """Probability that z of the drawing is the build direction."""

    def add(self, solid: Solid, text: str) -> None:
        """Unite with a solid."""
        self.solid = self.solid | solid
        self.text.append(text)

    def cut(self, solid: Solid, text: str) -> None:
        """Subtract a solid."""
        self.solid = self.solid - solid
        self.text.append(text)


# Base shapes, oriented as a designer would draw them: the plate flat, the tube standing.


def _plate(rng: Rng) -> PartDraft:
    width = LONGEST * rng.choice([1.0, rng.uniform(0.1, 0.75)], p=[0.12, 0.88])
    thick = _log_uniform(rng, 1.2, min(0.8 * width, 11.0))
    slab = _slab(LONGEST, width, thick)
    return PartDraft(slab, [slab], [f"plate {LONGEST:g} × {width:.3g} × {thick:.3g}"], upright=0.65)


def _bracket(rng: Rng) -> PartDraft:
    kind, thick = rng.choice(["L", "T", "U"]), rng.uniform(4.0, 12.0)
    length, width, height = LONGEST, _log_uniform(rng, 6.6, 45.0), rng.uniform(12.0, 58.0)
    foot = _slab(length, width, thick)
    place = {"L": [0.0], "T": [(length - thick) / 2], "U": [0.0, length - thick]}[str(kind)]
    legs = [Slab((x, 0.0, 0.0), (x + thick, width, height)) for x in place]
    text = f"{kind} bracket {length:g} × {width:.3g} × {height:.3g}, {thick:.3g} thick"
    draft = PartDraft(foot, [foot, *legs], [text], 0.5)
    for leg in legs:
        draft.solid = draft.solid | leg
    return draft


def _round(rng: Rng) -> PartDraft:
    kind = rng.choice(["cylinder", "tube", "flange"], p=[0.25, 0.35, 0.4])
    radius = LONGEST / 2 if kind == "flange" else rng.choice([LONGEST / 2, rng.uniform(3.5, 20.0)], p=[0.35, 0.65])
    height = rng.uniform(4.0, 25.0) if radius == LONGEST / 2 else LONGEST
    if kind == "flange":
        height = rng.uniform(3.0, 10.0)
    base = Cylinder(axis=2, centre=(radius, radius), radius=radius, low=0.0, high=height)
    inset = radius * (1 - np.sqrt(0.5))
    slab = Slab((inset, inset, 0.0), (2 * radius - inset, 2 * radius - inset, height))
    draft = PartDraft(base, [slab], [f"{kind} Ø{2 * radius:.3g} × {height:.3g}"], upright=0.75)
    if kind == "flange":
        hub, rise = radius * rng.uniform(0.3, 0.6), rng.uniform(3.0, 30.0)
        draft.add(_upright(radius, hub, height, height + rise), f"hub Ø{2 * hub:.3g} × {rise:.3g}")
        bore = hub * rng.uniform(0.4, 0.85)
        draft.cut(_upright(radius, bore, 0.0, height + rise), f"bore Ø{2 * bore:.3g}")
        bolts, ring = int(rng.choice([3, 4, 6, 8])), (hub + radius) / 2
        size = (radius - hub) * rng.uniform(0.15, 0.35)
        for turn in 2 * np.pi * np.arange(bolts) / bolts:
            at = (float(radius + ring * np.cos(turn)), float(radius + ring * np.sin(turn)))
            draft.solid = draft.solid - Cylinder(axis=2, centre=at, radius=size, low=0.0, high=height)
        draft.text.append(f"{bolts} bolt holes Ø{2 * size:.3g}")
    elif kind == "tube":
        bore = radius * rng.uniform(0.4, 0.88)
        draft.cut(_upright(radius, bore, 0.0, height), f"bore Ø{2 * bore:.3g}")
    return draft


def _block(rng: Rng) -> PartDraft:
    width, height = LONGEST * rng.uniform(0.12, 0.9), LONGEST * rng.uniform(0.12, 0.8)
    slab = _slab(LONGEST, width, height)
    draft = PartDraft(slab, [slab], [f"block {LONGEST:g} × {width:.3g} × {height:.3g}"], upright=0.5)
    columns, rows = int(rng.integers(1, 4)), int(rng.integers(1, 3))
    wall, floor = rng.uniform(2.5, 7.0), height * rng.uniform(0.1, 0.6)
    along, across = (LONGEST - wall) / columns, (width - wall) / rows
    if across <= 1.5 * wall:
        return draft
    for i, j in np.ndindex(columns, rows):
        low = (wall + i * along, wall + j * across, floor)
        draft.solid = draft.solid - Box(low, (low[0] + along - wall, low[1] + across - wall, height))
    draft.text.append(f"{columns} × {rows} pockets {height - floor:.3g} deep, walls {wall:.3g}")
    return draft


BASES: dict[str, Callable[[Rng], PartDraft]] = {"plate": _plate, "bracket": _bracket, "round": _round, "block": _block}


# Features, each placed on a slab.


def _hole(draft: PartDraft, slab: Slab, rng: Rng) -> None:
    """Cut one hole through the slab, or one at each corner."""
    short = min(slab.length(slab.u), slab.length(slab.v))
    four = rng.random() < 0.4
    radius = max(short * (rng.uniform(0.05, 0.1) if four else rng.uniform(0.08, 0.3)), 1.2)
    if four:
        margin = radius + short * rng.uniform(0.04, 0.12)
        ends = ((slab.low[axis] + margin, slab.high[axis] - margin) for axis in (slab.u, slab.v))
        centers = [(a, b) for a, b in product(*ends)]
    else:
        centers = [(slab.somewhere(slab.u, 1.3 * radius, rng), slab.somewhere(slab.v, 1.3 * radius, rng))]
    low, high = slab.low[slab.thin], slab.high[slab.thin]
    for center in centers:
        draft.solid = draft.solid - Cylinder(axis=slab.thin, centre=center, radius=radius, low=low, high=high)
    draft.text.append(f"{'4 holes' if four else 'hole'} Ø{2 * radius:.3g}")


def _slot(draft: PartDraft, slab: Slab, rng: Rng) -> None:
    """Cut an elongated hole with round ends along one side."""
    along, across = (slab.u, slab.v) if slab.length(slab.u) >= slab.length(slab.v) else (slab.v, slab.u)
    half, radius = slab.length(along) * rng.uniform(0.1, 0.3), max(slab.length(across) * rng.uniform(0.05, 0.15), 1.2)
    a, b = slab.somewhere(along, half + 1.5 * radius, rng), slab.somewhere(across, 1.5 * radius, rng)
    low, high = [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]
    low[slab.thin], high[slab.thin] = slab.low[slab.thin], slab.high[slab.thin]
    low[along], high[along], low[across], high[across] = a - half, a + half, b - radius, b + radius
    slot: Solid = Box(to_vector(low), to_vector(high))
    for end in (a - half, a + half):
        center = (end, b) if along < across else (b, end)
        slot = slot | Cylinder(axis=slab.thin, centre=center, radius=radius, low=low[slab.thin], high=high[slab.thin])
    draft.cut(slot, f"slot {2 * (half + radius):.3g} × {2 * radius:.3g}")


def _boss(draft: PartDraft, slab: Slab, rng: Rng) -> None:
    """Add a round or hexagonal stud on the broad face; half of them are bored."""
    radius = min(slab.length(slab.u), slab.length(slab.v)) * rng.uniform(0.12, 0.35)
    a, b = slab.somewhere(slab.u, radius, rng), slab.somewhere(slab.v, radius, rng)
    low, top = slab.low[slab.thin], slab.high[slab.thin]
    high = top + min(slab.length(slab.thin) * rng.uniform(0.4, 2.0), 20.0)
    stud: Solid = Cylinder(axis=slab.thin, centre=(a, b), radius=radius, low=low, high=high)
    name = "boss"
    if rng.random() < 0.3:
        turn = np.pi / 3 * np.arange(6)
        hexagon = tuple((float(a + radius * np.cos(t)), float(b + radius * np.sin(t))) for t in turn)
        stud, name = Prism(axis=slab.thin, polygon=hexagon, low=low, high=high), "hexagonal boss"
    draft.add(stud, f"{name} Ø{2 * radius:.3g} × {high - top:.3g}")
    if rng.random() < 0.5:
        bore = radius * rng.uniform(0.35, 0.7)
        draft.cut(Cylinder(axis=slab.thin, centre=(a, b), radius=bore, low=low, high=high), f"bore Ø{2 * bore:.3g}")


def _rib(draft: PartDraft, slab: Slab, rng: Rng) -> None:
    """Add a thin wall on the broad face with upright or sloping ends."""
    along, across = (slab.u, slab.v) if rng.random() < 0.5 else (slab.v, slab.u)
    length, thick = slab.length(along) * rng.uniform(0.4, 1.0), max(slab.length(across) * rng.uniform(0.04, 0.12), 1.5)
    start = slab.low[along] + (slab.length(along) - length) * rng.random()
    side = slab.somewhere(across, thick / 2, rng)
    foot, top = slab.low[slab.thin], slab.high[slab.thin] + rng.uniform(2.0, 15.0)
    middle = slab.high[slab.thin]
    slope = (top - middle) * rng.choice([0.0, 1.0]) if length > 2.2 * (top - middle) else 0.0
    # Drawn in the plane of `along` and `thin`, from the far side of the slab so that it is surely attached.
    corners = [(start, foot), (start + length, foot), (start + length, middle), (start + length - slope, top)]
    corners += [(start + slope, top), (start, middle)]
    if slope == 0.0:
        corners = [(start, foot), (start + length, foot), (start + length, top), (start, top)]
    polygon = tuple((a, t) if along < slab.thin else (t, a) for a, t in corners)
    rib = Prism(axis=across, polygon=polygon, low=side - thick / 2, high=side + thick / 2)
    draft.add(rib, f"{'sloping ' if slope else ''}rib {length:.3g} × {thick:.3g} × {top - middle:.3g}")


def _chamfer(draft: PartDraft, slab: Slab, rng: Rng) -> None:
    """Cut one edge of the slab at 45 degrees."""
    axis = int(rng.integers(3))
    a, b = (n for n in range(3) if n != axis)
    size = min(slab.length(a), slab.length(b)) * rng.uniform(0.15, 0.5)
    (x, dx), (y, dy) = ((slab.low[n], size) if rng.random() < 0.5 else (slab.high[n], -size) for n in (a, b))
    corner = ((x, y), (x + dx, y), (x, y + dy))
    draft.cut(Prism(axis=axis, polygon=corner, low=slab.low[axis], high=slab.high[axis]), f"chamfer {size:.3g}")


def _arm(draft: PartDraft, slab: Slab, rng: Rng) -> None:
    """Add a bar to a narrow side, at any height of it, so it may overhang."""
    out, side = (slab.u, slab.v) if rng.random() < 0.5 else (slab.v, slab.u)
    reach, width = slab.length(out) * rng.uniform(0.15, 0.5), slab.length(side) * rng.uniform(0.15, 0.5)
    thick = max(slab.length(slab.thin) * rng.uniform(0.3, 1.0), 2.0)
    low, high = list(slab.low), list(slab.high)
    low[side] = slab.somewhere(side, width / 2, rng) - width / 2
    high[side] = low[side] + width
    low[slab.thin] = slab.low[slab.thin] + max(slab.length(slab.thin) - thick, 0.0) * rng.random()
    high[slab.thin] = low[slab.thin] + thick
    if rng.random() < 0.5:
        low[out], high[out] = slab.high[out] - 0.2 * slab.length(out), slab.high[out] + reach
    else:
        low[out], high[out] = slab.low[out] - reach, slab.low[out] + 0.2 * slab.length(out)
    draft.add(Box(to_vector(low), to_vector(high)), f"arm {reach:.3g} × {width:.3g} × {thick:.3g}")


FEATURES: dict[str, Callable[[PartDraft, Slab, Rng], None]] = {
    "hole": _hole,
    "slot": _slot,
    "boss": _boss,
    "rib": _rib,
    "chamfer": _chamfer,
    "arm": _arm,
}
FEATURE_COUNTS = np.array([2, 4, 4, 3, 2, 1, 1]) / 17  # probabilities of 0 to 6 features


def _turned(solid: Solid, upright: float, rng: Rng) -> tuple[Solid, str]:
    """Orient the solid: as drawn or with another axis up, one in five upside down, and a random quarter turn on the
    plate."""
    up = 2 if rng.random() < upright else int(rng.integers(2))
    sign = -1 if rng.random() < 0.2 else 1
    a, b = (n for n in range(3) if n != up)
    if rng.random() < 0.5:
        a, b = b, a
    flat = Placed(solid=solid, axes=(a, b, up), signs=(1, 1, sign))
    return flat, f"{'-' if sign < 0 else ''}{AXES[up]} up"


def _log_uniform(rng: Rng, low: float, high: float) -> float:
    """Draw a length whose logarithm is uniform."""
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def _slab(x: float, y: float, z: float) -> Slab:
    return Slab((0.0, 0.0, 0.0), (float(x), float(y), float(z)))


def _upright(center: float, radius: float, low: float, high: float) -> Cylinder:
    return Cylinder(axis=2, centre=(center, center), radius=float(radius), low=low, high=high)

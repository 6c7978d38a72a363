"""Pathfinder: are the two discs at the ends of the same dashed path? Two long paths, some short ones, pixels as tokens.

    scene = draw(np.random.default_rng(0))
    scene.image, scene.label                # (32, 32) uint8; 1 where one path joins the discs

The published generator is followed rule by rule, but for pictures whose label nobody could tell: they are drawn anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numba
import numpy as np
import PIL
from numpy.typing import NDArray

from flare.sequence.pathfinder.paths import grow_distractors, grow_targets
from flare.sequence.pathfinder.stamps import as_bytes, marker, stamps
from flare.sequence.store import Example, SequenceSchema
from flare.utils.errors import ConfigError, NotConverged, nearest
from flare.utils.interrupts import uninterrupted

CLASSES = ("apart", "connected")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Lengths in pixels. All that differs between the published sizes."""

    dash: int
    """Length of a dash."""
    thickness: float
    margins: tuple[int, ...]
    """Around a dash, where nothing else may be; each picture has one of them."""
    distance: int
    """Between the places where the two long paths begin."""
    disc: float
    """Radius."""
    distractors: int
    """Short paths, where there is room."""
    continuity: float
    """How much a path dislikes turns."""
    target_brightness: float
    distractor_brightness: float
    padding: int = 1
    """Border without paths."""


RECIPES = {
    32: Recipe(
        dash=2,
        thickness=0.5,
        margins=(1,),
        distance=7,
        disc=1.5,
        distractors=5,
        continuity=1.0,
        target_brightness=1.5,
        distractor_brightness=2.0,
    ),
    128: Recipe(
        dash=5,
        thickness=1.5,
        margins=(2, 3),
        distance=20,
        disc=3.0,
        distractors=8,
        continuity=1.8,
        target_brightness=0.9,
        distractor_brightness=0.9,
    ),
}
"""Side of the picture -> how it is drawn."""


@dataclass(frozen=True)
class Scene:
    """A picture and what it was drawn of."""

    image: NDArray[np.uint8]
    """(size, size)."""
    label: int
    """1 where one path joins the discs."""
    discs: NDArray[np.int64]
    """(2, 2), (y, x) of each."""
    paths: NDArray[np.float64]
    """(2, size, size), the two long paths alone."""
    distractors: int
    """Short paths there was room for."""
    attempts: int
    """To grow the two long paths."""


@dataclass(frozen=True, kw_only=True)
class Pathfinder:
    """Dashed paths and two discs. Defaults are Pathfinder-32 of the Long Range Arena, its hard level."""

    size: Literal[32, 128] = 32
    """Pixels a side: 32, or 128 for Pathfinder-X."""
    dashes: int = 14
    """Of each long path: 14 is the hard level, 9 the intermediate one. Short paths have a third of them."""
    border: Literal["published", "occupied"] = "published"
    """What lies outside the picture where a path looks for room to begin: published follows the public code, which by
    an accident of its image library lets few directions pass (1.1 short paths a picture); occupied is what was meant
    (4.6 of them)."""
    ambiguous: bool = False
    """Keep pictures in which both long paths end under one disc, 1 in 100, as the published generator does. Its label
    may then be the opposite of what is to be seen; False draws them anew."""

    samples: ClassVar[int] = 200_000
    val_samples: ClassVar[int] = 20_000
    test_samples: ClassVar[int] = 20_000

    def __post_init__(self) -> None:
        if self.dashes < 3:
            raise ConfigError(f"dashes={self.dashes}; a long path has at least 3, a short one a third of them")
        _recipe(self.size)

    def schema(self) -> SequenceSchema:
        return SequenceSchema(name="pathfinder", vocabulary=256, classes=CLASSES, longest=self.size**2, pad=None)

    def sample(self, rng: np.random.Generator) -> Example:
        scene = draw(rng, size=self.size, dashes=self.dashes, border=self.border, ambiguous=self.ambiguous)
        notes = {"attempts": scene.attempts, "distractors": scene.distractors}
        return Example((scene.image.ravel(),), scene.label, notes)

    def provenance(self) -> dict[str, Any]:
        made_with = {"numba": numba.__version__, "pillow": PIL.__version__}
        return {"kind": "recreated", "generator": "flare.sequence.pathfinder", **made_with}


def draw(
    rng: np.random.Generator, *, size: int = 32, dashes: int = 14, border: str = "published", ambiguous: bool = False
) -> Scene:
    """A random picture. The arguments are those of `Pathfinder`.

    Raises:
        NotConverged: two paths of so many dashes find no room.
    """
    recipe, strict = _recipe(size), border == "published"
    label, margin = int(rng.integers(2)), recipe.margins[rng.integers(len(recipe.margins))]
    dash = stamps(recipe.dash, recipe.thickness, margin)
    attempts, clear = 0, False
    while not clear:
        with uninterrupted():
            tried, paths, mask, ends = grow_targets(
                rng, size, dash, dashes, recipe.distance, recipe.continuity, recipe.padding, strict
            )
        if not tried:
            raise NotConverged(f"two paths of {dashes} dashes find no room in {size} × {size} pixels; ask for fewer")
        attempts += tried
        first = int(rng.integers(2))
        discs = np.stack([ends[first, 0], ends[first if label else 1 - first, 1]])
        clear = ambiguous or not _on_both(paths, discs)
    short = np.zeros_like(mask)
    with uninterrupted():
        placed = grow_distractors(rng, mask, short, dash, recipe.distractors, dashes // 3, recipe.continuity, strict)
    layers = [*recipe.target_brightness * paths, recipe.distractor_brightness * short]
    layers += [marker(size, place, recipe.disc) for place in discs]
    return Scene(as_bytes(np.max(layers, axis=0)), label, discs, paths, placed, attempts)


def _on_both(paths: NDArray[np.float64], discs: NDArray[np.int64]) -> bool:
    """Whether both paths pass under the middle of a disc: their last dashes do not look out for each other."""
    return bool((paths[:, discs[:, 0], discs[:, 1]] > 0.1).all(axis=0).any())


def _recipe(size: int) -> Recipe:
    if size not in RECIPES:
        raise ConfigError(f"there is no Pathfinder of {size} pixels a side; {nearest(str(size), map(str, RECIPES))}")
    return RECIPES[size]

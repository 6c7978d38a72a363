"""Pathfinder: classify whether two discs are at the ends of the same dashed path, with pixels as tokens.

    scene = draw(np.random.default_rng(0))
    scene.image, scene.label                # (32, 32) uint8; 1 if one path connects the discs

The generator follows the published one rule by rule, except that images with an ambiguous label are drawn again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import numba
import numpy as np
import PIL
from numpy.typing import NDArray

from flare.sequence.files import SequenceFiles, read_image, read_lines, shuffled
from flare.sequence.pathfinder_drawing import draw_disc, grow_distractors, grow_targets, make_stamps, to_bytes
from flare.sequence.store import Example, SequenceSchema
from flare.utils.errors import ConfigError, DataError, NotConverged, suggest_name
from flare.utils.interrupts import defer_interrupts

CLASSES = ("apart", "connected")


@dataclass(frozen=True, kw_only=True)
class DrawingRules:
    """Parameters that differ between the published sizes, with lengths in pixels."""

    dash: int
    """Length of a dash."""
    thickness: float
    margins: tuple[int, ...]
    """Margins around a dash where nothing else may be; each image uses one of them."""
    distance: int
    """Distance between the positions where the two long paths begin."""
    disc: float
    """Radius of a disc."""
    distractors: int
    """Most short paths."""
    continuity: float
    """Penalty of turns."""
    target_brightness: float
    distractor_brightness: float


RULES = {
    32: DrawingRules(
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
    128: DrawingRules(
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
"""Pixels per side -> rules."""


@dataclass(frozen=True)
class Scene:
    """An image and what it was drawn from."""

    image: NDArray[np.uint8]
    """Shape (size, size)."""
    label: int
    """1 if one path connects the discs."""
    discs: NDArray[np.int64]
    """Positions (y, x), shape (2, 2)."""
    paths: NDArray[np.float64]
    """Images of the two long paths alone, shape (2, size, size)."""
    distractors: int
    """Number of short paths that fit."""
    attempts: int
    """Number of attempts to grow the two long paths."""


@dataclass(frozen=True, kw_only=True)
class Pathfinder:
    """Generator of dashed paths and two discs, by default Pathfinder-32 of the Long Range Arena at its hard level."""

    size: Literal[32, 128] = 32
    """Pixels per side: 32, or 128 for Pathfinder-X."""
    dashes: int = 14
    """Dashes of a long path: 14 is the hard level, 9 the intermediate one. Short paths have a third of them."""
    border: Literal["published", "occupied"] = "published"
    """What is outside the image when a path looks for room to begin. `published` follows the public code, in which a
    quirk of the image library leaves few directions (1.1 short paths per image). `occupied` is what was intended (4.6
    short paths)."""
    ambiguous: bool = False
    """Keep images in which both long paths end under one disc, as the published generator does, about 1 in 100. Their
    label may contradict the image. False draws them again."""

    samples: ClassVar[int] = 200_000
    val_samples: ClassVar[int] = 20_000
    test_samples: ClassVar[int] = 20_000

    def __post_init__(self) -> None:
        if self.dashes < 3:
            raise ConfigError(f"dashes={self.dashes}; a long path has at least 3 dashes")
        if self.size not in RULES:
            raise ConfigError(f"size={self.size} is unknown; {suggest_name(str(self.size), map(str, RULES))}")

    def schema(self) -> SequenceSchema:
        return SequenceSchema(name="pathfinder", vocabulary=256, classes=CLASSES, longest=self.size**2, pad=None)

    def sample(self, rng: np.random.Generator) -> Example:
        scene = self.draw(rng)
        notes = {"attempts": scene.attempts, "distractors": scene.distractors}
        return Example((scene.image.ravel(),), scene.label, notes)

    def draw(self, rng: np.random.Generator) -> Scene:
        """Draw a random image.

        Raises:
            NotConverged: There is no room for two paths of so many dashes.
        """
        rules, strict = RULES[self.size], self.border == "published"
        label, margin = int(rng.integers(2)), rules.margins[rng.integers(len(rules.margins))]
        dash = make_stamps(rules.dash, rules.thickness, margin)
        attempts, clear = 0, False
        while not clear:
            with defer_interrupts():
                tried, paths, mask, ends = grow_targets(
                    rng, self.size, dash, self.dashes, rules.distance, rules.continuity, strict
                )
            if not tried:
                raise NotConverged(f"two paths with dashes={self.dashes} do not fit into {self.size}² pixels")
            attempts += tried
            first = int(rng.integers(2))
            discs = np.stack([ends[first, 0], ends[first if label else 1 - first, 1]])
            # Ambiguous: both paths pass under the center of a disc. Their last dashes may overlap.
            clear = self.ambiguous or not (paths[:, discs[:, 0], discs[:, 1]] > 0.1).all(axis=0).any()
        short, dashes = np.zeros_like(mask), self.dashes // 3
        with defer_interrupts():
            placed = grow_distractors(rng, mask, short, dash, rules.distractors, dashes, rules.continuity, strict)
        layers = [*rules.target_brightness * paths, rules.distractor_brightness * short]
        layers += [draw_disc(self.size, place, rules.disc) for place in discs]
        return Scene(to_bytes(np.max(layers, axis=0)), label, discs, paths, placed, attempts)

    def provenance(self) -> dict[str, Any]:
        made_with = {"numba": numba.__version__, "pillow": PIL.__version__}
        return {"kind": "recreated", "generator": "flare.sequence.pathfinder", **made_with}


def draw(rng: np.random.Generator, **options: Any) -> Scene:
    """Draw a random image; the options are those of `Pathfinder`."""
    return Pathfinder(**options).draw(rng)


@dataclass(frozen=True, kw_only=True)
class PathfinderFiles(SequenceFiles):
    """Published files: `<level>/metadata/<batch>.npy`, which are text, and `<level>/imgs/<batch>/*.png`."""

    name: ClassVar[str] = "pathfinder"
    reader: ClassVar[str] = "flare.sequence.pathfinder.files.PathfinderFiles"
    published: ClassVar[tuple[int, int]] = (180_000, 20_000)
    form: ClassVar[tuple[str, ...]] = ("level",)
    level: str = "curv_contour_length_14"
    """Folder of the level: curv_contour_length_14 (hard), curv_contour_length_9 or curv_baseline."""
    seed: int = 0
    """Seed of the split into 80 % training, 10 % validation and 10 % test; the benchmark has no fixed split."""

    def schema(self) -> SequenceSchema:
        return SequenceSchema(name="pathfinder", vocabulary=256, classes=CLASSES, longest=self._image(0).size, pad=None)

    def files(self) -> dict[str, list[Path]]:
        return {"metadata": self._lists, "imgs": [path for path, _ in self._labeled_paths]}

    def counts(self) -> dict[str, int]:
        total = len(self._labeled_paths)
        return {"train": total * 8 // 10, "val": total * 9 // 10 - total * 8 // 10, "test": total - total * 9 // 10}

    def examples(self) -> Iterator[Example]:
        size = self.schema().longest
        for index, (path, label) in enumerate(self._labeled_paths):
            pixels = self._image(index)
            if pixels.size != size:
                raise DataError(f"{path} has {pixels.shape} pixels; {self._labeled_paths[0][0]} has {size}")
            yield Example((pixels.ravel(),), label)

    def _image(self, index: int) -> np.ndarray:
        path, _ = self._labeled_paths[index]
        return read_image(path, "L", str(path))

    @cached_property
    def _lists(self) -> list[Path]:
        root = self.path(self.level)
        found = sorted((root / "metadata").glob("*.npy"), key=lambda path: (len(path.stem), path.stem))
        if not found:
            raise DataError(f"{root}/metadata has no .npy lists; folder={self.folder!r} must contain the level")
        return found

    @cached_property
    def _labeled_paths(self) -> list[tuple[Path, int]]:
        """Path and label of every image in the order of the dataset, without empty files (one is known)."""
        listed = [entry for path in self._lists for entry in self._entries(path)]
        for path, _ in listed:
            if not path.is_file():
                raise DataError(f"{path} is missing, but listed in {self.path(self.level) / 'metadata'}")
        whole = [entry for entry in listed if entry[0].stat().st_size]
        if not whole:
            raise DataError(f"{self.path(self.level)} has no images")
        return shuffled(whole, self.seed)

    def _entries(self, path: Path) -> Iterator[tuple[Path, int]]:
        for number, line in read_lines(path):
            words = line.split(" ")
            if len(words) < 4 or words[3] not in ("0", "1"):
                expected = "expected folder, file, number, label (0 or 1), ..."
                raise DataError(f"{path}, line {number}: {line[:60]!r}; {expected}")
            yield self.path(self.level) / words[0] / words[1], int(words[3])

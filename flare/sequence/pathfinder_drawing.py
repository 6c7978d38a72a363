"""Drawing of Pathfinder images: dashes, discs, and dashed paths that grow without touching what is there.

This follows the published algorithm, including its roundings and quirks. Dashes are drawn by Pillow on a finer canvas
and shrunk by its Lanczos filter on 8-bit data, as in the published images. Positions are (y, x) pixels, y down. An
angle t points along (sin t, cos t). Every path leaves a margin around its dashes in the shared mask, where no later
dash may lie. The newest dash is entered into the mask together with the next one.
"""

from __future__ import annotations

from functools import cache
from math import ceil
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from scipy.ndimage import grey_dilation

from flare.utils.numba_cache import compiled

Array = NDArray[np.float64]
PathState = NDArray[np.float64]
"""State of a path that is needed to extend it; the indices follow."""
PIVOT_Y, PIVOT_X, ANGLE, LAST_Y, LAST_X, LAST_STAMP = range(6)

ANTIALIAS = 2
"""Pixels of the finer canvas per pixel."""
FREE = 0.3
"""A pixel is free up to this value of the mask."""
CROWDED = 1.8
"""The sum of two masks must stay below this."""
TRIALS = 3
"""Trials of a first dash, and of each further one."""
DISTRACTOR_TRIALS = 5
ATTEMPTS = 100_000
"""Most attempts to grow two long paths; the published size takes about 320."""


class Stamps(NamedTuple):
    """K dashes of one length, thickness and margin, in all directions.

    Each starts in the middle of a square of 2 R + 1 pixels.
    """

    length: int
    margin: int
    reach: int
    """R."""
    line: Array
    """Images of the dashes, shape (K, 2R+1, 2R+1), from 0 to 1."""
    mask: Array
    """The same with the margin around each dash, where nothing else may be."""
    footprint: NDArray[np.int64]
    """Offsets (y, x) of the pixels that must be free for a path to begin with a dash, shape (K, most, 2)."""
    footprint_size: NDArray[np.int64]
    """Number of these pixels, shape (K,)."""
    disc: NDArray[np.int64]
    """Offsets (y, x) of a disc with the margin as its radius, shape (pixels, 2)."""


@cache
def make_stamps(length: int, thickness: float, margin: int) -> Stamps:
    """Draw the dashes of one length, thickness and margin."""
    reach, fine = length + ceil(thickness) + margin, length * ANTIALIAS
    ends = [(y, x) for y in range(-fine, fine + 1) for x in range(-fine, fine + 1)]
    drawn = [_draw(end, reach, round(thickness * ANTIALIAS), margin) for end in ends]
    footprints = [_footprint(mask, length + margin) for _, mask in drawn]
    padded = np.zeros((len(ends), max(map(len, footprints)), 2), np.int64)
    for k, offsets in enumerate(footprints):
        padded[k, : len(offsets)] = offsets
    return Stamps(
        length=length,
        margin=margin,
        reach=reach,
        line=np.stack([line for line, _ in drawn]),
        mask=np.stack([mask for _, mask in drawn]),
        footprint=padded,
        footprint_size=np.array([len(offsets) for offsets in footprints]),
        disc=np.argwhere(_disc(margin)) - margin,
    )


def draw_disc(size: int, place: NDArray[np.int64], radius: float) -> Array:
    """Return an image of a filled disc at (y, x), shape (size, size), from 0 to 1."""
    axis = np.arange(size * ANTIALIAS)
    far = (axis[:, None] - ANTIALIAS * place[0]) ** 2 + (axis - ANTIALIAS * place[1]) ** 2
    return _shrink(Image.fromarray(np.where(far <= (radius * ANTIALIAS) ** 2, 255, 0).astype(np.uint8)), size)


def to_bytes(image: Array) -> NDArray[np.uint8]:
    """Scale an image so that its smallest and largest values are 0 and 255."""
    low, high = image.min(), image.max()
    return ((image - low) / (high - low) * 255 + 0.5).astype(np.uint8)


def _draw(end: tuple[int, int], reach: int, width: int, margin: int) -> tuple[Array, Array]:
    """Return the images of a dash and of its mask."""
    center = reach * ANTIALIAS
    canvas = Image.new("L", (2 * center + 1, 2 * center + 1))
    ImageDraw.Draw(canvas).line([(center, center), (center + end[1], center + end[0])], fill=255, width=width)
    wide = grey_dilation(np.asarray(canvas), footprint=_disc(margin * ANTIALIAS))
    return _shrink(canvas, 2 * reach + 1), _shrink(Image.fromarray(wide), 2 * reach + 1)


def _shrink(canvas: Image.Image, size: int) -> Array:
    return np.asarray(canvas.resize((size, size), Image.Resampling.LANCZOS), np.float64) / 255


def _disc(radius: int) -> NDArray[np.bool_]:
    axis = np.arange(-radius, radius + 1)
    return axis[:, None] ** 2 + axis**2 <= radius**2


def _footprint(mask: Array, reach: int) -> NDArray[np.int64]:
    """Return where the mask is full, shifted by one pixel down and to the right, as in the published code."""
    offsets = np.argwhere(mask == 1) - len(mask) // 2 + 1
    return offsets[(abs(offsets) <= reach).all(axis=1)]


@compiled
def grow_targets(
    rng: np.random.Generator, size: int, stamps: Stamps, dashes: int, distance: int, continuity: float, strict: bool
) -> tuple[int, Array, Array, NDArray[np.int64]]:
    """Grow two long paths, from scratch until both have all their dashes.

    Args:
        rng: Random numbers.
        size: Pixels per side.
        stamps: Dashes.
        dashes: Dashes per path.
        distance: Distance between the positions where the paths begin.
        continuity: Penalty of turns.
        strict: Follow the published code at the border; see `available`.

    Returns:
        The number of attempts, 0 if all failed; images of the paths, shape (2, size, size); the mask; the first and
        last position (y, x) of each path, shape (2, 2, 2).
    """
    layers, mask = np.zeros((2, size, size)), np.zeros((size, size))
    ends, paths = np.zeros((2, 2, 2), np.int64), np.zeros((2, 6))
    for attempt in range(1, ATTEMPTS + 1):
        layers[:], mask[:] = 0.0, 0.0
        block_border(mask, 1)
        if not begin_anywhere(rng, mask, stamps, 2 * distance, strict, paths[0]):
            continue
        if not begin_beside(rng, size, stamps, distance, paths[0], paths[1]):
            continue
        for i in range(2):
            ends[i, 0, 0], ends[i, 0, 1] = paths[i, LAST_Y], paths[i, LAST_X]
            paste(layers[i], stamps.line, stamps.reach, paths[i])
        grown = True
        for _ in range(dashes - 1):
            for i in range(2):
                grown = grown and extend(rng, mask, layers[i], stamps, continuity, paths[i])
        if grown:
            for i in range(2):
                ends[i, 1, 0], ends[i, 1, 1] = paths[i, LAST_Y], paths[i, LAST_X]
            paste(mask, stamps.mask, stamps.reach, paths[1])  # but not that of the first path, as in the published code
            return attempt, layers, mask, ends
    return 0, layers, mask, ends


@compiled
def grow_distractors(
    rng: np.random.Generator,
    mask: Array,
    image: Array,
    stamps: Stamps,
    count: int,
    dashes: int,
    continuity: float,
    strict: bool,
) -> int:
    """Add up to `count` short paths to the mask and the image, and return how many fit."""
    placed, path = 0, np.zeros(6)
    for _ in range(count):
        for _ in range(DISTRACTOR_TRIALS):
            tried_mask, tried = mask.copy(), image.copy()
            if (mask <= FREE).mean() < 0.01 or not begin_anywhere(rng, mask, stamps, 1, strict, path):
                continue
            paste(tried, stamps.line, stamps.reach, path)
            grown = True
            for _ in range(dashes - 1):
                grown = grown and extend(rng, tried_mask, tried, stamps, continuity, path)
            if grown:
                paste(tried_mask, stamps.mask, stamps.reach, path)
                mask[:], image[:] = tried_mask, tried
                placed += 1
                break
    return placed


@compiled
def begin_anywhere(
    rng: np.random.Generator, mask: Array, stamps: Stamps, border: int, strict: bool, path: PathState
) -> bool:
    """Begin a path at a random free position, at least `border` pixels inside."""
    for _ in range(TRIALS):
        angle = np.deg2rad(float(rng.integers(-180, 180)))
        free = available(mask, stamps, stamp_at(stamps, angle), border, strict)
        if len(free) == 0:
            return False
        y, x = free[rng.integers(0, len(free))]
        if begin(len(mask), stamps, y, x, angle, path):
            return True
    return False


@compiled
def begin_beside(
    rng: np.random.Generator, size: int, stamps: Stamps, distance: int, first: PathState, path: PathState
) -> bool:
    """Begin a path at a distance from another one, even if the position is not free."""
    for _ in range(TRIALS):
        angle = np.deg2rad(float(rng.integers(-180, 180)))
        bearing = np.deg2rad(float(rng.integers(0, 360)))
        y = int(np.rint(first[LAST_Y] + distance * np.sin(bearing)))
        x = int(np.rint(first[LAST_X] + distance * np.cos(bearing)))
        if begin(size, stamps, y, x, angle, path):
            return True
    return False


@compiled
def begin(size: int, stamps: Stamps, y: int, x: int, angle: float, path: PathState) -> bool:
    """Begin a path with one dash at (y, x), and return whether it stays in the image."""
    head_y, head_x = move(y, x, angle, stamps.length)
    pivot_y, pivot_x = move(head_y, head_x, reverse(angle), stamps.length + stamps.margin)
    path[PIVOT_Y], path[PIVOT_X], path[ANGLE] = pivot_y, pivot_x, angle
    path[LAST_Y], path[LAST_X], path[LAST_STAMP] = y, x, stamp_at(stamps, angle)
    return min(head_y, head_x, pivot_y, pivot_x) >= 0 and max(head_y, head_x, pivot_y, pivot_x) < size


@compiled
def extend(
    rng: np.random.Generator, mask: Array, layer: Array, stamps: Stamps, continuity: float, path: PathState
) -> bool:
    """Add a dash that avoids the mask, more likely with smaller turns, and return False at a dead end."""
    length, margin = stamps.length, stamps.margin
    y, x = move(int(path[PIVOT_Y]), int(path[PIVOT_X]), path[ANGLE], length + 2 * margin)
    points, angles, chances = endpoints(mask, stamps.disc, y, x, path[ANGLE], length + margin, continuity)
    total = chances.sum()
    if total < 1e-4:
        return False
    for _ in range(TRIALS):
        drawn = int(np.searchsorted(np.cumsum(chances), total * rng.random(), side="right"))
        stamp = stamp_at(stamps, reverse(angles[drawn]))  # drawn from its far end to the pivot
        head_y, head_x = points[drawn] // len(mask), points[drawn] % len(mask)
        if crowding(mask, stamps.mask[stamp], stamps.reach, head_y, head_x) < CROWDED:
            paste(mask, stamps.mask, stamps.reach, path)
            path[PIVOT_Y], path[PIVOT_X], path[ANGLE] = y, x, angles[drawn]
            path[LAST_Y], path[LAST_X], path[LAST_STAMP] = head_y, head_x, stamp
            paste(layer, stamps.line, stamps.reach, path)
            return True
    return False


@compiled
def endpoints(
    mask: Array, disc: NDArray[np.int64], y: int, x: int, angle: float, radius: int, continuity: float
) -> tuple[NDArray[np.int64], Array, Array]:
    """Return the pixels around (y, x) where a dash may end, as row · size + column, their angles and their weights."""
    size = len(mask)
    step = 1.0 / radius  # one pixel along the circle
    count = int(np.ceil(2 * np.pi / step))
    found = np.empty(count, np.int64)
    kept = 0
    for i in range(count):
        point_y, point_x = y + radius * np.sin(i * step), x + radius * np.cos(i * step)
        if min(point_y, point_x) >= 0 and max(point_y, point_x) < size:
            found[kept] = int(point_y) * size + int(point_x)
            kept += 1
    points = np.unique(found[:kept])
    angles, chances = np.empty(len(points)), np.empty(len(points))
    for i, point in enumerate(points):
        point_y, point_x = point // size, point % size
        angles[i] = np.arctan2(point_y - y, point_x - x)
        turn = abs(angles[i] - angle)
        turn = min(turn, 2 * np.pi - turn)
        weight = np.cos(min(continuity * turn, np.pi / 2)) ** 2
        chances[i] = (1 - greatest(mask, disc, len(disc), point_y, point_x)) * weight
    return points, angles, chances


@compiled
def available(mask: Array, stamps: Stamps, stamp: int, border: int, strict: bool) -> NDArray[np.int64]:
    """Return positions where a path may begin with this dash, at least `border` pixels inside, shape (positions, 2).

    Pixels outside the image are occupied. If `strict`, they are ignored instead, but no position is free if the
    footprint of some pixel is completely outside. This is what the published code does: an image library marks such a
    pixel with minus infinity, and a guard against negative masks then gives up. It leaves few directions to begin in.
    """
    size = len(mask)
    blocked = mask.copy()
    block_border(blocked, border)
    footprint, count = stamps.footprint[stamp], stamps.footprint_size[stamp]
    free = np.empty((size * size, 2), np.int64)
    found = 0
    if strict:  # footprints are completely outside at corners first
        for y in (0, size - 1):
            for x in (0, size - 1):
                if greatest(blocked, footprint, count, y, x) < 0:
                    return free[:0]
    for y in range(size):
        for x in range(size):
            if is_free(blocked, footprint, count, y, x, strict):
                free[found, 0], free[found, 1] = y, x
                found += 1
    return free[:found]


@compiled
def greatest(mask: Array, offsets: NDArray[np.int64], count: int, y: int, x: int) -> float:
    """Return the largest mask value at the pixels (y, x) + offset inside the image; −1 if there are none."""
    size, highest = len(mask), -1.0
    for i in range(count):
        row, column = y + offsets[i, 0], x + offsets[i, 1]
        if 0 <= row < size and 0 <= column < size:
            highest = max(highest, mask[row, column])
    return highest


@compiled
def is_free(mask: Array, offsets: NDArray[np.int64], count: int, y: int, x: int, outside: bool) -> bool:
    """Return whether all pixels (y, x) + offset are free, where those outside the image are free if `outside`."""
    size = len(mask)
    for i in range(count):
        row, column = y + offsets[i, 0], x + offsets[i, 1]
        if 0 <= row < size and 0 <= column < size:
            if mask[row, column] > FREE:
                return False
        elif not outside:
            return False
    return True


@compiled
def crowding(mask: Array, stamp: Array, reach: int, y: int, x: int) -> float:
    """Return the largest sum of the mask and a stamp centered at (y, x)."""
    size, highest = len(mask), 0.0
    for row in range(max(0, y - reach), min(size, y + reach + 1)):
        for column in range(max(0, x - reach), min(size, x + reach + 1)):
            highest = max(highest, mask[row, column] + stamp[row - y + reach, column - x + reach])
    return highest


@compiled
def paste(image: Array, stamps: Array, reach: int, path: PathState) -> None:
    """Draw the newest dash of a path, clipped to the image."""
    size, y, x, stamp = len(image), int(path[LAST_Y]), int(path[LAST_X]), int(path[LAST_STAMP])
    for row in range(max(0, y - reach), min(size, y + reach + 1)):
        for column in range(max(0, x - reach), min(size, x + reach + 1)):
            value = stamps[stamp, row - y + reach, column - x + reach]
            image[row, column] = max(image[row, column], value)


@compiled
def block_border(mask: Array, width: int) -> None:
    size = len(mask)
    mask[:width], mask[size - width :] = 1.0, 1.0
    mask[:, :width], mask[:, size - width :] = 1.0, 1.0


@compiled
def stamp_at(stamps: Stamps, angle: float) -> int:
    """Return the index of the dash that points along an angle."""
    center, fine = stamps.reach * ANTIALIAS, stamps.length * ANTIALIAS
    y, x = move(center, center, angle, fine)
    return (y - center + fine) * (2 * fine + 1) + (x - center + fine)


@compiled
def move(y: int, x: int, angle: float, distance: int) -> tuple[int, int]:
    """Return the position after a move, rounded up in both directions as in the published code."""
    return int(np.ceil(y + distance * np.sin(angle))), int(np.ceil(x + distance * np.cos(angle)))


@compiled
def reverse(angle: float) -> float:
    return angle + np.pi if angle < 0 else angle - np.pi

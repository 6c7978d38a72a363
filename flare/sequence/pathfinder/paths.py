"""Dashed paths that grow without touching what is there: the published algorithm, its roundings and quirks included.

Places are (y, x) pixels, y down; an angle t points along (sin t, cos t). Every path leaves in the shared mask a margin
around its dashes, in which no later dash may lie; its newest dash is entered only with the next one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flare.sequence.pathfinder.stamps import ANTIALIAS, Stamps
from flare.utils.numba_cache import compiled

Array = NDArray[np.float64]
Path = NDArray[np.float64]
"""What is to be known of a path to extend it: see the indices below."""
PIVOT_Y, PIVOT_X, ANGLE, LAST_Y, LAST_X, LAST_STAMP = range(6)

FREE = 0.3  # a pixel is free up to this value of the mask
CROWDED = 1.8  # two masks may sum up to less than this
TRIALS = 3  # of a first dash, and of each further one
DISTRACTOR_TRIALS = 5
ATTEMPTS = 100_000  # of two long paths; the published size takes some 320


@compiled
def grow_targets(
    rng: np.random.Generator,
    size: int,
    stamps: Stamps,
    dashes: int,
    distance: int,
    continuity: float,
    padding: int,
    strict: bool,
) -> tuple[int, Array, Array, NDArray[np.int64]]:
    """Two long paths, begun anew until both have all their dashes.

    Args:
        distance: between the places where the two begin.
        continuity: how much a path dislikes turns.
        strict: nothing is free where a footprint can lie wholly outside the picture (see `available`).

    Returns:
        attempts, 0 if all failed; (2, size, size) pictures of the paths; the mask; (2, 2, 2) ends: of each path the
        first and the last, (y, x).
    """
    layers, mask = np.zeros((2, size, size)), np.zeros((size, size))
    ends, paths = np.zeros((2, 2, 2), np.int64), np.zeros((2, 6))
    for attempt in range(1, ATTEMPTS + 1):
        layers[:], mask[:] = 0.0, 0.0
        block_border(mask, padding)
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
            paste(mask, stamps.mask, stamps.reach, paths[1])  # and not that of the first path: so the published code
            return attempt, layers, mask, ends
    return 0, layers, mask, ends


@compiled
def grow_distractors(
    rng: np.random.Generator,
    mask: Array,
    picture: Array,
    stamps: Stamps,
    count: int,
    dashes: int,
    continuity: float,
    strict: bool,
) -> int:
    """Add up to `count` short paths to the mask and the picture; how many there was room for."""
    placed, path = 0, np.zeros(6)
    for _ in range(count):
        for _ in range(DISTRACTOR_TRIALS):
            tried_mask, tried = mask.copy(), picture.copy()
            if (mask <= FREE).mean() < 0.01 or not begin_anywhere(rng, mask, stamps, 1, strict, path):
                continue
            paste(tried, stamps.line, stamps.reach, path)
            grown = True
            for _ in range(dashes - 1):
                grown = grown and extend(rng, tried_mask, tried, stamps, continuity, path)
            if grown:
                paste(tried_mask, stamps.mask, stamps.reach, path)
                mask[:], picture[:] = tried_mask, tried
                placed += 1
                break
    return placed


@compiled
def begin_anywhere(
    rng: np.random.Generator, mask: Array, stamps: Stamps, border: int, strict: bool, path: Path
) -> bool:
    """A first dash at a random free place, at least `border` pixels inside."""
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
def begin_beside(rng: np.random.Generator, size: int, stamps: Stamps, distance: int, first: Path, path: Path) -> bool:
    """A first dash at some distance from that of another path, whatever is there."""
    for _ in range(TRIALS):
        angle = np.deg2rad(float(rng.integers(-180, 180)))
        bearing = np.deg2rad(float(rng.integers(0, 360)))
        y = int(np.rint(first[LAST_Y] + distance * np.sin(bearing)))
        x = int(np.rint(first[LAST_X] + distance * np.cos(bearing)))
        if begin(size, stamps, y, x, angle, path):
            return True
    return False


@compiled
def begin(size: int, stamps: Stamps, y: int, x: int, angle: float, path: Path) -> bool:
    """A path of one dash from (y, x) on, unless it leaves the picture."""
    head_y, head_x = move(y, x, angle, stamps.length)
    pivot_y, pivot_x = move(head_y, head_x, reverse(angle), stamps.length + stamps.margin)
    path[PIVOT_Y], path[PIVOT_X], path[ANGLE] = pivot_y, pivot_x, angle
    path[LAST_Y], path[LAST_X], path[LAST_STAMP] = y, x, stamp_at(stamps, angle)
    return min(head_y, head_x, pivot_y, pivot_x) >= 0 and max(head_y, head_x, pivot_y, pivot_x) < size


@compiled
def extend(rng: np.random.Generator, mask: Array, layer: Array, stamps: Stamps, continuity: float, path: Path) -> bool:
    """Add a dash that keeps off the mask, the rather the less it turns; False at a dead end."""
    length, margin = stamps.length, stamps.margin
    y, x = move(int(path[PIVOT_Y]), int(path[PIVOT_X]), path[ANGLE], length + 2 * margin)
    points, angles, chances = endpoints(mask, stamps.disc, y, x, path[ANGLE], length + margin, continuity)
    total = chances.sum()
    if total < 1e-4:
        return False
    for _ in range(TRIALS):
        drawn = int(np.searchsorted(np.cumsum(chances), total * rng.random(), side="right"))
        stamp = stamp_at(stamps, reverse(angles[drawn]))  # drawn from its far end back to the pivot
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
    """Pixels around (y, x) where a dash may end, as row · size + column; their directions; their chances, unscaled."""
    size = len(mask)
    step = 1.0 / radius  # a pixel along the circle
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
    """(places, 2) where a path may begin with this dash, at least `border` pixels inside.

    Pixels outside the picture are occupied; or, if `strict`, they do not count, but nowhere is free if for some pixel
    the whole footprint is outside. That is what the published code does: an image library marks such a pixel with
    minus infinity, and a guard against negative masks then gives up. It leaves few directions to begin in.
    """
    size = len(mask)
    blocked = mask.copy()
    block_border(blocked, border)
    footprint, count = stamps.footprint[stamp], stamps.footprint_size[stamp]
    free = np.empty((size * size, 2), np.int64)
    found = 0
    if strict:  # a footprint lies wholly outside first at a corner
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
    """Of the mask at the pixels (y, x) + offset inside the picture; −1 where there is none."""
    size, highest = len(mask), -1.0
    for i in range(count):
        row, column = y + offsets[i, 0], x + offsets[i, 1]
        if 0 <= row < size and 0 <= column < size:
            highest = max(highest, mask[row, column])
    return highest


@compiled
def is_free(mask: Array, offsets: NDArray[np.int64], count: int, y: int, x: int, outside: bool) -> bool:
    """Whether all pixels (y, x) + offset are free; `outside`: those outside the picture are."""
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
    """The greatest sum of the mask and a stamp in the middle of which (y, x) is."""
    size, highest = len(mask), 0.0
    for row in range(max(0, y - reach), min(size, y + reach + 1)):
        for column in range(max(0, x - reach), min(size, x + reach + 1)):
            highest = max(highest, mask[row, column] + stamp[row - y + reach, column - x + reach])
    return highest


@compiled
def paste(picture: Array, stamps: Array, reach: int, path: Path) -> None:
    """Put the newest dash of a path on top; what is outside is lost."""
    size, y, x, stamp = len(picture), int(path[LAST_Y]), int(path[LAST_X]), int(path[LAST_STAMP])
    for row in range(max(0, y - reach), min(size, y + reach + 1)):
        for column in range(max(0, x - reach), min(size, x + reach + 1)):
            value = stamps[stamp, row - y + reach, column - x + reach]
            picture[row, column] = max(picture[row, column], value)


@compiled
def block_border(mask: Array, width: int) -> None:
    size = len(mask)
    mask[:width], mask[size - width :] = 1.0, 1.0
    mask[:, :width], mask[:, size - width :] = 1.0, 1.0


@compiled
def stamp_at(stamps: Stamps, angle: float) -> int:
    """Number of the dash that points along an angle."""
    centre, fine = stamps.reach * ANTIALIAS, stamps.length * ANTIALIAS
    y, x = move(centre, centre, angle, fine)
    return (y - centre + fine) * (2 * fine + 1) + (x - centre + fine)


@compiled
def move(y: int, x: int, angle: float, distance: int) -> tuple[int, int]:
    """Rounded up both ways, which makes paths drift down and right: so the published code."""
    return int(np.ceil(y + distance * np.sin(angle))), int(np.ceil(x + distance * np.cos(angle)))


@compiled
def reverse(angle: float) -> float:
    return angle + np.pi if angle < 0 else angle - np.pi

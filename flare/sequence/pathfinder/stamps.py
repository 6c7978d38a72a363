"""The dashes of Pathfinder, drawn once in every direction; markers; and how a picture becomes bytes.

A dash is drawn by Pillow on a finer canvas and shrunk by its Lanczos filter on 8-bit data, as in the published images.
"""

from __future__ import annotations

from functools import cache
from math import ceil
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from scipy.ndimage import grey_dilation

Array = NDArray[np.float64]

ANTIALIAS = 2
"""Pixels of the finer canvas per pixel."""


class Stamps(NamedTuple):
    """All dashes of one length, thickness and margin; number k ends at `ends[k]` of the finer canvas, from its start.

    K dashes, each in a square of 2 R + 1 pixels that it starts in the middle of.
    """

    length: int
    margin: int
    reach: int
    """R."""
    line: Array
    """(K, 2R+1, 2R+1), from 0 to 1."""
    mask: Array
    """The same with a margin around the dash, where nothing else may be."""
    footprint: NDArray[np.int64]
    """(K, most, 2) offsets (y, x) of the pixels that must be free for a path to begin with this dash."""
    footprint_size: NDArray[np.int64]
    """(K,) how many of them there are."""
    disc: NDArray[np.int64]
    """(pixels, 2) offsets (y, x) of a disc with the margin as its radius."""


@cache
def stamps(length: int, thickness: float, margin: int) -> Stamps:
    """Every dash of this form."""
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


def marker(size: int, place: NDArray[np.int64], radius: float) -> Array:
    """(size, size) picture of a filled disc at (y, x), from 0 to 1."""
    axis = np.arange(size * ANTIALIAS)
    far = (axis[:, None] - ANTIALIAS * place[0]) ** 2 + (axis - ANTIALIAS * place[1]) ** 2
    return _shrink(Image.fromarray(np.where(far <= (radius * ANTIALIAS) ** 2, 255, 0).astype(np.uint8)), size)


def as_bytes(picture: Array) -> NDArray[np.uint8]:
    """From 0 to 255, the least and the greatest value of the picture."""
    low, high = picture.min(), picture.max()
    return ((picture - low) / (high - low) * 255 + 0.5).astype(np.uint8)


def _draw(end: tuple[int, int], reach: int, width: int, margin: int) -> tuple[Array, Array]:
    """A dash and its mask."""
    centre = reach * ANTIALIAS
    canvas = Image.new("L", (2 * centre + 1, 2 * centre + 1))
    ImageDraw.Draw(canvas).line([(centre, centre), (centre + end[1], centre + end[0])], fill=255, width=width)
    wide = grey_dilation(np.asarray(canvas), footprint=_disc(margin * ANTIALIAS))
    return _shrink(canvas, 2 * reach + 1), _shrink(Image.fromarray(wide), 2 * reach + 1)


def _shrink(canvas: Image.Image, size: int) -> Array:
    return np.asarray(canvas.resize((size, size), Image.Resampling.LANCZOS), np.float64) / 255


def _disc(radius: int) -> NDArray[np.bool_]:
    axis = np.arange(-radius, radius + 1)
    return axis[:, None] ** 2 + axis**2 <= radius**2


def _footprint(mask: Array, reach: int) -> NDArray[np.int64]:
    """Where the mask is full, a pixel further down and to the right than it is drawn: so the published code has it."""
    offsets = np.argwhere(mask == 1) - len(mask) // 2 + 1
    return offsets[(abs(offsets) <= reach).all(axis=1)]

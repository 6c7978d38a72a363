"""Solids as voxels: connected pieces, wall thickness and the outer surface."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from flare.mesh.surface import THINNER, GeometryError, Mask, Surface, Vector
from flare.utils.errors import DataError

FRAGMENTS = 0.01
"""Largest share of the volume in fragments, which walls thinner than a voxel may leave."""
# Corners of the face of a voxel on the high side of each axis, counterclockwise seen from outside.
FACES = np.array(
    [
        [[1, 0, 0], [1, 1, 0], [1, 1, 1], [1, 0, 1]],
        [[0, 1, 0], [0, 1, 1], [1, 1, 1], [1, 1, 0]],
        [[0, 0, 1], [1, 0, 1], [1, 1, 1], [0, 1, 1]],
    ]
)


@dataclass(frozen=True)
class Voxels:
    """Solid boxes of a regular grid; in millimetres if the solid is a printed part."""

    solid: np.ndarray
    """(nx, ny, nz), bool."""
    size: Vector
    """Edge lengths of a box along x, y, z."""
    origin: Vector
    """Low corner of box (0, 0, 0)."""

    @property
    def count(self) -> int:
        """Number of solid boxes."""
        return int(self.solid.sum())

    @property
    def volume(self) -> float:
        """Volume of the solid boxes."""
        return self.count * float(np.prod(self.size))


def pieces(solid: Mask) -> tuple[NDArray, NDArray]:
    """Label connected pieces; voxels are connected if they share a face.

    Returns:
        Number of the piece of each voxel, 0 where empty, and voxels of each piece, 0 being the empty space.
    """
    from scipy.ndimage import label

    numbers, count = label(solid)
    return numbers, np.bincount(numbers.ravel(), minlength=count + 1)


def one_piece_on_plate(voxels: Voxels, *, max_fragments: float = FRAGMENTS) -> Voxels:
    """Return the largest piece if all others are small fragments of thin walls.

    Args:
        voxels: Voxels of a part; the plate is below layer 0 of the grid.
        max_fragments: Largest share of the volume that may be dropped.

    Raises:
        GeometryError: There is no voxel, the other pieces are larger than that, or the piece misses the plate.
    """
    numbers, sizes = pieces(voxels.solid)
    if len(sizes) == 1:
        raise GeometryError(THINNER, "the part has no solid voxel; use smaller voxels")
    largest = int(np.argmax(sizes[1:])) + 1
    others = int(sizes[1:].sum() - sizes[largest])
    if others > max_fragments * voxels.count:
        share = f"the largest has {sizes[largest]:,} of {voxels.count:,} voxels"
        message = f"the part has {len(sizes) - 1} disconnected pieces ({share}); use smaller voxels, or one piece"
        raise GeometryError("not connected", message)
    solid = numbers == largest
    if not solid[:, :, 0].any():
        bottom = int(np.argmax(solid.any((0, 1)))) * voxels.size[2]
        message = f"the part misses the plate by {bottom:.3g} mm; turn it, use smaller voxels, or place it on z = 0"
        raise GeometryError("misses the plate", message)
    top = int(np.flatnonzero(solid.any((0, 1)))[-1]) + 1  # a fragment may have been the highest
    return replace(voxels, solid=solid[:, :, :top])


def thin_share(solid: Mask) -> float:
    """Return the share of solid voxels in walls, ribs and sheets of one voxel, outside all solid 2 × 2 × 2 blocks.

    The steps of a round or slanted face do not count, because there is material beside and below them.
    """
    padded = np.pad(solid, 1)
    corners = list(product((slice(None, -1), slice(1, None)), repeat=3))
    blocks = np.logical_and.reduce([padded[corner] for corner in corners])
    covered = np.zeros_like(padded)
    for corner in corners:
        covered[corner] |= blocks
    count = int(solid.sum())
    return float((padded & ~covered).sum() / count) if count else 0.0


def skin(voxels: Voxels) -> Surface:
    """Return the closed surface of the voxels, two triangles per face.

    Where two voxels touch along an edge only, four faces meet.
    """
    if not voxels.count:
        raise DataError("there is no solid voxel, so there is no surface")
    solid = np.pad(np.asarray(voxels.solid, dtype=bool), 1)
    squares = []
    for axis in range(3):
        for side in (1, -1):
            bare = solid & ~np.roll(solid, -side, axis)
            face = FACES[axis] if side == 1 else FACES[axis][::-1] - np.eye(3, dtype=int)[axis]
            squares.append((np.argwhere(bare) - 1)[:, None] + face)
    corners = np.concatenate(squares)
    used, number = np.unique(corners.reshape(-1, 3), axis=0, return_inverse=True)
    quads = number.reshape(-1, 4)
    vertices = np.asarray(voxels.origin) + used * np.asarray(voxels.size)
    return Surface(vertices, np.concatenate([quads[:, [0, 1, 2]], quads[:, [0, 2, 3]]]).astype(np.int64))

"""The outer faces of voxels as triangles."""

from __future__ import annotations

import numpy as np

from flare.mesh.surface import Surface
from flare.mesh.voxels import Voxels
from flare.utils.errors import DataError

# Corners of the face of a voxel on the high side of an axis, counter-clockwise seen from outside.
FACES = np.array(
    [
        [[1, 0, 0], [1, 1, 0], [1, 1, 1], [1, 0, 1]],
        [[0, 1, 0], [0, 1, 1], [1, 1, 1], [1, 1, 0]],
        [[0, 0, 1], [1, 0, 1], [1, 1, 1], [0, 1, 1]],
    ]
)


def skin(voxels: Voxels) -> Surface:
    """The closed surface of the voxels, two triangles to a face; its volume is theirs.

    Where two voxels touch in an edge only, four faces meet there.
    """
    if not voxels.count:
        raise DataError("there is no solid voxel, so no surface")
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

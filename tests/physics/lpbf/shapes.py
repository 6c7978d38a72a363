"""Voxel parts for tests, and the process on coarse voxels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from flare.mesh.voxels import Voxels
from flare.physics.lpbf import Process, process_preset

COARSE = (1.5, 1.5, 1.2)
"""Voxel size of the calibration table."""
INHERENT_STRAIN = -0.009
"""In x and y; none along z."""


def coarse_process(**changes) -> Process:
    """Return Ti-6Al-4V with groups of two voxels of 1.2 mm and a fixed strain, independent of the preset."""
    process = replace(process_preset("ti64-am250"), layers_per_voxel=30, voxels_per_group=2, **changes)
    return process.with_inherent_strain(INHERENT_STRAIN)


def carve(inside, lengths, size=COARSE) -> Voxels:
    """Return the voxels of a box, centered in x and y, whose centers satisfy inside(x, y, z)."""
    count = [round(length / edge) for length, edge in zip(lengths, size, strict=True)]
    x, y, z = np.meshgrid(*[(np.arange(n) + 0.5) * h for n, h in zip(count, size, strict=True)], indexing="ij")
    low = (-count[0] * size[0] / 2, -count[1] * size[1] / 2, 0.0)
    solid = np.broadcast_to(inside(x + low[0], y + low[1], z), x.shape).astype(bool)
    return Voxels(np.ascontiguousarray(solid), size, low)


def bar(lengths, size=COARSE) -> Voxels:
    return carve(lambda x, y, z: x == x, lengths, size)


def plate_with_hole() -> Voxels:
    return carve(lambda x, y, z: np.hypot(x, y) > 10, (60, 60, 6))


def tube() -> Voxels:
    return carve(lambda x, y, z: (np.hypot(x, y) < 30) & (np.hypot(x, y) > 22), (60, 60, 24))


def bridge() -> Voxels:
    """Return two legs of 9 mm and a deck of 6 mm: the only round sizes with the table's 11,046 nodes."""
    return carve(lambda x, y, z: (np.abs(x) > 21) | (z > 24), (60, 30, 30))


def bracket() -> Voxels:
    """Return a foot of 4.8 mm and a wall of 6 mm, from the table's 4,275 nodes."""
    return carve(lambda x, y, z: (z < 4.8) | (x < -24), (60, 21, 24))


def shaft() -> Voxels:
    """Return a shaft Ø12 with flanges Ø36 × 6 on the plate and Ø24 × 7.2 on top, an estimate of the table's.

    Only the height and the 7,291 nodes are known. No equal round flanges on a round shaft give that count at plausible
    sizes. About sixty pairs of unequal ones do, and square sections too; of the eight that were simulated, none has all
    displacements within 5 %. This one is nearest.
    """
    return carve(lambda x, y, z: np.hypot(x, y) < np.where(z < 6, 18, np.where(z > 52.8, 12, 6)), (36, 36, 60))


def shelf() -> Voxels:
    """Return a column with an arm that overhangs to one side near its top."""
    return carve(lambda x, y, z: (x < -6) | (z > 9.6), (24, 6, 14.4))

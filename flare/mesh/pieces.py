"""Pieces of a solid of voxels: which hang together, which stand on the plate."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import label

from flare.mesh.unfit import Unfit
from flare.mesh.voxels import Voxels

CRUMBS = 0.01  # of the volume: what a wall thinner than a voxel may leave behind


def pieces(solid: NDArray[np.bool_]) -> tuple[NDArray, NDArray]:
    """Number of the piece of each voxel, 0 where empty, and voxels of each piece (0: of the empty space).

    Two voxels hang together if they share a face.
    """
    numbers, count = label(solid)
    return numbers, np.bincount(numbers.ravel(), minlength=count + 1)


def one_piece_on_plate(voxels: Voxels, *, crumbs: float = CRUMBS) -> Voxels:
    """The largest piece, where the others are no more than crumbs left by thin walls.

    Args:
        voxels: of a part; the plate is below layer 0 of the grid.
        crumbs: largest share of the volume that may be dropped.

    Raises:
        Unfit: there is nothing, the other pieces are larger than that, or the piece misses the plate.
    """
    numbers, sizes = pieces(voxels.solid)
    if len(sizes) == 1:
        raise Unfit("thinner than a voxel", "the part has no solid voxel; use smaller voxels")
    largest = int(np.argmax(sizes[1:])) + 1
    others = int(sizes[1:].sum() - sizes[largest])
    if others > crumbs * voxels.count:
        raise Unfit(
            "not connected",
            f"the part falls into {len(sizes) - 1} pieces; the largest has {sizes[largest]:,} of {voxels.count:,} "
            f"voxels of {voxels.size[0]:.3g} × {voxels.size[1]:.3g} × {voxels.size[2]:.3g} mm. If it is one piece, its "
            f"walls are thinner than a voxel: use smaller voxels. If not, simulate one piece at a time",
        )
    solid = numbers == largest
    if not solid[:, :, 0].any():
        bottom = int(np.argmax(solid.any((0, 1)))) * voxels.size[2]
        raise Unfit(
            "misses the plate",
            f"the part misses the plate: its lowest voxel is {bottom:.3g} mm above it. If it stands on a tip or an "
            f"edge, turn it over or use smaller voxels; if not, place it on z = 0",
        )
    top = int(np.flatnonzero(solid.any((0, 1)))[-1]) + 1  # a crumb may have been the highest
    return replace(voxels, solid=solid[:, :, :top])

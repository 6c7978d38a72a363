"""How thin the walls of a solid of voxels are."""

from __future__ import annotations

from itertools import product

import numpy as np
from numpy.typing import NDArray


def thin_share(solid: NDArray[np.bool_]) -> float:
    """Share of the solid voxels that are in no solid block of 2 × 2 × 2: of walls, ribs and sheets of one voxel.

    The steps of a round or slanted face are not among them, since there is metal beside and below.
    """
    padded = np.pad(solid, 1)
    corners = list(product((slice(None, -1), slice(1, None)), repeat=3))
    blocks = np.logical_and.reduce([padded[corner] for corner in corners])
    covered = np.zeros_like(padded)
    for corner in corners:
        covered[corner] |= blocks
    count = int(solid.sum())
    return float((padded & ~covered).sum() / count) if count else 0.0

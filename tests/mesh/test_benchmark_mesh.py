"""The mesh of the LPBF benchmark: parts beyond its limits are refused with the reason."""

import numpy as np

from flare.mesh.benchmark_mesh import find_fault
from flare.mesh.octree import merged
from flare.mesh.voxels import Voxels


def test_parts_beyond_a_limit_have_their_reason():
    thin = Voxels(np.ones((4, 4, 1), dtype=bool), (3.0, 0.5, 0.6), (0.0, 0.0, 0.0))
    assert find_fault(thin, merged(thin)) == "aspect ratio"
    solid = np.ones((20, 20, 9), dtype=bool)
    solid[:, :, 4] = False
    apart = Voxels(solid, (0.5, 0.5, 0.6), (-5.0, -5.0, 0.0))
    assert find_fault(apart, merged(apart)) == "not connected"
    solid[:, :, :4] = False
    floating = Voxels(solid, (0.5, 0.5, 0.6), (-5.0, -5.0, 0.0))
    assert find_fault(floating, merged(floating)) == "misses the plate"

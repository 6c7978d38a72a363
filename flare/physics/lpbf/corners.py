"""From the voxels of a build to the merged mesh of its part: fields at the nodes, peaks in the hexahedra."""

from __future__ import annotations

import numpy as np

from flare.mesh.octree import HexMesh
from flare.mesh.voxels import Voxels
from flare.physics.lpbf.grid import Ints
from flare.physics.lpbf.hexahedron import Array


class Corners:
    """From the nodes of a build, in their own order, to those of the merged mesh."""

    def __init__(self, voxels: Voxels, mesh: HexMesh, positions: Array) -> None:
        place = np.rint((positions - voxels.origin) / voxels.size).astype(int)
        number = np.full([n + 1 for n in voxels.solid.shape], -1)
        number[tuple(place.T)] = np.arange(len(place))
        self._place, self._mesh = place, mesh
        self._number = mesh.pick(number)

    def __call__(self, field: np.ndarray) -> np.ndarray:
        """(N, ...) of a field of the first nodes of the build; zero at nodes that do not exist yet."""
        whole = np.zeros((len(self._number), *field.shape[1:]))
        there = self._number < len(field)
        whole[there] = field[self._number[there]]
        return whole

    def peaks(self, values: Array, cells: Ints) -> Array:
        """(E,) largest in each merged hexahedron of the values (V,) of the build's voxels `cells` (V, 8)."""
        low = self._mesh.corners[self._mesh.hexahedra[:, 0]]
        owner = np.zeros(tuple(self._mesh.corners.max(0)), np.int64)
        for size in np.unique(self._mesh.sizes):
            of_size = np.flatnonzero(self._mesh.sizes == size)
            for step in np.ndindex(size, size, size):
                owner[tuple((low[of_size] + step).T)] = of_size
        largest = np.full(len(low), -np.inf)
        np.maximum.at(largest, owner[tuple(self._place[cells[:, 0]].T)], values)
        return largest

"""Balanced octree meshes: voxels merged into blocks of 2 × 2 × 2.

    mesh = merged(voxels)
    at_nodes = mesh.pick(displacement)      # a field on all corners of the voxel grid -> on the nodes

Blocks are aligned to the grid, so that blocks of 2ⁿ voxels never cross a multiple of 2ⁿ. With two levels these are the
boundaries of layer groups of four voxels. The merging rule was chosen among about twenty by comparison with a public
mesh of the benchmark's generator (1000 voxels, 392 blocks of 2³, 16 of 4³; 2.29 nodes per element): a dome of the same
height and mean cross-sections gives 804, 420, 16 and 2.29.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import binary_dilation, generate_binary_structure

from flare.mesh.mesh import Mesh
from flare.mesh.surface import Array, Indices, Mask, to_vector
from flare.mesh.voxels import Voxels
from flare.utils.errors import DataError

# Corners of a hexahedron in VTK's order: round the bottom, then round the top; and its edges, from low to high corner.
CORNERS = np.array([[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0], [0, 0, 1], [1, 0, 1], [1, 1, 1], [0, 1, 1]])
EDGES = np.array([[0, 1], [3, 2], [4, 5], [7, 6], [0, 3], [1, 2], [4, 7], [5, 6], [0, 4], [1, 5], [2, 6], [3, 7]])
FACES_AND_EDGES = generate_binary_structure(3, 2)  # the 18 neighbors across a face or an edge


@dataclass(frozen=True)
class HexMesh:
    """Axis-aligned hexahedra with hanging nodes: corners that lie on a face or an edge of a larger hexahedron."""

    points: Array
    """(N, 3) nodes, from the bottom up, then by y, then by x."""
    hexahedra: Indices
    """(E, 8) nodes in VTK's order, bottom quadrilateral first; from the bottom up."""
    corners: Indices
    """(N, 3) index of each node among the (nx+1, ny+1, nz+1) corners of the voxel grid."""
    sizes: Indices
    """(E,) edge length of each hexahedron in voxels: 1, 2, 4, ..."""

    def to_mesh(self, name: str = "the mesh") -> Mesh:
        """Return the hexahedra as a mesh."""
        return Mesh.from_cells(self.points, {"hexahedron": self.hexahedra}, name=name)

    def pick(self, field: NDArray) -> NDArray:
        """Return the values at the nodes, (N, ...), of a field on all corners of the grid, (nx+1, ny+1, nz+1, ...)."""
        return field[tuple(self.corners.T)]

    def edges(self) -> Indices:
        """Return the edges of the mesh, (2, M); see `edges_of`."""
        return edges_of(self.hexahedra, len(self.points))

    def aspect_ratio(self) -> Array:
        """Return the ratio of the longest to the shortest edge of each hexahedron, (E,)."""
        ends = self.points[self.hexahedra[:, EDGES]]
        length = np.linalg.norm(ends[:, :, 1] - ends[:, :, 0], axis=-1)
        return length.max(1) / length.min(1)

    @property
    def volume(self) -> float:
        """Total volume."""
        diagonal = self.points[self.hexahedra[:, 6]] - self.points[self.hexahedra[:, 0]]
        return float(diagonal.prod(1).sum())


def edges_of(hexahedra: Indices, points: int) -> Indices:
    """Return the edges of hexahedra (E, 8) in both directions, (2, M), sorted by first and second point."""
    a, b = np.asarray(hexahedra, dtype=np.int64)[:, EDGES].reshape(-1, 2).T
    upward = np.sort(np.minimum(a, b) * points + np.maximum(a, b))
    upward = upward[np.append(True, np.diff(upward) > 0)]  # several times as fast as np.unique
    low, high = np.divmod(upward, points)
    return np.stack(np.divmod(np.sort(np.concatenate([upward, high * points + low])), points))


def merged(voxels: Voxels, *, levels: int = 2) -> HexMesh:
    """Merge blocks of 2 × 2 × 2 voxels up to `levels` times; 0 keeps the voxels.

    A block becomes one hexahedron if all eight of its children exist as single elements and none of them has a smaller
    neighbor across a face or an edge. Elements that share a face or an edge therefore differ by a factor of two at
    most. Empty space does not count as a neighbor: flat faces on the grid may be coarse.
    """
    if not voxels.count:
        raise DataError("there is no solid voxel to mesh")
    # whole[n]: blocks of 2ⁿ voxels that are one element or inside a larger one
    whole = [np.asarray(voxels.solid, dtype=bool)]
    touched = whole[0]  # blocks of the same size with any solid in them
    for _ in range(levels):
        rough = binary_dilation(touched & ~whole[-1], FACES_AND_EDGES)  # those near a block that is not whole
        whole.append(np.logical_and.reduce(_blocks(whole[-1] & ~rough), axis=(1, 3, 5)))
        touched = np.logical_or.reduce(_blocks(touched), axis=(1, 3, 5))

    low, size = [], []
    for level, blocks in enumerate(whole):
        alone = blocks if level == levels else blocks & ~_refined(whole[level + 1], blocks.shape)
        low.append(np.argwhere(alone) << level)
        size.append(np.full(len(low[-1]), 1 << level))
    return _mesh(voxels, np.concatenate(low), np.concatenate(size))


def unmerged(points: Array, hexahedra: Indices) -> tuple[Voxels, Indices]:
    """Return the voxels of a mesh of axis-aligned hexahedra, and the grid corner of each node, (N, 3).

    Raises:
        DataError: A hexahedron is not an integer multiple of the smallest one.
    """
    points = np.asarray(points, dtype=np.float64)
    low, high = points[hexahedra].min(1), points[hexahedra].max(1)
    origin, extent = points.min(0), np.ptp(points, axis=0)
    shape = np.round(extent / (high - low).min(0)).astype(int)
    size = extent / shape
    corners = (points - origin) / size
    places = np.round(corners).astype(np.int64)
    off = np.abs(corners - places).max(1) > 0.1
    if off.any():
        stray = f"{off.sum():,} of {len(points):,} nodes (first: {off.argmax()}) are not on the grid of the smallest"
        raise DataError(f"{stray} hexahedron; expected axis-aligned hexahedra")
    solid = np.zeros(shape, dtype=bool)
    for (x, y, z), (i, j, k) in zip(places[hexahedra].min(1), places[hexahedra].max(1), strict=True):
        solid[x:i, y:j, z:k] = True
    return Voxels(solid, to_vector(size), to_vector(origin)), places


def _blocks(mask: Mask) -> Mask:
    """View a mask as blocks of 2 × 2 × 2 on axes 1, 3 and 5, padded with empty voxels."""
    mask = np.pad(mask, [(0, n % 2) for n in mask.shape])
    x, y, z = mask.shape
    return mask.reshape(x // 2, 2, y // 2, 2, z // 2, 2)


def _refined(blocks: Mask, shape: tuple[int, ...]) -> Mask:
    """Return which of the smaller blocks are inside the larger ones."""
    fine = blocks.repeat(2, 0).repeat(2, 1).repeat(2, 2)
    return fine[: shape[0], : shape[1], : shape[2]]


def _mesh(voxels: Voxels, low: Indices, size: Indices) -> HexMesh:
    """Build hexahedra from low corners (E, 3) and edge lengths (E,), both in voxels; nodes are numbered by z, y, x."""
    order = np.lexsort((low[:, 0], low[:, 1], low[:, 2]))
    low, size = low[order], size[order]
    x, y, z = np.moveaxis(low[:, None] + size[:, None, None] * CORNERS, -1, 0)
    used = np.zeros([n + 1 for n in reversed(voxels.solid.shape)], dtype=bool)
    used[z, y, x] = True
    number = np.cumsum(used, dtype=np.int64).reshape(used.shape) - 1
    corners = np.argwhere(used)[:, ::-1]
    points = np.asarray(voxels.origin) + corners * np.asarray(voxels.size)
    return HexMesh(points, number[z, y, x], corners, size)

"""Voxelization of closed surfaces and CSG solids: a voxel is solid if its center is inside.

    part = placed(read_part("bracket.stl"))
    voxels = voxelize(part, benchmark_size(part.extents))

For surfaces, rays along z are counted. A ray through an edge or a vertex must be counted exactly once. Therefore x and
y are snapped to a lattice of about 2⁻²⁹ of the part that contains the voxel centers, which makes the side of an edge on
which a ray passes exact in 64-bit integers. A ray that meets an edge is shifted by (+δ, +δ²), for both triangles alike.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flare.mesh.csg import Solid
from flare.mesh.surface import THINNER, Array, GeometryError, Indices, Surface, Vector, text_by, to_vector
from flare.mesh.voxels import Voxels
from flare.utils.errors import ConfigError, DataError
from flare.utils.numba_cache import compiled

LAYER = 0.04
"""Thickness of a powder layer in mm."""
BASE = 32
"""Voxels along the edge of a base cell: five octree levels."""
LATTICE_BITS = 29
"""Products of two differences stay below 2⁶², within 64-bit integers."""
MAX_VOXELS = 1 << 28
"""512 MB of winding numbers."""
SINGLE = 1e-6
"""Relative tolerance of lengths: STL files have single precision."""


def benchmark_size(extents: ArrayLike, *, layers: int = 15, layer: float = LAYER) -> Vector:
    """Return the voxel edges of the LPBF benchmark for a part with bounding box `extents` (3,), in mm.

    dz = layers · layer. Along x and y the box is divided into n = ⌈L / 32 dz⌉ base cells of 32 voxels, so
    dx = L / 32 n ≤ dz and the part fills the grid exactly: L = 60 gives 0.46875.
    """
    extents = np.asarray(extents, dtype=np.float64)
    if layers < 1 or not 0 < layer < np.inf:
        raise ConfigError(f"layers={layers}, layer={layer}: use at least one layer, and a positive thickness")
    if not (np.isfinite(extents).all() and (extents > 0).all()):
        raise DataError(f"the part measures {text_by(extents)} mm; every edge must be positive")
    dz = layers * layer
    dx, dy = (float(length / (BASE * divisions(length, BASE * dz))) for length in extents[:2])
    return dx, dy, dz


def divisions(length: float, edge: float) -> int:
    """Return the number of equal pieces no longer than `edge`, up to the rounding of a file."""
    return _whole(length / edge, slack=SINGLE)


def voxelize(part: Surface | Solid, size: Vector | float) -> Voxels:
    """Return the voxels whose centers are inside the part.

    The grid covers the bounding box and is centered on it in x and y; it starts at the lowest z and ends with the last
    layer that has a solid voxel. Faces belong to the part on their low side only: a box exactly n voxels wide is n
    voxels, wherever it is.

    Args:
        part: A closed surface, decided by the parity of crossings below a center whatever the orientation of its
            faces, or a CSG solid.
        size: Edges of a voxel along x, y, z, or one number for a cube.

    Raises:
        GeometryError: The surface is open, or no voxel center is inside.
        DataError: There would be too many voxels.
    """
    if isinstance(part, Surface):
        numbers, size, origin = winding_numbers(part, size)
        voxels = Voxels(solid=numbers % 2 == 1, size=size, origin=origin)
    else:
        shape, edges, start = _grid(part.bounds, size)
        x, y, z = (start[n] + (np.arange(shape[n]) + 0.5) * edges[n] for n in range(3))
        solid = np.broadcast_to(part.inside(x[:, None, None], y[:, None], z), shape)
        voxels = Voxels(solid=solid, size=to_vector(edges), origin=to_vector(start))
    if not voxels.count:
        sizes = f"it measures {text_by(part.extents)}, a voxel {text_by(voxels.size)}"
        raise GeometryError(THINNER, f"no voxel center is inside the part: {sizes}; use smaller voxels")
    top = int(np.flatnonzero(voxels.solid.any((0, 1)))[-1]) + 1
    return replace(voxels, solid=voxels.solid[:, :, :top])


def winding_numbers(surface: Surface, size: Vector | float) -> tuple[NDArray[np.int16], Vector, Vector]:
    """Compute the winding number of the surface around each voxel center.

    It is 1 inside a valid part, −1 in a surface turned inside out, and 2 or more where the surface overlaps itself. Its
    parity is that of the crossings, whatever the orientation of the faces.

    Returns:
        Winding numbers, (nx, ny, nz), voxel size and origin of the grid.
    """
    shape, edges, origin = _grid(surface.bounds, size)
    position = (surface.vertices - origin) / edges  # in voxels
    bits = np.array([LATTICE_BITS - int(n).bit_length() for n in shape[:2]])
    lattice = np.rint(position[:, :2] * 2.0**bits).astype(np.int64)
    change = np.zeros((shape[0], shape[1], shape[2] + 1), dtype=np.int16)
    _cross(lattice, position[:, 2].copy(), surface.faces, 1 << bits, change)
    numbers = np.cumsum(change, axis=2, dtype=np.int16)
    open_rays = np.argwhere(numbers[:, :, -1])
    if len(open_rays):
        x, y = origin[:2] + (open_rays[0] + 0.5) * edges[:2]
        first = f"{len(open_rays):,} vertical rays enter it without leaving (first at x = {x:.4g}, y = {y:.4g})"
        raise GeometryError("open", f"the surface is open: {first}; close its holes in the CAD program")
    return numbers[:, :, :-1], to_vector(edges), to_vector(origin)


def _grid(bounds: Array, size: Vector | float) -> tuple[tuple[int, int, int], Array, Array]:
    """Return shape, voxel edges and origin of the grid around a box."""
    edges = np.broadcast_to(np.asarray(size, dtype=np.float64), 3)
    if not (np.isfinite(edges).all() and (edges > 0).all()):
        raise ConfigError(f"voxel size {size}: edges must be positive")
    low, high = bounds
    fit = (high - low) / edges
    if not np.prod(fit) < MAX_VOXELS:
        parts = f"a part of {text_by(high - low)} has {np.prod(fit):.3g} voxels of {text_by(edges)}"
        raise DataError(f"{parts}; the limit is {MAX_VOXELS:.2g}. Use larger voxels, or check the unit of the part")
    shape = _whole(fit[0]), _whole(fit[1]), _whole(fit[2])
    origin = (low + high - np.array(shape) * edges) / 2
    origin[2] = low[2]
    return shape, edges, origin


@compiled
def _cross(lattice: Indices, height: Array, faces: Indices, step: Indices, change: NDArray[np.int16]) -> None:
    """Add to `change` where the vertical ray of each voxel column enters (+1) or leaves (−1) the solid.

    `lattice` (V, 2) are integer x, y of the vertices, `step` lattice points per voxel, `height` z in voxels.
    """
    columns, rows, layers = change.shape[0], change.shape[1], change.shape[2] - 1
    for face in range(len(faces)):
        a, b, c = faces[face]
        ax, ay, bx, by = lattice[a, 0], lattice[a, 1], lattice[b, 0], lattice[b, 1]
        cx, cy = lattice[c, 0], lattice[c, 1]
        area = (bx - ax) * (cy - ay) - (by - ay) * (cx - ax)
        if area == 0:  # a vertical face meets no ray
            continue
        half_x, half_y = step[0] // 2, step[1] // 2
        first_i = max((min(ax, bx, cx) + half_x - 1) // step[0], 0)
        first_j = max((min(ay, by, cy) + half_y - 1) // step[1], 0)
        last_i = min((max(ax, bx, cx) - half_x) // step[0], columns - 1)
        last_j = min((max(ay, by, cy) - half_y) // step[1], rows - 1)
        for i in range(first_i, last_i + 1):
            x = i * step[0] + half_x
            for j in range(first_j, last_j + 1):
                y = j * step[1] + half_y
                ab = (bx - ax) * (y - ay) - (by - ay) * (x - ax)
                bc = (cx - bx) * (y - by) - (cy - by) * (x - bx)
                ca = (ax - cx) * (y - cy) - (ay - cy) * (x - cx)
                # A ray on an edge from (dx, dy): moved by (+δ, +δ²), it is on the left if dy < 0, or dy = 0 and dx > 0.
                left_ab = ab > 0 or (ab == 0 and (by < ay or (by == ay and bx > ax)))
                left_bc = bc > 0 or (bc == 0 and (cy < by or (cy == by and cx > bx)))
                left_ca = ca > 0 or (ca == 0 and (ay < cy or (ay == cy and ax > cx)))
                if left_ab != left_bc or left_bc != left_ca:
                    continue
                # Differences of z first: a horizontal face then has exactly its own z for every ray.
                z = height[a] + (ca * (height[b] - height[a]) + ab * (height[c] - height[a])) / area
                k = min(max(int(np.ceil(z - 0.5)), 0), layers)  # the first center at or above the crossing
                change[i, j, k] += 1 if area < 0 else -1


def _whole(ratio: float, slack: float = 1e-9) -> int:
    """Round a ratio up, to at least 1; a ratio within rounding of an integer counts as that integer."""
    return max(1, int(np.ceil(ratio - slack * max(1.0, ratio))))

"""Mesh of a printed part by the rules of the LPBF benchmark, and the limits of the benchmark on it."""

from __future__ import annotations

import os

from flare.mesh.csg import Solid
from flare.mesh.octree import HexMesh, merged
from flare.mesh.parts import read_part
from flare.mesh.surface import GeometryError, Surface, placed
from flare.mesh.voxelization import benchmark_size, voxelize
from flare.mesh.voxels import Voxels, pieces

# Limits on the merged mesh; those on elements are the extremes of the published set.
MIN_NODES, MAX_NODES = 700, 50_000
MIN_ELEMENTS, MAX_ELEMENTS = 170, 25_680
MAX_EDGES = 250_000  # directed
MAX_ASPECT_RATIO = 3.0  # longest by shortest edge of an element


def benchmark_mesh(part: str | os.PathLike[str] | Surface, name: str) -> HexMesh:
    """Place a part on the build plate, scaled to 60 mm, and mesh it by the rules of the benchmark."""
    return mesh_part(placed(read_part(part, unit=None), longest=60.0), name=name)[1]


def mesh_part(part: Surface | Solid, *, layers: int = 15, name: str = "the part") -> tuple[Voxels, HexMesh]:
    """Voxelize and merge a part that stands on the plate, by the benchmark's rules.

    Args:
        part: Result of `flare.mesh.surface.placed` or `flare.mesh.csg.on_plate`.
        layers: Powder layers per voxel.
        name: Name of the part in messages.

    Raises:
        GeometryError: The part is thinner than a voxel or outside the limits; `reason` is the violated limit.
    """
    voxels = voxelize(part, benchmark_size(part.extents, layers=layers))
    mesh = merged(voxels)
    fault = find_fault(voxels, mesh)
    if fault is not None:
        sizes = f"{len(mesh.points):,} nodes, {len(mesh.hexahedra):,} elements"
        raise GeometryError(fault, f"{name} is outside the limits of the benchmark ({fault}): {sizes}")
    return voxels, mesh


def find_fault(voxels: Voxels, mesh: HexMesh) -> str | None:
    """Return the limit of the benchmark that a part violates, in a word or two; None if there is none."""
    nodes, elements = len(mesh.points), len(mesh.hexahedra)
    faults = {
        "not connected": len(pieces(voxels.solid)[1]) > 2,
        "misses the plate": not voxels.solid[:, :, 0].any(),
        "aspect ratio": mesh.aspect_ratio().max() > MAX_ASPECT_RATIO * (1 + 1e-9),
        "too few elements": elements < MIN_ELEMENTS,
        "too few nodes": nodes < MIN_NODES,
        "too many nodes": nodes > MAX_NODES,
        "too many elements": elements > MAX_ELEMENTS,
        "too many edges": mesh.edges().shape[1] > MAX_EDGES,
    }
    return next((name for name, violated in faults.items() if violated), None)

"""Check that a surface bounds one solid, and repair what can be repaired safely.

Repaired: vertices stored once per triangle, faces without area or stored twice, faces of the wrong orientation.
Rejected: holes, one-sided surfaces, several bodies, overlap, non-finite coordinates.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial import cKDTree

from flare.mesh.surface import Array, GeometryError, Indices, Mask, Surface, to_vector
from flare.mesh.voxelization import winding_numbers

MERGE = 1e-6
"""Vertices closer than this share of the diagonal are merged if the surface is open otherwise."""
PROBE = 64
"""Voxels along each edge of the bounding box at whose centers overlap is checked."""
SIDES = np.array([[0, 1], [1, 2], [2, 0]])


def solid_surface(surface: Surface, name: str = "the part") -> Surface:
    """Return the surface with faces oriented outwards (inwards around cavities) and each vertex once.

    Args:
        surface: Triangles in any order and orientation.
        name: Name for messages, such as a file name.

    Raises:
        GeometryError: The surface does not bound one solid; the message has the reason and the place.
    """
    _check_numbers(surface, name)
    clean = _without_copies(surface)
    if not len(clean.faces):
        raise GeometryError("empty", f"{name} has no triangle with an area")
    odd = _odd_edges(clean)
    if len(odd):
        place = clean.vertices[odd[0]].mean(0)
        clean = _without_copies(_near_merged(clean))
        if not len(clean.faces) or len(_odd_edges(clean)):
            edges = f"{len(odd):,} of its edges belong to one triangle only (or three), the first at {_at(place)}"
            raise GeometryError("open", f"{name} is open: {edges}; close its holes in the CAD program")
    turned, shell = _turned_alike(clean, name)
    shells, depths = _nested(turned, shell, name)
    faces = [s.faces if depth % 2 == 0 else s.faces[:, ::-1] for s, depth in zip(shells, depths, strict=True)]
    outward = Surface(turned.vertices, np.concatenate(faces))
    _check_overlap(outward, name)
    return outward


def _check_numbers(surface: Surface, name: str) -> None:
    vertices, faces = surface.vertices, surface.faces
    if vertices.shape[1:] != (3,) or faces.shape[1:] != (3,):
        raise GeometryError("not triangles", f"{name}: vertices have shape {vertices.shape}, faces {faces.shape}")
    if not len(faces):
        raise GeometryError("empty", f"{name} has no triangles; it may be a drawing, a point cloud or empty")
    if faces.min() < 0 or faces.max() >= len(vertices):
        raise GeometryError("not triangles", f"{name}: faces refer to vertices {faces.min()} to {faces.max()}")
    stray = np.ones(len(vertices), dtype=bool)  # vertices without a face are harmless
    stray[faces] = False
    bad = ~(np.isfinite(vertices).all(1) | stray)
    if bad.any():
        first = f"first: {int(np.argmax(bad))}, {vertices[bad][0].tolist()}"
        raise GeometryError("not finite", f"{name}: {bad.sum():,} vertices are not finite ({first}); export it again")


def _equal_rows(rows: NDArray) -> tuple[Indices, Indices]:
    """Return a stable order that groups equal rows, and the start of each group in it."""
    order = np.lexsort(rows.T[::-1])
    new = (rows[order][1:] != rows[order][:-1]).any(1)
    return order, np.flatnonzero(np.append(True, new)) if len(rows) else order


def _without_copies(surface: Surface) -> Surface:
    """Merge equal vertices; drop unused ones, faces with equal corners and copies of the same orientation."""
    order, start = _equal_rows(surface.vertices)
    number = np.empty(len(order), dtype=np.int64)
    number[order] = np.repeat(np.arange(len(start)), np.diff(np.append(start, len(order))))
    faces = number[surface.faces]
    faces = faces[(faces != np.roll(faces, 1, axis=1)).all(1)]
    first = faces.argmin(axis=1)[:, None] if len(faces) else np.zeros((0, 1), dtype=np.int64)
    again, once = _equal_rows(np.take_along_axis(faces, (first + np.arange(3)) % 3, axis=1))
    faces = faces[np.sort(again[once])]
    used = np.unique(faces)
    return Surface(surface.vertices[order[start][used]], np.searchsorted(used, faces))


def _near_merged(surface: Surface) -> Surface:
    """Merge vertices closer than `MERGE` of the diagonal at the position of the first of them."""
    reach = MERGE * float(np.linalg.norm(surface.extents))
    pairs = cKDTree(surface.vertices).query_pairs(reach, output_type="ndarray")
    count = len(surface.vertices)
    _, group = connected_components(coo_array((np.ones(len(pairs)), pairs.T), shape=(count, count)), directed=False)
    _, first = np.unique(group, return_index=True)
    return Surface(surface.vertices[first[group]], surface.faces)


def _odd_edges(surface: Surface) -> Indices:
    """Return the edges that belong to an odd number of faces, (n, 2); a closed surface has none."""
    edges = np.sort(surface.faces[:, SIDES].reshape(-1, 2), axis=1)
    order, start = _equal_rows(edges)
    return edges[order[start[np.diff(np.append(start, len(edges))) % 2 == 1]]]


def _turned_alike(surface: Surface, name: str) -> tuple[Surface, Indices]:
    """Orient faces consistently with their neighbors, and find the shell of each face.

    Neighbors are the two faces of an edge; where four meet, shells only touch. Every face has two states, as it is and
    flipped; neighbors link the states that agree. A shell is then two components, one the flipped other, unless the
    shell is one-sided.
    """
    faces, count = surface.faces, len(surface.faces)
    sides = faces[:, SIDES].reshape(-1, 2)
    upward = sides[:, 0] < sides[:, 1]
    order, start = _equal_rows(np.sort(sides, axis=1))
    pair = start[np.diff(np.append(start, len(order))) == 2]
    one, two = order[pair], order[pair + 1]
    against = upward[one] == upward[two]  # the same direction along the edge: one of the two must be flipped
    one, two = one // 3, two // 3
    a = np.concatenate([one, one + count])
    b = np.where(np.tile(against, 2), np.concatenate([two + count, two]), np.concatenate([two, two + count]))
    _, state = connected_components(coo_array((np.ones(len(a)), (a, b)), shape=(2 * count, 2 * count)), directed=False)
    as_is, over = state[:count], state[count:]
    if (as_is == over).any():
        place = surface.vertices[faces[np.argmax(as_is == over)]].mean(0)
        raise GeometryError("one side only", f"{name} is one-sided like a Möbius strip, near {_at(place)}")
    turn = as_is > over
    turned = np.where(turn[:, None], faces[:, ::-1], faces)
    _, shell = np.unique(np.minimum(as_is, over), return_inverse=True)
    return Surface(surface.vertices, turned), shell


def _nested(surface: Surface, shell: Indices, name: str) -> tuple[list[Surface], list[int]]:
    """Orient every shell outwards and count the shells around it; those at odd depths bound cavities."""
    shells = [Surface(surface.vertices, surface.faces[shell == n]) for n in range(int(shell.max()) + 1)]
    shells = [s if s.volume >= 0 else Surface(s.vertices, s.faces[:, ::-1]) for s in shells]
    whole = float(np.prod(surface.extents))
    shells = [s for s in shells if s.volume > 1e-12 * whole]
    if not shells:
        raise GeometryError("no volume", f"{name} is a sheet without a volume; give it a thickness")
    inside = _depths(shells)
    bodies = sum(depth % 2 == 0 for depth in inside)
    if bodies > 1:
        message = f"{name} has {bodies} bodies; join them in the CAD program, or export one at a time"
        raise GeometryError("several bodies", message)
    return shells, inside


def _check_overlap(surface: Surface, name: str) -> None:
    numbers, edges, origin = winding_numbers(surface, to_vector(surface.extents / PROBE))
    wrong: Mask = (numbers != 0) & (numbers != 1)
    if wrong.any():
        place = np.asarray(origin) + (np.argwhere(wrong)[0] + 0.5) * np.asarray(edges)
        message = f"{name} intersects itself near {_at(place)}; join its bodies in the CAD program"
        raise GeometryError("self-intersecting", message)


def _depths(shells: list[Surface]) -> list[int]:
    """Count the other shells around each shell."""
    points, bounds = np.array([_a_point_on(s) for s in shells]), np.array([s.bounds for s in shells])
    near = np.logical_and.reduce((bounds[:, None, 0] <= points) & (points <= bounds[:, None, 1]), axis=2)
    depths = [0] * len(shells)
    for outer, inner in np.argwhere(near & ~np.eye(len(shells), dtype=bool)):
        depths[inner] += round(_winding(shells[outer], points[inner]))
    return depths


def _a_point_on(shell: Surface) -> Array:
    """Return the center of the largest face; shells that touch may share vertices and edges."""
    a, b, c = shell.corners
    largest = int(np.argmax(np.linalg.norm(shell.normals, axis=1)))
    middle: Array = (a[largest] + b[largest] + c[largest]) / 3
    return middle


def _winding(surface: Surface, point: Array) -> float:
    """Compute the winding number around a point: the sum of the solid angles of all triangles over 4π."""
    a, b, c = np.moveaxis(surface.vertices[surface.faces] - point, 1, 0)
    la, lb, lc = (np.linalg.norm(v, axis=1) for v in (a, b, c))
    dot_ab, dot_bc, dot_ca = (np.einsum("ij,ij->i", p, q) for p, q in ((a, b), (b, c), (c, a)))
    triple = np.einsum("ij,ij->i", a, np.cross(b, c))
    return float(np.arctan2(triple, la * lb * lc + dot_ab * lc + dot_bc * la + dot_ca * lb).sum() / (2 * np.pi))


def _at(place: Array) -> str:
    return f"({place[0]:.4g}, {place[1]:.4g}, {place[2]:.4g})"

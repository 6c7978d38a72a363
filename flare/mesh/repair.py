"""Is a surface the boundary of one solid? What is safe to repair is repaired; the rest is refused, with the place.

Safe: vertices stored once per triangle, faces without area or stored twice, faces turned the wrong way. Refused: holes,
one-sided surfaces, several bodies, overlap, numbers that are none.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial import cKDTree

from flare.mesh.surface import Array, Indices, Surface
from flare.mesh.unfit import Unfit
from flare.mesh.voxelise import winding_numbers

MERGE = 1e-6  # of the diagonal: vertices nearer than this are one, if the surface is open otherwise
PROBE = 64  # voxels along each edge of the box, at whose centres overlap is looked for
SIDES = np.array([[0, 1], [1, 2], [2, 0]])


def solid_surface(surface: Surface, name: str = "the part") -> Surface:
    """The surface with faces turned outwards (inwards around cavities) and each vertex once.

    Args:
        surface: triangles in any order, turned any way.
        name: how messages call it, a file name for one.

    Raises:
        Unfit: it does not bound one solid; the message says why and where.
    """
    _check_numbers(surface, name)
    clean = _without_copies(surface)
    if not len(clean.faces):
        raise Unfit("empty", f"{name} has no triangle with an area, so there is nothing to build")
    odd = _odd_edges(clean)
    if len(odd):
        place = clean.vertices[odd[0]].mean(0)
        clean = _without_copies(_near_merged(clean))
        if not len(clean.faces) or len(_odd_edges(clean)):
            raise Unfit(
                "open",
                f"{name} is open: {len(odd):,} of its edges belong to one triangle only (or three), the first at "
                f"{_at(place)}; close its holes in the CAD program or with a repair tool, or export it as a solid",
            )
    turned, shell = _turned_alike(clean, name)
    shells, depths = _nested(turned, shell, name)
    faces = [s.faces if depth % 2 == 0 else s.faces[:, ::-1] for s, depth in zip(shells, depths, strict=True)]
    outward = Surface(turned.vertices, np.concatenate(faces))
    _check_overlap(outward, shells, name)
    return outward


def _check_numbers(surface: Surface, name: str) -> None:
    vertices, faces = surface.vertices, surface.faces
    if vertices.ndim != 2 or vertices.shape[1:] != (3,) or faces.ndim != 2 or faces.shape[1:] != (3,):
        raise Unfit(
            "not triangles",
            f"{name}: vertices have shape {vertices.shape}, faces {faces.shape}; give (V, 3) and (F, 3)",
        )
    if not len(faces):
        raise Unfit("empty", f"{name} has no triangles; is it a drawing, a point cloud or an empty file?")
    if faces.min() < 0 or faces.max() >= len(vertices):
        raise Unfit(
            "not triangles",
            f"{name}: faces name vertices {faces.min()} to {faces.max()}, but there are {len(vertices):,}",
        )
    stray = np.ones(len(vertices), dtype=bool)  # points no face has do no harm
    stray[faces] = False
    bad = ~(np.isfinite(vertices).all(1) | stray)
    if bad.any():
        raise Unfit(
            "not finite",
            f"{name}: {bad.sum():,} of {len(vertices):,} vertices are not finite (first: {int(np.argmax(bad))}, "
            f"{vertices[bad][0].tolist()}); export it again",
        )


def _equal_rows(rows: NDArray) -> tuple[Indices, Indices]:
    """The order that puts equal rows together, the first of them first, and where in it each new row starts."""
    order = np.lexsort(rows.T[::-1])
    new = (rows[order][1:] != rows[order][:-1]).any(1)
    return order, np.flatnonzero(np.append(True, new)) if len(rows) else order


def _without_copies(surface: Surface) -> Surface:
    """Equal vertices once, none that no face has; no faces with two equal corners, none twice the same way round."""
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
    """Vertices nearer to each other than 1e-6 of the diagonal in one place, that of the first of them."""
    reach = MERGE * float(np.linalg.norm(surface.extents))
    pairs = cKDTree(surface.vertices).query_pairs(reach, output_type="ndarray")
    count = len(surface.vertices)
    _, group = connected_components(coo_array((np.ones(len(pairs)), pairs.T), shape=(count, count)), directed=False)
    _, first = np.unique(group, return_index=True)
    return Surface(surface.vertices[first[group]], surface.faces)


def _odd_edges(surface: Surface) -> Indices:
    """(n, 2) edges that belong to an odd number of faces; a closed surface has none."""
    edges = np.sort(surface.faces[:, SIDES].reshape(-1, 2), axis=1)
    order, start = _equal_rows(edges)
    return edges[order[start[np.diff(np.append(start, len(edges))) % 2 == 1]]]


def _turned_alike(surface: Surface, name: str) -> tuple[Surface, Indices]:
    """Faces turned to agree with their neighbours, and the shell each face belongs to.

    Neighbours are the two faces of an edge; where four meet, shells only touch. Every face is a pair of states, as it
    is and turned over; neighbours link the states that agree. A shell is then two components, one the other turned
    over, unless it has one side only.
    """
    faces, count = surface.faces, len(surface.faces)
    sides = faces[:, SIDES].reshape(-1, 2)
    upward = sides[:, 0] < sides[:, 1]
    order, start = _equal_rows(np.sort(sides, axis=1))
    pair = start[np.diff(np.append(start, len(order))) == 2]
    one, two = order[pair], order[pair + 1]
    against = upward[one] == upward[two]  # the same direction along the edge: one of the two must turn over
    one, two = one // 3, two // 3
    a = np.concatenate([one, one + count])
    b = np.where(np.tile(against, 2), np.concatenate([two + count, two]), np.concatenate([two, two + count]))
    _, state = connected_components(coo_array((np.ones(len(a)), (a, b)), shape=(2 * count, 2 * count)), directed=False)
    as_is, over = state[:count], state[count:]
    if (as_is == over).any():
        place = surface.vertices[faces[np.argmax(as_is == over)]].mean(0)
        raise Unfit(
            "one side only", f"{name} has one side only, like a Möbius strip (near {_at(place)}), so it has no inside"
        )
    turn = as_is > over
    turned = np.where(turn[:, None], faces[:, ::-1], faces)
    _, shell = np.unique(np.minimum(as_is, over), return_inverse=True)
    return Surface(surface.vertices, turned), shell


def _nested(surface: Surface, shell: Indices, name: str) -> tuple[list[Surface], list[int]]:
    """Every shell turned outwards, and within how many others it lies: those at odd depths bound cavities."""
    shells = [Surface(surface.vertices, surface.faces[shell == n]) for n in range(int(shell.max()) + 1)]
    shells = [s if s.volume >= 0 else Surface(s.vertices, s.faces[:, ::-1]) for s in shells]
    whole = float(np.prod(surface.extents))
    shells = [s for s in shells if s.volume > 1e-12 * whole]
    if not shells:
        raise Unfit(
            "no volume", f"{name} encloses no volume: it is a sheet, {_by(surface.extents)} mm; give it a thickness"
        )
    inside = _depths(shells)
    bodies = [s for s, depth in zip(shells, inside, strict=True) if depth % 2 == 0]
    if len(bodies) > 1:
        sizes = ", ".join(f"{b.volume:.3g}" for b in sorted(bodies, key=lambda b: -b.volume)[:5])
        raise Unfit(
            "several bodies",
            f"{name} is {len(bodies)} bodies, of {sizes} mm³; join them into one in the CAD program if they overlap or "
            f"touch, else export one at a time",
        )
    return shells, inside


def _check_overlap(surface: Surface, shells: list[Surface], name: str) -> None:
    size = surface.extents / PROBE
    if not (size > 0).all():
        raise Unfit("no volume", f"{name} is flat: {_by(surface.extents)} mm; give it a thickness")
    numbers, edges, origin = winding_numbers(surface, (float(size[0]), float(size[1]), float(size[2])))
    wrong: NDArray[np.bool_] = (numbers != 0) & (numbers != 1)
    if wrong.any():
        first = np.argwhere(wrong)[0]
        place = np.asarray(origin) + (first + 0.5) * np.asarray(edges)
        around = [round(_winding(s, place)) for s in shells]
        if len(shells) > 1 and set(around) <= {0, 1}:  # each shell is sound, so it is how they lie to each other
            # One that begins within another was taken for its cavity, and sticks out of it.
            sizes = ", ".join(f"{s.volume:.3g}" for s in sorted(shells, key=lambda s: -s.volume)[:5])
            raise Unfit(
                "overlapping bodies",
                f"{name} is {len(shells)} closed bodies, of {sizes} mm³, that overlap: the surface of one runs through "
                f"another, near {_at(place)}; join them into one in the CAD program (union), or export one at a time",
            )
        raise Unfit(
            "self-intersecting",
            f"{name} intersects itself: its surface goes {int(numbers[tuple(first)])} times around {_at(place)}, where "
            f"0 outside or 1 inside would be right, and likewise around {wrong.sum():,} of {numbers.size:,} points; "
            f"join its bodies in the CAD program or use a repair tool",
        )


def _depths(shells: list[Surface]) -> list[int]:
    """How many of the other shells each shell lies within."""
    points, bounds = np.array([_a_point_on(s) for s in shells]), np.array([s.bounds for s in shells])
    near = np.logical_and.reduce((bounds[:, None, 0] <= points) & (points <= bounds[:, None, 1]), axis=2)
    depths = [0] * len(shells)
    for outer, inner in np.argwhere(near & ~np.eye(len(shells), dtype=bool)):
        depths[inner] += round(_winding(shells[outer], points[inner]))
    return depths


def _a_point_on(shell: Surface) -> Array:
    """The middle of its largest face: shells that touch may share vertices and edges."""
    a, b, c = np.moveaxis(shell.vertices[shell.faces], 1, 0)
    largest = int(np.argmax(np.linalg.norm(np.cross(b - a, c - a), axis=1)))
    middle: Array = (a[largest] + b[largest] + c[largest]) / 3
    return middle


def _winding(surface: Surface, point: Array) -> float:
    """Winding number about a point: the solid angles of all triangles, over 4π."""
    a, b, c = np.moveaxis(surface.vertices[surface.faces] - point, 1, 0)
    la, lb, lc = (np.linalg.norm(v, axis=1) for v in (a, b, c))
    dot_ab, dot_bc, dot_ca = (np.einsum("ij,ij->i", p, q) for p, q in ((a, b), (b, c), (c, a)))
    triple = np.einsum("ij,ij->i", a, np.cross(b, c))
    return float(np.arctan2(triple, la * lb * lc + dot_ab * lc + dot_bc * la + dot_ca * lb).sum() / (2 * np.pi))


def _at(place: Array) -> str:
    return f"({place[0]:.4g}, {place[1]:.4g}, {place[2]:.4g})"


def _by(lengths: Array) -> str:
    return " × ".join(f"{length:.4g}" for length in lengths)

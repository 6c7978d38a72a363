"""The gradient of a field along a curved surface, from its values at the vertices.

Around each vertex position and field are fitted by cubic functions of two coordinates u, v of a plane that nearly
touches the surface there: height h(u, v) and f(u, v). Of the tangents t = a + h_u n and s = b + h_v n, the gradient is
the combination whose products with them are f_u and f_v.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import coo_array, csr_array

from flare.mesh.surface import Array, Surface
from flare.utils.errors import DataError

FAR = 0.25
"""Weight of a neighbour's neighbour in the fit; a neighbour has 1."""
QUADRATIC, CUBIC = 5, 9
"""Terms of a function that is known at the vertex itself."""
ROOM = 14
"""Neighbours that a cubic fit takes; with fewer, as at the corner of a grid, a quadratic one is steadier."""
BLOCK = 4096
"""Vertices at a time."""


def surface_gradient(surface: Surface, field: ArrayLike) -> Array:
    """(V, 3) gradient at every vertex, tangent to the surface.

    Args:
        surface: a closed one, or a smooth piece.
        field: (V,).
    """
    values, count = np.asarray(field, dtype=np.float64), len(surface.vertices)
    if values.shape != (count,):
        raise DataError(f"the field has shape {values.shape}; give a value for each of {count:,} vertices")
    rings = _rings(surface)
    others = np.diff(rings.indptr)
    if (others < QUADRATIC).any():
        raise DataError(
            f"{(others < QUADRATIC).sum():,} vertices have fewer than {QUADRATIC} others in two rings around them "
            f"(first: {int(np.argmax(others < QUADRATIC))}); a gradient takes more"
        )
    normals, gradient = vertex_normals(surface), np.empty((count, 3))
    for terms, chosen in ((QUADRATIC, others < ROOM), (CUBIC, others >= ROOM)):
        for some in np.array_split(np.flatnonzero(chosen), chosen.sum() // BLOCK + 1):
            gradient[some] = _fitted(surface.vertices, normals[some], some, rings, values, terms)
    return gradient


def vertex_normals(surface: Surface) -> Array:
    """(V, 3) means of the normals of the faces around each vertex, by their areas."""
    a, b, c = np.moveaxis(surface.vertices[surface.faces], 1, 0)
    total = np.zeros_like(surface.vertices)
    np.add.at(total, surface.faces, np.cross(b - a, c - a)[:, None])
    return total / np.linalg.norm(total, axis=1)[:, None]


def _rings(surface: Surface) -> csr_array:
    """Row i: neighbours of vertex i and their neighbours, but not itself; the entry is the weight in the fit."""
    count = len(surface.vertices)
    ends = np.concatenate([surface.faces, surface.faces[:, ::-1]])
    pairs = ends.ravel(), np.roll(ends, 1, axis=1).ravel()
    near = coo_array((np.ones(ends.size), pairs), (count, count)).tocsr()
    near.data[:] = 1.0
    far = csr_array(near @ near + near)
    far.setdiag(0.0)
    far.eliminate_zeros()
    far.data[:] = FAR
    return csr_array(far + (1 - FAR) * near)


def _fitted(
    vertices: Array, n: Array, some: NDArray[np.intp], rings: csr_array, field: Array, terms: int
) -> NDArray[np.float64]:
    """Gradients at some vertices, whose normals are n."""
    counts = np.diff(rings.indptr)[some]
    there = np.arange(counts.max(initial=0)) < counts[:, None]
    place = np.where(there, rings.indptr[some][:, None] + np.arange(there.shape[1]), 0)
    others, weight = rings.indices[place], np.where(there, rings.data[place], 0.0)

    a = np.cross(n, np.eye(3)[np.abs(n).argmin(axis=1)])
    a /= np.linalg.norm(a, axis=1)[:, None]
    b = np.cross(n, a)
    away = (vertices[others] - vertices[some][:, None]) * there[..., None]
    size = np.linalg.norm(away, axis=2).max(axis=1, initial=0.0)[:, None]
    u, v, height = (np.einsum("ikd,id->ik", away, axis) / size for axis in (a, b, n))
    rise = (field[others] - field[some][:, None]) / size
    basis = np.stack([u, v, u * u, u * v, v * v, u * u * u, u * u * v, u * v * v, v * v * v][:terms], axis=2)
    weighted = basis * np.square(weight)[..., None]
    normal = np.einsum("ikp,ikq->ipq", weighted, basis)
    known = np.einsum("ikp,ikf->ipf", weighted, np.stack([height, rise], axis=2))
    h_u, f_u, h_v, f_v = np.linalg.solve(normal, known)[:, :2].reshape(-1, 4).T[..., None]

    t, s = a + h_u * n, b + h_v * n
    tt, ts, ss = ((x * y).sum(axis=1)[:, None] for x, y in ((t, t), (t, s), (s, s)))
    return ((f_u * ss - f_v * ts) * t + (f_v * tt - f_u * ts) * s) / (tt * ss - ts * ts)

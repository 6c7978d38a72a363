"""Triangle surfaces for geometry: size, position on the build plate, normals and surface gradients."""

# V vertices, F faces

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flare.utils.errors import ConfigError, DataError, suggest_name

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from flare.mesh.mesh import Mesh

Array = NDArray[np.float64]
Indices = NDArray[np.int64]
Mask = NDArray[np.bool_]
Vector = tuple[float, float, float]

SECOND_RING = 0.25
"""Weight of a neighbor's neighbor in the fit of a gradient; a neighbor has 1."""
QUADRATIC, CUBIC = 5, 9
"""Terms of a polynomial whose value at the vertex is known."""
CUBIC_NEIGHBORS = 14
"""Fewest neighbors of a cubic fit; with fewer, as at the corner of a grid, a quadratic one is more stable."""
BLOCK = 4096
"""Vertices that are fitted at a time."""

# Rotations that turn an axis of the part upwards; rows are the new x, y, z. None of them mirrors the part.
UP: dict[str, Array] = {
    "+z": np.array([[1.0, 0, 0], [0, 1, 0], [0, 0, 1]]),
    "-z": np.array([[1.0, 0, 0], [0, -1, 0], [0, 0, -1]]),
    "+y": np.array([[1.0, 0, 0], [0, 0, -1], [0, 1, 0]]),
    "-y": np.array([[1.0, 0, 0], [0, 0, 1], [0, -1, 0]]),
    "+x": np.array([[0.0, 0, -1], [0, 1, 0], [1, 0, 0]]),
    "-x": np.array([[0.0, 0, 1], [0, 1, 0], [-1, 0, 0]]),
}


THINNER = "thinner than a voxel"
"""Reason of a part without a solid voxel."""


def to_vector(values: Iterable[float]) -> Vector:
    """Convert three numbers to a tuple of floats."""
    x, y, z = map(float, values)
    return x, y, z


def text_by(lengths: ArrayLike) -> str:
    """Format lengths as `60 × 40 × 5.25`."""
    return " × ".join(f"{length:.4g}" for length in np.asarray(lengths))


class GeometryError(DataError):
    """A geometry that cannot be used; `reason` names the kind of fault in a few words, for counting."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason

    def __reduce__(self) -> tuple[type[GeometryError], tuple[str, str]]:
        return type(self), (self.reason, str(self))  # keeps the reason when a worker process raises it


@dataclass(frozen=True)
class Surface:
    """Triangles in space, in float64; in millimetres if the surface is that of a printed part."""

    vertices: Array
    """(V, 3)."""
    faces: Indices
    """(F, 3), counterclockwise seen from outside if the surface bounds a solid."""

    @classmethod
    def of(cls, mesh: Any) -> Surface:
        """Convert any object with `vertices` and `faces`, such as a `trimesh.Trimesh`."""
        return cls(np.asarray(mesh.vertices, dtype=np.float64), np.asarray(mesh.faces, dtype=np.int64))

    def to_mesh(self, name: str = "the surface") -> Mesh:
        """Return the surface as a mesh of triangles."""
        from flare.mesh.mesh import Mesh

        return Mesh.from_cells(self.vertices, {"triangle": self.faces}, name=name)

    @property
    def bounds(self) -> Array:
        """Low and high corner of the bounding box, (2, 3)."""
        used = self.vertices[np.unique(self.faces)]
        return np.stack([used.min(0), used.max(0)])

    @property
    def extents(self) -> Array:
        """Edge lengths of the bounding box, (3,)."""
        low, high = self.bounds
        return high - low

    @property
    def corners(self) -> tuple[Array, Array, Array]:
        """The first, second and third corner of each face, (F, 3) each."""
        a, b, c = np.moveaxis(self.vertices[self.faces], 1, 0)
        return a, b, c

    @property
    def normals(self) -> Array:
        """Normal of each face with twice its area as length, (F, 3)."""
        a, b, c = self.corners
        return np.cross(b - a, c - a)

    @property
    def volume(self) -> float:
        """Enclosed volume by the divergence theorem; negative if the surface is turned inside out."""
        # Relative to the center of the box, so that a part far from the origin loses no digits.
        a, b, c = np.moveaxis((self.vertices - self.bounds.mean(0))[self.faces], 1, 0)
        return float(np.einsum("ij,ij->", a, np.cross(b, c)) / 6)

    def transformed(self, matrix: ArrayLike) -> Surface:
        """Multiply every vertex by a (3, 3) matrix; a matrix that mirrors also flips the faces."""
        matrix = np.asarray(matrix, dtype=np.float64)
        faces = self.faces if np.linalg.det(matrix) > 0 else self.faces[:, ::-1]
        return Surface(self.vertices @ matrix.T, faces)


def placed(surface: Surface, *, up: str = "+z", longest: float | None = 60.0) -> Surface:
    """Place a part for printing: x and y centered at zero, lowest point on the plate z = 0.

    Args:
        surface: Surface of a part, in any position.
        up: Axis of the part that becomes the build direction: +x, -x, +y, -y, +z or -z.
        longest: Longest edge of the bounding box after scaling, in mm; 60 in the benchmark. None keeps the size.
    """
    if up not in UP:
        raise ConfigError(f"up={up!r} is not an axis; {suggest_name(up, UP)}")
    if longest is not None and not 0 < longest < np.inf:
        raise ConfigError(f"longest={longest} is not a positive length in mm; use None to keep the size")
    turned = surface.transformed(UP[up])
    low, high = turned.bounds
    size = float((high - low).max())
    if not 0 < size < np.inf:
        raise DataError(f"the part is {size:g} mm long and cannot be placed on the plate")
    scale = 1.0 if longest is None else longest / size
    middle = np.array([(low[0] + high[0]) / 2, (low[1] + high[1]) / 2, low[2]])
    return Surface((turned.vertices - middle) * scale, turned.faces)


def surface_gradient(surface: Surface, field: ArrayLike) -> Array:
    """Compute the gradient of a field along a curved surface, (V, 3), tangent to the surface.

    Around each vertex, position and field are fitted by cubic functions of two coordinates u, v of a nearly tangent
    plane: height h(u, v) and f(u, v). With the tangents t = a + h_u n and s = b + h_v n, the gradient is the
    combination of t and s whose products with them are f_u and f_v.

    Args:
        surface: A closed surface or a smooth patch.
        field: Values at the vertices, (V,).

    Raises:
        DataError: The field has the wrong shape, or a vertex has too few neighbors for a fit.
    """
    values, count = np.asarray(field, dtype=np.float64), len(surface.vertices)
    if values.shape != (count,):
        raise DataError(f"the field has shape {values.shape}; expected one value for each of {count:,} vertices")
    rings = _rings(surface)
    others = np.diff(rings.indptr)
    few = others < QUADRATIC
    if few.any():
        raise DataError(f"{few.sum():,} vertices (first: {few.argmax()}) have fewer than {QUADRATIC} others nearby")
    normals, gradient = vertex_normals(surface), np.empty((count, 3))
    for terms, chosen in ((QUADRATIC, others < CUBIC_NEIGHBORS), (CUBIC, others >= CUBIC_NEIGHBORS)):
        for some in np.array_split(np.flatnonzero(chosen), chosen.sum() // BLOCK + 1):
            gradient[some] = _fitted(surface.vertices, normals[some], some, rings, values, terms)
    return gradient


def vertex_normals(surface: Surface) -> Array:
    """Compute the area-weighted mean of the face normals around each vertex, (V, 3)."""
    total = np.zeros_like(surface.vertices)
    np.add.at(total, surface.faces, surface.normals[:, None])
    return total / np.linalg.norm(total, axis=1)[:, None]


def _rings(surface: Surface) -> csr_array:
    """Return the weights of the fit: row i has the neighbors of vertex i and their neighbors, without itself."""
    from scipy.sparse import coo_array, csr_array

    count = len(surface.vertices)
    ends = np.concatenate([surface.faces, surface.faces[:, ::-1]])
    pairs = ends.ravel(), np.roll(ends, 1, axis=1).ravel()
    near = coo_array((np.ones(ends.size), pairs), (count, count)).tocsr()
    near.data[:] = 1.0
    far = csr_array(near @ near + near)
    far.setdiag(0.0)
    far.eliminate_zeros()
    far.data[:] = SECOND_RING
    return csr_array(far + (1 - SECOND_RING) * near)


def _fitted(
    vertices: Array, n: Array, some: NDArray[np.intp], rings: csr_array, field: Array, terms: int
) -> NDArray[np.float64]:
    """Compute the gradients at some vertices with normals n."""
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

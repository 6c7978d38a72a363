"""A surface of triangles, and where it is put: how large, which way up, resting on the build plate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flare.utils.errors import ConfigError, DataError, nearest

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

# Rotations that bring an axis of the part to point up; rows are the new x, y, z. None mirrors the part.
UP: dict[str, Array] = {
    "+z": np.array([[1.0, 0, 0], [0, 1, 0], [0, 0, 1]]),
    "-z": np.array([[1.0, 0, 0], [0, -1, 0], [0, 0, -1]]),
    "+y": np.array([[1.0, 0, 0], [0, 0, -1], [0, 1, 0]]),
    "-y": np.array([[1.0, 0, 0], [0, 0, 1], [0, -1, 0]]),
    "+x": np.array([[0.0, 0, -1], [0, 1, 0], [1, 0, 0]]),
    "-x": np.array([[0.0, 0, 1], [0, 1, 0], [-1, 0, 0]]),
}


@dataclass(frozen=True)
class Surface:
    """Triangles in space. Lengths in millimetres where a part is meant."""

    vertices: Array
    """(V, 3)."""
    faces: Indices
    """(F, 3), counter-clockwise seen from outside where the surface bounds a solid."""

    @classmethod
    def of(cls, mesh: Any) -> Surface:
        """From anything with `vertices` and `faces`, a `trimesh.Trimesh` for one."""
        return cls(np.asarray(mesh.vertices, dtype=np.float64), np.asarray(mesh.faces, dtype=np.int64))

    @property
    def bounds(self) -> Array:
        """(2, 3): low and high corner of the box around the triangles."""
        used = self.vertices[np.unique(self.faces)]
        return np.stack([used.min(0), used.max(0)])

    @property
    def extents(self) -> Array:
        """(3,): edges of that box."""
        low, high = self.bounds
        return high - low

    @property
    def volume(self) -> float:
        """Enclosed volume by the divergence theorem; negative for a surface turned inside out."""
        # About the middle of the box, so that a part far from the origin loses no digits.
        a, b, c = np.moveaxis((self.vertices - self.bounds.mean(0))[self.faces], 1, 0)
        return float(np.einsum("ij,ij->", a, np.cross(b, c)) / 6)

    def transformed(self, matrix: ArrayLike) -> Surface:
        """Every vertex multiplied by a (3, 3) matrix; faces are turned over where it mirrors."""
        matrix = np.asarray(matrix, dtype=np.float64)
        faces = self.faces if np.linalg.det(matrix) > 0 else self.faces[:, ::-1]
        return Surface(self.vertices @ matrix.T, faces)


def placed(surface: Surface, *, up: str = "+z", longest: float | None = 60.0) -> Surface:
    """The surface as it is built: x and y centred about zero, lowest point on the plate z = 0.

    Args:
        surface: of a part, in any position.
        up: which axis of the part is the build direction, one of +x, -x, +y, -y, +z, -z.
        longest: the longest edge of its bounding box becomes this many millimetres, as in the benchmark. None keeps
            the size.
    """
    if up not in UP:
        raise ConfigError(f"up={up!r} is not an axis of the part; {nearest(up, UP)}")
    if longest is not None and not 0 < longest < np.inf:
        raise ConfigError(f"longest={longest}: give a length in mm above zero, or None to keep the size")
    turned = surface.transformed(UP[up])
    low, high = turned.bounds
    size = float((high - low).max())
    if not 0 < size < np.inf:
        raise DataError(f"the part is {size:g} mm long; it needs a size to be placed on the plate")
    scale = 1.0 if longest is None else longest / size
    middle = np.array([(low[0] + high[0]) / 2, (low[1] + high[1]) / 2, low[2]])
    return Surface((turned.vertices - middle) * scale, turned.faces)

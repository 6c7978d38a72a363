"""A solid as equal axis-aligned boxes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

Vector = tuple[float, float, float]


@dataclass(frozen=True)
class Voxels:
    """Which boxes of a regular grid are solid. Lengths in millimetres where a part is meant."""

    solid: np.ndarray
    """(nx, ny, nz), bool."""
    size: Vector
    """Edges of a box along x, y, z."""
    origin: Vector
    """Low corner of box (0, 0, 0)."""

    @property
    def count(self) -> int:
        return int(self.solid.sum())

    @property
    def volume(self) -> float:
        return self.count * float(np.prod(self.size))

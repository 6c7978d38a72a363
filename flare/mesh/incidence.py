"""Which points the cells of a mesh have, and the means that follow: cell centres, cell data at points, and back."""

# K corners of all cells, end to end

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flare.utils.errors import DataError


@dataclass(frozen=True)
class Incidence:
    cell: NDArray[Any]
    """(K,): whose corner it is."""
    corner: NDArray[Any]
    """(K,): the point it is at."""
    cells: int
    points: int

    def to_cells(self, values: NDArray[Any]) -> NDArray[Any]:
        """A field of the points at the cells, (cells,) or (cells, channels): the mean over the corners of each."""
        return _like(values, _means(self.cell, _rows(values)[self.corner], self.cells))

    def to_points(self, values: NDArray[Any], name: str) -> NDArray[Any]:
        """A field of the cells at the points: the mean over the cells around each. `name` is for messages."""
        alone = np.ones(self.points, dtype=bool)
        alone[self.corner] = False
        if alone.any():
            raise DataError(
                f"{name}: {alone.sum():,} of {len(alone):,} points (first: {alone.argmax()}) belong to no cell, "
                f"so cell data cannot be averaged to them; use the cell centres"
            )
        return _like(values, _means(self.corner, _rows(values)[self.cell], self.points))


def incidence(corners: NDArray[Any], counts: NDArray[Any], points: int) -> Incidence:
    """Of cells with so many `corners` each, (cells,) `counts`, end to end."""
    return Incidence(np.repeat(np.arange(len(counts)), counts), corners, len(counts), points)


def _rows(values: NDArray[Any]) -> NDArray[Any]:
    return values.reshape(len(values), -1)


def _like(values: NDArray[Any], means: NDArray[Any]) -> NDArray[Any]:
    return means[:, 0] if values.ndim == 1 else means


def _means(owner: NDArray[Any], rows: NDArray[Any], count: int) -> NDArray[Any]:
    """(count, channels) float64: the mean of the rows of each owner."""
    number = np.bincount(owner, minlength=count)
    sums = [np.bincount(owner, weights=column, minlength=count) for column in rows.T]
    return np.stack(sums, axis=1) / np.maximum(number, 1)[:, None]

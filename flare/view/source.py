"""What the page can look at. Five questions, answered with named arrays; docs/view.md is the contract in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from flare.utils.errors import DataError

Arrays = Mapping[str, np.ndarray]
"""Name -> array, of float32, float64 or uint32."""

VERSION = 1
"""Of the contract, in the catalogue."""


class Source(Protocol):
    """Samples with fields, numbered as their owner numbers them."""

    def catalogue(self) -> dict[str, Any]:
        """Title, fields with units, samples: everything the page shows before it draws. JSON."""
        ...

    def geometry(self, sample: int) -> Arrays:
        """`points` [N, 2 or 3]; `triangles` [T, 3] where there are cells; `parameter/<name>` [components].

        A file may lack parameters of the catalogue; the page warns where `parameter/familiarity_score` is above 1.
        """
        ...

    def field(self, sample: int, name: str) -> Arrays:
        """`truth` [N], `prediction` [N], or both."""
        ...

    def spectra(self, sample: int) -> Arrays:
        """`eigenvalues` [blocks, heads, latents] and `effective_rank` [blocks, heads]."""
        ...

    def modes(self, sample: int, block: int, head: int) -> Arrays:
        """`eigenvalues` [R] and `eigenvectors` [R, N] of one head; both numbered from 0."""
        ...


class NotThere(DataError):
    """A sample, field or mode that is asked for and does not exist."""


def unit_of(unit: str) -> str:
    """As the page writes it: nothing where a number is dimensionless."""
    return "" if unit == "1" else unit


def drawable(points: np.ndarray, where: str) -> np.ndarray:
    """Points of 2 or 3 dimensions, or a refusal."""
    if points.ndim != 2 or points.shape[1] not in (2, 3) or not len(points):
        raise DataError(f"{where}: points have shape {points.shape}; a view needs some, in 2 or 3 dimensions")
    return points

"""For models that know the points as a grid: its shape, and distances to a reference grid in place of coordinates."""

# B batch, N = rows * columns points in row-major order

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from flare.utils.errors import ConfigError

REFERENCE = 8
"""Points of the reference grid along each side."""


def check_grid(grid: Sequence[int] | None) -> tuple[int, int] | None:
    """(rows, columns) as a model was built with, or None for points in no order."""
    if grid is None:
        return None
    if isinstance(grid, str | int) or len(grid) != 2 or any(type(n) is not int or n < 2 for n in grid):
        raise ConfigError(f"grid={grid!r} should be two numbers of points, rows and columns, each at least 2")
    rows, columns = grid
    return rows, columns


def require_grid(x: Tensor, mask: Tensor | None, grid: tuple[int, int]) -> None:
    """Refuse points that are not that grid."""
    if x.shape[1] != grid[0] * grid[1]:
        raise ConfigError(f"this model is for a grid of {grid[0]} x {grid[1]} points, not for {x.shape[1]} points")
    if mask is not None and not bool(mask.all()):
        raise ConfigError("this model reads a whole grid and cannot leave points out; use one for any mesh")


def check_unified(grid: tuple[int, int] | None, in_dim: int) -> None:
    if grid is None:
        raise ConfigError("unified_pos replaces the two coordinates of a grid; give grid=(rows, columns)")
    if in_dim < 2:
        raise ConfigError(f"unified_pos replaces the first two features, the coordinates; there are {in_dim}")


def distances(grid: tuple[int, int]) -> Tensor:
    """[N, 64]: from every point (i / (rows − 1), j / (columns − 1)) to a grid of 8 × 8 on the unit square."""
    axes = [torch.linspace(0, 1, n) for n in grid]
    reference = torch.linspace(0, 1, REFERENCE)
    points, references = (
        torch.stack(torch.meshgrid(a, b, indexing="ij"), dim=-1).reshape(-1, 2)
        for a, b in (axes, (reference, reference))
    )
    return (points[:, None] - references).square().sum(-1).sqrt()

"""Structured grids: checks of the shape, and distances to a reference grid that replace coordinates."""

# B batch, N = rows * columns points in row-major order

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from flare.utils.errors import ConfigError

REFERENCE = 8
"""Number of points of the reference grid along each side."""


def check_grid(grid: Sequence[int] | None) -> tuple[int, int] | None:
    """Return (rows, columns), or None for unstructured points; raise ConfigError for anything else."""
    if grid is None:
        return None
    if isinstance(grid, str | int) or len(grid) != 2 or any(type(n) is not int or n < 2 for n in grid):
        raise ConfigError(f"grid={grid!r} must be two integers (rows, columns) of at least 2")
    rows, columns = grid
    return rows, columns


def require_grid(x: Tensor, mask: Tensor | None, grid: tuple[int, int]) -> None:
    """Raise ConfigError unless x has the points of the grid and the mask excludes none of them."""
    if x.shape[1] != grid[0] * grid[1]:
        raise ConfigError(f"x has {x.shape[1]} points; this model takes a grid of {grid[0]} x {grid[1]} points")
    if mask is not None and not mask.is_meta and not bool(mask.all()):  # meta tensors have no values
        raise ConfigError("mask excludes points, but this model needs the whole grid; use a model for any mesh")


def check_unified(grid: tuple[int, int] | None, in_dim: int, least: int = 2) -> None:
    """Raise ConfigError unless there are a grid and at least so many features, with two coordinates to replace."""
    if grid is None or in_dim < least:
        raise ConfigError(f"unified_pos replaces two coordinates: grid={grid}, in_dim={in_dim} (at least {least})")


def distances(grid: tuple[int, int]) -> Tensor:
    """Compute the distances of every point (i / (rows − 1), j / (columns − 1)) to 8 × 8 points of the unit square.

    Returns:
        Distances in float32, [N, 64].
    """
    axes = [torch.linspace(0, 1, n, dtype=torch.float32) for n in grid]
    reference = torch.linspace(0, 1, REFERENCE, dtype=torch.float32)
    points, references = (
        torch.stack(torch.meshgrid(a, b, indexing="ij"), dim=-1).reshape(-1, 2)
        for a, b in (axes, (reference, reference))
    )
    return (points[:, None] - references).square().sum(-1).sqrt()

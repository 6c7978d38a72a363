"""Gradients of a scalar of the predicted fields with respect to points, features and parameters.

    result = sensitivity(surrogate, points, peak("stress", softness=0.3))
    result.value, result.points                         # 412.0, and d value / d points, (N, dimensions)

A scalar is any function of the fields and the points; `peak`, `mean`, `integral` and `force` return the usual ones. If
a scalar also depends on the points directly, as an integral does through its cells, the gradient includes both parts.
"""

# N points, E cells, d dimensions

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from flare.data.sample import INPUT_ROLES
from flare.inference.chunked import check_finite
from flare.inference.surrogate import Surrogate
from flare.utils.errors import ConfigError, DataError, suggest_name

Scalar = Callable[[Mapping[str, Tensor], Tensor], Tensor]
"""Function of predicted fields, name -> (N, components), and points (N, d), both physical; returns one number."""
Cells = Mapping[str, ArrayLike]
"""Type -> (E, corners) indices of points: line, triangle, quad, tetra, pyramid, wedge, hexahedron."""
SIMPLICES: dict[str, list[list[int]]] = {
    "line": [[0, 1]],
    "triangle": [[0, 1, 2]],
    "quad": [[0, 1, 2], [0, 2, 3]],
    "tetra": [[0, 1, 2, 3]],
    "pyramid": [[0, 1, 2, 4], [0, 2, 3, 4]],
    "wedge": [[0, 1, 2, 5], [0, 1, 5, 4], [0, 4, 5, 3]],
    "hexahedron": [[0, 1, 2, 6], [0, 2, 3, 6], [0, 3, 7, 6], [0, 7, 4, 6], [0, 4, 5, 6], [0, 5, 1, 6]],
}
"""Cells cut into lines, triangles and tetrahedra of the same orientation."""


@dataclass(frozen=True)
class Sensitivity:
    """Value of a scalar and its gradient, in physical units."""

    value: float
    points: np.ndarray
    """(N, d) derivative with respect to the points."""
    features: dict[str, np.ndarray]
    """Name -> (N, components)."""
    parameters: dict[str, np.ndarray]
    """Name -> (components,)."""


def sensitivity(
    surrogate: Surrogate,
    points: ArrayLike,
    scalar: Scalar,
    *,
    features: Mapping[str, ArrayLike] | None = None,
    parameters: Mapping[str, ArrayLike] | None = None,
) -> Sensitivity:
    """Compute a scalar of the predicted fields and its gradient with respect to all inputs.

    The gradient is exact up to rounding: one forward and one backward pass.

    Args:
        surrogate: Trained model.
        points: (N, d).
        scalar: Function of the fields and the points, such as `peak("stress")`.
        features: Name -> (N,) or (N, components).
        parameters: Name -> number or (components,).

    Raises:
        DataError: Fields, scalar or gradient are not finite.
        ConfigError: The scalar is not one number that depends on the fields.
    """
    schema, kind = surrogate.schema, surrogate.input_norm.shift
    sample = surrogate.sample(points, {**(features or {}), **(parameters or {})})
    leaves = {
        name: torch.tensor(np.asarray(sample.values[name]), dtype=kind.dtype, device=kind.device, requires_grad=True)
        for name in schema.named(*INPUT_ROLES)
    }
    count = len(leaves[schema.points])
    surrogate.eval()
    with torch.enable_grad():
        inputs = torch.cat([leaf if leaf.ndim == 2 else leaf.expand(count, -1) for leaf in leaves.values()], dim=1)
        outputs = surrogate(inputs[None])[0]
        with check_finite() as seen:
            seen(0, outputs.detach().cpu().numpy())
        predicted = dict(zip(schema.named("target"), outputs.split(schema.widths("target"), dim=1), strict=True))
        value = scalar(predicted, leaves[schema.points])
        if value.numel() != 1 or not value.requires_grad:
            raise ConfigError(
                f"the scalar, of shape {list(value.shape)}, must be one number that depends on the fields"
            )
        gradients = torch.autograd.grad(value.reshape(()), list(leaves.values()), allow_unused=True)
    found = {
        name: (torch.zeros_like(leaf) if gradient is None else gradient).cpu().numpy()
        for (name, leaf), gradient in zip(leaves.items(), gradients, strict=True)
    }
    number = float(value.detach())
    if not math.isfinite(number) or not all(np.isfinite(gradient).all() for gradient in found.values()):
        raise DataError("the scalar or its gradient is not finite; check the unit of the points")
    return Sensitivity(
        number,
        found[schema.points],
        {name: found[name] for name in schema.named("feature")},
        {name: found[name] for name in schema.named("parameter")},
    )


# ---- scalars --------------------------------------------------------------------------------------------------------


def peak(field: str, *, component: int = 0, softness: float = 0.0) -> Scalar:
    """Return the maximum of a field as a scalar.

    Args:
        field: Name of the field.
        component: Index of the component.
        softness: 0 is the maximum itself, whose gradient jumps when another point becomes the largest. Above 0 it is
            the mean weighted by exp(value / τ), τ = softness · standard deviation of the field: smooth, slightly below
            the maximum, and suited to optimizers. 0.3 is a good start.
    """
    if softness < 0:
        raise ConfigError(f"softness={softness} is negative")

    def scalar(fields: Mapping[str, Tensor], points: Tensor) -> Tensor:
        values = _channel(fields, field, component)
        tau = softness * values.std(correction=0)
        if float(tau.detach()) == 0:
            return values.max()
        return (values * (values / tau).softmax(0)).sum()

    return scalar


def mean(field: str, *, component: int = 0, cells: Cells | None = None) -> Scalar:
    """Return the mean over the points as a scalar; with cells, over their length, area or volume."""

    def scalar(fields: Mapping[str, Tensor], points: Tensor) -> Tensor:
        values = _channel(fields, field, component)
        if cells is None:
            return values.mean()
        weights = point_weights(points, cells)
        return (weights * values).sum() / weights.sum()

    return scalar


def integral(field: str, cells: Cells, *, component: int = 0) -> Scalar:
    """Return ∫ field over the cells as a scalar: the mean of a cell's corners times its length, area or volume."""
    return lambda fields, points: (point_weights(points, cells) * _channel(fields, field, component)).sum()


def force(pressure: str, cells: Cells, direction: ArrayLike, *, component: int = 0) -> Scalar:
    """Return the force of a pressure on a closed surface along a direction, −∮ p n·e dA, n pointing outwards.

    Args:
        pressure: Name of the field.
        cells: Triangles or quads in space, lines in the plane, counterclockwise seen from outside the body (lines:
            counterclockwise around it).
        direction: (d,), of any nonzero length.
        component: Index of the component.
    """
    along = np.asarray(direction, dtype=np.float64)
    if not np.linalg.norm(along) > 0:
        raise ConfigError(f"direction={along.tolist()}: use one number per axis, not all zero")

    def scalar(fields: Mapping[str, Tensor], points: Tensor) -> Tensor:
        areas = differentiable_area_vectors(points, cells)
        if along.shape != areas.shape[1:]:
            raise ConfigError(f"direction has {along.size} numbers, the points have {areas.shape[1]} coordinates")
        unit = torch.as_tensor(along / np.linalg.norm(along), dtype=points.dtype, device=points.device)
        return -(_channel(fields, pressure, component) * (areas @ unit)).sum()

    return scalar


def point_weights(points: Tensor, cells: Cells) -> Tensor:
    """Compute each point's share of the length, area or volume of its cells, (N,), differentiable in the points."""
    weights = points.new_zeros(len(points))
    for simplices in _simplices(points, cells):
        corners = points[simplices]
        edges = corners[:, 1:] - corners[:, :1]
        # k edges span √det(E Eᵀ) / k! in any number of dimensions; degenerate cells have no size and no gradient.
        gram = torch.linalg.det(edges @ edges.transpose(1, 2)).clamp_min(torch.finfo(points.dtype).tiny)
        size = gram.sqrt() / math.factorial(edges.shape[1])
        weights = _spread(weights, simplices, size)
    return weights


def differentiable_area_vectors(points: Tensor, cells: Cells) -> Tensor:
    """Compute each point's share of area times normal of its triangles and quads, or lines in the plane, (N, d)."""
    areas = torch.zeros_like(points)
    for simplices in _simplices(points, cells):
        corners = points[simplices]
        if simplices.shape[1] == points.shape[1] == 3:
            normal = torch.linalg.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]) / 2
        elif simplices.shape[1] == points.shape[1] == 2:
            edge = corners[:, 1] - corners[:, 0]
            normal = torch.stack([edge[:, 1], -edge[:, 0]], 1)
        else:
            raise ConfigError("a force needs triangles or quads in space, or lines in the plane")
        areas = _spread(areas, simplices, normal)
    return areas


def _spread(totals: Tensor, simplices: Tensor, values: Tensor) -> Tensor:
    """Add the value of each simplex to its corners in equal parts."""
    corners = simplices.shape[1]
    return totals.index_add(0, simplices.reshape(-1), (values / corners).repeat_interleave(corners, 0))


def _simplices(points: Tensor, cells: Cells) -> list[Tensor]:
    found = []
    for kind, corners in cells.items():
        if kind not in SIMPLICES:
            raise DataError(f"unknown cell type {kind!r}; {suggest_name(kind, SIMPLICES)}")
        indices = torch.as_tensor(np.asarray(corners), dtype=torch.long, device=points.device)
        if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < len(points):
            raise DataError(f"{kind} cells refer to points beyond the {len(points):,} that there are")
        found.append(indices[:, SIMPLICES[kind]].flatten(0, 1))
    if not found or not sum(map(len, found)):
        raise DataError("there are no cells to integrate over")
    return found


def _channel(fields: Mapping[str, Tensor], name: str, component: int) -> Tensor:
    if name not in fields:
        raise ConfigError(f"this model predicts no field {name!r}; {suggest_name(name, fields)}")
    return fields[name][:, component]

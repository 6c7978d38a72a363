"""Relative L2, the paper's loss and metric, and the gradient term of the Darcy benchmark."""

# B batch, N points, F channels, R x C grid rows and columns

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from flare.mixer.sharded import Group, norm_of_all


def relative_l2(
    prediction: Tensor,
    target: Tensor,
    mask: Tensor | None = None,
    *,
    widths: Sequence[int] | None = None,
    group: Group | None = None,
    offset: float = 0.0,
) -> Tensor:
    """Compute the relative L2 error of each field of each sample.

    Args:
        prediction: Predicted fields, shape [B, N, F].
        target: Reference fields, same shape and units.
        mask: Boolean, shape [B, N], True at real points. Padding does not contribute. None: every point is real.
        widths: Channels of each field, summing to F. Each field has its own error, so that units do not matter; the
            components of a vector are taken together. None: one field.
        group: Ranks that hold the other points of these samples; the error is that of all points.
        offset: Constant added to both before they are compared; the denominator becomes ||target + offset||.

    Returns:
        Errors ||prediction − target|| / ||target||, shape [B, fields]. They are inf or NaN if a target is zero
        everywhere; datasets with such samples are refused when a run begins.
    """
    difference = prediction - target
    target = (target + offset if offset else target).to(difference.dtype)
    if mask is not None:
        difference, target = (t.masked_fill(~mask[..., None], 0) for t in (difference, target))
    fields = [prediction.shape[-1]] if widths is None else list(widths)
    error, size = (
        torch.stack([torch.linalg.vector_norm(part, dim=(1, 2)) for part in t.split(fields, dim=-1)], dim=1)
        for t in (difference, target)
    )
    return norm_of_all(error, group) / norm_of_all(size, group)


def gradient_l2(
    prediction: Tensor, target: Tensor, grid: tuple[int, int], *, widths: Sequence[int] | None = None
) -> Tensor:
    """Compute the sum of the relative L2 errors of both grid derivatives.

    As published: the outermost ring of the prediction is set to zero, that of the target is not; one ring of zeros is
    padded outside, and central differences are taken at every point. The spacing cancels in the ratio.

    Args:
        prediction: Predicted fields on a grid, shape [B, N, F] with N = rows · columns, row by row.
        target: Reference fields, same shape.
        grid: Rows and columns.
        widths: See `relative_l2`.

    Returns:
        Errors, shape [B, fields].
    """
    u_BRCF, v_BRCF = (t.unflatten(1, grid) for t in (prediction, target))
    inside = torch.zeros(grid, dtype=torch.bool, device=prediction.device)
    inside[1:-1, 1:-1] = True
    u_BRCF = torch.where(inside[..., None], u_BRCF, 0)
    pairs = zip(_central_differences(u_BRCF), _central_differences(v_BRCF), strict=True)
    return torch.stack([relative_l2(du.flatten(1, 2), dv.flatten(1, 2), widths=widths) for du, dv in pairs]).sum(0)


def _central_differences(f_BRCF: Tensor) -> tuple[Tensor, Tensor]:
    """Return differences along columns and along rows, up to the common factor 1 / 2δ."""
    f = pad(f_BRCF, (0, 0, 1, 1, 1, 1))
    return f[:, 1:-1, 2:] - f[:, 1:-1, :-2], f[:, 2:, 1:-1] - f[:, :-2, 1:-1]

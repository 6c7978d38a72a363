"""The paper's loss and metric: relative L2 per sample, in physical values."""

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
    """Relative L2 error, ||prediction − target|| / ||target||, of each field of each sample.

    Args:
        prediction: [B, N, F].
        target: [B, N, F], in the units of `prediction`.
        mask: [B, N], True at real points, so padding counts for nothing. None: every point is real.
        widths: channels of each field, summing to F. Fields are judged one by one, since megapascals would drown
            millimetres; the components of a vector are judged together. None: one field.
        group: ranks that hold the other points of these samples; the error is that of all points.
        offset: added to both before they are compared, which makes the error look smaller: ||target + offset||.

    Returns:
        [B, fields]. The paper has one field and averages over samples, not over points; with several fields we
        average over them too. A field that is zero everywhere has no relative error (the result is inf or NaN);
        datasets with such samples are refused when a run begins.
    """
    difference, target = prediction - target, target + offset if offset else target
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
    """Relative L2 of both grid derivatives, summed: the regulariser of the Darcy benchmark.

    As published: the prediction's outermost ring is set to zero, the target's is not; one ring of zeros is padded
    outside, and central differences are taken at every point. The spacing cancels in the ratio.

    Args:
        prediction: [B, N, F] with N = rows · columns, row by row.
        target: likewise.

    Returns:
        [B, fields]
    """
    u_BRCF, v_BRCF = (t.unflatten(1, grid) for t in (prediction, target))
    inside = torch.zeros(grid, dtype=torch.bool, device=prediction.device)
    inside[1:-1, 1:-1] = True
    u_BRCF = torch.where(inside[..., None], u_BRCF, 0)
    along = zip(_central_differences(u_BRCF), _central_differences(v_BRCF), strict=True)
    return torch.stack([relative_l2(du.flatten(1, 2), dv.flatten(1, 2), widths=widths) for du, dv in along]).sum(0)


def _central_differences(f_BRCF: Tensor) -> tuple[Tensor, Tensor]:
    """Along columns and along rows, up to the common factor 1 / 2δ."""
    f = pad(f_BRCF, (0, 0, 1, 1, 1, 1))
    return f[:, 1:-1, 2:] - f[:, 1:-1, :-2], f[:, 2:, 1:-1] - f[:, :-2, 1:-1]

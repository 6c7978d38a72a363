"""The paper's loss and metric: relative L2 per sample, in physical values."""

# B batch, N points, F fields, R x C grid rows and columns

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad


def relative_l2(prediction: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
    """Relative L2 error of each sample, ||prediction − target|| / ||target||, over all points and fields.

    Args:
        prediction: [B, N, F].
        target: [B, N, F], in the unit of `prediction`.
        mask: [B, N], True at real points, so padding counts for nothing. None: every point is real.

    Returns:
        [B]. The paper averages over samples, not over points. A target that is zero everywhere has no relative error
        (the result is inf or NaN); datasets with such samples are refused when a run begins.
    """
    if mask is not None:
        prediction, target = (t.masked_fill(~mask[..., None], 0) for t in (prediction, target))
    return torch.linalg.vector_norm(prediction - target, dim=(1, 2)) / torch.linalg.vector_norm(target, dim=(1, 2))


def gradient_l2(prediction: Tensor, target: Tensor, grid: tuple[int, int]) -> Tensor:
    """Relative L2 of both grid derivatives, summed: the regulariser of the Darcy benchmark.

    As published: the prediction's outermost ring is set to zero, the target's is not; one ring of zeros is padded
    outside, and central differences are taken at every point. The spacing cancels in the ratio.

    Args:
        prediction: [B, N, F] with N = rows · columns, row by row.
        target: likewise.

    Returns:
        [B]
    """
    u_BRCF, v_BRCF = (t.unflatten(1, grid) for t in (prediction, target))
    inside = torch.zeros(grid, dtype=torch.bool, device=prediction.device)
    inside[1:-1, 1:-1] = True
    u_BRCF = torch.where(inside[..., None], u_BRCF, 0)
    along = zip(_central_differences(u_BRCF), _central_differences(v_BRCF), strict=True)
    return torch.stack([relative_l2(du.flatten(1, 2), dv.flatten(1, 2)) for du, dv in along]).sum(0)


def _central_differences(f_BRCF: Tensor) -> tuple[Tensor, Tensor]:
    """Along columns and along rows, up to the common factor 1 / 2δ."""
    f = pad(f_BRCF, (0, 0, 1, 1, 1, 1))
    return f[:, 1:-1, 2:] - f[:, 1:-1, :-2], f[:, 2:, 1:-1] - f[:, :-2, 1:-1]

"""Eigen-analysis of FLARE layers in O(M² N + M³) time and O(M N) memory, without any N × N matrix.

The mixing matrix of a head is W = P E, with E = softmax(S over N) (encode, M × N), P = softmax(Sᵀ over M) (decode,
N × M) and S = scale · Q Kᵀ. W is row-stochastic and similar to a positive semi-definite matrix. So its eigenvalues lie
in [0, 1], at most M of them are not 0, and the first is 1, with a constant eigenvector. All computations use float64
and logarithms; no score is clamped.
"""

# B batch, N points, M latents per head, H heads, D head width, C = H * D channels, L layers, R modes kept

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from flare.models.flare import FLARE
from flare.utils.errors import ConfigError, DataError
from flare.utils.files import replace_atomically

T = TypeVar("T")

FP32_EPSILON = torch.finfo(torch.float32).eps
SMALLEST = 1e-12
"""Smallest eigenvalue with an eigenvector: E P has an error of 1e-16, which leaves a residual of 1e-16/√λ."""

WORST_RESIDUAL = 1e-6
"""RMS of W v − λ v above which an eigenvector v of unit RMS is rejected."""


def factor(q_MD: Tensor, k_ND: Tensor, *, scale: float = 1.0, mask: Tensor | None = None) -> Tensor:
    """Compute J, [M, N] in float64, for which J Jᵀ has the non-zero eigenvalues of W.

    J_mn = √(E_mn P_nm) = exp(S_mn − ½ lse_n S_mn − ½ lse_m S_mn).

    Args:
        q_MD: Queries of one head.
        k_ND: Keys of one head and sample.
        scale: Factor of the scores.
        mask: Boolean, [N], True at real points. The columns of padding are 0.
    """
    log_e_MN, log_p_MN = _log_weights(q_MD, k_ND, scale, mask)
    return (0.5 * (log_e_MN + log_p_MN)).exp()


def eigenvalues(q_MD: Tensor, k_ND: Tensor, *, scale: float = 1.0, mask: Tensor | None = None) -> Tensor:
    """Compute the eigenvalues of the mixing matrix of one head, [M], largest first, to about 1e-15 absolute."""
    j_MN = factor(q_MD, k_ND, scale=scale, mask=mask)
    return torch.linalg.eigvalsh(j_MN @ j_MN.T).flip(0).clamp_min(0)


def eigenpairs(
    q_MD: Tensor, k_ND: Tensor, *, scale: float = 1.0, mask: Tensor | None = None, count: int | None = None
) -> tuple[Tensor, Tensor]:
    """Compute the leading eigenvalues, [R], and right eigenvectors, [N, R], of the mixing matrix of one head.

    Eigenvectors have unit RMS over the real points and are 0 at padding. Their entry of largest magnitude is positive,
    so the first one is the constant 1. Modes are dropped if the eigenvalue is below 1e-12, or if the residual
    ‖W v − λ v‖ shows that float64 cannot resolve them, which happens for scores above a hundred. Eigenvalues that agree
    to rounding may come with any basis of their common eigenspace.

    The eigenvectors are v = P z with (E P) z = λ z, an M × M problem. In exact arithmetic this equals Λ_N^½ Jᵀ U Σ⁻¹.
    With large scores the sums over the latents differ between points by factors of e⁴⁰ and more; rounding then destroys
    the coupling between latents in J, but not in E P.
    """
    log_e_MN, log_p_MN = _log_weights(q_MD, k_ND, scale, mask)
    e_MN, p_MN = log_e_MN.exp(), log_p_MN.exp()
    lambda_M, z_MM = torch.linalg.eig(e_MN @ p_MN.T)
    order = lambda_M.real.argsort(descending=True)[:count]
    order = order[lambda_M.real[order] > SMALLEST]
    # Eigenvectors are real. Rounding may turn equal eigenvalues into a conjugate pair; real + imag is a basis again.
    z_MR = (z_MM.real + z_MM.imag)[:, order]
    real = torch.ones_like(p_MN[0], dtype=torch.bool) if mask is None else mask
    lambda_R, v_NR = lambda_M.real[order], _normalize(p_MN.T @ z_MR, real)
    residual_R = (p_MN.T @ (e_MN @ v_NR) - lambda_R * v_NR)[real].square().mean(0).sqrt()
    return lambda_R[residual_R < WORST_RESIDUAL], v_NR[:, residual_R < WORST_RESIDUAL]


def effective_rank(values: Tensor) -> Tensor:
    """Compute exp(entropy of λ / Σλ) over the last axis: M for equal eigenvalues, 1 for a single one."""
    return torch.special.entr(values / values.sum(-1, keepdim=True)).sum(-1).exp()


def numerical_rank(values: Tensor, threshold: float = FP32_EPSILON) -> Tensor:
    """Count the eigenvalues above `threshold` over the last axis."""
    return (values > threshold).sum(-1)


@dataclass(frozen=True)
class Spectra:
    """Eigenvalues of every layer and head of a model, over a set of samples."""

    eigenvalues: Tensor
    """Mean over the samples, [L, H, M], largest first."""
    spread: Tensor
    """Standard deviation over the samples, [L, H, M]; 0 for one sample."""
    samples: int
    """Number of samples."""

    @property
    def effective_rank(self) -> Tensor:
        """Effective rank of the mean eigenvalues, [L, H]."""
        return effective_rank(self.eigenvalues)

    @property
    def numerical_rank(self) -> Tensor:
        """Number of mean eigenvalues above the epsilon of float32, [L, H]."""
        return numerical_rank(self.eigenvalues)

    def save(self, path: str | Path) -> None:
        """Write a `.npz` file atomically."""
        with replace_atomically(path) as temporary, temporary.open("wb") as file:
            np.savez(file, eigenvalues=self.eigenvalues.cpu(), spread=self.spread.cpu(), samples=self.samples)


def flare_layers(model: nn.Module) -> list[FLARE]:
    """Return the FLARE layers of a model in order.

    Raises:
        ConfigError: The model has no FLARE layer, or one with latent blocks, which has no spectrum.
    """
    named = [(name, layer) for name, layer in model.named_modules() if isinstance(layer, FLARE)]
    if not named:
        raise ConfigError(f"spectra are defined for FLARE layers; {type(model).__name__} has none")
    for name, layer in named:
        if blocks := len(layer.latent_blocks):
            raise ConfigError(f"{name or 'this layer'} has latent_blocks={blocks}: only linear mixing has a spectrum")
    return [layer for _, layer in named]


def model_spectra(
    model: nn.Module, inputs: Iterable[tuple[Tensor, Tensor | None]], *, dtype: torch.dtype = torch.float64
) -> Spectra:
    """Compute the eigenvalues per layer and head, averaged over samples as in the paper.

    Args:
        model: Takes (x, mask). Its FLARE layers have equal numbers of heads and latents. It is not changed.
        inputs: Batches (x [B, N, in_dim], mask [B, N] or None) on the device of the model.
        dtype: Precision of the forward pass, on a copy of the model. The analysis always uses float64.

    Raises:
        ConfigError: The model has no spectrum, or its layers differ in heads or latents.
        DataError: There is no sample.
    """
    sizes = {(layer.heads, layer.latents.shape[1]) for layer in flare_layers(model)}
    if len(sizes) > 1:
        raise ConfigError(f"the FLARE layers differ in (heads, latents): {sorted(sizes)}; analyze them one by one")
    model = _copy(model, dtype)
    found: list[Tensor] = []
    for x, mask in inputs:
        for i in range(len(x)):
            one = None if mask is None else mask[i : i + 1]
            heads = _each_head(model, x[i : i + 1].to(dtype), one, eigenvalues)
            found.append(torch.stack([torch.stack(layer) for layer in heads]))
    if not found:
        raise DataError("inputs is empty; spectra need at least one sample")
    per_sample = torch.stack(found)
    return Spectra(per_sample.mean(0), per_sample.std(0, correction=0), len(found))


def model_eigenvectors(
    model: nn.Module, x: Tensor, *, count: int = 6, mask: Tensor | None = None
) -> list[tuple[Tensor, Tensor]]:
    """Compute the leading eigenvalues and eigenvectors of every layer for one sample.

    Args:
        model: Takes (x, mask). It is not changed.
        x: One sample, [1, N, in_dim].
        count: Number of modes R. It is lower where a head has fewer modes that float64 can resolve; see `eigenpairs`.
        mask: Boolean, [1, N], True at real points.

    Returns:
        For each layer, eigenvalues [H, R] and eigenvectors [H, N, R].
    """
    if len(x) != 1:
        raise DataError(f"x is {list(x.shape)}; eigenvectors need one sample, [1, N, in_dim]")
    model = _copy(model, torch.float64)
    found = []
    for heads in _each_head(model, x.double(), mask, partial(eigenpairs, count=count)):
        kept = min(len(values) for values, _ in heads)
        values_HR = torch.stack([values[:kept] for values, _ in heads])
        found.append((values_HR, torch.stack([vectors[:, :kept] for _, vectors in heads])))
    return found


def _each_head(model: nn.Module, x: Tensor, mask: Tensor | None, analyze: Callable[..., T]) -> list[list[T]]:
    """Call analyze(q_MD, k_ND, scale=..., mask=...) for every layer and head in one forward pass of one sample."""
    found: list[list[T]] = []
    real = None if mask is None else mask[0]

    def visit(layer: FLARE, inputs: tuple[Tensor, ...]) -> None:  # one at a time: no copy of the features per layer
        q_HMD, k_BHND = layer.queries_and_keys(inputs[0])
        heads = zip(q_HMD.expand(layer.heads, -1, -1), k_BHND[0], strict=True)
        found.append([analyze(q_MD, k_ND, scale=layer.scale, mask=real) for q_MD, k_ND in heads])

    hooks = [layer.register_forward_pre_hook(visit) for layer in flare_layers(model)]
    with torch.no_grad():
        model(x, mask)
    for hook in hooks:
        hook.remove()
    return found


def _copy(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Return a copy in `dtype`, in evaluation mode, with the backend `auto`."""
    model = deepcopy(model).to(dtype).eval()
    for layer in flare_layers(model):
        layer.backend = "auto"
    return model


def _log_weights(q_MD: Tensor, k_ND: Tensor, scale: float, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Compute the logarithms of E and of Pᵀ, both [M, N]; E is 0 at padding."""
    s_MN = scale * (q_MD.double() @ k_ND.double().T)
    log_p_MN = s_MN.log_softmax(0)
    if mask is not None:
        if not mask.any():
            raise DataError(f"all {len(mask)} points are padding")
        s_MN = s_MN.masked_fill(~mask, -torch.inf)
    return s_MN.log_softmax(1), log_p_MN


def _normalize(v_NR: Tensor, real: Tensor) -> Tensor:
    v_NR = v_NR * real[:, None]
    v_NR = v_NR / (v_NR.square().sum(0) / real.sum()).sqrt()
    return v_NR * v_NR.gather(0, v_NR.abs().argmax(0, keepdim=True)).sign()

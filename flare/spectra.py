"""Eigen-analysis of FLARE layers in O(M² N + M³) time and O(M N) memory: nothing of size N × N is ever formed.

A head mixes its points by W = P E, with E = softmax over N of S (encode, M × N), P = softmax over M of Sᵀ (decode,
N × M) and S = scale · Q Kᵀ. W is row-stochastic and similar to a positive semi-definite matrix, so its eigenvalues lie
in [0, 1], at most M of them are not 0, and the first is 1, with a constant eigenvector. All in float64 and in
logarithms: no score is clamped.
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

from flare.data.batching import evaluation_batches
from flare.data.dataset import Dataset
from flare.models.flare import FLARE
from flare.surrogate import Surrogate
from flare.utils.errors import ConfigError, DataError
from flare.utils.files import replacing

T = TypeVar("T")

FP32_EPSILON = torch.finfo(torch.float32).eps
SMALLEST = 1e-12
"""Modes of smaller eigenvalue have no eigenvector here: E P is known to 1e-16, which leaves 1e-16/√λ of residual."""

WORST_RESIDUAL = 1e-6
"""RMS of W v − λ v above which an eigenvector of unit RMS is not shown."""


def factor(q_MD: Tensor, k_ND: Tensor, *, scale: float = 1.0, mask: Tensor | None = None) -> Tensor:
    """J, [M, N] in float64: J Jᵀ has the non-zero eigenvalues of W.

    J_mn = √(E_mn P_nm) = exp(S_mn − ½ lse_n S_mn − ½ lse_m S_mn). `mask` is [N], True at real points; the columns of
    padding are 0.
    """
    log_e_MN, log_p_MN = _log_weights(q_MD, k_ND, scale, mask)
    return (0.5 * (log_e_MN + log_p_MN)).exp()


def eigenvalues(q_MD: Tensor, k_ND: Tensor, *, scale: float = 1.0, mask: Tensor | None = None) -> Tensor:
    """Eigenvalues of one head's mixing matrix, [M], largest first; good to about 1e-15 absolute."""
    j_MN = factor(q_MD, k_ND, scale=scale, mask=mask)
    return torch.linalg.eigvalsh(j_MN @ j_MN.T).flip(0).clamp_min(0)


def eigenpairs(
    q_MD: Tensor, k_ND: Tensor, *, scale: float = 1.0, mask: Tensor | None = None, count: int | None = None
) -> tuple[Tensor, Tensor]:
    """Leading eigenvalues, [R], and right eigenvectors, [N, R], of one head's mixing matrix.

    An eigenvector has unit RMS over the real points, 0 at padding, and its entry of largest magnitude is positive, so
    the first is the constant 1. Modes with an eigenvalue below 1e-12 are left out, whatever `count`, and so are those
    whose residual ‖W v − λ v‖ shows that float64 cannot resolve them, as happens for scores of a hundred and more.
    Where two eigenvalues agree to rounding, any basis of their common space may come out.

    The eigenvectors are v = P z with (E P) z = λ z, an M × M problem. In exact arithmetic that is Λ_N^½ Jᵀ U Σ⁻¹, but
    when points differ by e⁴⁰ and more in their sum over the latents, as with large scores, J has the coupling of light
    latents to heavy ones below rounding, while in E P it is of order 1.
    """
    log_e_MN, log_p_MN = _log_weights(q_MD, k_ND, scale, mask)
    e_MN, p_MN = log_e_MN.exp(), log_p_MN.exp()
    lambda_M, z_MM = torch.linalg.eig(e_MN @ p_MN.T)
    order = lambda_M.real.argsort(descending=True)[:count]
    order = order[lambda_M.real[order] > SMALLEST]
    # Theory says real. Rounding may turn equal eigenvalues into a conjugate pair, whose sums are independent again.
    z_MR = (z_MM.real + z_MM.imag)[:, order]
    real = torch.ones_like(p_MN[0], dtype=torch.bool) if mask is None else mask
    lambda_R, v_NR = lambda_M.real[order], _normalised(p_MN.T @ z_MR, real)
    residual_R = (p_MN.T @ (e_MN @ v_NR) - lambda_R * v_NR)[real].square().mean(0).sqrt()
    return lambda_R[residual_R < WORST_RESIDUAL], v_NR[:, residual_R < WORST_RESIDUAL]


def effective_rank(values: Tensor) -> Tensor:
    """exp of the entropy of λ / Σλ over the last axis: M when all are equal, 1 when one is alone."""
    return torch.special.entr(values / values.sum(-1, keepdim=True)).sum(-1).exp()


def numerical_rank(values: Tensor, threshold: float = FP32_EPSILON) -> Tensor:
    """How many eigenvalues exceed `threshold`, over the last axis."""
    return (values > threshold).sum(-1)


@dataclass(frozen=True)
class Spectra:
    """Eigenvalues of every layer and head of a model, over a set of samples."""

    eigenvalues: Tensor
    """[L, H, M], largest first: mean over the samples."""
    spread: Tensor
    """[L, H, M]: standard deviation over the samples, 0 when there is one."""
    samples: int

    @property
    def effective_rank(self) -> Tensor:
        """[L, H], of the mean eigenvalues."""
        return effective_rank(self.eigenvalues)

    @property
    def numerical_rank(self) -> Tensor:
        """[L, H], of the mean eigenvalues, above the epsilon of float32."""
        return numerical_rank(self.eigenvalues)

    def save(self, path: str | Path) -> None:
        """Write a `.npz` file, whole or not at all."""
        with replacing(path) as temporary, temporary.open("wb") as file:
            np.savez(file, eigenvalues=self.eigenvalues.cpu(), spread=self.spread.cpu(), samples=self.samples)

    @classmethod
    def load(cls, path: str | Path) -> Spectra:
        """Read what `save` wrote."""
        with np.load(path, allow_pickle=False) as file:
            return cls(torch.from_numpy(file["eigenvalues"]), torch.from_numpy(file["spread"]), int(file["samples"]))


def flare_layers(model: nn.Module) -> list[FLARE]:
    """The FLARE layers of a model, in order. Refuses a model without any, or with layers that have no spectrum."""
    named = [(name, layer) for name, layer in model.named_modules() if isinstance(layer, FLARE)]
    if not named:
        raise ConfigError(f"spectra are defined for FLARE layers; this is a {type(model).__name__} without any")
    for name, layer in named:
        if blocks := len(layer.latent_blocks):
            raise ConfigError(
                f"{name or 'this layer'} has latent_blocks={blocks} between encode and decode, so it is not one linear "
                "low-rank operator and has no spectrum; analyse a model with latent_blocks=0"
            )
    return [layer for _, layer in named]


def visit_layers(model: nn.Module, run: Callable[[], object], visit: Callable[[FLARE, Tensor], None]) -> None:
    """Call visit(layer, x_BNC) with the input of every FLARE layer that `run`, a forward pass of `model`, reaches.

    One layer at a time, so that a large mesh needs no copy of its features per layer. Leaves no hook behind.
    """
    hooks = [
        layer.register_forward_pre_hook(lambda layer, inputs: visit(layer, inputs[0])) for layer in flare_layers(model)
    ]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()


def model_spectra(
    model: nn.Module, inputs: Iterable[tuple[Tensor, Tensor | None]], *, dtype: torch.dtype = torch.float64
) -> Spectra:
    """Eigenvalues per layer and head, averaged over samples as in the paper. `model` is left as it was.

    Args:
        model: takes (x, mask); its FLARE layers share their number of heads and latents.
        inputs: batches (x [B, N, in_dim], mask [B, N] or None), on the model's device. Analysed sample by sample.
        dtype: of the forward pass, on a copy of the model. The analysis is in float64 whatever this is.
    """
    sizes = {(layer.heads, layer.latents.shape[1]) for layer in flare_layers(model)}
    if len(sizes) > 1:
        raise ConfigError(f"the FLARE layers differ in (heads, latents): {sorted(sizes)}; analyse them one by one")
    model = _copy(model, dtype)
    found: list[Tensor] = []
    for x, mask in inputs:
        for i in range(len(x)):
            one = None if mask is None else mask[i : i + 1]
            heads = _each_head(model, x[i : i + 1].to(dtype), one, eigenvalues)
            found.append(torch.stack([torch.stack(layer) for layer in heads]))
    if not found:
        raise DataError("no sample to take spectra of")
    per_sample = torch.stack(found)
    return Spectra(per_sample.mean(0), per_sample.std(0, correction=0), len(found))


def surrogate_spectra(surrogate: Surrogate, dataset: Dataset, indices: Iterable[int]) -> Spectra:
    """Spectra of a trained surrogate's layers on samples of a dataset."""
    return model_spectra(surrogate.network, (_encoded(surrogate, dataset, index) for index in indices))


def surrogate_eigenvectors(
    surrogate: Surrogate, dataset: Dataset, index: int, *, count: int = 6
) -> list[tuple[Tensor, Tensor]]:
    """For each layer of a trained surrogate, `model_eigenvectors` of one sample: fields on its points."""
    x, _ = _encoded(surrogate, dataset, index)
    return model_eigenvectors(surrogate.network, x, count=count)


def _encoded(surrogate: Surrogate, dataset: Dataset, index: int) -> tuple[Tensor, None]:
    (batch,) = evaluation_batches(dataset, [index], 1)
    return surrogate.input_norm.encode(batch.inputs.to(surrogate.input_norm.shift.device)), None


def model_eigenvectors(
    model: nn.Module, x: Tensor, *, count: int = 6, mask: Tensor | None = None
) -> list[tuple[Tensor, Tensor]]:
    """For each layer, the leading eigenvalues [H, R] and eigenvectors [H, N, R] of one sample x, [1, N, in_dim].

    R is `count`, or fewer where a head of the layer has fewer modes worth the name; see `eigenpairs`.
    """
    if len(x) != 1:
        raise DataError(f"eigenvectors are taken of one sample, x of shape [1, N, in_dim]; got {tuple(x.shape)}")
    model = _copy(model, torch.float64)
    found = []
    for heads in _each_head(model, x.double(), mask, partial(eigenpairs, count=count)):
        kept = min(len(values) for values, _ in heads)
        values_HR = torch.stack([values[:kept] for values, _ in heads])
        found.append((values_HR, torch.stack([vectors[:, :kept] for _, vectors in heads])))
    return found


def _each_head(model: nn.Module, x: Tensor, mask: Tensor | None, analyse: Callable[..., T]) -> list[list[T]]:
    """analyse(q_MD, k_ND, scale=..., mask=...) for every layer and head, in one forward pass of one sample."""
    found: list[list[T]] = []
    real = None if mask is None else mask[0]

    def visit(layer: FLARE, x_BNC: Tensor) -> None:
        q_HMD, k_BHND = layer.queries_and_keys(x_BNC)
        heads = zip(q_HMD.expand(layer.heads, -1, -1), k_BHND[0], strict=True)
        found.append([analyse(q_MD, k_ND, scale=layer.scale, mask=real) for q_MD, k_ND in heads])

    with torch.no_grad():
        visit_layers(model, lambda: model(x, mask), visit)
    return found


def _copy(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A copy to evaluate in `dtype`, by whichever mixer backend can."""
    model = deepcopy(model).to(dtype).eval()
    for layer in flare_layers(model):
        layer.backend = "auto"
    return model


def _log_weights(q_MD: Tensor, k_ND: Tensor, scale: float, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Logarithms of E and of Pᵀ, both [M, N]; E is 0 at padding."""
    s_MN = scale * (q_MD.double() @ k_ND.double().T)
    log_p_MN = s_MN.log_softmax(0)
    if mask is not None:
        if not mask.any():
            raise DataError(f"all {len(mask)} points are padding; there is no spectrum of nothing")
        s_MN = s_MN.masked_fill(~mask, -torch.inf)
    return s_MN.log_softmax(1), log_p_MN


def _normalised(v_NR: Tensor, real: Tensor) -> Tensor:
    v_NR = v_NR * real[:, None]
    v_NR = v_NR / (v_NR.square().sum(0) / real.sum()).sqrt()
    return v_NR * v_NR.gather(0, v_NR.abs().argmax(0, keepdim=True)).sign()

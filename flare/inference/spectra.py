"""Spectra of the layers of a trained surrogate on samples of a dataset."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from flare.data.batching import evaluation_batches
from flare.data.dataset import Dataset
from flare.inference.surrogate import Surrogate
from flare.models.spectra import Spectra, model_eigenvectors, model_spectra


def surrogate_spectra(surrogate: Surrogate, dataset: Dataset, indices: Iterable[int]) -> Spectra:
    """Compute the spectra of all layers, averaged over samples."""
    return model_spectra(surrogate.network, (_normalized(surrogate, dataset, index) for index in indices))


def surrogate_eigenvectors(
    surrogate: Surrogate, dataset: Dataset, index: int, *, count: int = 6
) -> list[tuple[Tensor, Tensor]]:
    """Compute `model_eigenvectors` of each layer on one sample; the eigenvectors are fields on its points."""
    x, _ = _normalized(surrogate, dataset, index)
    return model_eigenvectors(surrogate.network, x, count=count)


def _normalized(surrogate: Surrogate, dataset: Dataset, index: int) -> tuple[Tensor, None]:
    (batch,) = evaluation_batches(dataset, [index], 1)
    return surrogate.input_norm.encode(batch.inputs.to(surrogate.device)), None

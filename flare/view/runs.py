"""A trained run as a source of the viewer: predictions on its dataset, spectra and eigenvectors of its layers."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flare.data.dataset import Dataset
from flare.inference.spectra import surrogate_eigenvectors, surrogate_spectra
from flare.inference.surrogate import load
from flare.models.spectra import effective_rank, flare_layers
from flare.train.run import read_result
from flare.train.run_folder import RunFolder
from flare.utils.errors import ConfigError, DataError
from flare.view.datasets import SHOWN, DatasetSource
from flare.view.source import Arrays, NotThere, find_channel

CACHED_SAMPLES = 4
"""Number of samples whose predictions and eigenvectors are cached."""
MAX_SPECTRA_BYTES = 4e9
"""Memory for computing eigenvectors: about six arrays of shape (latents, points) in float64."""


class RunSource(DatasetSource):
    """Samples of a dataset with the predictions of a run.

    Args:
        run: Run folder.
        data: Another dataset with the same fields; default the run's own.
        split: Show only the samples of this split.
        checkpoint: ``last`` or ``best``.
        device: Device of the model.
        modes: Number of leading eigenvectors per head.

    Raises:
        DataError: The dataset does not have the fields of the model.
    """

    def __init__(
        self,
        run: str | Path,
        *,
        data: str | Path | None = None,
        split: str | None = None,
        checkpoint: str = "last",
        device: str = "auto",
        modes: int = 6,
    ) -> None:
        config = RunFolder(run).config(training=False)
        super().__init__(Dataset(data or config.data.path), split=split)
        self.run, self.model, self.checkpoint, self.count = Path(run), config.model["name"], checkpoint, modes
        self.surrogate = load(run, checkpoint=checkpoint, device=device)
        self.surrogate.check_fields(self.schema, self.dataset.path)
        self.test_split = config.data.test_split
        self.own_data = data is None
        cached = lru_cache(CACHED_SAMPLES)
        self._predict: Callable[[int], dict[str, np.ndarray]] = cached(
            lambda sample: self.surrogate.predict_sample(self.read(sample))
        )
        self._eigenvectors = cached(
            lambda sample: surrogate_eigenvectors(self.surrogate, self.dataset, sample, count=self.count)
        )
        self._eigenvalues = cached(
            lambda sample: surrogate_spectra(self.surrogate, self.dataset, [sample]).eigenvalues.cpu()
        )

    def catalogue(self) -> dict[str, Any]:
        """Describe run and samples; see `flare.view.source.Source`."""
        catalogue = super().catalogue()
        errors = self.test_errors()
        for sample in catalogue["samples"]:
            if sample["id"] in errors:
                sample["error"] = errors[sample["id"]]
        for field in catalogue["fields"]:
            field["compared"] = field["role"] == "target"
        tested = any(sample["split"] == self.test_split for sample in catalogue["samples"])
        return catalogue | {
            "title": f"{self.model} on {self.schema.name}",
            "facts": [["run", f"{self.run.resolve().name}, {self.checkpoint} weights"], *self._facts()],
            "start": self.test_split if tested else None,
            "spectra": self._layers(),
        }

    def field(self, sample: int, name: str) -> Arrays:
        """Return the truth of one channel, and the prediction if it is a target."""
        arrays = super().field(sample, name)
        field, column = find_channel(self.schema, SHOWN, name)
        if self.schema.fields[field].role != "target":
            return arrays
        predicted = self._predict(sample)[field]
        return {**arrays, "prediction": predicted.reshape(len(predicted), -1)[:, column]}

    def spectra(self, sample: int) -> Arrays:
        """Return eigenvalues and effective rank of every head on a sample."""
        self._check_spectra(sample)
        eigenvalues = self._eigenvalues(sample)
        return {"eigenvalues": eigenvalues.numpy(), "effective_rank": effective_rank(eigenvalues).numpy()}

    def modes(self, sample: int, block: int, head: int) -> Arrays:
        """Return the leading eigenvectors of one head on a sample."""
        layers = self._check_spectra(sample)
        if not (0 <= block < layers["blocks"] and 0 <= head < layers["heads"]):
            raise NotThere(f"there is no head {head} in block {block}; both count from 0")
        values, vectors = self._eigenvectors(sample)[block]
        eigenvectors = vectors[head].T.to(torch.float32).contiguous()
        return {"eigenvalues": values[head].cpu().numpy(), "eigenvectors": eigenvectors.cpu().numpy()}

    def test_errors(self) -> dict[int, float]:
        """Return the relative L2 error of every evaluated sample, for the last weights on the run's own dataset."""
        path = self.run / "test_errors.json"
        if not (path.exists() and self.own_data and self.checkpoint == "last"):
            return {}
        record = json.loads(path.read_text(encoding="utf-8"))
        return dict(zip(record["samples"], record["rel_l2"], strict=True))

    def _facts(self) -> list[list[str]]:
        if not (self.run / "result.json").exists():
            return []
        result = read_result(self.run)
        return [
            ["test rel-L2", f"{result['rel_l2']:.4f}"],
            ["training-mean field", f"{result['rel_l2_mean_field']:.4f}"],
            ["parameters", f"{result['parameters']:,}"],
        ]

    def _layers(self) -> dict[str, int] | None:
        """Return the sizes of the FLARE layers; None for a model without them."""
        try:
            layers = flare_layers(self.surrogate.network)
        except ConfigError:
            return None
        latents = layers[0].latents.shape[1]
        return {"blocks": len(layers), "heads": layers[0].heads, "latents": latents, "modes": min(self.count, latents)}

    def _check_spectra(self, sample: int) -> dict[str, int]:
        """Return the sizes of the layers, or raise if there are none or the sample is too large."""
        layers = self._layers()
        if layers is None:
            raise NotThere(f"only FLARE layers have spectra; {self.model} has none")
        points = len(self.read(sample).values[self.schema.points])
        if (need := 6 * 8 * points * layers["latents"]) > MAX_SPECTRA_BYTES:
            raise DataError(
                f"the spectra of sample {sample} with {points:,} points need about {need / 1e9:.0f} GB of memory; "
                f"the limit is {MAX_SPECTRA_BYTES / 1e9:.0f} GB. Choose a smaller sample"
            )
        return layers

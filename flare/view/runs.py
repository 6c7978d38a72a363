"""A trained run: truth and prediction on the samples of its dataset, spectra and eigenvectors of its layers."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flare.data.dataset import Dataset
from flare.spectra import effective_rank, flare_layers, surrogate_eigenvectors, surrogate_spectra
from flare.surrogate import load
from flare.train.run import read_result
from flare.train.run_folder import RunFolder
from flare.utils.errors import ConfigError, DataError
from flare.view.datasets import DatasetSource
from flare.view.source import Arrays, NotThere

KEPT = 4
"""Samples whose predictions and eigenvectors are remembered."""
MOST_MEMORY = 4e9
"""Bytes that eigenvectors may take while they are computed: some six arrays [latents, points] of float64."""


class RunSource(DatasetSource):
    """A run's dataset, or another of the same fields, with the run's answers."""

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
        config = RunFolder(run).config()
        super().__init__(Dataset(data or config.data.path), split=split)
        self.run, self.model, self.checkpoint, self.count = Path(run), config.model["name"], checkpoint, modes
        self.surrogate = load(run, checkpoint=checkpoint, device=device)
        self.surrogate.check_fields(self.schema, self.dataset.path)
        self.test_split = config.data.test_split
        self.own_data = data is None
        self._predict: Callable[[int], dict[str, np.ndarray]] = lru_cache(KEPT)(
            lambda sample: self.surrogate.predict_sample(self.read(sample))
        )
        self._eigenvectors = lru_cache(KEPT)(
            lambda sample: surrogate_eigenvectors(self.surrogate, self.dataset, sample, count=self.count)
        )
        self._eigenvalues = lru_cache(KEPT)(
            lambda sample: surrogate_spectra(self.surrogate, self.dataset, [sample]).eigenvalues.cpu()
        )

    def catalogue(self) -> dict[str, Any]:
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
        arrays = super().field(sample, name)
        field, column = self._find(name)
        if self.schema.fields[field].role != "target":
            return arrays
        predicted = self._predict(sample)[field]
        return {**arrays, "prediction": predicted.reshape(len(predicted), -1)[:, column]}

    def spectra(self, sample: int) -> Arrays:
        self._refuse_spectra(sample)
        eigenvalues = self._eigenvalues(sample)
        ranks = effective_rank(eigenvalues)
        return {"eigenvalues": eigenvalues.numpy(), "effective_rank": ranks.numpy()}

    def modes(self, sample: int, block: int, head: int) -> Arrays:
        layers = self._refuse_spectra(sample)
        if not (0 <= block < layers["blocks"] and 0 <= head < layers["heads"]):
            raise NotThere(f"there is no head {head} of block {block}; both are counted from 0")
        values, vectors = self._eigenvectors(sample)[block]
        painted = vectors[head].T.to(torch.float32).contiguous()
        return {"eigenvalues": values[head].cpu().numpy(), "eigenvectors": painted.cpu().numpy()}

    def test_errors(self) -> dict[int, float]:
        """Sample -> relative L2 error, as far as the run has judged its last weights."""
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
        """Of a FLARE model; the other models have no such operator."""
        try:
            layers = flare_layers(self.surrogate.network)
        except ConfigError:
            return None
        latents = layers[0].latents.shape[1]
        return {"blocks": len(layers), "heads": layers[0].heads, "latents": latents, "modes": min(self.count, latents)}

    def _refuse_spectra(self, sample: int) -> dict[str, int]:
        layers = self._layers()
        if layers is None:
            raise NotThere(f"spectra are those of FLARE layers; {self.model} has none")
        points = len(self.read(sample).values[self.schema.points])
        if (need := 6 * 8 * points * layers["latents"]) > MOST_MEMORY:
            raise DataError(
                f"sample {sample} has {points:,} points: its spectra would take some {need / 1e9:.0f} GB, more than "
                f"the {MOST_MEMORY / 1e9:.0f} GB a view may; look at a smaller sample"
            )
        return layers

"""Encodings: a sample as the latents of the blocks of a FLARE model, which can be queried at any points."""

# M latents per head, H heads, D head width

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import ArrayLike
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from flare.data.sample import Sample
from flare.inference.chunked import Chunk, as_fields, chunk_size, empty_outputs, pointwise, stream
from flare.models.streaming import flare_blocks, flare_model, query
from flare.utils.errors import DataError
from flare.utils.files import replace_atomically

if TYPE_CHECKING:
    from flare.inference.surrogate import Surrogate

VERSION = "1"
"""Version of the file format, under the key `flare_code` of the metadata."""


@dataclass(frozen=True)
class Encoding:
    """The latents of one sample, made by `Surrogate.encode`."""

    surrogate: Surrogate
    latents: list[Tensor]
    """[1, H, M, D] for each block."""
    parameters: dict[str, np.ndarray]
    """Parameters of the sample, name -> (channels,)."""
    box: np.ndarray
    """(2, dimensions), lowest and highest coordinates of the encoded points."""
    points: int
    """Number of encoded points."""

    @property
    def nbytes(self) -> int:
        """Size of the latents in bytes."""
        return sum(z.numel() * z.element_size() for z in self.latents)

    def query(self, points: ArrayLike, features: Mapping[str, ArrayLike] | None = None) -> dict[str, np.ndarray]:
        """Predict the target fields at any points.

        At the encoded points these are the fields of `Surrogate.predict`; between them the fields are smooth.

        Args:
            points: Coordinates, shape (n, dimensions).
            features: Features at these points by name, (n,) or (n, channels). Parameters are those of the sample.

        Returns:
            Target name -> (n,), or (n, channels) for a field of several components.

        Raises:
            DataError: A feature is missing, unknown, a parameter, of the wrong shape, or not finite.
        """
        features = features or {}
        for name in features.keys() & self.parameters.keys():
            raise DataError(f"{name!r} is a parameter, which is part of the encoding; encode again to change it")
        return self.query_sample(self.surrogate.sample(points, {**features, **self.parameters}))

    def outside(self, points: np.ndarray) -> str:
        """Return a warning if points are outside the box of the encoded ones; an empty string otherwise."""
        low, high = self.box
        margin = 1e-5 * float((high - low).max())  # rounding
        count = int(((points < low - margin) | (points > high + margin)).any(1).sum())
        if not count:
            return ""
        corners = " to ".join(",".join(f"{number:.4g}" for number in corner) for corner in self.box)
        return f"{count:,} of {len(points):,} points are outside the encoded box ({corners}); do not trust those"

    @torch.no_grad()
    def query_sample(
        self, sample: Sample, *, done: Callable[[int], None] = lambda points: None
    ) -> dict[str, np.ndarray]:
        """Predict at the points of a sample with the parameters of this encoding; see `predict_into` for `done`."""
        outputs = empty_outputs(self.surrogate, len(sample.values[self.surrogate.schema.points]))
        answer = partial(query, self.surrogate.network, latents=self.latents)
        pointwise(self.surrogate, sample, answer, outputs, done=done)
        return as_fields(outputs)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one safetensors file, about 130 KB; the weights stay in the run folder."""
        tensors = {f"latents/{i}": z.cpu().contiguous() for i, z in enumerate(self.latents)}
        tensors |= {f"parameter/{name}": torch.from_numpy(values.copy()) for name, values in self.parameters.items()}
        tensors["box"] = torch.from_numpy(self.box)
        about = {"flare_code": VERSION, "model": fingerprint(self.surrogate), "points": str(self.points)}
        with replace_atomically(path) as temporary:
            save_file(tensors, temporary, about)


def encode(
    surrogate: Surrogate,
    sample: Sample,
    *,
    chunk: Chunk = "auto",
    scratch: str | os.PathLike[str] | None = None,
    done: Callable[[int], None] = lambda points: None,
) -> Encoding:
    """Encode a sample of any size; see `predict_into` for `chunk`, `scratch` and `done`.

    Raises:
        DataError: The latents are not finite.
    """
    schema = surrogate.schema
    points = sample.values[schema.points]
    surrogate.eval()
    size = chunk_size(surrogate, sample, chunk) or len(points)
    latents = stream(surrogate, sample, size, scratch, done).encode()
    if not all(bool(torch.isfinite(z).all()) for z in latents):
        raise DataError("the latents of these points are not finite; check the unit of the points")
    parameters = {name: np.asarray(sample.values[name], np.float32) for name in schema.named("parameter")}
    box = np.stack([points.min(0), points.max(0)]).astype(np.float32)
    return Encoding(surrogate, latents, parameters, box, len(points))


def load_encoding(path: str | os.PathLike[str], surrogate: Surrogate) -> Encoding:
    """Load a file that `Encoding.save` wrote, for the model that made it.

    Raises:
        DataError: The file is missing, damaged, or was made with other weights.
    """
    try:
        with safe_open(path, "pt") as file:
            about = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; write it with:  flare encode RUN SAMPLE --out {path}") from None
    except (SafetensorError, OSError):
        raise DataError(f"{path} is not an encoding, as written by `flare encode`, or it is damaged") from None
    if about.get("flare_code") != VERSION or not {"model", "points"} <= about.keys():
        raise DataError(f"{path} is not an encoding that this version of flare can read; encode again")
    if about["model"] != fingerprint(surrogate):
        raise DataError(f"{path} was encoded with other weights (another run, checkpoint or ema); encode again")
    blocks = len(flare_blocks(flare_model(surrogate.network)))
    try:
        latents = [tensors[f"latents/{i}"].to(surrogate.device) for i in range(blocks)]
        parameters = {name: tensors[f"parameter/{name}"].numpy() for name in surrogate.schema.named("parameter")}
        return Encoding(surrogate, latents, parameters, tensors["box"].numpy(), int(about["points"]))
    except KeyError as missing:
        raise DataError(f"{path} is damaged: it has no {missing}; encode again") from None


def fingerprint(surrogate: Surrogate) -> str:
    """Return a digest of weights and normalizers, which identifies the model of an encoding or calibration."""
    digest = hashlib.sha256()
    for name, tensor in sorted(surrogate.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]

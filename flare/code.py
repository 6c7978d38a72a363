"""Encode once, query anywhere: what a FLARE model knows of a sample, in the latents of its blocks and nothing else."""

# M latents per head, H heads, D head width

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import ArrayLike
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from flare.data.sample import Sample
from flare.inference import Chunk, as_fields, chunk_size, empty_outputs, pointwise, stream
from flare.models.streaming import flare_blocks, flare_model, query
from flare.utils.errors import DataError
from flare.utils.files import replacing

if TYPE_CHECKING:
    from flare.surrogate import Surrogate

VERSION = "1"
"""Of a saved code, in its metadata."""


@dataclass(frozen=True)
class Code:
    """One sample, as its model remembers it. `surrogate.encode(points)` makes one."""

    surrogate: Surrogate
    latents: list[Tensor]
    """[1, H, M, D] of each block."""
    parameters: dict[str, np.ndarray]
    """The sample's own: name -> (channels,)."""
    box: np.ndarray
    """(2, dimensions), the lowest and highest coordinates of the encoded points."""
    points: int
    """How many were encoded."""

    @property
    def nbytes(self) -> int:
        return sum(z.numel() * z.element_size() for z in self.latents)

    def query(self, points: ArrayLike, **features: ArrayLike) -> dict[str, np.ndarray]:
        """The target fields at any points: those of `predict` at the encoded ones, smooth between them.

        Args:
            points: (n, dimensions).
            features: the dataset's features at these points, (n,) or (n, channels). The sample's parameters are known.
        """
        for name in features.keys() & self.parameters.keys():
            raise DataError(f"{name!r} is a parameter of the encoded sample; it cannot be another at some points")
        return self.query_sample(self.surrogate.sample(points, {**features, **self.parameters}))

    def outside(self, points: np.ndarray) -> str:
        """A sentence where points are outside the box of what was encoded, of which the model knows nothing there."""
        low, high = self.box
        margin = 1e-5 * float((high - low).max())  # rounding
        far = int(((points < low - margin) | (points > high + margin)).any(1).sum())
        if not far:
            return ""
        corners = " to ".join(",".join(f"{number:.4g}" for number in corner) for corner in self.box)
        return f"{far:,} of {len(points):,} points are outside the encoded part's box ({corners}): do not trust those"

    @torch.no_grad()
    def query_sample(
        self, sample: Sample, *, done: Callable[[int], None] = lambda points: None
    ) -> dict[str, np.ndarray]:
        """The same for a sample, with these parameters; `done` is called with the points of each chunk."""
        outputs = empty_outputs(self.surrogate, len(sample.values[self.surrogate.schema.points]))
        answer = partial(query, self.surrogate.network, latents=self.latents)
        pointwise(self.surrogate, sample, answer, outputs, done=done)
        return as_fields(outputs)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Into one safetensors file, some 130 KB; the weights stay in the run."""
        tensors = {f"latents/{i}": z.cpu().contiguous() for i, z in enumerate(self.latents)}
        tensors |= {f"parameter/{name}": torch.from_numpy(values.copy()) for name, values in self.parameters.items()}
        tensors["box"] = torch.from_numpy(self.box)
        about = {"flare_code": VERSION, "model": fingerprint(self.surrogate), "points": str(self.points)}
        with replacing(path) as temporary:
            save_file(tensors, temporary, about)


def encode(
    surrogate: Surrogate,
    sample: Sample,
    *,
    chunk: Chunk = "auto",
    scratch: str | os.PathLike[str] | None = None,
    done: Callable[[int], None] = lambda points: None,
) -> Code:
    """The code of a sample of any size; `chunk`, `scratch` and `done` as for `predict_into`, less the last block.

    Raises:
        DataError: the latents are no numbers, so that no field could be asked of them.
    """
    schema = surrogate.schema
    points = sample.values[schema.points]
    surrogate.eval()
    size = chunk_size(surrogate, sample, chunk) or len(points)
    latents = stream(surrogate, sample, size, scratch, done).encode()
    if not all(bool(torch.isfinite(z).all()) for z in latents):
        raise DataError("the model makes no numbers of these points; are they in another unit?")
    parameters = {name: np.asarray(sample.values[name], np.float32) for name in schema.named("parameter")}
    box = np.stack([points.min(0), points.max(0)]).astype(np.float32)
    return Code(surrogate, latents, parameters, box, len(points))


def load_code(path: str | os.PathLike[str], surrogate: Surrogate) -> Code:
    """What `Code.save` wrote, for the model that made it; nothing is unpickled."""
    about, tensors = _read(Path(path))
    if about["model"] != fingerprint(surrogate):
        raise DataError(
            f"{path} was encoded by another model, or by other weights of it (--checkpoint, --ema); encode the sample "
            f"again"
        )
    network = flare_model(surrogate.network)
    latents = []
    for i, block in enumerate(flare_blocks(network)):
        mixer, z = block.mixer, tensors.get(f"latents/{i}")
        shape = [1, mixer.heads, *mixer.latents.shape[1:]]
        if z is None or list(z.shape) != shape:
            raise DataError(f"{path} is damaged: latents of block {i} should be {shape}; encode the sample again")
        latents.append(z.to(surrogate.device))
    names = surrogate.schema.named("parameter")
    if "box" not in tensors or any(f"parameter/{name}" not in tensors for name in names):
        raise DataError(f"{path} is damaged: its box or parameters are missing; encode the sample again")
    parameters = {name: tensors[f"parameter/{name}"].numpy() for name in names}
    return Code(surrogate, latents, parameters, tensors["box"].numpy(), int(about["points"]))


def _read(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    try:
        with safe_open(path, "pt") as file:
            about = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; make it with:  flare encode RUN SAMPLE --out {path}") from None
    except (SafetensorError, OSError):
        raise DataError(f"{path} is no code, which `flare encode` writes; or it is damaged") from None
    if about.get("flare_code") != VERSION or not {"model", "points"} <= about.keys():
        raise DataError(f"{path} is no code that this version of flare wrote; encode the sample again")
    return about, tensors


def fingerprint(surrogate: Surrogate) -> str:
    """Of weights and normalisers: latents mean nothing to any others."""
    digest = hashlib.sha256()
    for name, tensor in sorted(surrogate.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]

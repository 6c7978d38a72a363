"""A FLARE model over points in chunks: bounded memory, the same answer.

The points of a block interact through its latents alone. So each block takes one pass over the chunks, which decodes
the latents of this block and encodes those of the next. Between passes the features of all points are in memory or in
a file.
"""

# B batch, N points, n points of a chunk, M latents per head, H heads, D head width, C channels

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from flare.mixer.chunked import LatentAccumulator
from flare.models.flare import FLARE, FLAREBlock, FLAREModel
from flare.models.fused import is_customized
from flare.utils.errors import ConfigError
from flare.utils.files import check_disk_space

CHUNK = 65_536
"""Default number of points per chunk, enough for full speed."""
MOST_IN_MEMORY = 512 * 2**20
"""Largest size in bytes of the features that are kept in memory; larger ones go to a file."""


@dataclass(frozen=True, kw_only=True)
class Stream:
    """The points of a batch, which a model reads in chunks, once per block."""

    model: nn.Module
    """A `FLAREModel`; see `flare_model`."""
    points: int
    """Number of points N."""
    read: Callable[[int, int], Tensor]
    """Maps (start, stop) to inputs [B, stop - start, in_dim] on the device of the model."""
    mask: Callable[[int, int], Tensor | None] = lambda start, stop: None
    """Maps (start, stop) to a boolean [B, stop - start], True at real points, or None. Outputs at padding are those of
    the model's `forward`."""
    chunk: int = CHUNK
    """Number of points per chunk."""
    scratch: str | os.PathLike[str] | None = None
    """Folder for features that do not fit in memory; None means the temporary folder of the system."""
    in_memory: int | None = None
    """Largest size in bytes of features kept in memory; None means `MOST_IN_MEMORY`."""
    done: Callable[[int], None] = lambda points: None
    """Progress callback; called with the number of points of each chunk, once per block."""

    def __post_init__(self) -> None:
        if self.points < 1 or self.chunk < 1:
            raise ConfigError(f"points={self.points}, chunk={self.chunk}: both must be at least 1")

    @torch.no_grad()
    def encode(self) -> list[Tensor]:
        """Return the latents of every block, [B, H, M, D] each, which are all that `query` needs."""
        return self._run(None)

    @torch.no_grad()
    def forward(self, write: Callable[[int, int, Tensor], None]) -> list[Tensor]:
        """Pass the output of the model to `write(start, stop, y)`, chunk by chunk; return the latents like `encode`."""
        return self._run(write)

    def _run(self, write: Callable[[int, int, Tensor], None] | None) -> list[Tensor]:
        model = flare_model(self.model)
        blocks, latents, sums = flare_blocks(model), list[Tensor](), LatentAccumulator()
        with _FeatureStore(self) as features:
            for start, stop in spans(self.points, self.chunk):
                x_BnC = model.lift(self.read(start, stop))
                features.write(start, stop, x_BnC)
                sums.add(blocks[0].encode_points(x_BnC, self.mask(start, stop)))
            for block, following in zip(blocks, [*blocks[1:], None], strict=True):
                latents.append(block.mixer.process_latents(sums.latents(x_BnC.dtype)))
                sums = LatentAccumulator()
                if following is None and write is None:
                    break
                for start, stop in spans(self.points, self.chunk):
                    x_BnC = block.decode_points(features.read(start, stop), latents[-1], self.mask(start, stop))
                    if following is not None:
                        features.write(start, stop, x_BnC)
                        sums.add(following.encode_points(x_BnC, self.mask(start, stop)))
                    elif write is not None:
                        write(start, stop, model.head(model.head_norm(x_BnC)))
                    self.done(stop - start)
        return latents


def spans(count: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of each chunk."""
    return ((start, min(start + size, count)) for start in range(0, count, size))


def query(model: nn.Module, x: Tensor, latents: list[Tensor]) -> Tensor:
    """Evaluate the fields at any points of encoded samples.

    Args:
        model: The model that made the latents.
        x: Inputs at the points, [B, n, in_dim].
        latents: Latents of every block, from `Stream.encode`.

    Returns:
        Outputs, [B, n, out_dim].
    """
    network = flare_model(model)
    x_BnC = network.lift(x)
    for block, z_BHMD in zip(flare_blocks(network), latents, strict=True):
        x_BnC = block.decode_points(x_BnC, z_BHMD)
    return network.head(network.head_norm(x_BnC))


def flare_model(model: nn.Module) -> FLAREModel:
    """Return the model if it can take its points in chunks.

    Raises:
        ConfigError: It is not a `FLAREModel`, or chunks would bypass a mixer, a `forward` or a hook of the user's own.
    """
    if not isinstance(model, FLAREModel) or type(model).forward is not FLAREModel.forward or is_customized(model):
        raise ConfigError(f"{type(model).__name__} cannot take its points in chunks; only a plain FLAREModel can")
    for i, block in enumerate(model.blocks):
        for name, module, kind in ((f"blocks.{i}", block, FLAREBlock), (f"blocks.{i}.mixer", block.mixer, FLARE)):
            if type(module) is not kind or is_customized(module):
                raise ConfigError(f"{name} is not a plain {kind.__name__}: chunks would skip its methods and hooks")
    return model


def can_stream(model: nn.Module) -> bool:
    """Return whether a model can take its points in chunks."""
    try:
        flare_model(model)
    except ConfigError:
        return False
    return True


def flare_blocks(model: FLAREModel) -> list[FLAREBlock]:
    """Return the blocks of a model."""
    return cast("list[FLAREBlock]", list(model.blocks))


class _FeatureStore:
    """The features of all points, [N, B, C], in memory or in a temporary file.

    The file is read and written, not memory-mapped, so that it does not count as memory of this process.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._memory: Tensor | None = None
        self._file: Any = None

    def __enter__(self) -> _FeatureStore:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def write(self, start: int, stop: int, x_BnC: Tensor) -> None:
        rows_nBC = x_BnC.transpose(0, 1)
        if self._memory is None and self._file is None:
            self._allocate(rows_nBC[:1])
        if self._memory is not None:
            self._memory[start:stop] = rows_nBC
        else:
            self._file.seek(start * self._row.nbytes)
            self._file.write(_bytes(rows_nBC.cpu().contiguous()))

    def read(self, start: int, stop: int) -> Tensor:
        if self._memory is not None:
            return self._memory[start:stop].transpose(0, 1)
        rows_nBC = torch.empty(stop - start, *self._row.shape[1:], dtype=self._row.dtype, device="cpu")
        self._file.seek(start * self._row.nbytes)
        self._file.readinto(_bytes(rows_nBC))
        return rows_nBC.to(self._row.device).transpose(0, 1)

    def _allocate(self, row_1BC: Tensor) -> None:
        self._row, points = row_1BC.clone(), self._stream.points
        most = MOST_IN_MEMORY if self._stream.in_memory is None else self._stream.in_memory
        if points * row_1BC.nbytes <= most:
            self._memory = row_1BC.new_empty(points, *row_1BC.shape[1:])
            return
        folder, what = self._stream.scratch or tempfile.gettempdir(), f"the features of {points:,} points"
        check_disk_space(folder, points * row_1BC.nbytes, what, "use another scratch folder")
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (`__exit__` closes it)


def _bytes(tensor: Tensor) -> memoryview:
    array: Any = tensor.view(torch.uint8).numpy()
    return memoryview(array).cast("B")

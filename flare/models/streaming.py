"""A FLARE model over points in chunks: bounded memory, the same answer. Blocks talk through their latents alone.

Each block is one pass over the chunks: scatter the latents of this block, gather those of the next. Between passes the
features of all points wait in memory or in a file.
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

from flare.mixer.chunked import Gathered
from flare.models.flare import FLAREBlock, FLAREModel
from flare.utils.errors import ConfigError
from flare.utils.files import refuse_full_disk

CHUNK = 65_536
"""Points at a time where nobody says how many: enough for full speed. `flare.inference` takes fewer if it must."""
MOST_IN_MEMORY = 512 * 2**20
"""Bytes of features that are kept in memory; more go into a file."""


@dataclass(frozen=True, kw_only=True)
class Stream:
    """The points of a batch, to be read in chunks as often as there are blocks."""

    model: nn.Module
    points: int
    """N."""
    read: Callable[[int, int], Tensor]
    """(start, stop) -> inputs [B, stop - start, in_dim], on the device of the model."""
    mask: Callable[[int, int], Tensor | None] = lambda start, stop: None
    """(start, stop) -> [B, stop - start], True at real points; or None. Padding tells the latents nothing, and gets the
    answer that the model's `forward` has for it."""
    chunk: int = CHUNK
    """Points at a time."""
    scratch: str | os.PathLike[str] | None = None
    """Folder for the features of all points, where they are too many for the memory; None is the system's own."""
    in_memory: int | None = None
    """Bytes of features that may wait in memory; None: `MOST_IN_MEMORY`."""
    done: Callable[[int], None] = lambda points: None
    """Called with the points of a chunk, once a block."""

    def __post_init__(self) -> None:
        if self.points < 1 or self.chunk < 1:
            raise ConfigError(f"points={self.points}, chunk={self.chunk}: at least 1 each")

    @torch.no_grad()
    def encode(self) -> list[Tensor]:
        """The latents of every block, [B, H, M, D] each: all that `query` needs to know of these points."""
        return self._through(None)

    @torch.no_grad()
    def forward(self, write: Callable[[int, int, Tensor], None]) -> list[Tensor]:
        """Hand the model's answer to `write(start, stop, y)` chunk by chunk; returns the latents as `encode` does."""
        return self._through(write)

    def _through(self, write: Callable[[int, int, Tensor], None] | None) -> list[Tensor]:
        model = flare_model(self.model)
        blocks, latents, gathered = flare_blocks(model), list[Tensor](), Gathered()
        with _Features(self, blocks[0].mixer.latents.device) as features:
            for start, stop in spans(self.points, self.chunk):
                x_BnC = model.lift(self.read(start, stop))
                features.write(start, stop, x_BnC)
                gathered.add(blocks[0].gather(x_BnC, self.mask(start, stop)))
            for block, following in zip(blocks, [*blocks[1:], None], strict=True):
                latents.append(block.mixer.between(gathered.latents(x_BnC.dtype)))
                gathered = Gathered()
                if following is None and write is None:
                    break
                for start, stop in spans(self.points, self.chunk):
                    x_BnC = block.scatter(features.read(start, stop), latents[-1], self.mask(start, stop))
                    if following is not None:
                        features.write(start, stop, x_BnC)
                        gathered.add(following.gather(x_BnC, self.mask(start, stop)))
                    elif write is not None:
                        write(start, stop, model.head(model.head_norm(x_BnC)))
                    self.done(stop - start)
        return latents


def spans(count: int, size: int) -> Iterator[tuple[int, int]]:
    """(start, stop) of each chunk."""
    return ((start, min(start + size, count)) for start in range(0, count, size))


def query(model: nn.Module, x: Tensor, latents: list[Tensor]) -> Tensor:
    """[B, n, in_dim] -> [B, n, out_dim]: the fields at any points of the samples whose latents these are."""
    network = flare_model(model)
    x_BnC = network.lift(x)
    for block, z_BHMD in zip(flare_blocks(network), latents, strict=True):
        x_BnC = block.scatter(x_BnC, z_BHMD)
    return network.head(network.head_norm(x_BnC))


def flare_model(model: nn.Module) -> FLAREModel:
    """The model, if its points talk through latents alone."""
    if not isinstance(model, FLAREModel):
        raise ConfigError(f"{type(model).__name__} cannot take its points in chunks; a FLARE model can")
    return model


def flare_blocks(model: FLAREModel) -> list[FLAREBlock]:
    return cast("list[FLAREBlock]", list(model.blocks))


class _Features:
    """Room for [N, B, C] numbers: in memory, or in a file that is read and written, not mapped, so that it does not
    count as memory of this process. Vanishes on leaving."""

    def __init__(self, stream: Stream, device: torch.device) -> None:
        self._stream, self._device = stream, device
        self._memory: Tensor | None = None
        self._file: int | None = None

    def __enter__(self) -> _Features:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            os.close(self._file)

    def write(self, start: int, stop: int, x_BnC: Tensor) -> None:
        rows_nBC = x_BnC.transpose(0, 1)
        if self._memory is None and self._file is None:
            self._make_room(rows_nBC)
        if self._memory is not None:
            self._memory[start:stop] = rows_nBC
            return
        assert self._file is not None
        whole = rows_nBC.cpu().contiguous()
        self._row = whole[0].numel() * whole.element_size()
        self._shape, self._dtype = whole.shape[1:], whole.dtype
        left, place = _bytes(whole), start * self._row
        while left:
            written = os.pwrite(self._file, left, place)
            left, place = left[written:], place + written

    def read(self, start: int, stop: int) -> Tensor:
        if self._memory is not None:
            return self._memory[start:stop].transpose(0, 1)
        assert self._file is not None
        whole = torch.empty((stop - start, *self._shape), dtype=self._dtype)
        left, place = _bytes(whole), start * self._row
        while left:
            count = os.preadv(self._file, [left], place)
            if count == 0:
                raise OSError(f"the scratch file ends at byte {place}")
            left, place = left[count:], place + count
        return whole.to(self._device).transpose(0, 1)

    def _make_room(self, rows_nBC: Tensor) -> None:
        shape = (self._stream.points, *rows_nBC.shape[1:])
        bytes_ = rows_nBC.element_size() * self._stream.points * rows_nBC[0].numel()
        if bytes_ <= (MOST_IN_MEMORY if self._stream.in_memory is None else self._stream.in_memory):
            self._memory = rows_nBC.new_empty(shape)
            return
        folder = self._stream.scratch or tempfile.gettempdir()
        refuse_full_disk(
            folder, bytes_, f"the features of {self._stream.points:,} points", "name another folder by --scratch"
        )
        # The name is gone at once: whatever ends this process, the file goes with it.
        self._file, name = tempfile.mkstemp(prefix="flare-", dir=folder)
        os.unlink(name)  # noqa: PTH108


def _bytes(tensor: Tensor) -> memoryview:
    array: Any = tensor.view(torch.uint8).numpy()
    return memoryview(array).cast("B")

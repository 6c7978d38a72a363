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
        with _FeatureStore(self, blocks[0].mixer.latents.device) as features:
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
    if not isinstance(model, FLAREModel):
        raise ConfigError(f"{type(model).__name__} cannot take its points in chunks; only a FLAREModel can")
    modules: list[tuple[str, nn.Module, type[nn.Module]]] = [("the model", model, FLAREModel)]
    for i, block in enumerate(flare_blocks(model)):
        modules.append((f"blocks.{i}", block, FLAREBlock))
        modules.append((f"blocks.{i}.mixer", getattr(block, "mixer", block), FLARE))
    for name, module, base in modules:
        if reason := _bypassed(module, base):
            raise ConfigError(f"{name} {reason}, which evaluation in chunks would skip; take all points at once")
    return model


def can_stream(model: nn.Module) -> bool:
    """Return whether a model can take its points in chunks."""
    try:
        flare_model(model)
    except ConfigError:
        return False
    return True


def _bypassed(module: nn.Module, base: type[nn.Module]) -> str | None:
    """Return what of a module would not be called, because chunks go through `decode_points` instead of `forward`."""
    kind = type(module)
    if not isinstance(module, base):
        return f"is a {kind.__name__}, not a {base.__name__}"
    if is_customized(module):
        return "has a hook or a replaced method"
    first = next(cls for cls in kind.__mro__ if "forward" in vars(cls) or "decode_points" in vars(cls))
    return None if first is base or "decode_points" in vars(first) else f"is a {kind.__name__} with its own forward"


def flare_blocks(model: FLAREModel) -> list[FLAREBlock]:
    """Return the blocks of a model."""
    return cast("list[FLAREBlock]", list(model.blocks))


class _FeatureStore:
    """The features of all points, [N, B, C], in memory or in a temporary file.

    The file is read and written, not memory-mapped, so that it does not count as memory of this process.
    """

    def __init__(self, stream: Stream, device: torch.device) -> None:
        self._stream, self._device = stream, device
        self._memory: Tensor | None = None
        self._file: int | None = None

    def __enter__(self) -> _FeatureStore:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            os.close(self._file)

    def write(self, start: int, stop: int, x_BnC: Tensor) -> None:
        rows_nBC = x_BnC.transpose(0, 1)
        if self._memory is None and self._file is None:
            self._allocate(rows_nBC)
        if self._memory is not None:
            self._memory[start:stop] = rows_nBC
            return
        assert self._file is not None
        rows = rows_nBC.cpu().contiguous()
        self._row_bytes = rows[0].numel() * rows.element_size()
        self._shape, self._dtype = rows.shape[1:], rows.dtype
        rest, offset = _bytes(rows), start * self._row_bytes
        while rest:
            count = os.pwrite(self._file, rest, offset)
            rest, offset = rest[count:], offset + count

    def read(self, start: int, stop: int) -> Tensor:
        if self._memory is not None:
            return self._memory[start:stop].transpose(0, 1)
        assert self._file is not None
        rows = torch.empty((stop - start, *self._shape), dtype=self._dtype, device="cpu")
        rest, offset = _bytes(rows), start * self._row_bytes
        while rest:
            count = os.preadv(self._file, [rest], offset)
            if count == 0:
                raise OSError(f"the scratch file ends at byte {offset}")
            rest, offset = rest[count:], offset + count
        return rows.to(self._device).transpose(0, 1)

    def _allocate(self, rows_nBC: Tensor) -> None:
        shape = (self._stream.points, *rows_nBC.shape[1:])
        size = rows_nBC.element_size() * self._stream.points * rows_nBC[0].numel()
        if size <= (MOST_IN_MEMORY if self._stream.in_memory is None else self._stream.in_memory):
            self._memory = rows_nBC.new_empty(shape)
            return
        folder = self._stream.scratch or tempfile.gettempdir()
        check_disk_space(folder, size, f"the features of {self._stream.points:,} points", "use another scratch folder")
        # The name is removed at once, so that the file vanishes with the process, however that ends.
        self._file, name = tempfile.mkstemp(prefix="flare-", dir=folder)
        os.unlink(name)  # noqa: PTH108


def _bytes(tensor: Tensor) -> memoryview:
    array: Any = tensor.view(torch.uint8).numpy()
    return memoryview(array).cast("B")

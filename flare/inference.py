"""Fields at the points of one sample of any size: all at once, or in chunks, with arrays that may lie on disk."""

# N points, n points of a chunk

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from flare.data.sample import Sample, input_array
from flare.models.flare import FLAREModel
from flare.models.streaming import CHUNK, Stream, flare_blocks, flare_model, spans
from flare.utils.environment import memory_of
from flare.utils.errors import ConfigError, DataError
from flare.utils.text import counted

if TYPE_CHECKING:
    from flare.surrogate import Surrogate

MANY = 1_000_000
"""Points for which a prediction takes long enough to show how far it is."""

Chunk = int | str
"""Points at a time; `auto`: all, or as many as are enough for full speed where a sample has more; `whole`: all."""
ARRAYS = 16
"""Of a chunk, [n, C] numbers each, that a pass holds at once."""
SHARE = 1 / 4
"""Of the free memory, which they may take."""
LEAST = 1024
"""Points of a chunk, however little memory there is."""


def predict_into(
    surrogate: Surrogate,
    sample: Sample,
    outputs: Mapping[str, np.ndarray],
    *,
    chunk: Chunk = "auto",
    scratch: str | os.PathLike[str] | None = None,
    done: Callable[[int], None] = lambda points: None,
) -> list[Tensor] | None:
    """Fill `outputs`, target name -> (N, channels), with the fields at the sample's points, in physical units.

    Returns the latents of every block, as `flare.code.encode` finds them, where points went through in chunks.

    Args:
        sample: input fields as arrays, in memory or memory-mapped.
        scratch: folder for the features of all points, where they are too many for the memory.
        done: called with the points of each chunk, once a block.

    Raises:
        DataError: the model gives no number somewhere; what is in `outputs` then is of no use.
    """
    surrogate.eval()
    count, size = _count(surrogate, sample), chunk_size(surrogate, sample, chunk)
    with torch.no_grad(), only_numbers() as seen:

        def write(start: int, stop: int, encoded: Tensor) -> None:
            seen(start, _keep(surrogate, encoded[0], {name: array[start:stop] for name, array in outputs.items()}))

        if size is None:
            write(0, count, surrogate.network(_read(surrogate, sample, 0, count)))
            return None
        return stream(surrogate, sample, size, scratch, done).forward(write)


def stream(
    surrogate: Surrogate,
    sample: Sample,
    chunk: int,
    scratch: str | os.PathLike[str] | None = None,
    done: Callable[[int], None] = lambda points: None,
) -> Stream:
    """The points of a sample, ready to be taken through the network in chunks."""
    return Stream(
        model=surrogate.network,
        points=_count(surrogate, sample),
        read=lambda start, stop: _read(surrogate, sample, start, stop),
        chunk=chunk,
        scratch=scratch,
        done=done,
    )


def passes(surrogate: Surrogate) -> int:
    """How often the points are gone through in chunks: once a block."""
    return len(getattr(surrogate.network, "blocks", [0]))


def pointwise(
    surrogate: Surrogate,
    sample: Sample,
    answer: Callable[[Tensor], Tensor],
    outputs: Mapping[str, np.ndarray],
    *,
    done: Callable[[int], None] = lambda points: None,
) -> None:
    """Fill `outputs` by a function of points that does not mix them: normalised inputs -> normalised targets."""
    with only_numbers() as seen:
        for start, stop in spans(_count(surrogate, sample), auto_chunk(surrogate)):
            encoded = answer(_read(surrogate, sample, start, stop))
            seen(start, _keep(surrogate, encoded[0], {name: array[start:stop] for name, array in outputs.items()}))
            done(stop - start)


@contextmanager
def only_numbers() -> Iterator[Callable[[int, np.ndarray], None]]:
    """Yields what every chunk of an answer is shown to: its first point and its rows, (n, channels).

    On leaving, points without a number are refused, all of them counted. Coordinates are finite, but may be so large
    that the network's own numbers are not. Looking at chunks on their way, nothing is read again from a disk.
    """
    count, first = 0, 0

    def seen(start: int, rows: np.ndarray) -> None:
        nonlocal count, first
        lost = np.flatnonzero(~np.isfinite(rows).all(1))
        if len(lost) and not count:
            first = start + int(lost[0])
        count += len(lost)

    yield seen
    if count:
        places = counted(count, "point")
        raise DataError(f"the model gives no number at {places} (first: {first}); are the points in another unit?")


def empty_outputs(surrogate: Surrogate, count: int) -> dict[str, np.ndarray]:
    """Room for every target: name -> (N, channels)."""
    schema = surrogate.schema
    return {
        name: np.empty((count, width), np.float32)
        for name, width in zip(schema.named("target"), schema.widths("target"), strict=True)
    }


def as_fields(outputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Target name -> (N,), or (N, channels) for a field of several components."""
    return {name: values[:, 0] if values.shape[1] == 1 else values for name, values in outputs.items()}


def chunk_size(surrogate: Surrogate, sample: Sample, chunk: Chunk) -> int | None:
    """Points at a time; None: all at once, without streaming."""
    if isinstance(chunk, int):
        return chunk
    if chunk not in ("auto", "whole"):
        raise ConfigError(f"chunk={chunk!r}; use a number of points, 'auto' or 'whole'")
    if chunk == "whole" or not isinstance(surrogate.network, FLAREModel):
        return None
    size = auto_chunk(surrogate)
    return None if _count(surrogate, sample) <= size else size


def auto_chunk(surrogate: Surrogate) -> int:
    """Points at a time where nobody says how many: `CHUNK`, or fewer where channels are many or memory is short.

    So the last digits of an answer may depend on what is free at the moment; a chunk that is named gives them again.
    """
    mixer = flare_blocks(flare_model(surrogate.network))[0].mixer
    channels = mixer.heads * mixer.latents.shape[-1]
    width = max(channels, surrogate.schema.in_dim, surrogate.schema.out_dim)
    return chunk_within(memory_of(str(surrogate.device)), width, surrogate.input_norm.shift.element_size())


def chunk_within(free_mb: float, width: int, number: int = 4) -> int:
    """Points at a time of a model whose widest array has so many numbers a point, of so many bytes each."""
    return min(CHUNK, max(LEAST, int(SHARE * free_mb * 2**20 / (ARRAYS * width * number))))


def _count(surrogate: Surrogate, sample: Sample) -> int:
    return len(sample.values[surrogate.schema.points])


def _read(surrogate: Surrogate, sample: Sample, start: int, stop: int) -> Tensor:
    """Normalised inputs, [1, n, in_dim]."""
    fields = surrogate.schema.fields
    part = {
        name: values if fields[name].role == "parameter" else values[start:stop]
        for name, values in sample.values.items()
    }
    inputs = torch.from_numpy(input_array(surrogate.schema, Sample(part)))[None]
    return surrogate.input_norm.encode(inputs.to(surrogate.device, surrogate.input_norm.shift.dtype))


def _keep(surrogate: Surrogate, encoded: Tensor, outputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """Normalised targets, [n, out_dim], as physical fields; returns them side by side."""
    decoded = surrogate.target_norm.decode(encoded.to(surrogate.target_norm.scale.dtype)).cpu().numpy()
    column = 0
    for array in outputs.values():
        array[...] = decoded[:, column : column + array.shape[1]]
        column += array.shape[1]
    return decoded

"""Prediction at the points of one sample of any size: at once or in chunks, with arrays that may be on disk."""

# N points, n points of a chunk

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from flare.data.sample import Sample, Schema, input_array
from flare.models.streaming import CHUNK, Stream, can_stream, flare_blocks, flare_model, spans
from flare.utils.environment import available_memory_mb
from flare.utils.errors import ConfigError, DataError
from flare.utils.progress import Update, progress
from flare.utils.text import counted

if TYPE_CHECKING:
    from flare.inference.surrogate import Surrogate

MANY = 1_000_000
"""Number of points from which a prediction reports progress."""

Chunk = int | str
"""Points per chunk. `auto`: as many as give full speed if a sample has more, otherwise all. `whole`: all."""
ARRAYS = 16
"""Arrays [n, C] that a pass over a chunk holds at once."""
SHARE = 1 / 4
"""Fraction of the free memory for these arrays."""
LEAST = 1024
"""Smallest chunk, however little memory is free."""


def predict_into(
    surrogate: Surrogate,
    sample: Sample,
    outputs: Mapping[str, np.ndarray],
    *,
    chunk: Chunk = "auto",
    scratch: str | os.PathLike[str] | None = None,
    done: Callable[[int], None] = lambda points: None,
) -> list[Tensor] | None:
    """Predict the fields at the points of a sample into given arrays.

    Args:
        surrogate: The model.
        sample: Input fields, in memory or memory-mapped.
        outputs: Arrays to fill, target name -> (N, channels), physical units.
        chunk: Points per chunk.
        scratch: Folder for the features of all points if they do not fit into memory; None: the system's.
        done: Called with the number of points of each chunk, once per block.

    Returns:
        The latents of every block, as in an `Encoding`, if points were processed in chunks; otherwise None.

    Raises:
        DataError: The prediction is not finite somewhere; `outputs` is then not usable.
    """
    surrogate.eval()
    count, size = _count(surrogate, sample), chunk_size(surrogate, sample, chunk)
    with torch.no_grad(), check_finite() as check:

        def write(start: int, stop: int, encoded: Tensor) -> None:
            check(start, _store(surrogate, encoded[0], {name: array[start:stop] for name, array in outputs.items()}))

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
    """Return the points of a sample as a stream of chunks for a FLARE model."""
    return Stream(
        model=surrogate.network,
        points=_count(surrogate, sample),
        read=lambda start, stop: _read(surrogate, sample, start, stop),
        chunk=chunk,
        scratch=scratch,
        done=done,
    )


def passes(surrogate: Surrogate) -> int:
    """Return the number of passes over the points: one per block."""
    return len(getattr(surrogate.network, "blocks", [0]))


def prediction_progress(
    surrogate: Surrogate, count: int, *, quiet: bool = False, skipped: int = 0
) -> AbstractContextManager[Update]:
    """Report the progress of a prediction at many points: one pass over them per block, but the last `skipped` ones."""
    total = count * (passes(surrogate) - skipped)
    return progress("predicting", total, unit="points x blocks", quiet=quiet or count < MANY)


def pointwise(
    surrogate: Surrogate,
    sample: Sample,
    answer: Callable[[Tensor], Tensor],
    outputs: Mapping[str, np.ndarray],
    *,
    done: Callable[[int], None] = lambda points: None,
) -> None:
    """Fill `outputs` with a pointwise function from normalized inputs to normalized targets."""
    with check_finite() as check:
        for start, stop in spans(_count(surrogate, sample), auto_chunk(surrogate)):
            encoded = answer(_read(surrogate, sample, start, stop))
            check(start, _store(surrogate, encoded[0], {name: array[start:stop] for name, array in outputs.items()}))
            done(stop - start)


@contextmanager
def check_finite() -> Iterator[Callable[[int, np.ndarray], None]]:
    """Yield a function that checks a chunk of a prediction, given its first point and its rows (n, channels).

    On exit all non-finite points are reported at once. Finite inputs can overflow inside a network; checking chunks
    as they are computed avoids reading them again from disk.

    Raises:
        DataError: A chunk was not finite.
    """
    count, first = 0, 0

    def check(start: int, rows: np.ndarray) -> None:
        nonlocal count, first
        bad = np.flatnonzero(~np.isfinite(rows).all(1))
        if len(bad) and not count:
            first = start + int(bad[0])
        count += len(bad)

    yield check
    if count:
        where = f"{counted(count, 'point')} (first: {first})"
        raise DataError(f"the prediction is not finite at {where}; check the unit of the points")


def empty_outputs(surrogate: Surrogate, count: int) -> dict[str, np.ndarray]:
    """Allocate an array for every target, name -> (N, channels)."""
    schema = surrogate.schema
    return {
        name: np.empty((count, width), np.float32)
        for name, width in zip(schema.named("target"), schema.widths("target"), strict=True)
    }


def target_columns(schema: Schema, rows: np.ndarray) -> dict[str, np.ndarray]:
    """Return the columns (N, channels) of every target in rows (N, out_dim), without a copy."""
    ends = np.cumsum(schema.widths("target"))[:-1]
    return dict(zip(schema.named("target"), np.split(rows, ends, axis=1), strict=True))


def as_fields(outputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return fields of one component as (N,), others as (N, channels)."""
    return {name: values[:, 0] if values.shape[1] == 1 else values for name, values in outputs.items()}


def chunk_size(surrogate: Surrogate, sample: Sample, chunk: Chunk) -> int | None:
    """Return the number of points per chunk; None: all at once, without streaming."""
    if isinstance(chunk, int):
        return chunk
    if chunk not in ("auto", "whole"):
        raise ConfigError(f"chunk={chunk!r}; it must be a number of points, 'auto' or 'whole'")
    if chunk == "whole" or not can_stream(surrogate.network):
        return None
    size = auto_chunk(surrogate)
    return None if _count(surrogate, sample) <= size else size


def auto_chunk(surrogate: Surrogate) -> int:
    """Return the default chunk: `CHUNK` points, or fewer for many channels or little memory.

    The last digits of a prediction can therefore depend on the free memory; an explicit chunk reproduces them.
    """
    mixer = flare_blocks(flare_model(surrogate.network))[0].mixer
    channels = mixer.heads * mixer.latents.shape[-1]
    width = max(channels, surrogate.schema.in_dim, surrogate.schema.out_dim)
    return chunk_within(available_memory_mb(str(surrogate.device)), width, surrogate.input_norm.shift.element_size())


def chunk_within(free_mb: float, width: int, number: int = 4) -> int:
    """Return the chunk for a model whose widest array has `width` numbers of `number` bytes per point."""
    return min(CHUNK, max(LEAST, int(SHARE * free_mb * 2**20 / (ARRAYS * width * number))))


def _count(surrogate: Surrogate, sample: Sample) -> int:
    return len(sample.values[surrogate.schema.points])


def _read(surrogate: Surrogate, sample: Sample, start: int, stop: int) -> Tensor:
    """Return normalized inputs, shape [1, n, in_dim]."""
    fields = surrogate.schema.fields
    part = {
        name: values if fields[name].role == "parameter" else values[start:stop]
        for name, values in sample.values.items()
    }
    inputs = torch.from_numpy(input_array(surrogate.schema, Sample(part)))[None]
    return surrogate.input_norm.encode(inputs.to(surrogate.device, surrogate.input_norm.shift.dtype))


def _store(surrogate: Surrogate, encoded: Tensor, outputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """Store normalized targets [n, out_dim] as physical fields; return them as one array."""
    decoded = surrogate.target_norm.decode(encoded.to(surrogate.target_norm.scale.dtype)).cpu().numpy()
    for name, part in target_columns(surrogate.schema, decoded).items():
        outputs[name][...] = part
    return decoded

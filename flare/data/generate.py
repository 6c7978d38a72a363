"""Making a dataset sample by sample, on one core, many, or a dask cluster: the same bytes each way.

Sample i depends on (seed, i) alone: it is made from `numpy.random.default_rng([seed, i])`, and where the solver does
not converge anew from `[seed, i, 1]`, `[seed, i, 2]`, ..., which the sample's notes count. Results are committed in
order, so a killed job resumes where it was.
"""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from contextlib import nullcontext
from dataclasses import asdict, fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from flare.data.job import already_made, unfinished
from flare.data.sample import Sample, Schema
from flare.data.store import Dataset
from flare.data.writer import DatasetWriter
from flare.errors import DataError, Exhausted
from flare.terminal import patience, progress
from flare.workers import executor

Made = tuple[Sample, float]
"""A sample, and the processor seconds it took."""
DRAWS = 30
"""Of one sample, at most: that many failures are no accident, even where half of the draws are filtered out."""


class Generator(Protocol):
    """A frozen dataclass of options that can make a sample. See `flare.physics.darcy.Darcy`."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def schema(self) -> Schema: ...

    def sample(self, rng: np.random.Generator) -> Sample:
        """All that is random comes from `rng`. Raises `NotConverged` where another draw may do better."""
        ...

    def provenance(self) -> dict[str, Any]:
        """`kind`: published, recreated, stand-in or user; and whatever else explains the data."""
        ...


@runtime_checkable
class Compiling(Protocol):
    """A generator with loops to compile."""

    def prepare(self) -> None:
        """Have them compiled and kept, once on a machine, before workers start."""


@runtime_checkable
class Choosing(Protocol):
    """A generator that draws from a list, such as a folder of parts."""

    def choose(self, *, seed: int, index: int, draw: int, samples: int) -> Generator:
        """The generator for one draw of one sample. Raises `Exhausted` where the list has come to its end."""


def generate(
    generator: Generator,
    path: str | os.PathLike[str],
    *,
    samples: int,
    test_samples: int | None = None,
    seed: int = 0,
    workers: int = 1,
    scheduler: str | None = None,
    quiet: bool = False,
) -> Dataset:
    """Make `samples` samples into the dataset folder `path`, or go on where an earlier call was stopped.

    Args:
        test_samples: the last ones, kept for testing; None takes a sixth, as the benchmarks of the paper do, and at
            least one of two.
        workers: processes on this machine. The bytes do not depend on it.
        scheduler: address of a dask scheduler, such as `tcp://10.0.0.1:8786`, to use its workers instead.
    """
    for name, value, least in (("samples", samples, 1), ("workers", workers, 1), ("seed", seed, 0)):
        if value < least:
            raise DataError(f"{name}={value}: at least {least}, please")
    test = max(samples // 6, min(samples - 1, 1)) if test_samples is None else test_samples
    if not 0 <= test <= samples:
        raise DataError(f"test_samples={test}: from 0 to all {samples:,} samples, please")
    job = {"samples": samples, "test_samples": test, "seed": seed}
    options = {"options": asdict(generator), "departures": departures(generator)}
    provenance = generator.provenance() | job | options | {"versions": _versions()}
    path, schema = Path(path), generator.schema()
    finished = already_made(path, schema, provenance, ("samples", "test_samples", "seed", "options"))
    if finished:
        return finished
    writer = DatasetWriter(path, schema, provenance)
    with unfinished(writer, samples):
        if isinstance(generator, Compiling) and len(writer) < samples:
            with nullcontext() if quiet else patience("compiling the solver, once on this machine: about a minute ..."):
                generator.prepare()
        with (
            executor(workers, scheduler) as (pool, ahead),
            progress(f"making {schema.name}", samples, done=len(writer), quiet=quiet) as update,
        ):
            for sample, seconds in _in_order(pool, generator, seed, samples, len(writer), ahead):
                writer.append(sample)
                _note_time(writer, seconds)
                update()
        writer.provenance["redrawn"] = sum("redrawn" in notes for notes in writer.notes())
        return writer.finish({"train": [(0, samples - test)], "test": [(samples - test, samples)]})


def departures(generator: Generator) -> dict[str, Any]:
    """Options that are not the default, which is the benchmark's published form."""
    return {
        field.name: getattr(generator, field.name)
        for field in fields(generator)
        if getattr(generator, field.name) != field.default
    }


def _in_order(
    executor: Executor | None, generator: Generator, seed: int, samples: int, first: int, ahead: int
) -> Iterator[Made]:
    """Samples in order, computed up to `ahead` in advance: enough to keep workers busy, little to lose or hold."""
    if executor is None:
        for index in range(first, samples):
            yield _make(generator, seed, index, samples)
        return
    waiting: deque[Future[Made]] = deque()
    for index in range(first, samples):
        waiting.append(executor.submit(_make, generator, seed, index, samples))
        if len(waiting) >= ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def _make(generator: Generator, seed: int, index: int, samples: int) -> Made:
    from threadpoolctl import threadpool_limits

    start = time.process_time()
    failures: list[str] = []
    # One thread always: the order of a threaded sum may change its last bit, and the workers fill the cores anyway.
    with threadpool_limits(1):
        while len(failures) < DRAWS:
            draw = len(failures)
            try:
                one = generator
                if isinstance(generator, Choosing):
                    one = generator.choose(seed=seed, index=index, draw=draw, samples=samples)
                sample = one.sample(np.random.default_rng([seed, index, *([draw] if draw else [])]))
            except Exhausted:
                raise
            except DataError as error:  # not converged, or a draw that makes no sense, such as a folded mesh
                failures.append(str(error))
            else:
                if failures:
                    sample = replace(sample, notes={**sample.notes, "redrawn": failures})
                return sample, time.process_time() - start
    raise DataError(
        f"sample {index} failed in {DRAWS} draws, the last: {failures[-1]}. Use other settings or another --seed"
    )


def _note_time(writer: DatasetWriter, seconds: float) -> None:
    """In a file of its own: the time differs from run to run, the dataset does not."""
    with (writer.partial / "making.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"sample": len(writer) - 1, "seconds": round(seconds, 4)}) + "\n")


def _versions() -> dict[str, str]:
    import numpy
    import scipy

    import flare

    versions = {"flare": flare.__version__, "numpy": numpy.__version__, "scipy": scipy.__version__}
    return versions | {"numba": version("numba")}

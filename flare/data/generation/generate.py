"""Making a dataset sample by sample, on one core, many, or a dask cluster: the same bytes each way.

Sample i depends on (seed, i) alone: it is made from `numpy.random.default_rng([seed, i])`, and where the solver does
not converge anew from `[seed, i, 1]`, `[seed, i, 2]`, ..., which the sample's notes count. Results are committed in
order, so a killed job resumes where it was.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from collections.abc import Generator as Generating
from contextlib import closing, nullcontext
from dataclasses import asdict, fields, replace
from functools import partial
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

import numpy as np

from flare.data.dataset import AnyFolder, ArrayFolder, Dataset, partial_folder
from flare.data.generation.job import already_made, fill, unfinished
from flare.data.generation.parallel import in_order, workers_of
from flare.data.sample import Sample, Schema
from flare.data.writer import ArrayWriter, DatasetWriter
from flare.utils.errors import DataError, Exhausted
from flare.utils.progress import patience

AnySchema = TypeVar("AnySchema", covariant=True)
AnySample = TypeVar("AnySample", covariant=True)
DRAWS = 30
"""Of one sample, at most: that many failures are no accident, even where half of the draws are filtered out."""


class Generator(Protocol[AnySchema, AnySample]):
    """A frozen dataclass of options that can make a sample. See `flare.physics.darcy.Darcy`."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def schema(self) -> AnySchema: ...

    def sample(self, rng: np.random.Generator) -> AnySample:
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

    def choose(self, *, seed: int, index: int, draw: int, samples: int) -> Generator[Any, Any]:
        """The generator for one draw of one sample. Raises `Exhausted` where the list has come to its end."""


def generate(
    generator: Generator[Schema, Sample],
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
    test = max(samples // 6, min(samples - 1, 1)) if test_samples is None else test_samples
    how: dict[str, Any] = {"seed": seed, "workers": workers, "scheduler": scheduler, "quiet": quiet}
    return make_folder(generator, Path(path), Dataset, DatasetWriter, {"samples": samples, "test_samples": test}, **how)


def make_folder(
    generator: Generator[Any, Any],
    path: Path,
    folder: type[AnyFolder],
    open_writer: Callable[[Path, Any, dict[str, Any]], ArrayWriter[Any, AnyFolder]],
    sizes: dict[str, int],
    *,
    seed: int,
    workers: int,
    scheduler: str | None,
    quiet: bool,
    at_once: int = 1,
    other_sizes: dict[str, str] | None = None,
) -> AnyFolder:
    """`generate`, for a folder of any kind.

    Args:
        sizes: `samples` in all and, of these, `test_samples` and perhaps `val_samples`. Training ones come first.
        at_once: samples a worker makes before it sends them: more than one where making is cheaper than sending.
        other_sizes: in which way these are not the benchmark's, where that makes it another benchmark.
    """
    samples, val, test = sizes["samples"], sizes.get("val_samples", 0), sizes["test_samples"]
    for name, value, least in (("samples", samples, 1), ("workers", workers, 1), ("seed", seed, 0)):
        if value < least:
            raise DataError(f"{name}={value}: at least {least}, please")
    for name, value, most in (("test_samples", test, samples), ("val_samples", val, samples - test)):
        if not 0 <= value <= most:
            rest = f"the {most:,} that are not for testing" if most < samples else f"all {samples:,} samples"
            raise DataError(f"{name}={value}: from 0 to {rest}, please")
    schema, job = generator.schema(), {**sizes, "seed": seed}
    options = {"options": _options(generator, path), "departures": departures(generator) | (other_sizes or {})}
    provenance = generator.provenance() | job | options | {"versions": _versions()}
    finished = already_made(path, folder, schema, provenance, (*job, "options"))
    if finished:
        return finished
    ends = {
        "train": samples - val - test,
        **({"val": samples - test} if "val_samples" in sizes else {}),
        "test": samples,
    }
    splits = {name: [bounds] for name, bounds in zip(ends, pairwise([0, *ends.values()]), strict=True)}
    writer = open_writer(path, schema, provenance)
    tasks = [range(start, min(start + at_once, samples)) for start in range(len(writer), samples, at_once)]
    with unfinished(writer, samples):
        if isinstance(generator, Compiling) and len(writer) < samples:
            with nullcontext() if quiet else patience("compiling the solver, once on this machine: about a minute ..."):
                generator.prepare()
        with closing(_made(writer, partial(_make, generator, seed, samples), tasks, workers, scheduler)) as made:
            fill(writer, made, samples, f"making {schema.name}", quiet=quiet)
        writer.provenance["redrawn"] = sum("redrawn" in notes for notes in writer.notes())
        return writer.finish(splits)


def departures(generator: Generator[Any, Any]) -> dict[str, Any]:
    """Options that are not the default, which is the benchmark's published form."""
    return {
        field.name: getattr(generator, field.name)
        for field in fields(generator)
        if getattr(generator, field.name) != field.default
    }


def _options(generator: Generator[Any, Any], path: Path) -> dict[str, Any]:
    """All options; where a folder was begun before flare had one of them, without that one if it has its default.

    So a new option, whose default is how things were before, turns no earlier dataset into another one.
    """
    options = asdict(generator)
    for folder in (path, partial_folder(path)):
        try:
            known = json.loads((folder / "dataset.json").read_text(encoding="utf-8"))["provenance"]["options"]
        except (OSError, ValueError, KeyError, TypeError):
            continue  # nothing there, or nothing sound: those who open it say so
        changed = departures(generator)
        return {name: value for name, value in options.items() if name in known or name in changed}
    return options


def _made(
    writer: ArrayWriter[Any, Any],
    make: Callable[[range], list[tuple[Any, float]]],
    tasks: list[range],
    workers: int,
    scheduler: str | None,
) -> Generating[Any, None, None]:
    """Samples in order, the time of each noted once it is written."""
    with workers_of(workers, scheduler) as (executor, ahead):
        for made in in_order(executor, make, tasks, ahead):
            for sample, seconds in made:
                yield sample
                _note_time(writer, seconds)


def _make(
    generator: Generator[Any, AnySample], seed: int, samples: int, indices: range
) -> list[tuple[AnySample, float]]:
    """The samples, and the processor seconds each took."""
    from threadpoolctl import threadpool_limits

    # One thread always: the order of a threaded sum may change its last bit, and the workers fill the cores anyway.
    with threadpool_limits(1):
        return [_make_one(generator, seed, samples, index) for index in indices]


def _make_one(generator: Generator[Any, Any], seed: int, samples: int, index: int) -> tuple[Any, float]:
    start = time.process_time()
    failures: list[str] = []
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


def _note_time(writer: ArrayWriter[Any, Any], seconds: float) -> None:
    """In a file of its own: the time differs from run to run, the dataset does not."""
    with (writer.partial / "making.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"sample": len(writer) - 1, "seconds": round(seconds, 4)}) + "\n")


def seconds_of_making(dataset: ArrayFolder) -> float:
    """Of one core, all samples together; what was made twice, since a job was killed, counts twice."""
    lines = (dataset.path / "making.jsonl").read_text(encoding="utf-8").splitlines()
    return sum(json.loads(line)["seconds"] for line in lines)


def _versions() -> dict[str, str]:
    import numpy
    import scipy

    import flare

    versions = {"flare": flare.__version__, "numpy": numpy.__version__, "scipy": scipy.__version__}
    return versions | {"numba": version("numba")}

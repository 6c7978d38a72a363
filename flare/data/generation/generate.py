"""Generation of a dataset sample by sample: the same bytes in one process, in many, or on a dask cluster.

Sample i depends on (seed, i) alone: it is drawn from `numpy.random.default_rng([seed, i])`. If the solver does not
converge, it is drawn again from `[seed, i, 1]`, `[seed, i, 2]`, ..., which is recorded in the notes of the sample.
Samples are committed in order, so a killed job resumes where it stopped.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from collections.abc import Generator as Generating
from contextlib import closing
from dataclasses import asdict, fields, replace
from functools import partial
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

import numpy as np

from flare.data.dataset import AnyFolder, Dataset, partial_folder
from flare.data.generation.job import already_made, fill, unfinished
from flare.data.generation.parallel import in_order, workers_of
from flare.data.sample import Sample, Schema
from flare.data.writer import ArrayWriter, DatasetWriter
from flare.utils import __version__
from flare.utils.errors import DataError, Exhausted
from flare.utils.progress import log_if_slow

AnySchema = TypeVar("AnySchema", covariant=True)
AnySample = TypeVar("AnySample", covariant=True)
DRAWS = 30
"""Most draws of one sample. So many failures are no accident, even if half of all draws are filtered out."""


class Generator(Protocol[AnySchema, AnySample]):
    """A frozen dataclass of options that can draw samples, such as `flare.physics.darcy.Darcy`."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def schema(self) -> AnySchema:
        """Return the schema of the samples."""
        ...

    def sample(self, rng: np.random.Generator) -> AnySample:
        """Draw a sample from `rng` alone. Raises `NotConverged` if another draw may succeed."""
        ...

    def provenance(self) -> dict[str, Any]:
        """Return `kind` (published, recreated, stand-in or user) and anything else that explains the data."""
        ...


@runtime_checkable
class Compiling(Protocol):
    """A generator whose solver is compiled before use."""

    def prepare(self) -> None:
        """Compile and cache the solver, before worker processes start."""


@runtime_checkable
class Choosing(Protocol):
    """A generator that takes samples from a list, such as a folder of files."""

    def choose(self, *, seed: int, index: int, draw: int, samples: int) -> Generator[Any, Any]:
        """Return the generator of one draw of one sample. Raises `Exhausted` at the end of the list."""


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
    """Generate a dataset, or resume one that was interrupted. A finished one is opened.

    Args:
        generator: Options of the samples.
        path: Folder of the dataset.
        samples: Number of samples, test samples included.
        test_samples: Number of test samples, the last ones; None for a sixth, as in the paper, and at least one of
            two.
        seed: Seed of all samples.
        workers: Worker processes on this machine. The bytes do not depend on it.
        scheduler: Address of a dask scheduler, such as `tcp://10.0.0.1:8786`, to use its workers instead.
        quiet: Report no progress.

    Raises:
        DataError: An argument is impossible, a sample failed in every draw, or the folder holds another dataset.
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
    """Generate a folder of any kind, as `generate` does for datasets of fields.

    Args:
        generator: Options of the samples.
        path: Folder to write.
        folder: Class that opens the folder.
        open_writer: Function of path, schema and provenance that opens its writer.
        sizes: Number of all `samples`, of `test_samples` and, if there is such a split, of `val_samples`. Training
            samples come first.
        seed: Seed of all samples.
        workers: Worker processes on this machine.
        scheduler: Address of a dask scheduler to use instead.
        quiet: Report no progress.
        at_once: Samples that a worker makes per task: more than one if sending takes longer than making.
        other_sizes: Departures from the benchmark that the sizes cause.
    """
    samples, val, test = sizes["samples"], sizes.get("val_samples", 0), sizes["test_samples"]
    limits = {"samples": (samples, 1, samples), "workers": (workers, 1, workers), "seed": (seed, 0, seed)}
    limits |= {"test_samples": (test, 0, samples), "val_samples": (val, 0, samples - test)}
    for name, (value, least, most) in limits.items():
        if not least <= value <= most:
            raise DataError(f"`{name}={value}`: it must be at least {least}, and at most {most:,}")
    schema, job = generator.schema(), {**sizes, "seed": seed}
    options = {"options": _options(generator, path), "departures": departures(generator) | (other_sizes or {})}
    versions = {"flare": __version__} | {name: version(name) for name in ("numpy", "scipy", "numba")}
    provenance = generator.provenance() | job | options | {"versions": versions}
    finished = already_made(path, folder, schema, provenance, (*job, "options"))
    if finished:
        return finished
    ends = {"train": samples - val - test, "val": samples - test, "test": samples}
    if "val_samples" not in sizes:
        del ends["val"]
    splits = {name: [bounds] for name, bounds in zip(ends, pairwise([0, *ends.values()]), strict=True)}
    writer = open_writer(path, schema, provenance)
    tasks = [range(start, min(start + at_once, samples)) for start in range(len(writer), samples, at_once)]
    with unfinished(writer, samples):
        if isinstance(generator, Compiling) and tasks:
            with log_if_slow("compiling the solver for this machine, once: about a minute ..."):
                generator.prepare()
        make = partial(_draw_samples, generator, seed, samples)
        with closing(_generate_in_order(writer, make, tasks, workers, scheduler)) as made:
            fill(writer, made, samples, f"making {schema.name}", quiet=quiet)
        writer.provenance["redrawn"] = sum("redrawn" in notes for notes in writer.notes())
        return writer.finish(splits)


def departures(generator: Generator[Any, Any]) -> dict[str, Any]:
    """Return the options that differ from their default, which is the published form of the benchmark."""
    return {
        field.name: getattr(generator, field.name)
        for field in fields(generator)
        if getattr(generator, field.name) != field.default
    }


def _options(generator: Generator[Any, Any], path: Path) -> dict[str, Any]:
    """Return all options, without those that an existing folder does not record if they have their default.

    A new option with a default that keeps earlier behavior thus does not turn an earlier dataset into another one.
    """
    options = asdict(generator)
    for folder in (path, partial_folder(path)):
        try:
            known = json.loads((folder / "dataset.json").read_text(encoding="utf-8"))["provenance"]["options"]
        except (OSError, ValueError, KeyError, TypeError):
            continue  # missing or damaged: opening it reports that
        changed = departures(generator)
        return {name: value for name, value in options.items() if name in known or name in changed}
    return options


def _generate_in_order(
    writer: ArrayWriter[Any, Any],
    make: Callable[[range], list[tuple[Any, float]]],
    tasks: list[range],
    workers: int,
    scheduler: str | None,
) -> Generating[Any, None, None]:
    """Yield the samples in order and record the time of each after it is written."""
    with workers_of(workers, scheduler) as (executor, ahead):
        for made in in_order(executor, make, tasks, ahead):
            for sample, seconds in made:
                yield sample
                # A separate file: times differ from run to run, the files of the dataset do not.
                with (writer.partial / "making.jsonl").open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"sample": len(writer) - 1, "seconds": round(seconds, 4)}) + "\n")


def _draw_samples(
    generator: Generator[Any, AnySample], seed: int, samples: int, indices: range
) -> list[tuple[AnySample, float]]:
    """Return the samples and the CPU seconds that each took."""
    from threadpoolctl import threadpool_limits

    # One thread: a threaded sum may differ in its last bit, and the workers fill the cores anyway.
    with threadpool_limits(1):
        return [_draw_sample(generator, seed, samples, index) for index in indices]


def _draw_sample(generator: Generator[Any, Any], seed: int, samples: int, index: int) -> tuple[Any, float]:
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
        except DataError as error:  # not converged, or impossible, such as a folded mesh
            failures.append(str(error))
        else:
            if failures:
                sample = replace(sample, notes={**sample.notes, "redrawn": failures})
            return sample, time.process_time() - start
    raise DataError(f"sample {index} failed in {DRAWS} draws; use another `seed`. The last failure: {failures[-1]}")

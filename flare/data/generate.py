"""Making a dataset sample by sample, on one core, many, or a dask cluster: the same bytes each way.

Sample i depends on (seed, i) alone: it is made from `numpy.random.default_rng([seed, i])`, and where the solver does
not converge anew from `[seed, i, 1]`, `[seed, i, 2]`, ..., which the sample's notes count. Results are committed in
order, so a killed job resumes where it was.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, replace
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from flare.data.sample import Sample, Schema
from flare.data.store import Dataset
from flare.data.writer import DatasetWriter
from flare.errors import DataError, NotConverged
from flare.files import taken
from flare.terminal import progress, say

Made = tuple[Sample, float]
"""A sample, and the processor seconds it took."""
DRAWS = 10
"""Of one sample, at most: that many failures are no accident."""


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
        test_samples: the last ones, kept for testing; None takes a sixth, as the benchmarks of the paper do.
        workers: processes on this machine. The bytes do not depend on it.
        scheduler: address of a dask scheduler, such as `tcp://10.0.0.1:8786`, to use its workers instead.
    """
    test = samples // 6 if test_samples is None else test_samples
    if not (samples >= 1 and 0 <= test <= samples and workers >= 1 and seed >= 0):
        raise DataError(
            f"cannot make {samples} samples, {test} of them for testing, seed {seed}, with {workers} workers"
        )
    job = {"samples": samples, "test_samples": test, "seed": seed}
    provenance = generator.provenance() | job | {"options": asdict(generator), "versions": _versions()}
    finished = _already_made(Path(path), generator.schema(), provenance)
    if finished:
        return finished
    writer = DatasetWriter(path, generator.schema(), provenance)
    name = generator.schema().name
    try:
        with (
            _executor(workers, scheduler) as executor,
            progress(f"making {name}", samples, done=len(writer), quiet=quiet) as update,
        ):
            for sample, seconds in _in_order(executor, generator, seed, range(len(writer), samples), 4 * workers):
                writer.append(sample)
                _note_time(writer, seconds)
                update()
    except BrokenProcessPool:
        raise DataError(
            f"a worker process died while making sample {len(writer)} of {path} (out of memory?). "
            f"{len(writer)} of {samples} are kept; run the same command to go on, perhaps with fewer workers"
        ) from None
    except KeyboardInterrupt:
        say(f"{len(writer)} of {samples} samples are kept; run the same command to go on")
        raise
    except OSError as error:
        raise DataError(
            f"cannot write {path}: {error.strerror or error}. {len(writer)} of {samples} samples are kept; "
            f"make room and run the same command to go on"
        ) from None
    finally:
        if len(writer) < samples:
            writer.close()
    return writer.finish({"train": [(0, samples - test)], "test": [(samples - test, samples)]})


def _in_order(executor: Executor | None, generator: Generator, seed: int, indices: range, ahead: int) -> Iterator[Made]:
    """Samples in order, computed up to `ahead` in advance: enough to keep workers busy, little to lose or hold."""
    if executor is None:
        for index in indices:
            yield _make(generator, seed, index)
        return
    waiting: deque[Future[Made]] = deque()
    for index in indices:
        waiting.append(executor.submit(_make, generator, seed, index))
        if len(waiting) >= ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def _make(generator: Generator, seed: int, index: int) -> Made:
    from threadpoolctl import threadpool_limits

    start = time.process_time()
    failures: list[str] = []
    # One thread always: the order of a threaded sum may change its last bit, and the workers fill the cores anyway.
    with threadpool_limits(1):
        while len(failures) < DRAWS:
            try:
                sample = generator.sample(np.random.default_rng([seed, index, *([len(failures)] if failures else [])]))
            except NotConverged as error:
                failures.append(str(error))
            else:
                if failures:
                    sample = replace(sample, notes={**sample.notes, "redrawn": failures})
                return sample, time.process_time() - start
    raise DataError(f"sample {index} did not converge in {DRAWS} draws; the last: {failures[-1]}")


def _note_time(writer: DatasetWriter, seconds: float) -> None:
    """In a file of its own: the time differs from run to run, the dataset does not."""
    with (writer.partial / "making.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"sample": len(writer) - 1, "seconds": round(seconds, 4)}) + "\n")


@contextmanager
def _executor(workers: int, scheduler: str | None) -> Iterator[Executor | None]:
    if scheduler is not None:
        with _dask_client(scheduler) as client:
            yield client.get_executor(pure=False)
    elif workers == 1:
        yield None
    else:
        pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_die_with_parent)
        try:
            yield pool
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _dask_client(address: str) -> Any:
    try:
        from distributed import Client
    except ImportError:
        raise DataError("a dask scheduler needs the extra:  pip install 'flare-engine[dask]'") from None
    try:
        return Client(address, timeout=10)
    except (OSError, ValueError) as error:
        raise DataError(f"no dask scheduler answers at {address}: {error}") from None


def _die_with_parent() -> None:
    """A killed parent cannot tell its workers to stop, so each watches it."""

    def watch() -> None:
        parent = parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _already_made(path: Path, schema: Schema, provenance: dict[str, Any]) -> Dataset | None:
    if not taken(path):
        return None
    dataset = Dataset(path)
    made = dataset.about["provenance"]
    if dataset.schema == schema and all(
        made.get(key) == provenance[key] for key in ("samples", "test_samples", "seed", "options")
    ):
        return dataset
    raise DataError(f"{path} holds another dataset already ({dataset.schema.name}); choose another --out or remove it")


def _versions() -> dict[str, str]:
    import numpy
    import scipy

    import flare

    return {"flare": flare.__version__, "numpy": numpy.__version__, "scipy": scipy.__version__}

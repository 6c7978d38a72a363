"""Measure the memory and time of workloads, and of any call, in processes of their own.

Training steps and evaluations are measured by a profiling run: a training of a few steps on generated data, with the
code that `flare train` uses. Predictions are measured directly. The peak memory of a process is that of its workload.
"""

from __future__ import annotations

import contextlib
import gc
import io
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import active_children
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from flare.data.generation.parallel import inheriting_no_interrupts, worker_pool
from flare.models import build_model
from flare.models.streaming import Stream
from flare.train.workload import Workload
from flare.utils.environment import peak_memory_mb, reset_peak_memory

if TYPE_CHECKING:
    from flare.train.config import TrainConfig
    from flare.train.run_folder import RunFolder

FILLER_POINTS = 64
"""Points of the training samples of a profiling run that measures an evaluation."""


@dataclass(frozen=True)
class Usage:
    """Memory and time of a workload."""

    memory_mb: float
    """Peak memory of the whole process; on a GPU, of the GPU."""
    seconds: float
    """Time of one training step, evaluation or prediction."""


def measure(workload: Workload) -> Usage:
    """Measure a workload in a process of its own."""
    return run_isolated(_profile, workload, workload.threads)


def _profile(workload: Workload, thread_count: int) -> Usage:
    torch.set_num_threads(thread_count)
    torch.manual_seed(0)
    return (_profile_run if workload.is_in_run else _profile_prediction)(workload)


def _profile_prediction(workload: Workload) -> Usage:
    model = build_model("flare", workload.in_dim, workload.out_dim, **workload.sizes).to(workload.device).eval()

    def inputs(start: int, stop: int) -> torch.Tensor:
        return torch.randn(workload.batch, stop - start, workload.in_dim, device=workload.device)

    def predict(points: int) -> None:
        if not workload.is_streamed:
            with torch.no_grad():
                model(inputs(0, points))
            return
        in_memory = 0 if workload.kind == "scratch" else None
        stream = Stream(model=model, points=points, read=inputs, chunk=workload.chunk, in_memory=in_memory)
        stream.forward(lambda start, stop, y: None)

    predict(64)  # loads everything that is loaded once
    reset_peak_memory()
    predict(workload.points)
    repeats = max(1, min(5, 200_000 // workload.total_points))
    seconds = median_seconds(lambda: predict(workload.points), repeats)
    return Usage(peak_memory_mb(), seconds)


def _profile_run(workload: Workload) -> Usage:
    """Train a few steps as one rank. A rank that shares something is in a group of its own."""
    # Imported here: a prediction, whose memory is measured too, runs without the training loop.
    from torch import distributed as dist

    from flare.train.distributed.fabric import lone_fabric
    from flare.train.distributed.ranks import Ranks
    from flare.train.run import work_on
    from flare.train.run_folder import RunFolder
    from flare.train.tasks import make_task

    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stderr(io.StringIO()):
        folder = Path(name)
        config, run = profiling_run(workload, folder / "data"), RunFolder(folder / "run")
        with lone_fabric(config, run, shares=bool(workload.shared)) as fabric:
            group = dist.group.WORLD if workload.shared == "points" else None
            work_on(fabric, Ranks(group=group, device=fabric.device), config, run, make_task(config))
        return usage_of_run(run, workload)


def profiling_run(workload: Workload, data: Path, *, ranks: int = 1, batches: int = 1) -> TrainConfig:
    """Write a generated dataset and return the settings of a run that repeats a workload several times.

    Args:
        workload: Training step or evaluation of one rank.
        data: Dataset folder to write.
        ranks: Number of ranks that share the samples or points, each with the workload given.
        batches: Number of different training batches.
    """
    from flare.train.config import DataConfig, TrainConfig

    repeats = 3 if workload.returns_memory else 4  # cached memory grows until the third step
    point_ranks, sample_ranks = (ranks if workload.shared == what else 1 for what in ("points", "samples"))
    points, batch = point_ranks * workload.points, sample_ranks * workload.batch
    train = [points] * batch * batches if workload.is_training else [FILLER_POINTS * ranks]
    _write_dataset(data, workload, train, [points] * batch)
    return TrainConfig(
        data=DataConfig(
            path=str(data), batch_size=batch if workload.is_training else 1, eval_batch_size=workload.batch
        ),
        model={"name": "flare", **workload.sizes},
        epochs=math.ceil(repeats / batches),
        evaluate_every=repeats if workload.is_training else 1,
        checkpoint_every=repeats,
        log_every=1,
        precision=workload.precision,  # type: ignore[arg-type]
        recompute=workload.recompute,
        device=workload.device.split(":")[0],
        ranks_share="points" if workload.shared == "points" else "samples",
    )


def usage_of_run(run: RunFolder, workload: Workload) -> Usage:
    """Return the peak memory of a finished profiling run and its median time per repetition without the first."""
    from flare.train.run import read_result

    seconds, before = [], 0.0
    for record in run.records():
        if record["kind"] == ("train" if workload.is_training else "evaluate"):
            seconds.append(record["seconds"] - before)
        before = record["seconds"]
    return Usage(read_result(run.path)["peak_memory_mb"], statistics.median(seconds[1:]))


def _write_dataset(path: Path, workload: Workload, train: list[int], test: list[int]) -> None:
    """Write random samples with these numbers of points."""
    from flare.data.sample import Field, Sample, Schema
    from flare.data.writer import DatasetWriter

    rng = np.random.default_rng(0)
    fields = {
        "points": Field(role="points", components=tuple(f"x{i}" for i in range(workload.in_dim))),
        "values": Field(role="target", components=tuple(f"y{i}" for i in range(workload.out_dim))),
    }
    writer = DatasetWriter(path, Schema(name="profiling", fields=fields), {"kind": "profiling"})
    for count in train + test:
        x, y = (rng.random((count, width), np.float32) for width in (workload.in_dim, workload.out_dim))
        writer.append(Sample({"points": x, "values": 1 + y}))
    writer.finish({"train": [(0, len(train))], "test": [(len(train), len(train) + len(test))]})


def run_isolated(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a function called in a process of its own.

    Ctrl-C in a terminal reaches every process. The child ignores it, and this process ends the child with SIGTERM: a
    function that handles SIGTERM, as training does to save a checkpoint, may take its time.
    """
    others = set(active_children())
    with worker_pool(1) as pool:
        try:
            with inheriting_no_interrupts():
                result = pool.submit(function, *arguments)
            return result.result()
        except KeyboardInterrupt:
            for process in set(active_children()) - others:
                process.terminate()
            raise


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Set the number of torch threads within the context."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def gc_paused() -> Iterator[None]:
    """Collect garbage on entry and not again within the context."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def median_seconds(call: Callable[[], Any], repeats: int) -> float:
    """Return the median time of several calls, without a warm-up.

    One CPU thread is timed by its CPU time, which other processes hardly affect; everything else by wall time.
    """
    one_thread = torch.get_num_threads() == 1 and not torch.cuda.is_available()
    clock, taken = time.process_time if one_thread else time.perf_counter, []
    with gc_paused():
        for _ in range(repeats):
            begin = clock()
            call()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            taken.append(clock() - begin)
    return statistics.median(taken)


def peak_above(call: Callable[[], Any]) -> float:
    """Return the peak memory of a call in MiB beyond what the process held before. For a fresh process."""
    gc.collect()
    reset_peak_memory()  # starting up may have needed more than is held now
    before = peak_memory_mb()
    call()
    return peak_memory_mb() - before


def power_law_exponent(sizes: list[float], values: list[float]) -> float:
    """Return p of ``values ~ sizes ** p``, fitted in logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])

"""Measure the memory and time of one workload of a FLARE model.

A workload is a training step, an evaluation or a prediction on one rank. Training steps and evaluations are measured
by a profiling run: a training of a few steps on generated data, with the code that `flare train` uses. Predictions are
measured directly. Every measurement has a process of its own, whose peak memory is then that of the workload.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from multiprocessing import active_children
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from flare.data.generation.parallel import inheriting_no_interrupts, worker_pool
from flare.mixer import native
from flare.mixer.native.block_ops import block_activations, mlp_activations
from flare.models import build_model, count_parameters
from flare.models.streaming import CHUNK, MOST_IN_MEMORY, Stream
from flare.utils.environment import peak_memory_mb, reset_peak_memory
from flare.utils.errors import ConfigError

if TYPE_CHECKING:
    from flare.train.config import TrainConfig
    from flare.train.run_folder import RunFolder

DTYPES = {"32": None, "bf16": torch.bfloat16, "16": torch.float16}
"""Precision -> data type of matrix products under autocast."""
KINDS = {
    "training": "one optimizer step",
    "evaluation": "the prediction at all points at once, within a training",
    "whole": "the prediction of `flare predict` at all points at once",
    "stream": "the prediction of `flare predict` in chunks, with the features of all points in memory",
    "scratch": "the same with the features in a scratch file",
}
SHARED = {
    "": "one rank",
    "samples": "ranks share the samples of a batch",
    "points": "ranks share the points of a sample",
}
MMAP_BYTES = 32 * 2**20
"""Size from which the C library returns an array to the system when it is freed. It caches smaller arrays, so that
workloads with small arrays need more memory than the law of large ones predicts: they are calibrated separately."""
FILLER_POINTS = 64
"""Points of the training samples of a profiling run that measures an evaluation."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One training step, evaluation or prediction of a FLARE model on one rank."""

    model: Mapping[str, Any]
    """Sizes of the model, as `build_model` takes them."""
    in_dim: int = 3
    out_dim: int = 1
    points: int
    """Points per sample on this rank."""
    batch: int = 1
    """Samples at a time on this rank."""
    kind: str = "training"
    """One of `KINDS`."""
    precision: str = "32"
    recompute: bool = False
    device: str = "cpu"
    shared: str = ""
    """One of `SHARED`. With shared points a block is not one kernel. With either, gradients are kept twice."""
    chunk: int = CHUNK
    """Points per chunk of a streamed prediction."""

    def __post_init__(self) -> None:
        if self.model.get("name", "flare") != "flare":
            raise ConfigError(f"model {self.model['name']!r}: memory and time are predicted for FLARE models only")
        if min(self.points, self.batch, self.chunk) < 1:
            raise ConfigError(f"points={self.points}, batch={self.batch}, chunk={self.chunk}: each must be at least 1")
        for name, known in (("precision", DTYPES), ("kind", KINDS), ("shared", SHARED)):
            if getattr(self, name) not in known:
                raise ConfigError(f"{name}={getattr(self, name)!r}; use one of {', '.join(map(repr, known))}")
        if self.device != "cpu" and not self.device.startswith("cuda"):
            raise ConfigError(f"device={self.device!r}; use cpu or cuda")
        if self.device != "cpu" and not torch.cuda.is_available():
            raise ConfigError(f"device={self.device!r}: torch finds no CUDA device on this machine; use device='cpu'")
        self._parameters_with(min(self.latents, 2))  # raises if the sizes do not fit together

    @property
    def total_points(self) -> int:
        return self.batch * self.points

    @property
    def blocks(self) -> int:
        return int(self.sizes.get("blocks", 8))

    @property
    def latents(self) -> int:
        return int(self.sizes.get("latents", 64))

    @property
    def channels(self) -> int:
        return int(self.sizes.get("channels", 64))

    @property
    def heads(self) -> int:
        return int(self.sizes.get("heads", 8))

    @property
    def sizes(self) -> dict[str, Any]:
        return {key: value for key, value in self.model.items() if key != "name"}

    @property
    def threads(self) -> int:
        """Threads of the process. torchrun gives each of several ranks one, unless OMP_NUM_THREADS is set."""
        return 1 if self.shared and "OMP_NUM_THREADS" not in os.environ else torch.get_num_threads()

    @property
    def is_training(self) -> bool:
        return self.kind == "training"

    @property
    def is_in_run(self) -> bool:
        """Whether it is part of a training, which also holds the optimizer, the loader and the logs."""
        return self.kind in ("training", "evaluation")

    @property
    def is_streamed(self) -> bool:
        return self.kind in ("stream", "scratch")

    @property
    def parameters(self) -> int:
        """Number of parameters, which is linear in the number of latents."""
        first, second = self._parameters_with(1), self._parameters_with(2)
        return first + (self.latents - 1) * (second - first)

    def _parameters_with(self, latents: int) -> int:
        sizes = json.dumps(self.sizes | {"latents": latents}, sort_keys=True)
        return _count_parameters(self.in_dim, self.out_dim, sizes)

    @property
    def point_bytes(self) -> int:
        """Bytes of the features of one point in single precision."""
        return 4 * self.channels

    @property
    def uses_kernels(self) -> bool:
        """Whether the native kernels compute it. PyTorch's own operators keep several times as much."""
        return self.device == "cpu" and self.precision == "32" and native.why_not() is None

    @property
    def returns_memory(self) -> bool:
        """Whether freed arrays go back to the system; see `MMAP_BYTES`."""
        points = min(self.points, self.chunk) if self.is_streamed else self.total_points
        return self.point_bytes * points >= MMAP_BYTES

    @property
    def weights_mb(self) -> float:
        """Memory of the weights and, in a run, of their gradients (twice if ranks share) and AdamW's two averages."""
        copies = (5 if self.shared else 4) if self.is_in_run else 1
        return 4 * copies * self.parameters / 2**20

    @property
    def known_mb(self) -> float:
        """Memory that needs no measurement: weights, latents, kept activations and features of a stream.

        Training and streams keep the latents of every block. About six arrays of their size are in use at any time, and
        each thread of the kernels has two for its sums: an estimate that matters only for many latents.
        """
        threads = self.threads if self.device == "cpu" else 0
        arrays = self.batch * (6 + (self.blocks if self.is_training or self.is_streamed else 0)) + 2 * threads
        latents = 4 * arrays * self.latents * (self.channels + self.heads) / 2**20
        features = self.point_bytes * self.points / 2**20 if self.kind == "stream" else 0.0
        return self.weights_mb + latents + self.activations_mb + features

    @property
    def activations_mb(self) -> float:
        """Memory of the activations that the kernels keep for the backward pass of a small step; 0 for large ones."""
        if not (self.is_training and self.uses_kernels) or self.recompute:
            return 0.0
        kv_depth, ffn_depth, io_depth = (
            int(self.sizes.get(name, default)) for name, default in (("kv_depth", 3), ("ffn_depth", 3), ("io_depth", 2))
        )

        def mlp(depth: int) -> int:
            return math.prod(mlp_activations(self.total_points, self.channels, depth))

        if self.shared == "points" or self.sizes.get("qk_norm") or self.sizes.get("latent_blocks"):
            block = 2 * mlp(kv_depth) + mlp(ffn_depth)
        else:
            block = math.prod(block_activations(self.batch, self.points, self.channels, kv_depth, ffn_depth))
        return 4 * (self.blocks * block + 2 * mlp(io_depth)) / 2**20


@cache
def _count_parameters(in_dim: int, out_dim: int, sizes_json: str) -> int:
    with torch.device("meta"):
        return count_parameters(build_model("flare", in_dim, out_dim, **json.loads(sizes_json)))


def prediction_workload(workload: Workload, points: int, *, chunk: int | None = CHUNK) -> Workload:
    """Return how `flare predict` evaluates the model of a workload at the points of one sample.

    Args:
        workload: Any workload of the model.
        points: Number of points.
        chunk: Points at a time; None for all at once.
    """
    features = workload.point_bytes * points
    kind = "whole" if chunk is None or points <= chunk else "stream" if features <= MOST_IN_MEMORY else "scratch"
    same: Any = {name: getattr(workload, name) for name in ("model", "in_dim", "out_dim", "device")}
    return Workload(points=points, kind=kind, chunk=CHUNK if kind == "whole" else chunk or CHUNK, **same)


@dataclass(frozen=True)
class Usage:
    """Memory and time of a workload."""

    memory_mb: float
    """Peak memory of the whole process; on a GPU, of the GPU."""
    seconds: float
    """Time of one training step, evaluation or prediction."""


def measure(workload: Workload) -> Usage:
    """Measure a workload in a process of its own."""
    return run_isolated(profile, workload, workload.threads)


def profile(workload: Workload, thread_count: int) -> Usage:
    """Measure a workload in this process.

    It is repeated several times: the C library caches freed arrays, so that the third step needs more than the first.
    """
    torch.set_num_threads(thread_count)
    torch.manual_seed(0)
    return _profile_run(workload) if workload.is_in_run else _profile_prediction(workload)


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

    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stderr(io.StringIO()):
        folder = Path(name)
        config, run = profiling_run(workload, folder / "data"), RunFolder(folder / "run")
        with lone_fabric(config, run, shares=bool(workload.shared)) as fabric:
            group = dist.group.WORLD if workload.shared == "points" else None
            work_on(fabric, Ranks(group=group, device=fabric.device), config, run)
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
        split="points" if workload.shared == "points" else "samples",
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
    import numpy as np

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
    import numpy as np

    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])

"""Measure the memory and time of workloads, predict those of a run before it starts, and refuse one that does not fit.

A workload is a training step, an evaluation or a prediction of a FLARE model on one rank. Training steps and
evaluations are measured by a profiling run: a training of a few steps on generated data, with the code that
`flare train` uses. Predictions are measured directly. Every measurement has a process of its own, whose peak memory is
then that of the workload.

A FLARE model costs the same for every point and block, so that small steps predict large ones. With w = batch x points
of a rank, B blocks and M latents:

    time   = t0 + t1 w + t2 w B + t3 w B M          memory = m0 + m1 w + m2 w B + m3 tiles + known

`known` is what `Workload.known_mb` computes: weights, latents, the features of a stream. Tiles are the scores that
PyTorch's own operators compute. All chunks of a stream are alike: its memory is m0 plus what is known. The coefficients
come from a calibration: five small workloads of the same model, measured on this machine.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import logging
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache
from multiprocessing import active_children
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from flare.data.generation.parallel import inheriting_no_interrupts, worker_pool
from flare.mixer import native
from flare.mixer.chunked import TILE
from flare.mixer.native.block_ops import block_activations, mlp_activations
from flare.models import build_model, count_parameters
from flare.models.streaming import CHUNK, MOST_IN_MEMORY, Stream
from flare.utils.environment import available_memory_mb, peak_memory_mb, processor, reset_peak_memory
from flare.utils.errors import ConfigError, DataError
from flare.utils.files import write_json

if TYPE_CHECKING:
    from flare.train.config import TrainConfig
    from flare.train.field_task import FieldTask
    from flare.train.run_folder import RunFolder
    from flare.train.tasks import Task

logger = logging.getLogger(__name__)

DTYPES = {"32": None, "bf16": torch.bfloat16, "16": torch.float16}
"""Precision -> data type of matrix products under autocast."""
KINDS = ("training", "evaluation", "whole", "stream", "scratch")
"""One optimizer step; the prediction at all points at once within a training; that of `flare predict` at all points at
once, in chunks with the features of all points in memory, and in chunks with the features in a scratch file."""
MMAP_BYTES = 32 * 2**20
"""Size from which the C library returns an array to the system when it is freed. It caches smaller arrays, so that
workloads with small arrays need more memory than the law of large ones predicts: they are calibrated separately."""
FILLER_POINTS = 64
"""Points of the training samples of a profiling run that measures an evaluation."""
SMALL = (4 * 2**20, 16 * 2**20)
"""Bounds for the bytes of one array in the larger workloads of a calibration, if freed arrays are cached."""
LARGE = (36 * 2**20, 52 * 2**20)
"""Bytes of one array in the smaller and larger workloads of a calibration, if freed arrays are returned."""
MOST_LATENTS = 512
"""Most latents of a calibration, which also measures four times as many: its time grows with them."""
MARGIN = 1.15
"""Free memory must exceed the prediction by this factor, the accuracy of predictions."""
REMEDIES = {
    "training": "recompute=true, a larger optim.accumulate, a smaller data.subsample",
    "evaluation": "data.eval_batch_size=1",
}


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
    """What the ranks share: `samples` of a batch, `points` of a sample, or nothing. With shared points a block is not
    one kernel. With either, gradients are kept twice."""
    chunk: int = CHUNK
    """Points per chunk of a streamed prediction."""

    def __post_init__(self) -> None:
        if self.model.get("name", "flare") != "flare":
            raise ConfigError(f"model {self.model['name']!r}: memory and time are predicted for FLARE models only")
        if min(self.points, self.batch, self.chunk) < 1:
            raise ConfigError(f"points={self.points}, batch={self.batch}, chunk={self.chunk}: each must be at least 1")
        if self.device != "cpu" and not torch.cuda.is_available():
            raise ConfigError(f"device={self.device!r}: torch finds no CUDA device on this machine; use device='cpu'")
        assert self.parameters  # raises if the sizes do not fit together

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
        """Number of parameters."""
        return _count_parameters(self.in_dim, self.out_dim, json.dumps(self.sizes, sort_keys=True))

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
    kind = "stream" if workload.point_bytes * points <= MOST_IN_MEMORY else "scratch"
    if chunk is None or points <= chunk:
        kind, chunk = "whole", CHUNK
    same: Any = {name: getattr(workload, name) for name in ("model", "in_dim", "out_dim", "device")}
    return Workload(points=points, kind=kind, chunk=chunk, **same)


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


# ---- measuring -----------------------------------------------------------------------------------------------------


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


# ---- predicting ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CostModel:
    """Coefficients of the two laws."""

    about: Mapping[str, Any]
    """What they depend on; see `calibration_key`."""
    seconds: list[float]
    memory: list[float]

    def predict(self, workload: Workload) -> Usage:
        seconds = float(_time_terms(workload) @ np.array(self.seconds))
        return Usage(float(_memory_terms(workload) @ np.array(self.memory)) + workload.known_mb, seconds)


def calibration_key(workload: Workload) -> dict[str, Any]:
    """Return what a calibration depends on, in the types of JSON.

    That is the machine and everything in a workload except points, batch, blocks and latents, of which only the way
    freed arrays are handled counts.
    """
    sizes = {key: value for key, value in workload.sizes.items() if key not in ("blocks", "latents")}
    rest = {key: value for key, value in asdict(workload).items() if key not in ("points", "batch", "model")}
    machine = {
        "processor": processor() if workload.device == "cpu" else torch.cuda.get_device_name(workload.device),
        "threads": workload.threads,
        "kernels": native.why_not() is None,
        "torch": str(torch.__version__),
    }
    key = rest | {"model": sizes, "hands_back": workload.returns_memory, "machine": machine}
    return json.loads(json.dumps(key))


def measure_costs(workload: Workload) -> CostModel:
    """Measure five small workloads of the same model with fewer blocks."""
    samples, usages = _calibration_workloads(workload), []
    for number, sample in enumerate(samples, 1):
        sizes = f"{sample.points:,} points, {sample.blocks} block(s), {sample.latents} latents"
        logger.info(f"calibrating {workload.kind}, step {number} of {len(samples)}: {sizes}")
        usages.append(measure(sample))
    seconds = _fit([_time_terms(s) for s in samples], [u.seconds for u in usages])
    memory = [u.memory_mb - s.known_mb for s, u in zip(samples, usages, strict=True)]
    return CostModel(calibration_key(workload), seconds, _fit([_memory_terms(s) for s in samples], memory))


def _calibration_workloads(workload: Workload) -> list[Workload]:
    low, high = (size // workload.point_bytes for size in (LARGE if workload.returns_memory else SMALL))
    if workload.is_streamed:
        low, high = 2 * workload.chunk, 3 * workload.chunk
    elif not workload.returns_memory:
        high = min(max(workload.total_points, low), high)
        low = high // 4
    # PyTorch's own operators keep much memory; a calibration should fit wherever the run does.
    more, latents = 3 if workload.uses_kernels else 2, min(workload.latents, MOST_LATENTS)
    tries = [(points, blocks, latents) for blocks in (1, more) for points in (low, high)]
    tries.append((low, more, 4 * latents))
    return [
        replace(workload, points=points, batch=1, model={**workload.model, "blocks": blocks, "latents": count})
        for points, blocks, count in dict.fromkeys(tries)
    ]


class Planner:
    """Memory and time of workloads, from calibrations that are made when first needed.

    Args:
        path: JSON file that keeps calibrations of any number of models and machines. Matching ones are reused.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.calibrations = _read(path) if path is not None and path.exists() else []

    def predict(self, workload: Workload) -> Usage:
        """Return the memory and time of a workload, after a calibration if none matches."""
        return self._calibration(workload).predict(workload)

    def largest(self, workload: Workload, memory_mb: float) -> dict[str, Workload | None]:
        """Return the workloads with the most points, batch or latents that fit into the memory.

        Only one of the three changes at a time. The value is None if not even one point, sample or latent fits. There
        are never more latents than points, which could not make the mixing richer.
        """

        def with_latents(count: int) -> Workload:
            return replace(workload, model={**workload.model, "latents": count})

        def most(change: Callable[[int], Workload], count: int, limit: int = 2**40) -> Workload | None:
            low, high = 0, limit + 1  # the largest count known to fit, the smallest known not to
            while high - low > 1:
                if fits(self.predict(change(count)).memory_mb, memory_mb):
                    low, count = count, min(2 * count, (count + high) // 2)
                else:
                    high, count = count, (low + count) // 2
            return change(low) if low else None

        return {
            "points": most(lambda count: replace(workload, points=count), workload.points),
            "samples at a time": most(lambda count: replace(workload, batch=count), workload.batch),
            "latents": most(with_latents, min(workload.latents, workload.points), workload.points),
        }

    def _calibration(self, workload: Workload) -> CostModel:
        key = calibration_key(workload)
        for known in self.calibrations:
            if known.about == key:
                return known
        made = measure_costs(workload)
        self.calibrations.append(made)
        if self.path is not None:
            write_json(self.path, {"calibrations": [asdict(known) for known in self.calibrations]})
        return made


def _read(path: Path) -> list[CostModel]:
    try:
        return [CostModel(**record) for record in json.loads(path.read_text(encoding="utf-8"))["calibrations"]]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise DataError(f"{path} is not a file of calibrations ({error!r}); choose another file") from None


def fits(need_mb: float, memory_mb: float) -> bool:
    """Whether a predicted peak fits into the memory, with `MARGIN` to spare."""
    return MARGIN * need_mb <= memory_mb


def surely_fits(workload: Workload, memory_mb: float) -> bool:
    """Whether a workload fits by a bound that needs no calibration.

    PyTorch's own operators keep less than half as many arrays of C channels per block, and less than 8 tiles of scores.
    """
    kv_depth, ffn_depth = (int(workload.sizes.get(name, 3)) for name in ("kv_depth", "ffn_depth"))
    ratio = int(workload.sizes.get("ffn_ratio") or (4 if workload.sizes.get("ffn") == "standard" else 1))
    arrays = 30 + 6 * (kv_depth + ratio * (ffn_depth + 1))
    activations = arrays * 4 * workload.channels * workload.total_points * (workload.blocks + 1)
    return 1024 + workload.known_mb + (activations + 8 * 4 * _tile_scores(workload)) / 2**20 < memory_mb


def _time_terms(workload: Workload) -> np.ndarray:
    w, b, m = workload.total_points, workload.blocks, workload.latents
    return np.array([1.0, w, w * b, w * b * m])


def _memory_terms(workload: Workload) -> np.ndarray:
    if workload.is_streamed:
        return np.array([1.0, 0, 0, 0])
    tiles = _tile_scores(workload) if workload.shared == "points" and not workload.uses_kernels else 0
    return np.array([1.0, workload.total_points, workload.total_points * workload.blocks, tiles])


def _tile_scores(workload: Workload) -> int:
    return workload.batch * workload.heads * workload.latents * min(workload.points, TILE)


def _fit(terms: list[np.ndarray], values: list[float]) -> list[float]:
    """Return the nonnegative coefficients with the least relative errors."""
    from scipy.optimize import nnls

    a, y = np.stack(terms), np.array(values)
    size = np.where(a.any(0), a.max(0), 1.0)
    found, _ = nnls(a / size / y[:, None], np.ones(len(y)))
    return (found / size).tolist()


def check_fits(config: TrainConfig, task: Task) -> None:
    """Refuse a FLARE run whose largest step or evaluation does not fit into the free memory.

    Workloads that fit by a rough bound are not calibrated. Only the first rank checks.

    Raises:
        ConfigError: A step or an evaluation does not fit.
    """
    from flare.train.field_task import FieldTask

    local_ranks, ranks = (int(os.environ.get(name, "1")) for name in ("LOCAL_WORLD_SIZE", "WORLD_SIZE"))
    if config.model["name"] != "flare" or os.environ.get("RANK", "0") != "0":
        return
    if not isinstance(task, FieldTask):  # the trainer refuses the model
        return
    step, evaluation = largest_workloads(config, task, ranks)
    memory = available_memory_mb(step.device, local_ranks)
    # With as many points, an evaluation needs less than a step, as it keeps nothing for gradients.
    workloads = [step, evaluation] if evaluation.total_points > step.total_points else [step]
    uncertain = [workload for workload in workloads if not surely_fits(workload, memory)]
    if uncertain:
        logger.info("large run: measuring whether it fits into memory, one or two minutes (fit=ignore skips this)")
    planner = Planner()
    for workload in uncertain:
        need = planner.predict(workload).memory_mb
        if not fits(need, memory):
            raise ConfigError(
                f"{workload.kind} with {workload.batch} x {workload.points:,} points needs about {need / 1024:.2f} GiB "
                f"plus a margin of {MARGIN - 1:.0%}; {memory / 1024:.2f} GiB are free. Try {REMEDIES[workload.kind]}, "
                f"or more ranks with split=points. `flare plan` shows what fits; fit=ignore starts anyway"
            )


def largest_workloads(config: TrainConfig, task: FieldTask, ranks: int) -> tuple[Workload, Workload]:
    """Return the share of one rank in the largest micro-batch, and in the largest batch that is evaluated."""
    data, schema, sizes = config.data, task.dataset.schema, task.dataset.sizes
    point_ranks = (config.point_ranks or ranks) if config.split == "points" else 1
    sample_ranks = max(1, ranks // point_ranks)
    cuda = config.device == "cuda" or (config.device == "auto" and torch.cuda.is_available())
    common: dict[str, Any] = {
        "model": config.model,
        "in_dim": schema.in_dim,
        "out_dim": schema.out_dim,
        "precision": "32" if config.precision == "16" and not cuda else config.precision,
        "device": "cuda" if cuda else "cpu",
        "shared": config.split if ranks > 1 else "",
    }
    points = int(sizes[task.train].max())
    step = Workload(
        points=math.ceil(min(data.subsample or points, points) / point_ranks),
        batch=max(1, data.batch_size // (sample_ranks * config.optim.accumulate)),
        recompute=config.recompute,
        **common,
    )
    splits = task.evaluated.values()
    evaluation = Workload(
        points=math.ceil(max(int(sizes[indices].max()) for indices in splits) / point_ranks),
        batch=min(data.eval_batch_size, max(math.ceil(len(indices) / sample_ranks) for indices in splits)),
        kind="evaluation",
        **common,
    )
    return step, evaluation

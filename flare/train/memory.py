"""Predict the memory and time of a run before it starts, and refuse a run that does not fit.

A FLARE model costs the same for every point and block, so that small steps predict large ones. With w = batch x points
of a rank, B blocks and M latents:

    time   = t0 + t1 w + t2 w B + t3 w B M          memory = m0 + m1 w + m2 w B + m3 tiles + known

`known` is what `Workload.known_mb` computes: weights, latents, the features of a stream. Tiles are the scores that
PyTorch's own operators compute. All chunks of a stream are alike: its memory is m0 plus what is known. The coefficients
come from a calibration: five small workloads of the same model, measured on this machine.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from flare.mixer import native
from flare.mixer.chunked import TILE
from flare.train.profiling import Usage, Workload, measure
from flare.utils.environment import available_memory_mb, processor
from flare.utils.errors import ConfigError, DataError
from flare.utils.files import write_json

if TYPE_CHECKING:
    from flare.train.config import TrainConfig
    from flare.train.field_task import FieldTask

logger = logging.getLogger(__name__)

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
LAUNCHER_DEFAULTS = {"LOCAL_WORLD_SIZE": "1", "WORLD_SIZE": "1", "RANK": "0"}
"""Environment variables of torchrun, with their values without it."""


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


def calibrate(workload: Workload) -> CostModel:
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
    # PyTorch's own operators keep much memory; a calibration should fit wherever the run does.
    more = 3 if workload.uses_kernels else 2
    latents = min(workload.latents, MOST_LATENTS)
    small, large = _calibration_points(workload)
    tries = [(small, 1, latents), (large, 1, latents), (small, more, latents), (large, more, latents)]
    tries += [(small, more, 4 * latents)]
    return [
        replace(workload, points=points, batch=1, model={**workload.model, "blocks": blocks, "latents": count})
        for points, blocks, count in dict.fromkeys(tries)
    ]


def _calibration_points(workload: Workload) -> tuple[int, int]:
    """Return the points of the smaller and the larger workloads of a calibration."""
    if workload.is_streamed:
        return 2 * workload.chunk, 3 * workload.chunk
    low, high = (size // workload.point_bytes for size in (LARGE if workload.returns_memory else SMALL))
    if workload.returns_memory:
        return low, high
    large = min(max(workload.total_points, low), high)
    return large // 4, large


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

        large = workload.returns_memory
        return {
            "points": self._most(lambda count: replace(workload, points=count), large, memory_mb),
            "samples at a time": self._most(lambda count: replace(workload, batch=count), large, memory_mb),
            "latents": self._most(with_latents, large, memory_mb, workload.points),
        }

    def _most(
        self, change: Callable[[int], Workload], is_large: bool, memory_mb: float, limit: int = 2**40
    ) -> Workload | None:
        """Search by the law of large arrays if any of these fit, otherwise by the law of small ones."""

        def fits_count(count: int) -> bool:
            return fits(self.predict(change(count)).memory_mb, memory_mb)

        cached = _last(lambda count: not change(count).returns_memory, 1, limit)
        beyond = cached < limit and (is_large or fits_count(cached)) and fits_count(cached + 1)
        most = _last(fits_count, cached + 1, limit) if beyond else _last(fits_count, 1, cached)
        return change(most) if most else None

    def _calibration(self, workload: Workload) -> CostModel:
        key = calibration_key(workload)
        for known in self.calibrations:
            if known.about == key:
                return known
        self._log_other_machine(key)
        made = calibrate(workload)
        self.calibrations.append(made)
        if self.path is not None:
            write_json(self.path, {"calibrations": [asdict(known) for known in self.calibrations]})
        return made

    def _log_other_machine(self, key: Mapping[str, Any]) -> None:
        """Log why a calibration of the same model cannot be reused."""
        here = key["machine"]
        for known in self.calibrations:
            there = known.about["machine"]
            if {**known.about, "machine": here} == key:
                changes = [
                    f"{name} {there.get(name)}, here {here[name]}" for name in here if there.get(name) != here[name]
                ]
                logger.info(f"{self.path} has a calibration of another machine ({'; '.join(changes)}); measuring again")
                return


def _read(path: Path) -> list[CostModel]:
    try:
        found = [CostModel(**record) for record in json.loads(path.read_text(encoding="utf-8"))["calibrations"]]
        for known in found:
            if not isinstance(known.about["machine"], dict):
                raise TypeError("a calibration has no machine")
            if not np.isfinite(np.array([known.seconds, known.memory], float).reshape(2, 4)).all():
                raise ValueError("a calibration needs two times four finite numbers")
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(f"{path} is not a file of calibrations ({error!r}); choose another file") from None
    return found


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


def _last(holds: Callable[[int], bool], low: int, high: int) -> int:
    """Return the last number in low … high for which a monotone condition holds; low - 1 if for none."""
    if low > high or not holds(low):
        return low - 1
    step = 1
    while low + step <= high and holds(low + step):
        low, step = low + step, 2 * step
    high = min(high + 1, low + step)  # the first number for which it does not hold
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def points_per_rank(points: int, ranks: int) -> int:
    """Return the points of a sample on the rank that has most."""
    return math.ceil(points / ranks)


def check_fits(config: TrainConfig) -> None:
    """Refuse a FLARE run whose largest step or evaluation does not fit into the free memory.

    Workloads that fit by a rough bound are not calibrated. Only the first rank checks.

    Raises:
        ConfigError: A step or an evaluation does not fit.
    """
    from flare.train.field_task import FieldTask
    from flare.train.tasks import make_task

    local_ranks, ranks, rank = (int(os.environ.get(name, default)) for name, default in LAUNCHER_DEFAULTS.items())
    if config.model["name"] != "flare" or rank != 0:
        return
    task = make_task(config)
    if not isinstance(task, FieldTask):  # the trainer refuses the model
        return
    step, evaluation = largest_step(config, task, ranks), largest_evaluation(config, task, ranks)
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


def largest_step(config: TrainConfig, task: FieldTask, ranks: int) -> Workload:
    """Return the share of one rank in the largest micro-batch."""
    most = int(task.dataset.sizes[task.train].max())
    point_ranks, sample_ranks = _rank_grid(config, ranks)
    return Workload(
        points=points_per_rank(min(config.data.subsample or most, most), point_ranks),
        batch=max(1, config.data.batch_size // (sample_ranks * config.optim.accumulate)),
        recompute=config.recompute,
        **_common(config, task, ranks),
    )


def largest_evaluation(config: TrainConfig, task: FieldTask, ranks: int) -> Workload:
    """Return the share of one rank in the largest batch that is evaluated, with all points of its samples."""
    splits = task.evaluated.values()
    point_ranks, sample_ranks = _rank_grid(config, ranks)
    most = max(int(task.dataset.sizes[indices].max()) for indices in splits)
    count = max(math.ceil(len(indices) / sample_ranks) for indices in splits)
    return Workload(
        points=points_per_rank(most, point_ranks),
        batch=min(config.data.eval_batch_size, count),
        kind="evaluation",
        **_common(config, task, ranks),
    )


def _rank_grid(config: TrainConfig, ranks: int) -> tuple[int, int]:
    """Return the number of ranks that share the points of a sample, and the samples of a batch."""
    point_ranks = (config.point_ranks or ranks) if config.split == "points" else 1
    return point_ranks, max(1, ranks // point_ranks)


def _common(config: TrainConfig, task: FieldTask, ranks: int) -> dict[str, Any]:
    """Return what a step and an evaluation have in common."""
    schema = task.dataset.schema
    cuda = config.device == "cuda" or (config.device == "auto" and torch.cuda.is_available())
    return {
        "model": config.model,
        "in_dim": schema.in_dim,
        "out_dim": schema.out_dim,
        "precision": "32" if config.precision == "16" and not cuda else config.precision,
        "device": "cuda" if cuda else "cpu",
        "shared": config.split if ranks > 1 else "",
    }

"""Predict the memory and time of workloads from small ones, and refuse a run that does not fit into memory.

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
from flare.train.profiling import Usage, measure
from flare.train.workload import Workload
from flare.utils.environment import available_memory_mb, processor
from flare.utils.errors import ConfigError, DataError
from flare.utils.files import write_json

if TYPE_CHECKING:
    from flare.train.config import TrainConfig
    from flare.train.field_task import FieldTask
    from flare.train.tasks import Task

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


@dataclass(frozen=True)
class CostModel:
    """Coefficients of the two laws."""

    about: Mapping[str, Any]
    """What they depend on; see `calibration_key`."""
    seconds: list[float]
    memory: list[float]

    def predict(self, workload: Workload) -> Usage:
        """Evaluate both laws."""
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
        sizes = f"{sample.points:,} points, {sample.size('blocks')} block(s), {sample.size('latents')} latents"
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
    more, latents = 3 if workload.uses_kernels else 2, min(workload.size("latents"), MOST_LATENTS)
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
        self.calibrations: list[CostModel] = []
        if path is None or not path.exists():
            return
        try:
            records = json.loads(path.read_text(encoding="utf-8"))["calibrations"]
            self.calibrations = [CostModel(**record) for record in records]
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise DataError(f"{path} is not a file of calibrations ({error!r}); choose another file") from None

    def predict(self, workload: Workload) -> Usage:
        """Predict the memory and time of a workload. If no calibration matches it, measure a new one first."""
        key = calibration_key(workload)
        for known in self.calibrations:
            if known.about == key:
                return known.predict(workload)
        made = measure_costs(workload)
        self.calibrations.append(made)
        if self.path is not None:
            write_json(self.path, {"calibrations": [asdict(known) for known in self.calibrations]})
        return made.predict(workload)

    def largest(self, workload: Workload, memory_mb: float) -> dict[str, Workload | None]:
        """Return the workloads with the most points, batch or latents that fit into the memory.

        Only one of the three changes at a time. The value is None if not even one point, sample or latent fits. There
        are never more latents than points, which could not make the mixing richer.
        """

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
            "latents": most(
                lambda count: replace(workload, model={**workload.model, "latents": count}),
                min(workload.size("latents"), workload.points),
                workload.points,
            ),
        }


def fits(need_mb: float, memory_mb: float) -> bool:
    """Return True if a predicted peak fits into the memory, with `MARGIN` to spare."""
    return MARGIN * need_mb <= memory_mb


def surely_fits(workload: Workload, memory_mb: float) -> bool:
    """Return True if a workload fits by a bound that needs no calibration.

    PyTorch's own operators keep less than half as many arrays of C channels per block, and less than 8 tiles of scores.
    """
    ratio = int(workload.model.get("ffn_ratio") or (4 if workload.model.get("ffn") == "standard" else 1))
    arrays = 30 + 6 * (workload.size("kv_depth") + ratio * (workload.size("ffn_depth") + 1))
    activations = arrays * 4 * workload.size("channels") * workload.total_points * (workload.size("blocks") + 1)
    return 1024 + workload.known_mb + (activations + 8 * 4 * _tile_scores(workload)) / 2**20 < memory_mb


def _time_terms(workload: Workload) -> np.ndarray:
    w, b, m = workload.total_points, workload.size("blocks"), workload.size("latents")
    return np.array([1.0, w, w * b, w * b * m])


def _memory_terms(workload: Workload) -> np.ndarray:
    if workload.is_streamed:
        return np.array([1.0, 0, 0, 0])
    tiles = _tile_scores(workload) if workload.shared == "points" and not workload.uses_kernels else 0
    return np.array([1.0, workload.total_points, workload.total_points * workload.size("blocks"), tiles])


def _tile_scores(workload: Workload) -> int:
    return workload.batch * workload.size("heads") * workload.size("latents") * min(workload.points, TILE)


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
    if config.model["name"] != "flare" or os.environ.get("RANK", "0") != "0" or not isinstance(task, FieldTask):
        return  # the trainer refuses FLARE for other tasks
    step, evaluation = largest_workloads(config, task, ranks)
    memory = available_memory_mb(step.device, local_ranks)
    # With as many points, an evaluation needs less than a step, as it keeps nothing for gradients.
    workloads = [step, evaluation] if evaluation.total_points > step.total_points else [step]
    uncertain = [workload for workload in workloads if not surely_fits(workload, memory)]
    if uncertain:
        logger.info("large run: measuring whether it fits into memory (memory_check=false skips this)")
    planner = Planner()
    for workload in uncertain:
        need = planner.predict(workload).memory_mb
        if not fits(need, memory):
            raise ConfigError(
                f"{workload.kind} with {workload.batch} x {workload.points:,} points needs about {need / 1024:.2f} GiB "
                f"plus a margin of {MARGIN - 1:.0%}; {memory / 1024:.2f} GiB are free. Try {REMEDIES[workload.kind]}, "
                f"or more ranks with ranks_share=points. `flare plan` shows what fits; memory_check=false starts anyway"
            )


def largest_workloads(config: TrainConfig, task: FieldTask, ranks: int) -> tuple[Workload, Workload]:
    """Return the share of one rank in the largest micro-batch, and in the largest batch that is evaluated."""
    data, schema, sizes = config.data, task.dataset.schema, task.dataset.sizes
    point_ranks = (config.point_ranks or ranks) if config.ranks_share == "points" else 1
    sample_ranks = max(1, ranks // point_ranks)
    cuda = config.device == "cuda" or (config.device == "auto" and torch.cuda.is_available())
    common: dict[str, Any] = {
        "model": config.model,
        "in_dim": schema.in_dim,
        "out_dim": schema.out_dim,
        "precision": "32" if config.precision == "16" and not cuda else config.precision,
        "device": "cuda" if cuda else "cpu",
        "shared": config.ranks_share if ranks > 1 else "",
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

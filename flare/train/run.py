"""From a configuration to a finished run folder: start or resume, train, judge."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Collection
from contextlib import nullcontext
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from lightning_fabric import Fabric

from flare.mixer import choose, native
from flare.models import count_parameters
from flare.surrogate import find_checkpoint
from flare.train.checkpoint import copy_checkpoint, read_position
from flare.train.config import TrainConfig
from flare.train.distributed.fabric import launched_fabric
from flare.train.distributed.ranks import Ranks, place
from flare.train.loop import Trainer
from flare.train.run_folder import RunFolder
from flare.train.schedule import decay_start
from flare.train.tasks import make_task
from flare.utils.environment import describe_environment, peak_memory_mb
from flare.utils.errors import CheckpointError, ConfigError, differences
from flare.utils.files import write_json
from flare.utils.text import counted

logger = logging.getLogger(__name__)


def start(config: TrainConfig, out: str | os.PathLike[str]) -> dict[str, Any]:
    """Train anew into the folder `out`, which must not hold a run.

    Returns:
        The result record, also in `result.json`; empty on all ranks but the first.
    """
    return _work(_anchored(config), RunFolder(out), resume=False)


def resume(
    run: str | os.PathLike[str], expected: TrainConfig | None = None, free: Collection[str] = ()
) -> dict[str, Any]:
    """Go on with a run from its last checkpoint, or return its result where it is finished.

    Args:
        expected: refuse the run where it was configured otherwise.
        free: settings, such as `data.path`, that may be otherwise; the run goes on with those of `expected`.
    """
    folder = RunFolder(run)
    config = folder.config()
    if expected is not None:
        expected = _anchored(expected)
        if expected.minutes is not None:  # their number of steps was measured when the run was begun
            expected = replace(expected, steps=config.steps)
        found = differences(config.to_dict(), expected.to_dict())
        for key, there, here in found:
            if key not in free:
                raise ConfigError(
                    f"{folder.path} was begun with other settings: {key} is {there!r} there and {here!r} here. "
                    f"Give the same settings to go on with it, or another --out"
                )
        if found:
            config = expected
            folder.write_config(config)
    if (folder.path / "result.json").exists():
        logger.info(f"{folder.path} is finished already")
        return read_result(folder.path)
    return _work(config, folder, resume=True)


def extend(run: str | os.PathLike[str], *, epochs: int | None = None, steps: int | None = None) -> dict[str, Any]:
    """Continue a run to another length: longer, or shorter if its learning rate has not begun to decay.

    The run goes on from its last checkpoint if the learning rate up to there is the same for the new length, and
    otherwise from the end of its stable phase.

    Args:
        run: Run folder whose schedule is `wsd` or `constant`.
        epochs: New number of epochs.
        steps: New number of optimizer steps, in place of epochs.

    Returns:
        The result record of the longer run.

    Raises:
        ConfigError: The schedule depends on the length, or the run is beyond the point where it would have to decay.
    """
    folder = RunFolder(run)
    old = folder.config()
    config = replace(old, steps=steps) if epochs is None else replace(old, epochs=epochs, steps=None)
    if old.optim.schedule not in ("wsd", "constant"):
        raise ConfigError(
            f"{folder.path} has the schedule {old.optim.schedule}, which depends on the length of the run; only runs "
            "with --optim.schedule wsd or constant can be extended"
        )
    with folder.locked():
        _rewind(folder, old, config)
        for outdated in ("result.json", "test_errors.json", "calibration*.safetensors", "report.html"):
            for path in folder.path.glob(outdated):
                path.unlink()
        folder.write_config(config)
    return resume(run)


def _rewind(folder: RunFolder, old: TrainConfig, new: TrainConfig) -> None:
    """Let the last checkpoint be one up to which both lengths have the same learning rate."""
    per_epoch = len(make_task(old).train) // old.data.batch_size

    def same_until(config: TrainConfig) -> int:
        total = config.steps or per_epoch * config.epochs
        return decay_start(total, config.optim) if config.optim.schedule == "wsd" else total

    limit, found = min(same_until(old), same_until(new)), {}
    for name in ("last", "stable"):
        if folder.has_checkpoint(name):
            found[name] = read_position(find_checkpoint(folder.path, name)).step
    usable = [name for name, step in found.items() if step <= limit]
    if found and not usable:
        step = min(found.values())
        earliest = next(n for n in count(1) if same_until(replace(new, epochs=n, steps=None)) >= step)
        raise ConfigError(
            f"{folder.path} is at step {step:,}, and the learning rate of a run that short decays from step {limit:,} "
            f"on; it can end after {earliest} epochs at the earliest"
        )
    if usable and usable[0] == "stable":
        copy_checkpoint(folder, "stable", "last")


def start_or_resume(config: TrainConfig, out: str | os.PathLike[str], free: Collection[str] = ()) -> dict[str, Any]:
    """Train into `out`, or go on there if a run of the same settings, but for those that are `free`, was begun; a
    finished one is only read."""
    return resume(out, expected=config, free=free) if RunFolder(out).exists else start(config, out)


def read_result(run: Path) -> dict[str, Any]:
    """The record of a finished run."""
    try:
        return json.loads((run / "result.json").read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{run / 'result.json'} cannot be read ({error}); remove it and resume the run") from None


def _anchored(config: TrainConfig) -> TrainConfig:
    """With an absolute dataset path: a run is evaluated and resumed from any folder."""
    path = config.data.path
    return replace(config, data=replace(config.data, path=str(Path(path).resolve()) if path else ""))


def _work(config: TrainConfig, run: RunFolder, *, resume: bool) -> dict[str, Any]:
    with launched_fabric(config, run) as fabric:
        return work_on(fabric, place(config, fabric), config, run, resume=resume)


def work_on(
    fabric: Fabric, ranks: Ranks, config: TrainConfig, run: RunFolder, *, resume: bool = False
) -> dict[str, Any]:
    """The same on a Fabric that is launched, as the rank at this place."""
    begun = time.monotonic()
    task = make_task(config, ranks)
    if not resume:
        run.refuse_if_taken()
        if config.minutes is not None:
            steps = steps_within(60 * config.minutes, Trainer(config, task, run, fabric, ranks), begun)
            config = replace(config, steps=steps)
    # Everything that can be wrong with the settings or the data has shown itself before the folder is touched.
    trainer = Trainer(config, task, run, fabric, ranks, resumed=resume)
    reason = native.why_not() if fabric.device.type == "cpu" and fabric.is_global_zero else None
    if reason and "flare" in (config.model["name"], config.model.get("attention")):
        logger.info(f"training without the native kernels, several times slower: {reason}")
    with run.locked() if fabric.is_global_zero else nullcontext():
        if resume:
            trainer.resume()
        elif fabric.is_global_zero:
            run.create(config)
        fabric.barrier()
        return _train_and_judge(trainer, fabric)


RESERVE = 25.0
"""Seconds kept for starting the command, and for error bars and report beside their predictions."""


def steps_within(seconds: float, trainer: Trainer, begun: float) -> int:
    """Return the number of optimizer steps after which a whole run, report included, has taken so many seconds.

    Args:
        seconds: Time for the run.
        trainer: A trainer of the same run, which is profiled and of no use afterwards.
        begun: Monotonic time at which the run began.
    """
    step, evaluation = trainer.profile()
    splits = list(trainer.task.judged.values())
    passes = 1 if trainer.ema is None else 2
    # After the last step all splits are evaluated; error bars and report take about as long as two evaluations more.
    final = evaluation * (passes * sum(map(len, splits)) / len(splits[0]) + 2)
    left = 0.95 * seconds - (time.monotonic() - begun) - RESERVE - final
    steps = int(left / (step + passes * evaluation / (trainer.config.evaluate_every * trainer.plan.steps)))
    steps = int(trainer.ranks.add_up(np.array([steps]))[0]) // trainer.fabric.world_size
    if steps < 1:
        raise ConfigError(
            f"minutes={seconds / 60:g} is too short for a step of {step:.3g} s, evaluations of {evaluation:.3g} s and "
            f"{RESERVE:g} s for error bars and report"
        )
    return steps


def _train_and_judge(trainer: Trainer, fabric: Fabric) -> dict[str, Any]:
    if not trainer.position.finished:
        if fabric.is_global_zero:
            logger.info(_headline(trainer))
        trainer.train()
    errors = {split: trainer.errors_of(split) for split in trainer.task.judged}
    averaged = _averaged_scores(trainer)
    if not fabric.is_global_zero:
        return {}
    result = trainer.task.result(errors) | averaged | _record(trainer)
    write_json(trainer.run.path / "test_errors.json", trainer.task.of_samples(errors))
    write_json(trainer.run.path / "result.json", result)
    return result


def _headline(trainer: Trainer) -> str:
    """What is about to be trained: an input that was forgotten is seen here, not after the last epoch."""
    task, data = trainer.task, trainer.config.data
    samples = {data.train_split: task.train, **task.judged}
    listed = ", ".join(f"{split} {len(of_split):,}" for split, of_split in samples.items())
    size = counted(count_parameters(trainer.surrogate), "parameter")
    model = f"{trainer.config.model['name']} of {size} on {trainer.fabric.device}"
    return f"learning {task.learns}; samples: {listed}; {model}"


def _averaged_scores(trainer: Trainer) -> dict[str, Any]:
    """What the averaged weights make of each split, such as `accuracy_ema`, where the run keeps them."""
    found: dict[str, Any] = {}
    if trainer.ema is not None:
        with trainer.ema.swapped_in(trainer.surrogate):
            for split in trainer.task.judged:
                for name, score in trainer.task.scores(trainer.errors_of(split)).items():
                    found.setdefault(f"{name}_ema", {})[split] = score
    return found


def _epochs(trainer: Trainer) -> float:
    """Passes over the training samples: a number of steps, which counts in place of epochs, makes parts of them."""
    config = trainer.config
    return config.epochs if config.steps is None else round(trainer.position.step / trainer.plan.steps, 2)


def _record(trainer: Trainer) -> dict[str, Any]:
    """On what a result was measured, and with what."""
    task, config = trainer.task, trainer.config
    return {
        "test_samples": len(task.judged.get(config.data.test_split, ())),
        "train_samples": len(task.train),
        "dataset": task.dataset.schema.name,
        "provenance": task.dataset.about["provenance"].get("kind", "unknown"),
        "departures": task.dataset.about["provenance"].get("departures", {}),
        "data_fingerprint": task.dataset.fingerprint,
        "model": config.model,
        "parameters": count_parameters(trainer.surrogate),
        "seed": config.seed,
        "epochs": _epochs(trainer),
        "steps": trainer.position.step,
        "seconds": round(trainer.position.seconds, 1),
        "peak_memory_mb": round(peak_memory_mb()),
        "environment": describe_environment() | {"mixer": ": ".join(choose())},
    }

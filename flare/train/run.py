"""Runs: start, resume, extend, evaluate, calibrate and report."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Collection, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from lightning_fabric import Fabric

from flare.inference.calibration.calibrate import Calibration, calibration_path, load_calibration
from flare.inference.surrogate import Learner, Surrogate, find_checkpoint, load
from flare.mixer import choose, native
from flare.models import count_parameters
from flare.train.checkpoint import copy_checkpoint, read_position
from flare.train.config import TrainConfig
from flare.train.distributed.fabric import launched_fabric
from flare.train.distributed.ranks import Ranks, place
from flare.train.loop import Trainer
from flare.train.planning import check_fits
from flare.train.presets import dotted, preset_path, read_yaml
from flare.train.recipes import model_name, resolve_config
from flare.train.run_folder import RunFolder
from flare.train.schedule import decay_start
from flare.train.tasks import Task, data_path, make_task, task_of_run
from flare.utils.environment import describe_environment, peak_memory_mb
from flare.utils.errors import CheckpointError, ConfigError, FlareError, differences
from flare.utils.files import write_json
from flare.utils.text import counted

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Run:
    """A finished run, as returned by `flare.train`."""

    path: Path
    """The run folder."""
    result: Mapping[str, Any]
    """Content of `result.json`; empty on all ranks but the first."""
    calibration: Calibration | None = None
    """Error bars and OOD detector of the last weights."""
    _loaded: Learner | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        scores = [f"{split} {name} {v:.4g}" for split, found in self.metrics.items() for name, v in found.items()]
        return f"Run({str(self.path)!r}: {', '.join(scores)})"

    @property
    def metrics(self) -> dict[str, dict[str, float]]:
        """Split -> metrics of the last weights, such as `run.metrics["test"]["rel_l2"]`."""
        if "metrics" in self.result or not self.result:
            return dict(self.result.get("metrics", {}))
        return {self.result["split"]: {"rel_l2": self.result["rel_l2"]}}  # written before there were metrics

    @cached_property
    def surrogate(self) -> Surrogate:
        """The surrogate with the last weights, on the CPU."""
        return self._loaded if isinstance(self._loaded, Surrogate) else load(self.path)


def train_run(
    given: Mapping[str, Any],
    settings: Mapping[str, Any],
    *,
    out: str | os.PathLike[str] | None,
    preset: str | None,
    recipe: str | None,
    resumed: str | os.PathLike[str] | None,
    if_exists: str,
    memory_check: bool,
    report: bool,
) -> Run:
    """Train, calibrate and report; `given` and `settings` are joined, the rest is as for `flare.train`."""
    if if_exists not in ("refuse", "resume"):
        raise ConfigError(f"if_exists={if_exists!r}: use refuse or resume")
    overrides, more = dict(dotted(given)), dict(dotted(settings))
    for name in overrides.keys() & more.keys():
        raise ConfigError(f"the setting {name} is given twice, as an argument and in `settings`")
    overrides |= more
    if resumed is not None:
        others = {"preset": preset, "recipe": recipe, "out": out}
        dropped = [name for name, value in others.items() if value] + [*overrides.keys() - {"epochs", "steps"}]
        if dropped:
            raise ConfigError(f"a resumed run keeps its settings; drop {', '.join(dropped)}")
        folder = Path(resumed)
        config = RunFolder(folder).config()
    else:
        config = _anchored(resolve_config(preset=preset, recipe=recipe, settings=overrides))
        folder = Path(out) if out else default_folder(config, preset, recipe, overrides.get("model.name"))
    extended = resumed is not None and bool(overrides)
    task = make_task(config) if extended or not (folder / "result.json").exists() else None
    if task is not None and memory_check:
        check_fits(config, task)
    if extended:
        result = extend(folder, task=task, **overrides)
    elif resumed is not None:
        result = resume(folder, task=task)
    elif if_exists == "resume" and RunFolder(folder).exists:
        result = resume(folder, expected=config, task=task)
    else:
        result = start(config, folder, task)
    return _finish(folder, result, task, report=report)


def default_folder(config: TrainConfig, preset: str | None, recipe: str | None, model: str | None) -> Path:
    """Return `runs/<preset>`, with model and recipe if they are not the preset's, or `runs/<dataset>-<model>`."""
    if preset is None:
        return Path("runs") / f"{data_path(config.data).resolve().name}-{config.model['name']}"
    path = preset_path(preset)
    usual = (None, "paper", model_name(read_yaml(path)))
    return Path("runs") / "-".join([path.stem, *(word for word in (model, recipe) if word not in usual)])


def _finish(folder: Path, result: dict[str, Any], task: Task | None, *, report: bool) -> Run:
    """Calibrate a trained run and write its report, unless that is done. Failures are logged; the result is safe."""
    calibration: Calibration | None = None
    learner: Any = None
    if not result:  # another rank than the first
        return Run(folder, result)
    config = RunFolder(folder).config()
    try:
        learner = task_of_run(folder).load(folder, device=config.device)
        calibration = load_calibration(folder, learner)
        if calibration is None:
            task = task or make_task(config)
            calibration = task.calibrate(learner, calibration_path(folder))
    except FlareError as error:
        logger.warning(f"no error bars: {error}")
    if learner is not None:
        learner.cpu()
    if report and learner is not None and not (folder / "report.html").exists():
        logger.info("writing the report ...")
        try:
            (task or make_task(config)).write_report(RunFolder(folder), learner, result)
        except FlareError as error:
            logger.warning(f"no report: {error}")
    return Run(folder, result, calibration, learner)


def calibrate_run(
    run: str | os.PathLike[str], *, checkpoint: str = "last", ema: bool = False, device: str = "cpu"
) -> Calibration | None:
    """Calibrate weights of a run on its own dataset and write the result into the run folder.

    Args:
        run: Run folder.
        checkpoint: `last` or `best`.
        ema: Calibrate the averaged weights.
        device: `cpu`, `cuda`, ..., or `auto`.

    Returns:
        The calibration; None for a task without error bars.
    """
    learner = task_of_run(run, checkpoint).load(run, checkpoint=checkpoint, ema=ema, device=device)
    return make_task(RunFolder(run).config()).calibrate(learner, calibration_path(run, checkpoint, ema))


def start(config: TrainConfig, out: str | os.PathLike[str], task: Task | None = None) -> dict[str, Any]:
    """Train into the folder `out`, which must not hold a run.

    Args:
        config: All settings.
        out: Run folder to write.
        task: The task of `config`, if it is made already.

    Returns:
        The result record, also in `result.json`; empty on all ranks but the first.
    """
    return _work(_anchored(config), RunFolder(out), task, resume=False)


def resume(
    run: str | os.PathLike[str],
    expected: TrainConfig | None = None,
    free: Collection[str] = (),
    task: Task | None = None,
) -> dict[str, Any]:
    """Resume a run from its last checkpoint, or return its result if it is finished.

    Args:
        run: Run folder.
        expected: Settings that the run must have.
        free: Dotted settings, such as `data.path`, that may differ; the run continues with those of `expected`.
        task: The task of the run, if it is made already.

    Raises:
        ConfigError: The run has other settings than `expected`.
    """
    folder = RunFolder(run)
    config = folder.config()
    if expected is not None:
        expected = _anchored(expected)
        if expected.minutes is not None:  # the number of steps was chosen when the run began
            expected = replace(expected, steps=config.steps)
        found = differences(config.to_dict(), expected.to_dict())
        for key, there, here in found:
            if key not in free:
                raise ConfigError(
                    f"{folder.path} has other settings: {key} is {there!r} there and {here!r} here. Use the same "
                    f"settings to resume it, or another `out`"
                )
        if found:
            config = expected
            folder.write_config(config)
    if (folder.path / "result.json").exists():
        logger.info(f"{folder.path} is finished")
        return read_result(folder.path)
    return _work(config, folder, task, resume=True)


def extend(
    run: str | os.PathLike[str], *, epochs: int | None = None, steps: int | None = None, task: Task | None = None
) -> dict[str, Any]:
    """Continue a run to another length: longer, or shorter if its learning rate has not begun to decay.

    The run continues from its last checkpoint if the learning rate up to there is the same for the new length, and
    otherwise from the end of its stable phase.

    Args:
        run: Run folder whose schedule is `wsd` or `constant`.
        epochs: New number of epochs.
        steps: New number of optimizer steps, in place of epochs.
        task: The task of the run, if it is made already.

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
            "with optim.schedule wsd or constant can be extended"
        )
    task = task or make_task(old)
    with folder.locked():
        _rewind(folder, old, config, len(task.train))
        for outdated in ("result.json", "test_errors.json", "calibration*.safetensors", "report.html"):
            for path in folder.path.glob(outdated):
                path.unlink()
        folder.write_config(config)
    return resume(run, task=task)


def _rewind(folder: RunFolder, old: TrainConfig, new: TrainConfig, samples: int) -> None:
    """Make a checkpoint the last one up to which both lengths have the same learning rate."""
    per_epoch = samples // old.data.batch_size

    def same_until(config: TrainConfig) -> int:
        total = config.steps or per_epoch * config.epochs
        return decay_start(total, config.optim) if config.optim.schedule == "wsd" else total

    limit, found = min(same_until(old), same_until(new)), {}
    for name in ("last", "stable"):
        if folder.has_checkpoint(name):
            found[name] = read_position(find_checkpoint(folder.path, name)).step
    usable = [name for name, step in found.items() if step <= limit]
    if found and not usable:
        raise ConfigError(
            f"{folder.path} is at step {min(found.values()):,}, but the learning rate of such a short run decays from "
            f"step {limit:,} on; use more epochs"
        )
    if usable and usable[0] == "stable":
        copy_checkpoint(folder, "stable", "last")


def start_or_resume(config: TrainConfig, out: str | os.PathLike[str], free: Collection[str] = ()) -> dict[str, Any]:
    """Train into `out`, resume a run with the same settings except those in `free`, or read a finished one."""
    return resume(out, expected=config, free=free) if RunFolder(out).exists else start(config, out)


def read_result(run: Path) -> dict[str, Any]:
    """Read the result of a finished run."""
    try:
        return json.loads((run / "result.json").read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{run / 'result.json'} cannot be read ({error}); remove it and resume the run") from None


def _anchored(config: TrainConfig) -> TrainConfig:
    """Make the dataset path absolute, so that the run can be resumed from any folder."""
    path = config.data.path
    return replace(config, data=replace(config.data, path=str(Path(path).resolve()) if path else ""))


def _work(config: TrainConfig, run: RunFolder, task: Task | None, *, resume: bool) -> dict[str, Any]:
    with launched_fabric(config, run) as fabric:
        return work_on(fabric, place(config, fabric), config, run, task or make_task(config), resume=resume)


def work_on(
    fabric: Fabric, ranks: Ranks, config: TrainConfig, run: RunFolder, task: Task, *, resume: bool = False
) -> dict[str, Any]:
    """Train and evaluate on a launched Fabric, as one rank."""
    begun = time.monotonic()
    if not resume:
        run.refuse_if_taken()
        if config.minutes is not None:
            steps = steps_within(60 * config.minutes, Trainer(config, task, run, fabric, ranks), begun)
            config = replace(config, steps=steps)
    # The trainer is built before the folder is touched, so that bad settings or data leave nothing behind.
    trainer = Trainer(config, task, run, fabric, ranks, resumed=resume)
    reason = native.why_not() if fabric.device.type == "cpu" and fabric.is_global_zero else None
    if reason and "flare" in (config.model["name"], config.model.get("attention")):
        logger.warning(f"training without the native kernels, several times slower: {reason}")
    with run.locked() if fabric.is_global_zero else nullcontext():
        if resume:
            trainer.resume()
        elif fabric.is_global_zero:
            run.create(config)
        fabric.barrier()
        return _train_and_evaluate(trainer, fabric)


RESERVE = 40.0
"""Seconds reserved for starting up, error bars and report, without their predictions."""


def steps_within(seconds: float, trainer: Trainer, begun: float) -> int:
    """Return the number of optimizer steps after which a whole run, report included, has taken so many seconds.

    Args:
        seconds: Time for the run.
        trainer: A trainer of the same run, which is profiled and not usable afterwards.
        begun: Monotonic time at which the run began.
    """
    step, evaluation = trainer.profile()
    splits = list(trainer.task.evaluated.values())
    passes = 1 if trainer.ema is None else 2
    # All splits are evaluated after the last step; error bars and report take about as long as two evaluations.
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


def _train_and_evaluate(trainer: Trainer, fabric: Fabric) -> dict[str, Any]:
    if not trainer.position.finished:
        if fabric.is_global_zero:
            logger.info(_headline(trainer))
        trainer.train()
    errors = {split: trainer.errors_of(split) for split in trainer.task.evaluated}
    metrics = {split: trainer.scores(errors[split], split) for split in errors}
    if not fabric.is_global_zero:
        return {}
    names = [name for scores in metrics.values() for name in scores if name.endswith("_ema")]
    averaged = {name: {split: scores[name] for split, scores in metrics.items()} for name in names}
    result = trainer.task.result(errors) | averaged | {"metrics": metrics} | _record(trainer)
    write_json(trainer.run.path / "test_errors.json", trainer.task.sample_records(errors))
    write_json(trainer.run.path / "result.json", result)
    return result


def _headline(trainer: Trainer) -> str:
    """Return inputs, targets, samples and model in one line, so that a forgotten input is noticed early."""
    task, config = trainer.task, trainer.config
    splits = {config.data.train_split: task.train, **task.evaluated}
    listed = ", ".join(f"{split} {len(indices):,}" for split, indices in splits.items())
    size = counted(count_parameters(trainer.surrogate), "parameter")
    model = f"{config.model['name']} of {size} on {trainer.fabric.device}"
    return f"learning {task.description}; samples: {listed}; {model}"


def _record(trainer: Trainer) -> dict[str, Any]:
    """Return data, model, effort and environment of a result."""
    task, config = trainer.task, trainer.config
    passes = round(trainer.position.step / trainer.plan.steps, 2)  # a fraction if the run has a number of steps
    return {
        "test_samples": len(task.evaluated.get(config.data.test_split, ())),
        "train_samples": len(task.train),
        "dataset": task.dataset.schema.name,
        "provenance": task.dataset.about["provenance"].get("kind", "unknown"),
        "departures": task.dataset.about["provenance"].get("departures", {}),
        "data_fingerprint": task.dataset.fingerprint,
        "model": config.model,
        "parameters": count_parameters(trainer.surrogate),
        "seed": config.seed,
        "epochs": config.epochs if config.steps is None else passes,
        "steps": trainer.position.step,
        "seconds": round(trainer.position.seconds, 1),
        "peak_memory_mb": round(peak_memory_mb()),
        "environment": describe_environment() | {"mixer": ": ".join(choose())},
    }

"""From a configuration to a finished run folder: start or resume, train, judge."""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from lightning_fabric import Fabric

from flare.environment import describe_environment, peak_memory_mb
from flare.errors import CheckpointError, ConfigError, first_difference
from flare.files import write_json
from flare.mixer import choose, native
from flare.models import count_parameters
from flare.terminal import say
from flare.train.config import TrainConfig
from flare.train.fabric import launched_fabric
from flare.train.fields import FieldTask, mean_field_errors, median
from flare.train.loop import Trainer
from flare.train.run import RunFolder


def start(config: TrainConfig, out: str | os.PathLike[str]) -> dict[str, Any]:
    """Train anew into the folder `out`, which must not hold a run.

    Returns:
        The result record, also in `result.json`; empty on all ranks but the first.
    """
    return _work(_anchored(config), RunFolder(out), resume=False)


def resume(run: str | os.PathLike[str], expected: TrainConfig | None = None) -> dict[str, Any]:
    """Go on with a run from its last checkpoint, or return its result where it is finished.

    Args:
        expected: refuse the run where it was configured otherwise.
    """
    folder = RunFolder(run)
    config = folder.config()
    difference = first_difference(config.to_dict(), _anchored(expected).to_dict()) if expected is not None else None
    if difference:
        key, there, here = difference
        raise ConfigError(
            f"{folder.path} was begun with other settings: {key} is {there!r} there and {here!r} here. "
            f"Give the same settings to go on with it, or another --out"
        )
    if (folder.path / "result.json").exists():
        say(f"{folder.path} is finished already")
        return read_result(folder.path)
    return _work(config, folder, resume=True)


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
    with launched_fabric(config, run.path) as fabric:
        task = FieldTask(config.data, config.loss)
        if not resume:
            run.refuse_if_taken()
        # Everything that can be wrong with the settings or the data has shown itself before the folder is touched.
        trainer = Trainer(config, task, run, fabric)
        reason = native.why_not() if fabric.device.type == "cpu" and fabric.is_global_zero else None
        if reason and config.model["name"] == "flare":
            say(f"training without the native kernels, several times slower: {reason}")
        with run.locked() if fabric.is_global_zero else nullcontext():
            if resume:
                trainer.resume()
            elif fabric.is_global_zero:
                run.create(config)
            fabric.barrier()
            return _train_and_judge(trainer, fabric)


def _train_and_judge(trainer: Trainer, fabric: Fabric) -> dict[str, Any]:
    if not trainer.position.finished:
        trainer.train()
    errors = trainer.test_errors()
    if not fabric.is_global_zero:
        return {}
    result = _record(trainer, errors)
    samples = [int(i) for i in trainer.task.test]
    write_json(trainer.run.path / "test_errors.json", {"samples": samples, "rel_l2": errors.mean(1).tolist()})
    write_json(trainer.run.path / "result.json", result)
    return result


def _record(trainer: Trainer, errors: np.ndarray) -> dict[str, Any]:
    """The record of a result: what was measured, on what, with what. `errors` is (samples, fields)."""
    task, config = trainer.task, trainer.config
    offset = config.loss.offset
    baseline, kind = mean_field_errors(task.dataset, task.train, task.test, offset=offset)
    of_samples, names = errors.mean(1), task.dataset.schema.named("target")
    return {
        "rel_l2": float(of_samples.mean()),
        "rel_l2_median": median(of_samples),
        "rel_l2_worst": float(of_samples.max()),
        "rel_l2_mean_field": float(baseline.mean()),
        "fields": {
            name: {"rel_l2": float(ours), "rel_l2_mean_field": float(theirs)}
            for name, ours, theirs in zip(names, errors.mean(0), baseline.mean(0), strict=True)
        },
        "mean_field": kind,
        "offset": offset,
        "split": config.data.test_split,
        "test_samples": len(errors),
        "train_samples": len(task.train),
        "dataset": task.dataset.schema.name,
        "provenance": task.dataset.about["provenance"].get("kind", "unknown"),
        "departures": task.dataset.about["provenance"].get("departures", {}),
        "data_fingerprint": task.dataset.fingerprint,
        "model": config.model,
        "parameters": count_parameters(trainer.surrogate),
        "seed": config.seed,
        "epochs": config.epochs,
        "steps": trainer.position.step,
        "seconds": round(trainer.position.seconds, 1),
        "peak_memory_mb": round(peak_memory_mb()),
        "environment": describe_environment() | {"mixer": ": ".join(choose())},
    }

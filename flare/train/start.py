"""From a configuration to a finished run folder: start or resume, train, judge, report."""

from __future__ import annotations

import json
import os
from typing import Any

from lightning_fabric import Fabric

from flare.environment import describe_environment, peak_memory_mb
from flare.errors import ConfigError, first_difference
from flare.files import write_json
from flare.models import count_parameters
from flare.terminal import say
from flare.train.config import TrainConfig
from flare.train.fabric import launched_fabric
from flare.train.fields import FieldTask, mean_field_errors
from flare.train.loop import Trainer
from flare.train.run import RunFolder


def start(config: TrainConfig, out: str | os.PathLike[str]) -> dict[str, Any]:
    """Train anew into the folder `out`, which must not hold a run. Returns the result record, see `result.json`."""
    return _work(config, RunFolder(out), resume=False)


def resume(run: str | os.PathLike[str], expected: TrainConfig | None = None) -> dict[str, Any]:
    """Go on with a run from its last checkpoint, or return its result where it is finished.

    Args:
        expected: refuse the run where it was configured otherwise.
    """
    folder = RunFolder(run)
    config = folder.config()
    difference = first_difference(config.to_dict(), expected.to_dict()) if expected is not None else None
    if difference:
        key, there, here = difference
        raise ConfigError(
            f"{folder.path} was begun with other settings: {key} is {there!r} there and {here!r} here. "
            f"Use --resume to keep its settings, or another --out"
        )
    result = folder.path / "result.json"
    if result.exists():
        say(f"{folder.path} is finished already")
        return json.loads(result.read_text())
    return _work(config, folder, resume=True)


def _work(config: TrainConfig, run: RunFolder, *, resume: bool) -> dict[str, Any]:
    with launched_fabric(config) as fabric:
        return _train_and_judge(config, run, fabric, resume=resume)


def _train_and_judge(config: TrainConfig, run: RunFolder, fabric: Fabric, *, resume: bool) -> dict[str, Any]:
    task = FieldTask(config.data, config.loss)
    if not resume:
        run.refuse_if_taken()
    trainer = Trainer(config, task, run, fabric)
    if fabric.is_global_zero and not resume:
        run.create(config)
    fabric.barrier()
    if resume:
        trainer.resume()
    if not trainer.position.finished:
        trainer.train()
    errors = trainer.test_errors()
    if not fabric.is_global_zero:
        return {}
    result = _judge(trainer, errors)
    if config.report:
        from flare.report.run import write_run_report

        result["report"] = str(write_run_report(run.path, errors, result))
    write_json(run.path / "result.json", result)
    return result


def _judge(trainer: Trainer, errors: Any) -> dict[str, Any]:
    """The record of a result: what was measured, on what, with what."""
    task, config = trainer.task, trainer.config
    baseline, kind = mean_field_errors(task.dataset, task.train, task.test)
    return {
        "rel_l2": float(errors.mean()),
        "rel_l2_median": float(sorted(errors)[len(errors) // 2]),
        "rel_l2_worst": float(errors.max()),
        "rel_l2_mean_field": float(baseline.mean()),
        "mean_field": kind,
        "split": config.data.test_split,
        "test_samples": len(errors),
        "train_samples": len(task.train),
        "dataset": task.dataset.schema.name,
        "provenance": task.dataset.about["provenance"].get("kind", "unknown"),
        "data_fingerprint": task.dataset.fingerprint,
        "model": config.model,
        "parameters": count_parameters(trainer.surrogate),
        "seed": config.seed,
        "epochs": config.epochs,
        "steps": trainer.position.step,
        "seconds": round(trainer.position.seconds, 1),
        "peak_memory_mb": round(peak_memory_mb()),
        "environment": describe_environment(),
    }

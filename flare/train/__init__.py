"""Training: settings, the loop, tasks and run folders. The package can be called: `flare.train(data)` trains a run."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from flare.data.dataset import ArrayFolder
    from flare.train.run import Run


def train(
    data: ArrayFolder | str | os.PathLike[str] | None = None,
    *,
    model: str | Mapping[str, Any] | None = None,
    epochs: int | None = None,
    minutes: float | None = None,
    lr: float | None = None,
    batch_size: int | None = None,
    out: str | os.PathLike[str] | None = None,
    preset: str | None = None,
    recipe: str | None = None,
    settings: Mapping[str, Any] | None = None,
    resume: str | os.PathLike[str] | None = None,
    if_exists: Literal["refuse", "resume"] = "refuse",
    memory_check: bool = True,
    report: bool = True,
) -> Run:
    """Train a surrogate, calibrate it and write its report, as `flare train` does.

    Every setting of the command line is available: the common ones as arguments, all of them in `settings` under the
    names of the command line, such as `{"optim.schedule": "cosine", "model.channels": 64, "seed": 1}`.

    Args:
        data: Dataset or its folder. None: the folder that the preset names.
        model: Name of a model, or a mapping of `name` and its keyword arguments. None: the model of the preset, or
            `flare`.
        epochs: Passes over the training samples; default 500.
        minutes: Duration of the whole run, instead of epochs.
        lr: Peak learning rate; short for the setting `optim.lr`.
        batch_size: Samples per optimizer step; short for the setting `data.batch_size`.
        out: Run folder to write. None: `runs/<preset>` with a preset, otherwise `runs/<dataset>-<model>`.
        preset: Name of a preset such as `darcy`, or a YAML file, to start from.
        recipe: How to train: `fast` (Muon; the default without a preset), `paper` (the default with one), or the name
            of a model whose own recipe to use.
        settings: Further settings with dotted names; nested mappings are accepted as well.
        resume: Run folder to continue with its own settings. With `epochs` or the setting `steps` the run is extended
            to that length, for which its schedule must be `wsd` or `constant`.
        if_exists: `resume` continues a run in `out` that has the same settings; `refuse` raises an error.
        memory_check: Refuse a run that does not fit into memory; False starts it anyway.
        report: Write `report.html` and its pictures.

    Returns:
        The finished run, with `metrics`, `surrogate` and `path`.

    Raises:
        ConfigError: A setting is unknown or invalid, or the folder holds another run.
        DataError: The dataset is missing, damaged or unfit.
        TrainingDiverged: The loss or its gradient is not finite, or the loss is far above its lowest value.
        Interrupted: A signal stopped the run; it is saved and can be resumed.

    Example:
        >>> import flare
        >>> small = {"name": "flare", "channels": 8, "blocks": 1, "heads": 2, "latents": 4}
        >>> run = flare.train("data/mine", model=small, epochs=2, out="runs/small", report=False)
        >>> run.metrics["test"]["rel_l2"] > 0
        True
        >>> run.surrogate.schema.named("target")
        ['heat']
    """
    from flare.train.run import train_run

    folder: Any = getattr(data, "path", data)
    named: dict[str, Any] = {
        "data.path": None if folder is None else os.fspath(folder),
        "model": {"name": model} if isinstance(model, str) else model,
        "epochs": epochs,
        "minutes": minutes,
        "optim.lr": lr,
        "data.batch_size": batch_size,
    }
    given = {name: value for name, value in named.items() if value is not None}
    how: dict[str, Any] = {"if_exists": if_exists, "memory_check": memory_check, "report": report}
    return train_run(given, settings or {}, out=out, preset=preset, recipe=recipe, resumed=resume, **how)


class _CallablePackage(ModuleType):
    """The type of this package, which makes `flare.train` both a package and a function."""

    __call__ = staticmethod(train)
    __signature__ = inspect.signature(train)


sys.modules[__name__].__class__ = _CallablePackage

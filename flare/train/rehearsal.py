"""A training of a few steps on made-up data, by the code of `flare train`: what a run needs, found by beginning one."""

from __future__ import annotations

import contextlib
import io
import math
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from torch import distributed as dist

from flare.data.sample import Field, Sample, Schema
from flare.data.writer import DatasetWriter
from flare.train.config import DataConfig, TrainConfig
from flare.train.distributed.fabric import lone_fabric
from flare.train.distributed.ranks import Ranks
from flare.train.run import read_result, work_on
from flare.train.run_folder import RunFolder
from flare.trial import Need, Setting

FEW = 64
"""Points of the samples that only need to be there: those learnt from, where an evaluation is tried."""


def rehearse(setting: Setting) -> Need:
    """Do the step or the evaluation several times, as one rank; one that shares something is in a group of its own."""
    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stderr(io.StringIO()):
        folder = Path(name)
        config, run = rehearsal(setting, folder / "data"), RunFolder(folder / "run")
        with lone_fabric(config, run, shares=bool(setting.shared)) as fabric:
            group = dist.group.WORLD if setting.shared == "points" else None
            work_on(fabric, Ranks(group=group, device=fabric.device), config, run)
        return need_of(run, setting)


def rehearsal(setting: Setting, data: Path, *, ranks: int = 1, batches: int = 1) -> TrainConfig:
    """Settings of a run that does it several times, with its data, which are written.

    Args:
        ranks: that share; each of them is to have what the setting says.
        batches: different ones, that are learnt from in turn.
    """
    times = 3 if setting.hands_back else 4  # what is handed back cannot pile up; the rest does until the third step
    in_points, in_samples = (ranks if setting.shared == what else 1 for what in ("points", "samples"))
    points, batch = in_points * setting.points, in_samples * setting.batch
    learnt = [points] * batch * batches if setting.training else [FEW * ranks]
    _write(data, setting, learnt, [points] * batch)
    return TrainConfig(
        data=DataConfig(path=str(data), batch_size=batch if setting.training else 1, eval_batch_size=setting.batch),
        model={"name": "flare", **setting.sizes},
        epochs=math.ceil(times / batches),
        evaluate_every=times if setting.training else 1,
        checkpoint_every=times,
        log_every=1,
        precision=setting.precision,  # type: ignore[arg-type]
        recompute=setting.recompute,
        device=setting.device.split(":")[0],
        split="points" if setting.shared == "points" else "samples",
    )


def need_of(run: RunFolder, setting: Setting) -> Need:
    """What a finished rehearsal of it needed: the peak of its process, and the median time without the first."""
    steps = list(_seconds(run, "train" if setting.training else "evaluate"))
    return Need(read_result(run.path)["peak_memory_mb"], statistics.median(steps[1:]))


def _seconds(run: RunFolder, kind: str) -> Iterator[float]:
    """That each record of a kind took: since the one before, of whatever kind."""
    before = 0.0
    for record in run.records():
        if record["kind"] == kind:
            yield record["seconds"] - before
        before = record["seconds"]


def _write(path: Path, setting: Setting, train: list[int], test: list[int]) -> None:
    """Samples of so many points each, of as many channels as the setting has."""
    rng = np.random.default_rng(0)
    names = [f"x{i}" for i in range(setting.in_dim)]
    fields = {
        "points": Field(role="points", components=tuple(names)),
        "values": Field(role="target", components=tuple(f"y{i}" for i in range(setting.out_dim))),
    }
    writer = DatasetWriter(path, Schema(name="rehearsal", fields=fields), {"kind": "rehearsal"})
    for count in train + test:
        x, y = (rng.random((count, width), np.float32) for width in (setting.in_dim, setting.out_dim))
        writer.append(Sample({"points": x, "values": 1 + y}))
    writer.finish({"train": [(0, len(train))], "test": [(len(train), len(train) + len(test))]})

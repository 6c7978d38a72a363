"""A simulation as a job that survives a kill: it goes on from the last finished group and ends with the same bytes.

    setup = prepare("bracket.stl")
    run(setup, "bracket.vtu")

While it runs, `bracket.vtu.partial/` holds the setup, the state after the last finished group and the series so far.
At the end `bracket.vtu` (the released part) and `bracket_build/` (the series, a table) appear, each whole.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

import flare
from flare.mesh.voxels import Voxels
from flare.physics.lpbf.build import Build, State
from flare.physics.lpbf.hexahedron import Array
from flare.physics.lpbf.outcome import Outcome, in_short
from flare.physics.lpbf.output import (
    FIELDS,
    TRACKED,
    Choice,
    Mesh,
    step_name,
    tracked_of,
    write_part,
    write_series,
    write_step,
    write_table,
)
from flare.physics.lpbf.saved import load_state, save_state
from flare.physics.lpbf.setup import Setup, prepare
from flare.utils.errors import ConfigError, DataError, NotConverged, first_difference
from flare.utils.files import lock, refuse_existing, replacing, write_json
from flare.utils.progress import progress
from flare.utils.text import counted

logger = logging.getLogger(__name__)


def outputs(out: str | Path) -> tuple[Path, Path]:
    """The file of the released part and the folder of everything else."""
    path = Path(out)
    if path.suffix.lower() != ".vtu":
        raise ConfigError(f"--out {out}: the result is a VTU file, so its name ends in .vtu")
    return path, path.with_name(f"{path.stem}_build")


def run(
    setup: Setup | Voxels,
    out: str | Path,
    *,
    mesh: Mesh = "voxels",
    series: bool = True,
    steps: int | None = None,
    fields: Collection[str] = FIELDS,
    more: Callable[[Outcome, Path], object] | None = None,
    more_record: dict[str, Any] | None = None,
    quiet: bool = False,
) -> str:
    """Simulate into `out`, or go on with a simulation that was stopped.

    Args:
        setup: of `prepare`; voxels are prepared with its defaults.
        out: a new file that ends in .vtu; its neighbour `<stem>_build/` gets the series and `groups.csv`, unless there
            is neither a series nor anything `more`.
        mesh: of `out`: every voxel, or those of an octree, merged by up to 4 × 4 × 4 as in the dataset.
        series: write the build group by group, the cooled and the released part, as VTU files with a PVD file.
        steps: groups in the series at most, evenly spread and with the last. None: all.
        fields: those in the series, of `FIELDS`; `out` has them all.
        more: called with the outcome and the folder, to add files to it. What it keeps beside that folder survives a
            kill, and goes at the end.
        more_record: what `more` depends on; a job that is gone on with must have the same.
        quiet: show no progress.

    Returns:
        The result in two lines: where the part rises, sinks and is stressed most; what the recoater meets.

    Raises:
        DataError: `out` exists already, or holds a job with other settings.
        NotConverged: a solver did not reach its answer.
    """
    path, folder = outputs(out)
    choice = Choice(mesh=mesh, series=series, steps=steps, fields=fields)
    if isinstance(setup, Voxels):
        setup = prepare(setup)
    build = Build(setup.voxels, setup.process, mode=setup.mode)
    partial = path.with_name(f"{path.name}.partial")
    job = {**setup.record(), **choice.record(), **(more_record or {}), "flare": flare.__version__}
    _refuse_another(partial, job)
    whole = partial / "whole"
    if not whole.exists():
        refuse_existing(path)
        refuse_existing(folder)
    partial.mkdir(parents=True, exist_ok=True)
    with lock(
        partial / ".lock", f"{partial} is being written by another simulation; wait for it, or use another --out"
    ):
        _refuse_another(partial, job)
        write_json(partial / "job.json", job)
        if not whole.exists():
            words = _simulate(setup, build, partial, choice, more, quiet)
            refuse_existing(path)
            refuse_existing(folder)
            with replacing(whole) as temporary:
                temporary.write_text(words, encoding="utf-8")
        words = whole.read_text(encoding="utf-8")
        for staged, final in ((partial / "build", folder), (partial / "part.vtu", path)):
            if staged.exists():
                staged.rename(final)
    shutil.rmtree(partial)
    return words


def _simulate(
    setup: Setup,
    build: Build,
    partial: Path,
    choice: Choice,
    more: Callable[[Outcome, Path], object] | None,
    quiet: bool,
) -> str:
    """All groups that are left, then the files of the end; returns the result in short."""
    state, tracked = _load(build, partial / "state.npz")
    if state.group and not quiet:
        logger.info(f"going on after group {state.group} of {build.groups}, kept in {partial}")
    staged, kept = partial / "build", choice.groups(build.groups)
    label = f"printing {setup.name}"
    with (
        threadpool_limits(1),  # the order of a threaded sum may change its last bit
        _told(build, partial),
        progress(label, build.groups, done=state.group, unit="groups", quiet=quiet) as update,
    ):
        while state.group < build.groups:
            state, frame = build.advance(state)
            if state.group in kept:
                write_step(staged / step_name(state.group), build, frame, choice.fields)
            tracked = np.concatenate([tracked, [tracked_of(frame)]])
            save_state(partial / "state.npz", state, tracked=tracked)
            met = f", recoater {frame.interference:.3f} mm" if state.group < build.groups else ""
            update(text=f"{frame.temperature.max():.0f} °C{met}")
        cooled, released = build.finish(state)
        if not quiet:
            _tell_if_molten(setup, state)
        if kept:
            write_series(staged, build, kept, cooled, released, choice)
        if kept or more:
            write_table(staged / "groups.csv", setup, state, tracked)
        nodes, cells, over, peaks = build.positions, build.cells, state.interference, state.peak_temperature
        outcome = Outcome(setup, nodes, cells, cooled, released, over, peaks, tracked)
        if more:
            more(outcome, staged)
        write_part(partial / "part.vtu", setup, build, released, choice.mesh)
        return in_short(outcome)


def _tell_if_molten(setup: Setup, state: State) -> None:
    peak, solidus = state.peak_temperature.max(), setup.process.material.solidus
    if peak > solidus:
        group = int(state.peak_temperature.argmax()) + 1
        logger.info(
            f"note: group {group} ends at {peak:.0f} °C, above the solidus of {setup.process.material.name} "
            f"({solidus:g} °C): such a part melts, and the model does not; check power, speed and dwell"
        )


def _load(build: Build, path: Path) -> tuple[State, Array]:
    if not path.exists():
        return build.start(), np.zeros((0, len(TRACKED)))
    state, (tracked,) = load_state(path, "tracked")
    return build.checked(state), tracked


def _refuse_another(partial: Path, job: dict[str, Any]) -> None:
    """A job with other settings, or something that is no job at all, is left alone."""
    record = partial / "job.json"
    if partial.exists() and not record.exists() and any(item.name[0] != "." for item in partial.iterdir()):
        raise DataError(f"{partial} is in the way and no simulation of ours; move it, or choose another --out")
    if not record.exists():
        return
    try:
        old = json.loads(record.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise DataError(f"{record} is damaged; remove {partial} to start anew") from None
    difference = first_difference(old, job)
    if difference:
        key, before, now = difference
        raise DataError(
            f"{partial} holds an unfinished simulation with {key} = {before}, not {now}; run it with its own settings "
            f"to go on, remove it to start anew, or choose another --out"
        )


@contextmanager
def _told(build: Build, partial: Path) -> Iterator[None]:
    """Whatever ends the work within: one message says what is kept and how to go on."""

    def kept() -> str:
        state, _ = _load(build, partial / "state.npz")
        verb = "is" if build.groups == 1 else "are"
        return f"{state.group} of {counted(build.groups, 'layer group')} {verb} kept in {partial}"

    try:
        yield
    except KeyboardInterrupt:
        logger.info(f"{kept()}; run the same command to go on")
        raise
    except NotConverged as error:
        raise NotConverged(f"{error}. {kept()}; try another voxel size with another --out") from None
    except MemoryError as error:
        message = f"not enough memory: {error}. {kept()}; use larger voxels with another --out"
        raise DataError(message) from None
    except OSError as error:
        message = f"cannot write {partial}: {error.strerror or error}. {kept()}; make room and run the same command"
        raise DataError(message) from None

"""A simulation as a resumable job: it continues after the last finished group and ends with the same bytes.

    setup = prepare("bracket.stl")
    run(setup, "bracket.vtu")

While the job runs, `bracket.vtu.partial/` holds its settings, the state after the last finished group and the files
written so far. At the end `bracket.vtu` (the released part) and `bracket_build/` (series and table) appear complete.
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

from flare.mesh.voxels import Voxels
from flare.physics.lpbf.build import Build, BuildState, load_state, save_state
from flare.physics.lpbf.hexahedron import Array
from flare.physics.lpbf.results import (
    FIELDS,
    TRACKED,
    FinishedBuild,
    MeshKind,
    OutputOptions,
    group_file,
    write_frame,
    write_part,
    write_series,
    write_table,
)
from flare.physics.lpbf.setup import Setup, prepare
from flare.utils import __version__
from flare.utils.errors import ConfigError, DataError, FlareError, first_difference
from flare.utils.files import check_not_existing, lock, replace_atomically, write_json
from flare.utils.progress import progress
from flare.utils.text import counted

logger = logging.getLogger(__name__)

PostProcess = Callable[[FinishedBuild, Path], object]


def output_paths(out: str | Path) -> tuple[Path, Path]:
    """Return the file of the released part and the folder of everything else.

    Raises:
        ConfigError: `out` is not a VTU file.
    """
    path = Path(out)
    if path.suffix.lower() != ".vtu":
        raise ConfigError(f"out={out}: the result is a VTU file; end its name in .vtu")
    return path, path.with_name(f"{path.stem}_build")


def run(
    setup: Setup | Voxels,
    out: str | Path,
    *,
    mesh: MeshKind = "voxels",
    series: bool = True,
    steps: int | None = None,
    fields: Collection[str] = FIELDS,
    post_process: PostProcess | None = None,
    post_process_settings: dict[str, Any] | None = None,
    quiet: bool = False,
) -> str:
    """Simulate a build and write its files, or resume a stopped simulation.

    Args:
        setup: Result of `prepare`. Voxels are prepared with its defaults.
        out: New VTU file of the released part. The folder `<stem>_build/` beside it gets the series and `groups.csv`,
            unless there is neither a series nor a `post_process`.
        mesh: Mesh of `out`: all voxels, or an octree that merges up to 4 × 4 × 4 of them as in the dataset.
        series: Write every group, the cooled and the released part as VTU files with a PVD file.
        steps: Largest number of groups in the series, evenly spread and with the last one. None writes all.
        fields: Fields in the series, a subset of `FIELDS`; `out` has all of them.
        post_process: Called with the finished build and the folder, to add files to it. Files it keeps beside that
            folder survive an interruption and are deleted at the end.
        post_process_settings: Settings of `post_process`; a resumed job must have the same.
        quiet: Report no progress.

    Returns:
        Two lines of text: largest displacements and peak stress, and the recoater interference.

    Raises:
        DataError: `out` exists already, or belongs to an unfinished job with other settings.
        NotConverged: A solver did not converge.
    """
    path, folder = output_paths(out)
    options = OutputOptions(mesh=mesh, series=series, steps=steps, fields=fields)
    if isinstance(setup, Voxels):
        setup = prepare(setup)
    build = Build(setup.voxels, setup.process, mode=setup.mode)
    partial = path.with_name(f"{path.name}.partial")
    settings = {**setup.record(), **vars(options), **(post_process_settings or {}), "flare": __version__}
    settings = json.loads(json.dumps(settings))
    whole = partial / "whole"  # exists once all files are complete; holds the summary
    if not whole.exists():
        check_not_existing(path)
        check_not_existing(folder)
    partial.mkdir(parents=True, exist_ok=True)
    with lock(partial / ".lock", f"{partial} is in use by another simulation; wait for it or choose another out"):
        _check_unfinished_job(partial, settings)
        write_json(partial / "job.json", settings)
        if not whole.exists():
            summary = _simulate(setup, build, partial, options, post_process, quiet)
            check_not_existing(path)
            check_not_existing(folder)
            with replace_atomically(whole) as temporary:
                temporary.write_text(summary, encoding="utf-8")
        summary = whole.read_text(encoding="utf-8")
        for staged, final in ((partial / "build", folder), (partial / "part.vtu", path)):
            if staged.exists():
                staged.rename(final)
    shutil.rmtree(partial)
    return summary


def _simulate(
    setup: Setup, build: Build, partial: Path, options: OutputOptions, post_process: PostProcess | None, quiet: bool
) -> str:
    """Simulate the remaining groups, write all files into `partial`, and return the summary."""
    state, tracked = _load(build, partial / "state.npz")
    if state.group and not quiet:
        logger.info(f"resuming after group {state.group} of {build.groups}, saved in {partial}")
    staged, kept = partial / "build", options.groups(build.groups)
    with (
        threadpool_limits(1),  # the order of a threaded sum may change its last bit
        _log_saved_groups(build, partial),
        progress(f"printing {setup.name}", build.groups, done=state.group, unit="groups", quiet=quiet) as update,
    ):
        while state.group < build.groups:
            state, frame = build.advance(state)
            if state.group in kept:
                write_frame(staged / group_file(state.group), build, frame, options.fields)
            largest = np.linalg.norm(frame.displacement, axis=1).max()
            numbers = (frame.temperature.mean(), frame.center_von_mises.max(), largest, frame.iterations)
            tracked = np.concatenate([tracked, [numbers]])
            save_state(partial / "state.npz", state, tracked=tracked)
            update(text=f"{frame.temperature.max():.0f} °C, recoater {frame.interference:.3f} mm")
        cooled, released = build.finish(state)
        peak, metal = state.peak_temperature.max(), setup.process.material
        if peak > metal.solidus and not quiet:
            where = f"the solidus of {metal.name} ({metal.solidus:g} °C)"
            logger.info(f"note: {peak:.0f} °C is above {where}; the model does not include melting")
        if kept:
            write_series(staged, build, kept, cooled, released, options)
        if kept or post_process:
            write_table(staged / "groups.csv", setup, state, tracked)
        history = (state.interference, state.peak_temperature, tracked)
        finished = FinishedBuild(setup, build.positions, build.cells, cooled, released, *history)
        if post_process:
            post_process(finished, staged)
        write_part(partial / "part.vtu", setup, build, released, options.mesh)
        return finished.summary()


def _load(build: Build, path: Path) -> tuple[BuildState, Array]:
    if not path.exists():
        return build.start(), np.zeros((0, len(TRACKED)))
    state, (tracked,) = load_state(path, "tracked")
    return build.check_state(state), tracked


def _check_unfinished_job(partial: Path, settings: dict[str, Any]) -> None:
    """Refuse to continue in a folder that is not a job or belongs to a job with other settings."""
    record = partial / "job.json"
    if partial.exists() and not record.exists() and any(item.name[0] != "." for item in partial.iterdir()):
        raise DataError(f"{partial} exists and is not an unfinished simulation; move it or choose another out")
    if not record.exists():
        return
    try:
        old = json.loads(record.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise DataError(f"{record} is damaged; remove {partial} to start from scratch") from None
    difference = first_difference(old, settings)
    if difference:
        key, before, now = difference
        raise DataError(f"{partial} has an unfinished job with {key} = {before}, not {now}; remove it or change out")


@contextmanager
def _log_saved_groups(build: Build, partial: Path) -> Iterator[None]:
    """Log after a failure how many groups are saved."""
    try:
        yield
    except (KeyboardInterrupt, FlareError, MemoryError, OSError):
        state, _ = _load(build, partial / "state.npz")
        logger.info(f"{state.group} of {counted(build.groups, 'layer group')} saved in {partial}; run again to resume")
        raise

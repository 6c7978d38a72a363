"""A simulation as a job that survives a kill: it goes on from the last finished group and ends with the same bytes.

    setup = prepare("bracket.stl")
    outcome = run(setup, "bracket.vtu")

While it runs, `bracket.vtu.partial/` holds the setup, the state after the last finished group and the series so far.
At the end `bracket.vtu` (the released part) and `bracket_build/` (the series) appear, each whole.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from threadpoolctl import threadpool_limits

import flare
from flare.errors import ConfigError, DataError, NotConverged, first_difference
from flare.files import lock, refuse_existing, replacing, write_json
from flare.mesh.vtu import write_pvd, write_vtu
from flare.physics.lpbf.build import Build, Frame, State
from flare.physics.lpbf.grid import Ints
from flare.physics.lpbf.hexahedron import Array
from flare.physics.lpbf.setup import Setup
from flare.terminal import progress, say

TRACKED = ("mean_temperature", "peak_von_mises", "largest_displacement", "iterations")
"""Of every group, besides what the state tracks: °C over the part, MPa at centres, mm, of conjugate gradients."""


@dataclass(frozen=True)
class Outcome:
    """A finished simulation."""

    setup: Setup
    positions: Array
    """(N, 3) mm, nominal."""
    cells: Ints
    """(E, 8)."""
    cooled: Frame
    released: Frame
    interference: Array
    """(groups, 4): height above the nominal top (mm), and the place."""
    peak_temperature: Array
    """(groups,) °C, of part and plate."""
    tracked: Array
    """(groups, 4), see `TRACKED`."""


def outputs(out: str | Path) -> tuple[Path, Path]:
    """The file of the released part and the folder of everything else."""
    path = Path(out)
    if path.suffix.lower() != ".vtu":
        raise ConfigError(f"--out {out}: the result is a VTU file, so its name ends in .vtu")
    return path, path.with_name(f"{path.stem}_build")


def run(
    setup: Setup,
    out: str | Path,
    *,
    series: bool = True,
    steps: int | None = None,
    more: Callable[[Outcome, Path], None] | None = None,
    more_record: dict[str, Any] | None = None,
    quiet: bool = False,
) -> None:
    """Simulate into `out`, or go on with a simulation that was stopped.

    Args:
        setup: of `prepare`.
        out: a new file that ends in .vtu; its neighbour `<stem>_build/` gets the series.
        series: write the build group by group, the cooled and the released part, as VTU files with a PVD file.
        steps: groups in the series at most, evenly spread and with the last. None: all.
        more: called with the outcome and the folder, to add files to it.
        more_record: what `more` depends on; a job that is gone on with must have the same.
        quiet: show no progress.

    Raises:
        DataError: `out` exists already, or holds a job with other settings.
        NotConverged: a solver did not reach its answer.
    """
    path, folder = outputs(out)
    if steps is not None and steps < 1:
        raise ConfigError(f"steps={steps}: keep at least one, or use --series false")
    build = Build(setup.voxels, setup.process, mode=setup.mode)
    partial = path.with_name(f"{path.name}.partial")
    job = {**setup.record(), "series": series, "steps": steps, **(more_record or {}), "flare": flare.__version__}
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
            _simulate(setup, build, partial, _kept(build.groups, steps) if series else set(), more, quiet)
            refuse_existing(path)
            refuse_existing(folder)
            whole.touch()
        for staged, final in ((partial / "build", folder), (partial / "part.vtu", path)):
            if staged.exists():
                staged.rename(final)
    shutil.rmtree(partial)


def _simulate(
    setup: Setup,
    build: Build,
    partial: Path,
    kept: set[int],
    more: Callable[[Outcome, Path], None] | None,
    quiet: bool,
) -> None:
    """All groups that are left, then the files of the end."""
    state, tracked = _load(build, partial / "state.npz")
    staged = partial / "build"
    label = f"printing {setup.name}"
    with (
        threadpool_limits(1),  # the order of a threaded sum may change its last bit
        _told(build, partial),
        progress(label, build.groups, done=state.group, unit="groups", quiet=quiet) as update,
    ):
        while state.group < build.groups:
            state, frame = build.advance(state)
            if state.group in kept:
                _write_step(staged / _step(state.group), build, frame)
            facts = (
                frame.temperature.mean(),
                frame.centre_von_mises.max(),
                np.linalg.norm(frame.displacement, axis=1).max(),
                frame.iterations,
            )
            tracked = np.concatenate([tracked, [facts]])
            with replacing(partial / "state.npz") as temporary:
                np.savez(temporary, **{"tracked": tracked, **state.arrays()})  # type: ignore[arg-type]
            update(text=f"{frame.temperature.max():.0f} °C, recoater {frame.interference:.3f} mm")
        cooled, released = build.finish(state)
        if kept:
            _write_step(staged / "cooled.vtu", build, cooled)
            _write_step(staged / "released.vtu", build, released)
            times = {float(group): _step(group) for group in sorted(kept)}
            write_pvd(
                staged / "build.pvd", times | {build.groups + 1.0: "cooled.vtu", build.groups + 2.0: "released.vtu"}
            )
        if more:
            staged.mkdir(exist_ok=True)
            peaks, met = state.peak_temperature, state.interference
            more(Outcome(setup, build.positions, build.cells, cooled, released, met, peaks, tracked), staged)
        _write_part(partial / "part.vtu", build, released)


def _load(build: Build, path: Path) -> tuple[State, Array]:
    if not path.exists():
        return build.start(), np.zeros((0, len(TRACKED)))
    try:
        with path.open("rb") as bytes_, np.load(bytes_, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        return build.checked(State.from_arrays(arrays)), arrays["tracked"]
    except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
        raise DataError(f"{path} is damaged ({error}); remove {path.parent} to start anew") from None


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
        return f"{state.group} of {build.groups} layer groups are kept in {partial}"

    try:
        yield
    except KeyboardInterrupt:
        say(f"{kept()}; run the same command to go on")
        raise
    except NotConverged as error:
        raise NotConverged(f"{error}. {kept()}; try another voxel size with another --out") from None
    except MemoryError as error:
        message = f"not enough memory: {error}. {kept()}; use larger voxels with another --out"
        raise DataError(message) from None
    except OSError as error:
        message = f"cannot write {partial}: {error.strerror or error}. {kept()}; make room and run the same command"
        raise DataError(message) from None


def _kept(groups: int, steps: int | None) -> set[int]:
    return set(np.linspace(groups, 1, min(steps or groups, groups)).round().astype(int).tolist())


def _step(group: int) -> str:
    return f"group_{group:03d}.vtu"


def _write_step(path: Path, build: Build, frame: Frame) -> None:
    """What exists by then, on its voxels, in single precision: a series is for looking at."""
    fields = {
        "displacement": frame.displacement,
        "von_mises": frame.von_mises,
        "temperature": frame.temperature,
    }
    points, cells = build.positions[: len(frame.displacement)], build.cells[: len(frame.centre_von_mises)]
    small = {name: values.astype(np.float32) for name, values in fields.items()}
    write_vtu(path, points.astype(np.float32), cells, point_fields=small)


def _write_part(path: Path, build: Build, frame: Frame) -> None:
    """All fields, in double precision."""
    fields = {
        "displacement": frame.displacement,
        "elastic_strain": frame.elastic_strain,
        "stress": frame.stress,
        "von_mises": frame.von_mises,
    }
    centres = {"von_mises": frame.centre_von_mises}
    write_vtu(path, build.positions, build.cells, point_fields=fields, cell_fields=centres)

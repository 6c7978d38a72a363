"""Effect of a heated plate: the same part in refined mode, on coarser voxels, at several plate temperatures."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from flare.mesh.surface import GeometryError
from flare.mesh.voxelization import divisions, voxelize
from flare.mesh.voxels import one_piece_on_plate
from flare.physics.lpbf.build import BuildState, Frame, Result, load_state, save_state, simulate
from flare.physics.lpbf.setup import Setup
from flare.utils.progress import progress

logger = logging.getLogger(__name__)

COARSENING = 2  # voxels about twice as large in each direction: three builds take less time than the original


def compare_plate_temperatures(
    setup: Setup, temperatures: Sequence[float], *, save_folder: Path | None = None, quiet: bool = False
) -> tuple[Setup, dict[float | None, Result]]:
    """Simulate a part at its own and at other plate temperatures, in refined mode on voxels about twice as large.

    Args:
        setup: Result of `prepare`.
        temperatures: Plate temperatures in °C.
        save_folder: Folder that keeps every finished layer group. A second call with the same arguments resumes from
            it. None keeps nothing.
        quiet: Report no progress.

    Returns:
        The setup on the larger voxels, and results by plate temperature. The first is the setup's own temperature,
        None without a heater. A part that is too thin for larger voxels keeps its own.
    """
    study = coarsen(setup)
    own = study.process.machine.plate_temperature
    results: dict[float | None, Result] = {}
    label = f"other plate temperatures, voxels of {' × '.join(f'{edge:.3g}' for edge in study.voxels.size)} mm"
    plates = {temperature: f"plate_{n}.npz" for n, temperature in enumerate(dict.fromkeys([own, *temperatures]))}
    states = {
        temperature: load_state(save_folder / name)[0] if save_folder and (save_folder / name).exists() else None
        for temperature, name in plates.items()
    }
    done, groups = sum(state.group for state in states.values() if state), study.groups * len(plates)
    if done and not quiet:
        logger.info(f"other plate temperatures: resuming after group {done} of {groups}")
    with progress(label, groups, done=done, unit="groups", quiet=quiet) as update:
        for temperature, name in plates.items():
            process = study.process if temperature is None else study.process.with_plate_temperature(temperature)

            def finished(_done: int, _groups: int, state: BuildState, _frame: Frame, name: str = name) -> None:
                if save_folder:
                    save_state(save_folder / name, state)
                update()

            results[temperature] = simulate(
                study.voxels, process, mode="refined", keep_frames=False, state=states[temperature], on_group=finished
            )
    return study, results


def coarsen(setup: Setup) -> Setup:
    """Return the setup in refined mode on voxels twice as large.

    The height of the layer groups stays the same. A part with an odd number of voxels along x or y gets slightly
    smaller ones that end with the part. A part that would fall apart or leave the plate keeps its voxels.
    """
    process = setup.process
    group, most = process.layers_per_voxel * process.voxels_per_group, process.voxels_per_group
    per_group = next(n for n in range(-(-most // COARSENING), most + 1) if group % n == 0)
    process = replace(process, layers_per_voxel=group // per_group, voxels_per_group=per_group)
    lengths = setup.part.extents[:2]
    x, y = (n / divisions(n, COARSENING * edge) for n, edge in zip(lengths, setup.voxels.size, strict=False))
    try:
        voxels = one_piece_on_plate(voxelize(setup.part, (x, y, process.voxel_height)))
    except GeometryError:
        return replace(setup, mode="refined")
    return replace(setup, voxels=voxels, process=process, mode="refined")

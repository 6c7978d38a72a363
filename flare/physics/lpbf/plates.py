"""What a hotter plate would do: the same part in refined mode, on coarser voxels, at several plate temperatures."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from flare.mesh.pieces import one_piece_on_plate
from flare.mesh.unfit import Unfit
from flare.mesh.voxelise import divisions, voxelise
from flare.physics.lpbf.build import Frame, Result, State, simulate
from flare.physics.lpbf.process import Process
from flare.physics.lpbf.saved import load_state, save_state
from flare.physics.lpbf.setup import Setup
from flare.utils.progress import progress

logger = logging.getLogger(__name__)

COARSER = 2  # voxels about twice as large in each direction: an eighth of the work, three builds for less than one


def hotter_plates(
    setup: Setup, temperatures: Sequence[float], *, keep: Path | None = None, quiet: bool = False
) -> tuple[Setup, dict[float | None, Result]]:
    """The part as it is set up, and at each plate temperature (°C), refined and on voxels about twice as large.

    Args:
        setup: of `prepare`.
        temperatures: of the plate, °C.
        keep: a folder for every finished layer group; called again with it and the same setup and temperatures, the
            study goes on from there. None: nothing is kept.
        quiet: show no progress.

    Returns:
        The setup on those voxels, and plate temperature -> result. The first is the setup's own temperature, None
        without a heater. A part that is too thin for larger voxels keeps its own.
    """
    study = coarser(setup)
    own = study.process.machine.plate_temperature
    found: dict[float | None, Result] = {}
    label = f"other plate temperatures, voxels of {' × '.join(f'{edge:.3g}' for edge in study.voxels.size)} mm"
    plates = {temperature: f"plate_{n}.npz" for n, temperature in enumerate(dict.fromkeys([own, *temperatures]))}
    states = {
        temperature: load_state(keep / name)[0] if keep and (keep / name).exists() else None
        for temperature, name in plates.items()
    }
    done, groups = sum(state.group for state in states.values() if state), study.groups * len(plates)
    if done and not quiet:
        logger.info(f"other plate temperatures: going on after group {done} of {groups}")
    with progress(label, groups, done=done, unit="groups", quiet=quiet) as update:
        for temperature, name in plates.items():
            process = study.process if temperature is None else study.process.with_plate_temperature(temperature)

            def finished(_done: int, _groups: int, state: State, _frame: Frame, name: str = name) -> None:
                if keep:
                    save_state(keep / name, state)
                update()

            found[temperature] = simulate(
                study.voxels, process, mode="refined", keep_frames=False, state=states[temperature], on_group=finished
            )
    return study, found


def coarser(setup: Setup) -> Setup:
    """The setup in refined mode on voxels twice as large, where the part is then still one piece on the plate.

    Where the part has an odd number of voxels along x or y, they are a little smaller than that, so that they end with
    the part.
    """
    process = _coarser_layers(setup.process)
    lengths = setup.part.extents[:2]
    x, y = (n / divisions(n, COARSER * edge) for n, edge in zip(lengths, setup.voxels.size, strict=False))
    try:
        voxels = one_piece_on_plate(voxelise(setup.part, (x, y, process.voxel_height)))
    except Unfit:
        return replace(setup, mode="refined")
    return replace(setup, voxels=voxels, process=process, mode="refined")


def _coarser_layers(process: Process) -> Process:
    """Voxels twice as high, or as near below that as leaves the layer groups what they are."""
    group, most = process.layers_per_voxel * process.voxels_per_group, process.voxels_per_group
    per_group = next(n for n in range(-(-most // COARSER), most + 1) if group % n == 0)
    return replace(process, layers_per_voxel=group // per_group, voxels_per_group=per_group)

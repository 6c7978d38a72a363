"""What a hotter plate would do: the same part in refined mode, on coarser voxels, at several plate temperatures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flare.mesh.pieces import one_piece_on_plate
from flare.mesh.unfit import Unfit
from flare.mesh.voxelise import voxelise
from flare.physics.lpbf.build import Result, simulate
from flare.physics.lpbf.setup import Setup, with_voxel_layers
from flare.terminal import progress

COARSER = 2  # voxels twice as large in each direction: an eighth of the work, three builds for less than one


def hotter_plates(
    setup: Setup, temperatures: Sequence[float], *, quiet: bool = False
) -> tuple[Setup, dict[float | None, Result]]:
    """The part as it is set up, and at each plate temperature (°C), refined and on voxels twice as large.

    Returns:
        The setup on those voxels, and plate temperature -> result. The first is the setup's own temperature, None
        without a heater. A part that is too thin for larger voxels keeps its own.
    """
    study = coarser(setup)
    own = study.process.machine.plate_temperature
    found: dict[float | None, Result] = {}
    label = f"other plate temperatures, voxels of {study.voxels.size[2]:g} mm"
    groups = study.groups * len({own, *temperatures})
    with progress(label, groups, unit="groups", quiet=quiet) as update:
        for temperature in dict.fromkeys([own, *temperatures]):
            process = study.process if temperature is None else study.process.with_plate_temperature(temperature)
            found[temperature] = simulate(
                study.voxels, process, mode="refined", keep_frames=False, on_group=lambda *_: update()
            )
    return study, found


def coarser(setup: Setup) -> Setup:
    """The setup in refined mode on voxels twice as large, where the part is then still one piece on the plate."""
    process = with_voxel_layers(setup.process, COARSER * setup.process.layers_per_voxel)
    x, y, z = (COARSER * edge for edge in setup.voxels.size)
    try:
        voxels = one_piece_on_plate(voxelise(setup.part, (x, y, z)))
    except Unfit:
        return replace(setup, mode="refined")
    return replace(setup, voxels=voxels, process=process, mode="refined")

"""Studies of whole builds: tests assert them, and this command writes their tables into `PAGE`.

.venv/bin/python -m tests.physics.lpbf.studies          a few minutes on an idle machine
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from flare.mesh.voxels import Voxels
from flare.physics.lpbf import simulate
from flare.utils.files import replace_between_marks
from tests.physics.lpbf.shapes import bar, bracket, bridge, coarse_process, plate_with_hole, shaft, shelf, tube

PAGE = Path(__file__).parents[3] / "docs" / "benchmarks" / "validation.md"
BEGIN, END = "<!-- studies -->", "<!-- end of studies -->"

CALIBRATION = {  # nodes; max and min of disp_z, max |disp_x|, max von Mises at centers, peak temperature; ε* = −0.008
    "bar": (bar((60, 15, 6)), 2_706, (0.171, -0.082, 0.272, 440, 235)),
    "plate of one group": (bar((60, 60, 2.4)), 5_043, (0.0, 0.0, 0.240, 0, 177)),
    "plate with hole": (plate_with_hole(), 9_408, (0.232, -0.070, 0.280, 476, 182)),
    "bracket": (bracket(), 4_275, (0.155, -0.121, 0.298, 1050, 237)),
    "tube": (tube(), 15_204, (0.192, -0.132, 0.354, 965, 137)),
    "bridge": (bridge(), 11_046, (0.640, -0.564, 1.263, 1312, 303)),
}
"""Results of a prototype of the scheme, with plain boxes of 1.5 × 1.5 × 1.2 mm."""
GUESSED = {"shaft, sizes guessed": (shaft(), 7_291, (0.197, -0.127, 0.157, 966, 262))}
"""The same for a shape of unknown size."""
REFINEMENTS = (2, 4, 8, 16)
"""Voxels per layer group."""
PLATES = (100.0, 300.0, 500.0)
HEATED = {"bar": bar((36, 9, 4.8)), "shelf": shelf()}


def calibrate(part: Voxels, *, incompatible_modes: bool) -> tuple[int, tuple[float, ...]]:
    """Return the number of nodes and the numbers of one line of CALIBRATION."""
    process = coarse_process(incompatible_modes=incompatible_modes).with_inherent_strain(-0.008)
    result = simulate(part, process, keep_frames=False)
    u, stress = result.released.displacement, result.released.center_von_mises.max()
    found = (u[:, 2].max(), u[:, 2].min(), np.abs(u[:, 0]).max(), stress, result.peak_temperature)
    return len(result.positions), tuple(map(float, found))


def refined_curl(refinement: int) -> float:
    """Return the range of disp_z of a bar of cubes of 2.4 mm / refinement, with the same groups of 2.4 mm."""
    edge = 2.4 / refinement
    process = replace(coarse_process(), layers_per_voxel=60, voxels_per_group=refinement)
    process = replace(process, machine=replace(process.machine, layer=edge / 60))
    u = simulate(bar((28.8, 9.6, 4.8), (edge, edge, edge)), process, keep_frames=False).released.displacement
    return float(np.ptp(u[:, 2]))


def on_plate(part: Voxels, temperature: float, *, relaxing: bool = True) -> tuple[float, float]:
    """Return RMS displacement and range of disp_z in refined mode on a plate at `temperature`.

    `relaxing=False` gives every voxel the full inherent strain at any temperature, so that only the effect of heat on
    yield stress, stiffness and expansion is left.
    """
    process = coarse_process().with_plate_temperature(temperature)
    if not relaxing:
        process = replace(process, material=replace(process.material, relaxation_temperature=1e12))
    u = simulate(part, process, mode="refined", keep_frames=False).released.displacement
    return float(np.sqrt((u**2).sum(1).mean())), float(np.ptp(u[:, 2]))


def table(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, ["---"] + ["--:"] * (len(head) - 1), *rows))


def calibration_table() -> str:
    names = ("max disp_z, mm", "min disp_z", "max abs disp_x", "max von Mises, MPa", "peak °C")
    rows = []
    for shape, (part, nodes, expected) in (CALIBRATION | GUESSED).items():
        plain, default = (calibrate(part, incompatible_modes=modes)[1] for modes in (False, True))
        columns = zip(expected, plain, default, (3, 3, 3, 0, 0), strict=True)
        cells = [" / ".join(f"{value:z.{digits}f}" for value in values) for *values, digits in columns]
        rows.append([f"{shape}, {nodes:,} nodes", *cells])
    return table(["prototype / plain boxes / default elements", *names], rows)


def refinement_table() -> str:
    curls = [refined_curl(refinement) for refinement in REFINEMENTS]
    steps = [after - before for before, after in pairwise(curls)]
    factors = [before / after for before, after in pairwise(steps)]
    limit = curls[-1] + steps[-1] / (factors[-1] - 1)  # if the steps continue to fall by the last factor
    columns = zip(REFINEMENTS, curls, ["–", *map("{:.4f}".format, steps)], strict=True)
    smaller = ["–", "–", *map("{:.2f}".format, factors)]
    rows = [
        [f"{2.4 / refinement:g}", f"{curl:.4f}", step, factor, f"{100 * (1 - curl / limit):.1f} %"]
        for (refinement, curl, step), factor in zip(columns, smaller, strict=True)
    ]
    return table(["voxel edge, mm", "range of disp_z, mm", "step", "smaller by", "below the limit"], rows)


def plate_table() -> str:
    rows = [
        [
            f"{name}, {'strain relaxes in hot metal' if relaxing else 'full strain everywhere'}",
            *("{:.3f} / {:.3f}".format(*on_plate(part, temperature, relaxing=relaxing)) for temperature in PLATES),
        ]
        for name, part in HEATED.items()
        for relaxing in (True, False)
    ]
    return table(["rms displacement / range of disp_z, mm", *(f"plate {t:g} °C" for t in PLATES)], rows)


if __name__ == "__main__":
    replace_between_marks(PAGE, BEGIN, END, "\n\n".join([calibration_table(), refinement_table(), plate_table()]))

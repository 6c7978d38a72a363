"""Report of a simulated build: distortion, recoater interference, stress, and the effect of a heated plate."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from flare.physics.lpbf.build import Result
from flare.physics.lpbf.process import describe_process
from flare.physics.lpbf.results import FinishedBuild, format_position
from flare.physics.lpbf.setup import Setup
from flare.report.fields import color_bar, symmetric_range
from flare.report.hexahedra import ABOVE, BELOW, draw_hexahedra, height_to_width
from flare.report.page import save_png, write_page
from flare.report.style import ACCENT, GREY, INK, SMALL, TEXT, new_figure, plain
from flare.utils import __version__
from flare.utils.text import duration

Array = NDArray[np.float64]
Rows = list[tuple[str, str]]
Plates = tuple[Setup, Mapping[float | None, Result]]
MIN_RANGE = 1e-3  # mm, of the color range: smaller displacements are rounding errors
PLATE_COLORS = ("#1f2933", "#2563eb", "#c2410c", "#0f766e", "#7c3aed", "#a16207")
PEAK_CAPTION = (
    "Colors are means over the voxels around a node; the peak stress in the tables is that of a single voxel."
)
STRESS_CAPTIONS = {
    "benchmark": f"This mode is linear: stress above the yield limit shows where metal would yield. {PEAK_CAPTION}",
    "refined": f"Plastic flow limits the stress. {PEAK_CAPTION}",
}
PLATES_CAPTION = (
    "The same part in refined mode on coarser voxels, with the plate's bottom held at other temperatures. Compare the "
    "curves with each other, not with the simulation above."
)


def write_build_page(
    build: FinishedBuild, folder: Path, *, plates: Plates | None = None, exaggerate: float | None = None
) -> Path:
    """Write `displacement.png`, `von_mises.png` and `report.html` into a folder.

    Args:
        build: Result that `flare.physics.lpbf.job.run` passes to `post_process`.
        folder: Folder of the files.
        plates: Result of `flare.physics.lpbf.plates.compare_plate_temperatures`. None leaves out this section.
        exaggerate: Scale of the deformation in pictures; 0 shows the nominal shape. None chooses a round number.

    Returns:
        Path of `report.html`.
    """
    setup, released = build.setup, build.released
    factor = _default_scale(build) if exaggerate is None else exaggerate
    shown = f"deformation × {factor:g}" if factor else "nominal shape"
    displacement, stress = plot_displacement(build, factor), plot_stress(build, factor)
    save_png(displacement, folder / "displacement.png")
    save_png(stress, folder / "von_mises.png")
    up, down = released.displacement[:, 2].max(), released.displacement[:, 2].min()
    one_group = " A part of one layer group only shrinks: the model has no curl within a group."
    axis = "xyz"[_longest_axis(build)]
    figures = [
        (
            "Distortion",
            f"Displacement along z of the released part without its best-fit rigid motion; {shown}."
            + (one_group if setup.groups == 1 else ""),
            displacement,
        ),
        (
            "Profile",
            f"Displacement along z over {axis}, the longest axis: mean and range over a section.",
            plot_profile(build),
        ),
        ("Recoater interference", _recoater_caption(setup), plot_recoater(build)),
        ("Stress", f"Von Mises stress of the released part; {shown}. {STRESS_CAPTIONS[setup.mode]}", stress),
        ("Temperature", "At the end of each layer group, over its height.", plot_temperatures(build)),
    ]
    tables = [
        ("Distortion", distortion_rows(build)),
        ("Recoater", recoater_rows(build)),
        ("Peak stress", stress_rows(build)),
    ]
    if plates:
        figures.append(("Effect of a heated plate", PLATES_CAPTION, plot_plate_temperatures(plates)))
        tables.append((f"Plate temperature, voxels of {_voxel_size(plates[0])}", plate_rows(plates)))
    page = folder / "report.html"
    process = setup.process
    write_page(
        page,
        title=f"{setup.name}: {process.material.name} on {process.machine.name}",
        summary=[
            ("largest rise", f"{up:.3f} mm"),
            ("largest sink", f"{-down:.3f} mm"),
            ("recoater", build.recoater_status),
            ("peak stress, released", f"{released.center_von_mises.max():.0f} MPa"),
            ("build time", duration(sum(setup.group_seconds))),
            ("mode", setup.mode),
        ],
        notes=setup.notes,
        figures=figures,
        tables=[*tables, ("Simulation", simulation_rows(build)), ("Process", list(describe_process(process).items()))],
        texts=[("Process file", yaml.safe_dump(setup.record()["process"], sort_keys=False, default_flow_style=None))],
        footer=f"Made by flare {__version__}, flare lpbf simulate. Positions are (x, y, z) in mm as in the VTU files, "
        f"with z from the plate.",
    )
    return page


def plot_displacement(build: FinishedBuild, factor: float) -> Figure:
    """Plot the vertical displacement of the released part."""
    values = build.released.displacement[:, 2]
    most = max(symmetric_range(values)[1], MIN_RANGE)
    return _plot_views(build, values, (-most, most), "coolwarm", "z displacement, mm", factor)


def plot_stress(build: FinishedBuild, factor: float) -> Figure:
    """Plot the von Mises stress of the released part."""
    values = build.released.von_mises
    return _plot_views(build, values, (0.0, float(values.max()) or 1.0), "viridis", "von Mises stress, MPa", factor)


def _plot_views(
    build: FinishedBuild, values: Array, limits: tuple[float, float], colors: str, label: str, factor: float
) -> Figure:
    """Plot a field from above and from below with one color range."""
    points, displacement = build.positions, factor * build.released.displacement
    figure = new_figure(9.6, 0.9 + 4.0 * min(1.2, height_to_width(points)))
    look: dict[str, Any] = {"displacement": displacement, "limits": limits, "colors": colors}
    left, right = figure.subplots(1, 2)
    for axes, view, title in ((left, ABOVE, "from above"), (right, BELOW, "from below")):
        drawn = draw_hexahedra(axes, points, build.cells, values, view=view, **look)
        axes.set_title(title, fontsize=TEXT, color=INK)
    color_bar(right, drawn, label, values)
    return figure


def _wide_figure() -> tuple[Figure, Axes]:
    figure = new_figure(7.5, 2.8)
    return figure, figure.add_subplot()


def _with_legend(figure: Figure) -> Figure:
    figure.axes[0].legend(fontsize=SMALL, frameon=False, labelcolor=INK)
    return figure


def plot_profile(build: FinishedBuild) -> Figure:
    """Plot mean and range of the vertical displacement along the longest axis."""
    axis = _longest_axis(build)
    at, mean, low, high = _section_profile(build.positions, build.released.displacement[:, 2], axis)
    figure, axes = _wide_figure()
    axes.fill_between(at, low, high, color="#94a3b8", alpha=0.45, linewidth=0, label="range over the section")
    axes.plot(at, mean, color=INK, linewidth=1.4, label="mean of the section")
    axes.axhline(0, color=GREY, linewidth=0.6)
    plain(axes, x=f"{'xyz'[axis]}, mm", y="z displacement, mm")
    return _with_legend(figure)


def plot_recoater(build: FinishedBuild) -> Figure:
    """Plot the height above the nominal top, group by group."""
    heights, layer = build.recoater_interference[:, 0], build.setup.process.machine.layer
    tops = np.array(build.setup.tops)
    width = 0.8 * np.diff(np.concatenate([[0.0], tops]))
    figure, axes = _wide_figure()
    axes.bar(tops[:-1], heights, width=width[:-1], color=[ACCENT if h > layer else "#94a3b8" for h in heights])
    look: dict[str, Any] = {"fill": False, "edgecolor": GREY, "linestyle": ":"}
    axes.bar(tops[-1:], build.interference[-1:, 0], width=width[-1:], label="last group: no layer follows", **look)
    axes.axhline(layer, color=INK, linewidth=1, linestyle="--", label=f"one powder layer, {layer:g} mm")
    plain(axes, x="top of the layer group, mm", y="above nominal, mm")
    return _with_legend(figure)


def plot_temperatures(build: FinishedBuild) -> Figure:
    """Plot the highest and mean temperature after each group."""
    figure, axes = _wide_figure()
    tops = build.setup.tops
    axes.plot(tops, build.peak_temperature, marker="o", markersize=3.5, color=ACCENT, label="hottest voxel")
    axes.plot(tops, build.tracked[:, 0], marker="o", markersize=3.5, color=INK, label="mean of the part")
    plain(axes, x="top of the layer group, mm", y="°C")
    return _with_legend(figure)


def plot_plate_temperatures(plates: Plates) -> Figure:
    """Plot displacement and interference at several plate temperatures."""
    study, found = plates
    figure = new_figure(9.6, 3.0)
    left, right = figure.subplots(1, 2)
    axis = int(np.argmax(study.part.extents))
    for color, (temperature, result) in zip(cycle(PLATE_COLORS), found.items(), strict=False):
        at, mean, _, _ = _section_profile(result.positions, result.released.displacement[:, 2], axis)
        left.plot(at, mean, color=color, linewidth=1.4, label=_plate_label(temperature))
        met = result.interference[:-1, 0]  # no layer is spread on the last group
        right.plot(study.tops[:-1], met, marker="o", markersize=3, color=color, linewidth=1.2)
    layer = study.process.machine.layer
    right.axhline(layer, color=INK, linewidth=1, linestyle="--")
    look: dict[str, Any] = {"fontsize": SMALL, "color": INK, "ha": "right", "va": "bottom"}
    right.text(1.0, layer, "one layer ", transform=right.get_yaxis_transform(), **look)
    plain(left, x=f"{'xyz'[axis]}, mm", y="mm", title="z displacement, mean of the section")
    plain(right, x="top of the layer group, mm", y="mm", title="above nominal under the recoater")
    return _with_legend(figure)


def distortion_rows(build: FinishedBuild) -> Rows:
    """Return the largest displacements of the released part and their positions."""
    u = build.released.displacement
    sideways, length = np.hypot(u[:, 0], u[:, 1]), np.linalg.norm(u, axis=1)
    x, y = u[sideways.argmax(), :2]
    return [
        ("up", _displacement_at(build, u[:, 2].max(), u[:, 2].argmax())),
        ("down", _displacement_at(build, u[:, 2].min(), u[:, 2].argmin())),
        ("sideways", f"{_displacement_at(build, sideways.max(), sideways.argmax())}, towards ({x:+.3f}, {y:+.3f})"),
        ("magnitude", _displacement_at(build, length.max(), length.argmax())),
        ("root mean square", f"{np.sqrt((length**2).mean()):.4f} mm"),
    ]


def recoater_rows(build: FinishedBuild, shown: int = 5) -> Rows:
    """Return the recoater status and the groups with the largest interference."""
    heights, layer = build.recoater_interference[:, 0], build.setup.process.machine.layer
    rows = [("status", build.recoater_status)]
    for group in np.argsort(-heights, kind="stable")[:shown]:
        if heights[group] > 0:
            where = format_position(build.recoater_interference[group, 1:])
            height = f"{heights[group]:.3f} mm above its nominal top ({heights[group] / layer:.1f} layers)"
            rows.append((f"group {group + 1}", f"{height} at {where}"))
    return rows


def stress_rows(build: FinishedBuild) -> Rows:
    """Return the peak stress at voxel centers, on the plate and after release."""
    rows = []
    for name, frame in (("cooled, on the plate", build.cooled), ("released", build.released)):
        worst = int(frame.center_von_mises.argmax())
        rows.append((name, f"{frame.center_von_mises[worst]:.0f} MPa at {format_position(build.voxel_center(worst))}"))
    return rows


def plate_rows(plates: Plates) -> Rows:
    """Return displacement, interference and stress at each plate temperature."""
    rows = []
    for temperature, result in plates[1].items():
        u = result.released.displacement
        span, rms = np.ptp(u[:, 2]), np.sqrt((u**2).sum(1).mean())
        highest = result.interference[:-1, 0].max(initial=0.0)  # no layer is spread on the last group
        stress = result.released.center_von_mises.max()
        text = f"z range {span:.3f} mm, rms {rms:.3f} mm, recoater {highest:.3f} mm, {stress:.0f} MPa"
        rows.append((_plate_label(temperature), text))
    return rows


def simulation_rows(build: FinishedBuild) -> Rows:
    """Return sizes, times and solver statistics."""
    setup = build.setup
    voxels, process = setup.voxels, setup.process
    volume, exact = voxels.volume, abs(setup.part.volume)
    peak, solidus = build.peak_temperature.max(), process.material.solidus
    molten = f", above the solidus of {solidus:g} °C: the model is not valid" if peak > solidus else ""
    return [
        ("part", " × ".join(f"{length:.4g}" for length in setup.part.extents) + f" mm, {exact:.5g} mm³"),
        ("voxels", f"{voxels.count:,} of {_voxel_size(setup)}, {100 * volume / exact:.1f} % of the part's volume"),
        ("nodes", f"{len(build.positions):,}"),
        ("layer groups", f"{setup.groups} of {process.group_height:g} mm"),
        ("build time", f"{duration(sum(setup.group_seconds))}: scanning and {process.machine.dwell:g} s per layer"),
        ("hottest voxel", f"{peak:.0f} °C at the end of a group{molten}"),
        ("iterations per group", f"{build.tracked[:, 3].mean():.0f} of conjugate gradients"),
        ("residual", f"{build.released.residual:.1e} of the load, after release"),
    ]


def _section_profile(positions: Array, values: Array, axis: int) -> tuple[Array, Array, Array, Array]:
    """Return positions along an axis, and mean, lowest and highest value over the section there."""
    at, section = np.unique(np.round(positions[:, axis], 6), return_inverse=True)
    mean = np.bincount(section, values) / np.bincount(section)
    low, high = np.full(at.size, np.inf), np.full(at.size, -np.inf)
    np.minimum.at(low, section, values)
    np.maximum.at(high, section, values)
    return at, mean, low, high


def _default_scale(build: FinishedBuild) -> float:
    """Return a round factor that makes the largest displacement about a fifteenth of the part."""
    largest = float(np.linalg.norm(build.released.displacement, axis=1).max())
    if largest == 0:
        return 1.0
    return max(1.0, float(f"{build.setup.part.extents.max() / 15 / largest:.0e}"))


def _longest_axis(build: FinishedBuild) -> int:
    return int(np.argmax(build.setup.part.extents))


def _recoater_caption(setup: Setup) -> str:
    return (
        f"Height of the part above its nominal top when the next layer is spread. Above one layer of "
        f"{setup.process.machine.layer:g} mm the recoater hits metal. Groups of {setup.process.group_height:g} mm are "
        f"added at once, so this ranks positions and heights but is not a clearance. The last group does not count, "
        f"because no layer is spread on it."
    )


def _plate_label(temperature: float | None) -> str:
    return "no heater" if temperature is None else f"plate at {temperature:g} °C"


def _voxel_size(setup: Setup) -> str:
    return " × ".join(f"{edge:.3g}" for edge in setup.voxels.size) + " mm"


def _displacement_at(build: FinishedBuild, value: float, node: np.integer) -> str:
    return f"{value:.4f} mm at {format_position(build.positions[node])}"

"""What a simulated build means: where it distorts, where the recoater would hit, what a hotter plate would do."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from matplotlib.figure import Figure
from numpy.typing import NDArray

import flare
from flare.physics.lpbf.build import Result
from flare.physics.lpbf.outcome import Outcome, centre, place
from flare.physics.lpbf.process import in_words
from flare.physics.lpbf.setup import Setup
from flare.report.fields import colour_bar, symmetric_range
from flare.report.hexahedra import ABOVE, BELOW, draw_hexahedra, height_to_width
from flare.report.page import save_png, write_page
from flare.report.style import ACCENT, GREY, INK, SMALL, TEXT, new_figure, plain
from flare.utils.text import duration

Array = NDArray[np.float64]
Rows = list[tuple[str, str]]
Plates = tuple[Setup, Mapping[float | None, Result]]
FLAT = 1e-3  # mm: less is drawn as nothing, or rounding would fill the range of colours
PLATE_COLOURS = ("#1f2933", "#2563eb", "#c2410c", "#0f766e", "#7c3aed", "#a16207")


def write_build_page(
    outcome: Outcome, folder: Path, *, plates: Plates | None = None, exaggerate: float | None = None
) -> Path:
    """Write `displacement.png`, `von_mises.png` and `report.html` into a folder; returns the page.

    Args:
        outcome: of `flare.physics.lpbf.job.run`.
        folder: where the files go.
        plates: of `flare.physics.lpbf.plates.hotter_plates`. None: that section is left out.
        exaggerate: factor of the deformation in pictures; 0 shows the nominal shape. None: a round one that shows it.
    """
    setup, released = outcome.setup, outcome.released
    factor = _visible(outcome) if exaggerate is None else exaggerate
    shown = f"deformation × {factor:g}" if factor else "nominal shape"
    distorted, stressed = picture_of_displacement(outcome, factor), picture_of_stress(outcome, factor)
    save_png(distorted, folder / "displacement.png")
    save_png(stressed, folder / "von_mises.png")
    up, down = released.displacement[:, 2].max(), released.displacement[:, 2].min()
    figures = [
        (
            "Where it distorts",
            f"Displacement along z of the released part, less its best-fit rigid motion; {shown}."
            + (
                " A part of one layer group only shrinks: this model has no curl within a group."
                if setup.groups == 1
                else ""
            ),
            distorted,
        ),
        (
            "Profile",
            f"Displacement along z over {'xyz'[_longest(outcome)]}, the longest axis: mean and range over a section.",
            profile(outcome),
        ),
        ("Where the recoater would hit", _recoater_caption(setup), recoater(outcome)),
        ("Stress", f"Von Mises stress of the released part; {shown}. {_stress_caption(outcome)}", stressed),
        ("Temperature", "At the end of each layer group, over its height.", temperatures(outcome)),
    ]
    tables = [
        ("Distortion", distortion_rows(outcome)),
        ("Recoater", recoater_rows(outcome)),
        ("Peak stress", stress_rows(outcome)),
    ]
    if plates:
        figures.append(("What a hotter plate would do", _plates_caption(plates[0]), plate_curves(plates)))
        tables.append(("Plate temperature", plate_rows(plates)))
    machine, material = setup.process.machine, setup.process.material
    page = folder / "report.html"
    write_page(
        page,
        title=f"{setup.name}: {material.name} on {machine.name}",
        summary=[
            ("rises at most", f"{up:.3f} mm"),
            ("sinks at most", f"{-down:.3f} mm"),
            ("recoater", outcome.verdict),
            ("peak stress, released", f"{released.centre_von_mises.max():.0f} MPa"),
            ("build time", duration(sum(setup.seconds))),
            ("mode", setup.mode),
        ],
        notes=setup.notes,
        figures=figures,
        tables=[*tables, ("Simulation", simulation_rows(outcome)), ("Process", list(in_words(setup.process).items()))],
        texts=[("Process file", yaml.safe_dump(setup.record()["process"], sort_keys=False, default_flow_style=None))],
        footer=f"Made by flare {flare.__version__}, flare lpbf simulate. Places are (x, y, z) in mm, as in "
        f"the VTU files: z from the plate.",
    )
    return page


def picture_of_displacement(outcome: Outcome, factor: float) -> Figure:
    values = outcome.released.displacement[:, 2]
    most = max(symmetric_range(values)[1], FLAT)
    return _picture(outcome, values, (-most, most), "coolwarm", "z displacement, mm", factor)


def picture_of_stress(outcome: Outcome, factor: float) -> Figure:
    values = outcome.released.von_mises
    return _picture(outcome, values, (0.0, float(values.max()) or 1.0), "viridis", "von Mises stress, MPa", factor)


def _picture(
    outcome: Outcome, values: Array, limits: tuple[float, float], colours: str, label: str, factor: float
) -> Figure:
    """From above and from below, in one range of colours."""
    points, displacement = outcome.positions, factor * outcome.released.displacement
    figure = new_figure(9.6, 0.9 + 4.0 * min(1.2, height_to_width(points)))
    look: dict[str, Any] = {"displacement": displacement, "limits": limits, "colours": colours}
    left, right = figure.subplots(1, 2)
    for axes, view, title in ((left, ABOVE, "from above"), (right, BELOW, "from below")):
        drawn = draw_hexahedra(axes, points, outcome.cells, values, view=view, **look)
        axes.set_title(title, fontsize=TEXT, color=INK)
    colour_bar(right, drawn, label, values)
    return figure


def profile(outcome: Outcome) -> Figure:
    axis = _longest(outcome)
    at, mean, low, high = _along(outcome.positions, outcome.released.displacement[:, 2], axis)
    figure = new_figure(7.5, 2.8)
    axes = figure.add_subplot()
    axes.fill_between(at, low, high, color="#94a3b8", alpha=0.45, linewidth=0, label="range over the section")
    axes.plot(at, mean, color=INK, linewidth=1.4, label="mean of the section")
    axes.axhline(0, color=GREY, linewidth=0.6)
    plain(axes, x=f"{'xyz'[axis]}, mm", y="z displacement, mm")
    axes.legend(fontsize=SMALL, frameon=False, labelcolor=INK)
    return figure


def recoater(outcome: Outcome) -> Figure:
    """What stands above the next layer, group by group."""
    heights, layer = outcome.under_recoater[:, 0], outcome.setup.process.machine.layer
    tops = np.array(outcome.setup.tops)
    width = 0.8 * np.diff(np.concatenate([[0.0], tops]))
    figure = new_figure(7.5, 2.8)
    axes = figure.add_subplot()
    axes.bar(tops[:-1], heights, width=width[:-1], color=[ACCENT if h > layer else "#94a3b8" for h in heights])
    look: dict[str, Any] = {"fill": False, "edgecolor": GREY, "linestyle": ":"}
    axes.bar(tops[-1:], outcome.interference[-1:, 0], width=width[-1:], label="last group: no layer follows", **look)
    axes.axhline(layer, color=INK, linewidth=1, linestyle="--", label=f"one powder layer, {layer:g} mm")
    plain(axes, x="top of the layer group, mm", y="above nominal, mm")
    axes.legend(fontsize=SMALL, frameon=False, labelcolor=INK)
    return figure


def temperatures(outcome: Outcome) -> Figure:
    figure = new_figure(7.5, 2.8)
    axes = figure.add_subplot()
    tops = outcome.setup.tops
    axes.plot(tops, outcome.peak_temperature, marker="o", markersize=3.5, color=ACCENT, label="hottest voxel")
    axes.plot(tops, outcome.tracked[:, 0], marker="o", markersize=3.5, color=INK, label="mean of the part")
    plain(axes, x="top of the layer group, mm", y="°C")
    axes.legend(fontsize=SMALL, frameon=False, labelcolor=INK)
    return figure


def plate_curves(plates: Plates) -> Figure:
    study, found = plates
    figure = new_figure(9.6, 3.0)
    left, right = figure.subplots(1, 2)
    axis = int(np.argmax(study.part.extents))
    for colour, (temperature, result) in zip(_cycle(len(found)), found.items(), strict=True):
        at, mean, _, _ = _along(result.positions, result.released.displacement[:, 2], axis)
        left.plot(at, mean, color=colour, linewidth=1.4, label=_plate(temperature))
        met = result.interference[:-1, 0]  # on the last group no layer is spread
        right.plot(study.tops[:-1], met, marker="o", markersize=3, color=colour, linewidth=1.2)
    layer = study.process.machine.layer
    right.axhline(layer, color=INK, linewidth=1, linestyle="--")
    look: dict[str, Any] = {"fontsize": SMALL, "color": INK, "ha": "right", "va": "bottom"}
    right.text(1.0, layer, "one layer ", transform=right.get_yaxis_transform(), **look)
    plain(left, x=f"{'xyz'[axis]}, mm", y="mm", title="z displacement, mean of the section")
    plain(right, x="top of the layer group, mm", y="mm", title="above nominal under the recoater")
    left.legend(fontsize=SMALL, frameon=False, labelcolor=INK)
    return figure


def distortion_rows(outcome: Outcome) -> Rows:
    """The largest displacements of the released part, with their places."""
    u = outcome.released.displacement
    sideways, length = np.hypot(u[:, 0], u[:, 1]), np.linalg.norm(u, axis=1)
    x, y = u[sideways.argmax(), :2]
    return [
        ("up", _at(outcome, u[:, 2].max(), u[:, 2].argmax())),
        ("down", _at(outcome, u[:, 2].min(), u[:, 2].argmin())),
        ("sideways", f"{_at(outcome, sideways.max(), sideways.argmax())}, towards ({x:+.3f}, {y:+.3f})"),
        ("in all", _at(outcome, length.max(), length.argmax())),
        ("root mean square", f"{np.sqrt((length**2).mean()):.4f} mm"),
    ]


def recoater_rows(outcome: Outcome, shown: int = 5) -> Rows:
    """The verdict, and the worst groups with their places."""
    heights, layer = outcome.under_recoater[:, 0], outcome.setup.process.machine.layer
    rows = [("verdict", f"{outcome.verdict}: {_explained(heights, layer)}")]
    for group in np.argsort(-heights, kind="stable")[:shown]:
        if heights[group] > 0:
            where = place(outcome.under_recoater[group, 1:])
            rows.append((f"group {group + 1}", f"{heights[group]:.3f} mm above its nominal top, at {where}"))
    return rows


def stress_rows(outcome: Outcome) -> Rows:
    """On the plate and off it, at the centres of voxels."""
    rows = []
    for name, frame in (("cooled, on the plate", outcome.cooled), ("released", outcome.released)):
        worst = int(frame.centre_von_mises.argmax())
        rows.append((name, f"{frame.centre_von_mises[worst]:.0f} MPa at {place(centre(outcome, worst))}"))
    return rows


def plate_rows(plates: Plates) -> Rows:
    rows = []
    for temperature, result in plates[1].items():
        u = result.released.displacement
        span, rms = np.ptp(u[:, 2]), np.sqrt((u**2).sum(1).mean())
        highest = result.interference[:-1, 0].max(initial=0.0)  # without the last group, on which no layer is spread
        stress = result.released.centre_von_mises.max()
        text = f"z from lowest to highest {span:.3f} mm, rms {rms:.3f} mm, recoater {highest:.3f} mm, {stress:.0f} MPa"
        rows.append((_plate(temperature), text))
    return rows


def simulation_rows(outcome: Outcome) -> Rows:
    setup = outcome.setup
    voxels, process = setup.voxels, setup.process
    volume, exact = voxels.volume, abs(setup.part.volume)
    return [
        ("part", " × ".join(f"{length:.4g}" for length in setup.part.extents) + f" mm, {exact:.5g} mm³"),
        ("voxels", f"{voxels.count:,} of {_size(setup)}, {100 * volume / exact:.1f} % of the part's volume"),
        ("nodes", f"{len(outcome.positions):,}"),
        ("layer groups", f"{setup.groups} of {process.group_height:g} mm"),
        ("build time", f"{duration(sum(setup.seconds))}: scanning and {process.machine.dwell:g} s a layer"),
        ("hottest voxel", _hottest(outcome)),
        ("iterations a group", f"{outcome.tracked[:, 3].mean():.0f} of conjugate gradients"),
        ("residual", f"{outcome.released.residual:.1e} of the load, after release"),
    ]


def _hottest(outcome: Outcome) -> str:
    peak, solidus = outcome.peak_temperature.max(), outcome.setup.process.material.solidus
    molten = f": above the solidus of {solidus:g} °C, where this model does not hold" if peak > solidus else ""
    return f"{peak:.0f} °C at the end of a group{molten}"


def _along(positions: Array, values: Array, axis: int) -> tuple[Array, Array, Array, Array]:
    """Places along an axis, and mean, lowest and highest value over the section there."""
    at, section = np.unique(np.round(positions[:, axis], 6), return_inverse=True)
    mean = np.bincount(section, values) / np.bincount(section)
    low, high = np.full(at.size, np.inf), np.full(at.size, -np.inf)
    np.minimum.at(low, section, values)
    np.maximum.at(high, section, values)
    return at, mean, low, high


def _visible(outcome: Outcome) -> float:
    """A round factor with which the largest displacement is about a fifteenth of the part."""
    largest = float(np.linalg.norm(outcome.released.displacement, axis=1).max())
    if largest == 0:
        return 1.0
    factor = float(outcome.setup.part.extents.max()) / 15 / largest
    decade = 10.0 ** np.floor(np.log10(factor))
    return max(1.0, float(decade * max(step for step in (1, 2, 5) if step * decade <= factor * (1 + 1e-9))))


def _longest(outcome: Outcome) -> int:
    return int(np.argmax(outcome.setup.part.extents))


def _explained(heights: Array, layer: float) -> str:
    if not len(heights):
        return "with one layer group, no layer is spread on the part"
    return f"the part stands up to {heights.max():.3f} mm above its nominal top, {heights.max() / layer:.1f} layers"


def _recoater_caption(setup: Setup) -> str:
    return (
        f"How far the part stands above its nominal top when the next layer is spread. Above one layer of "
        f"{setup.process.machine.layer:g} mm the recoater meets metal. Groups of {setup.process.group_height:g} mm are "
        f"added at once, so this ranks places and heights; it is no measured clearance. The last group does not "
        f"count: no layer is spread on it."
    )


def _stress_caption(outcome: Outcome) -> str:
    nodes, voxels = outcome.released.von_mises.max(), outcome.released.centre_von_mises.max()
    scale = (
        f"Colours are means over the voxels around a node, {nodes:.0f} MPa at most; the peak stress of the tile and "
        f"the table, {voxels:.0f} MPa, is of a single voxel."
    )
    if outcome.setup.mode == "refined":
        return f"Plastic flow limits it. {scale}"
    linear = "stress beyond the yield limit is not real, but tells where metal would yield"
    return f"The benchmark mode is linear: {linear}. {scale}"


def _plates_caption(study: Setup) -> str:
    return (
        f"The same part in refined mode on voxels of {_size(study)}, with the plate's bottom held at other "
        f"temperatures. Compare the curves with each other; on these voxels they differ from the simulation above."
    )


def _plate(temperature: float | None) -> str:
    return "no heater" if temperature is None else f"plate at {temperature:g} °C"


def _size(setup: Setup) -> str:
    return " × ".join(f"{edge:.3g}" for edge in setup.voxels.size) + " mm"


def _at(outcome: Outcome, value: float, node: np.integer) -> str:
    return f"{value:.4f} mm at {place(outcome.positions[node])}"


def _cycle(count: int) -> list[str]:
    return [PLATE_COLOURS[i % len(PLATE_COLOURS)] for i in range(count)]

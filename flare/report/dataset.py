"""Gallery of a dataset, and a page of its statistics beside those of the published files."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flare.data.benchmarks.cards import Published, card, is_benchmark
from flare.data.benchmarks.landmarks import STATISTICS, labelled, landmarks
from flare.data.dataset import Dataset
from flare.data.sample import ROLES, Schema
from flare.data.statistics import channel_statistics
from flare.report.fields import color_bar, draw_field, field_axes, panel_size, robust_range
from flare.report.hexahedra import draw_hexahedra
from flare.report.page import Grid, save_png, write_page
from flare.report.style import INK, TEXT, new_figure, plain
from flare.utils.text import counted, duration, format_record

SHOWN = 8
"""Number of samples in a gallery."""
PERCENTILES = (2.0, 98.0)
"""Percentiles of the values of a field at the ends of the colors, so that outliers do not darken the rest."""
COLORS = (
    f"Colours from the {PERCENTILES[0]:g}nd to the {PERCENTILES[1]:g}th percentile of the values; what lies outside "
    "has the last colour."
)
"""Caption of a gallery. Records of statistics contain it, so it must not change."""
MOST_SAMPLES = 500
"""Most samples that statistics are computed from, evenly spread over the dataset."""
ROUNDING = 1e-6
"""Relative range of values that are equal in single precision."""
NAMES = ("name", "description", "family")
"""Notes that describe a sample; the first one present is used."""
Rows = list[tuple[str, str]]


def write_dataset_page(dataset: Dataset) -> Path:
    """Write `gallery.png` and `statistics.html` into the folder of a dataset, and return the path of the page."""
    schema = dataset.schema
    indices = np.unique(np.linspace(0, len(dataset) - 1, MOST_SAMPLES).round().astype(int)).tolist()
    figures = [("Distribution", "Every channel, over all points.", histograms(dataset, indices))]
    if len(schema.fields[schema.points].components) in (2, 3):
        picture = gallery(dataset)
        save_png(picture, dataset.path / "gallery.png")
        figures.insert(
            0,
            ("Samples", f"{' and '.join(_shown(schema))} of samples evenly spread over the dataset. {COLORS}", picture),
        )
    about, notes = {"kind": "unknown", **dataset.about["provenance"]}, dataset.notes()
    known = card(schema.name) if is_benchmark(schema) else None
    kept = known.kept if known else {}
    grids: list[Grid] = []
    if dataset.sizes.min() < dataset.sizes.max():
        numbers = number_histograms(sample_numbers(dataset, [notes[i] for i in indices], indices))
        figures.append(("Samples", "Points, largest values and numbers noted by the generator, per sample.", numbers))
        grids.append(sample_grid(dataset, notes, indices))
    redrawn, draws = sum(bool(_failures(note)) for note in notes), sum(len(_failures(note)) for note in notes)
    found, published, departures = _landmarks(dataset, indices)
    grid = landmark_grid(found, published)
    landmark_rows = [*departures, *(_sources(published) if grid else _landmark_rows(found, published))]
    if grid:
        grids.insert(0, grid)
    page = dataset.path / "statistics.html"
    write_page(
        page,
        title=f"{schema.name}: {about['kind']} data",
        summary=[
            ("samples", f"{len(dataset):,}"),
            ("points per sample", _span(dataset.sizes)),
            ("redrawn", f"{counted(redrawn, 'sample')}, {counted(draws, 'draw')}" if redrawn else "none"),
            ("kind", about["kind"]),
        ],
        figures=figures,
        tables=[
            ("Ranges", _ranges(dataset, indices)),
            ("About the landmarks" if grid else "Landmarks", landmark_rows),
            ("Solver", [*_solver_rows(notes, known.note_units if known else {}), *_time_rows(dataset)]),
            ("Rejected draws", _rejections(notes, kept)),
        ],
        grids=grids,
        texts=[("Made with", yaml.safe_dump(about, sort_keys=False))],
        footer=f"Statistics of {len(indices):,} of {len(dataset):,} samples. Fingerprint {dataset.fingerprint}.",
    )
    return page


def gallery(dataset: Dataset, count: int = SHOWN) -> Figure:
    """Draw an input and a target of some samples, evenly spread over the dataset, with one color range per field."""
    schema = dataset.schema
    shown = _shown(schema)
    count = min(count // len(shown), len(dataset))
    chosen = np.unique(np.linspace(0, len(dataset) - 1, count).round().astype(int)).tolist()
    samples = [dataset[i] for i in chosen]
    window, first = _window(schema), samples[0].values[schema.points]
    boxes = [s.values[schema.points][_inside(s.values[schema.points], window)] for s in samples]
    low, high = np.min([b.min(0) for b in boxes], axis=0), np.max([b.max(0) for b in boxes], axis=0)
    width, height = panel_size(np.stack([low, high]))
    solid = schema.cell_type == "hexahedron"
    columns = min(4, len(samples))
    rows = -(-len(samples) // columns)
    figure = new_figure(columns * (width + 0.3) + 0.9, len(shown) * rows * (height + 0.5) + 0.3)
    places = figure.add_gridspec(len(shown) * rows, columns)
    for part, (name, label) in enumerate(shown.items()):
        seen = np.concatenate([s.values[name][_inside(s.values[schema.points], window), 0] for s in samples])
        limits = robust_range(seen, PERCENTILES)
        for place, (index, sample) in enumerate(zip(chosen, samples, strict=True)):
            row, column = divmod(place, columns)
            axes = field_axes(figure, places[len(shown) * row + part, column], 2 if solid else first.shape[1])
            axes.set_title(f"sample {index}", fontsize=TEXT, color=INK)
            x, values = sample.values[schema.points], sample.values[name][:, 0]
            if solid and sample.cells is not None:
                drawn = draw_hexahedra(axes, x, sample.cells, values, limits=limits)
            else:
                drawn = draw_field(axes, x, values, grid=schema.grid, cells=sample.cells, limits=limits)
            if first.shape[1] == 2:  # one frame for all samples, so that shapes can be compared
                margin = 0.02 * float((high - low).max())
                axes.set_xlim(window.get("x", (low[0] - margin, high[0] + margin)))
                axes.set_ylim(window.get("y", (low[1] - margin, high[1] + margin)))
            if column == columns - 1 or place == len(samples) - 1:
                color_bar(axes, drawn, label, seen)
    return figure


def _shown(schema: Schema) -> dict[str, str]:
    """Return the fields of a gallery and their labels: the first feature, if there is one, and the first target."""
    shown = {}
    for role in ("feature", "target"):
        for channel in schema.channels(role)[:1]:
            name = channel.split(".")[0]
            shown[name] = ", ".join(filter(None, [channel, schema.fields[name].unit_text]))
    return shown


def histograms(dataset: Dataset, indices: Sequence[int]) -> Figure:
    """Draw a histogram of every channel except coordinates, over the points of some samples."""
    schema, panels = dataset.schema, []
    for name in schema.named(*ROLES[1:]):
        values = np.concatenate([np.atleast_2d(dataset[i].values[name]) for i in indices])
        for title, column in zip(schema.channels_of(name), values.T, strict=True):
            panels.append((title, schema.fields[name].unit_text, column))
    return _histograms(panels, 60, "% of points")


Numbers = dict[str, tuple[str, Sequence[float]]]
"""Title -> unit, and one value per sample."""


def sample_numbers(dataset: Dataset, notes: Sequence[Mapping[str, Any]], indices: Sequence[int]) -> Numbers:
    """Return number of points, largest value of every scalar field, and noted numbers of samples."""
    schema = dataset.schema
    fields = [n for n in schema.named("target", "extra") if len(schema.fields[n].components) == 1]
    found: Numbers = {"points": ("", dataset.sizes[list(indices)].tolist())}
    for name in fields:
        largest = [float(dataset[i].values[name].max()) for i in indices]
        found[f"largest {name}"] = schema.fields[name].unit_text, largest
    units = card(schema.name).note_units if is_benchmark(schema) else {}
    for key, values in _numbers(notes).items():
        found.setdefault(key.replace("_", " "), (units.get(key, ""), values))
    return found


def number_histograms(found: Numbers) -> Figure:
    """Draw a histogram of each number over samples."""
    panels = [(title.replace("_", " "), unit, np.asarray(values, float)) for title, (unit, values) in found.items()]
    return _histograms(panels, 30, "% of samples")


def _histograms(panels: Sequence[tuple[str, str, np.ndarray]], bins: int, of: str) -> Figure:
    """Draw a histogram of each (title, unit, values), three per row."""
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure = new_figure(3.3 * columns, 2.4 * rows)
    places = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, (title, unit, values) in zip(places, panels, strict=False):
        _histogram(axes, values, bins, title, unit, of)
    for axes in places[len(panels) :]:
        axes.remove()
    return figure


def _histogram(axes: Axes, values: np.ndarray, bins: int, title: str, unit: str, of: str) -> None:
    values = values.astype(np.float64)  # float32 may have fewer numbers in the range than bins
    low, high = float(values.min()), float(values.max())
    size = max(abs(low), abs(high))
    if high - low <= ROUNDING * size:  # equal up to rounding: one bar
        bins, low, high = 1, low - (0.01 * size or 1.0), high + (0.01 * size or 1.0)
    axes.hist(values, bins=bins, range=(low, high), weights=np.full(len(values), 100 / len(values)), color="#94a3b8")
    plain(axes, x=unit, y=of, title=title)


def _window(schema: Schema) -> Mapping[str, tuple[float, float]]:
    return card(schema.name).window if is_benchmark(schema) else {}


def _inside(points: np.ndarray, window: Mapping[str, tuple[float, float]]) -> np.ndarray:
    inside = np.ones(len(points), dtype=bool)
    for axis, (low, high) in window.items():
        along = points[:, "xyz".index(axis)]
        inside &= (low <= along) & (along <= high)
    return inside


def _ranges(dataset: Dataset, indices: Sequence[int]) -> Rows:
    schema = dataset.schema
    rows = []
    for name in schema.named(*ROLES):
        field = schema.fields[name]
        facts = channel_statistics(np.atleast_2d(dataset[i].values[name]) for i in indices)
        for c, label in enumerate(schema.channels_of(name)):
            extent = f"{facts.low[c]:.4g} … {facts.high[c]:.4g} {field.unit_text}".rstrip()
            rows.append((label, f"{extent}, mean {facts.mean[c]:.4g}, std {facts.std[c]:.4g}"))
    return rows


def _landmarks(dataset: Dataset, indices: Sequence[int]) -> tuple[dict[str, float], Mapping[str, Published], Rows]:
    """Return our landmarks, the published ones if they apply, and a row with the differing options otherwise."""
    found = landmarks(dataset, indices)
    departures = dataset.about["provenance"].get("departures", {})
    # Published numbers do not apply to another form, such as a coarser mesh. Another set of parts has the same form.
    other_form = set(departures) - {"parts"}
    published = card(dataset.schema.name).published if found and not other_form else {}
    rows = [("differs from the published form", format_record(departures))] if found and departures else []
    return found, published, rows


def _landmark_rows(found: Mapping[str, float], published: Mapping[str, Published]) -> Rows:
    rows = []
    for key, value in found.items():
        theirs = f" (published {published[key].value:.4g}: {published[key].source})" if key in published else ""
        rows.append((key, f"{value:.4g}{theirs}"))
    return rows


def _sources(published: Mapping[str, Published]) -> Rows:
    return [("published", "; ".join(dict.fromkeys(item.source for item in published.values())))] if published else []


def _solver_rows(notes: Sequence[Mapping[str, Any]], units: Mapping[str, str]) -> Rows:
    """Return median and largest of every number that the solver noted, such as residuals."""
    rows = []
    for key, values in _numbers(notes).items():
        unit = f" {units[key]}" if key in units else ""
        text = f"median {number(float(np.median(values)))}{unit}, largest {number(max(values))}{unit}"
        rows.append((key.replace("_", " "), text))
    return rows


def _numbers(notes: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Return key -> values of all notes that are numbers."""
    found: dict[str, list[float]] = {}
    for note in notes:
        for key, value in note.items():
            if isinstance(value, int | float):
                found.setdefault(key, []).append(float(value))
    return found


def _rejections(notes: Sequence[Mapping[str, Any]], kept: Mapping[str, str]) -> Rows:
    """Return the reasons of redrawn samples and of draws rejected before solving, with their counts."""
    count: Counter[str] = Counter()
    for note in notes:
        count.update(
            re.split(r"\s(?=[-+]?[\d.]*\d)", reason)[0] for reason in _failures(note)
        )  # up to the first number
        if isinstance(note.get("rejected"), Mapping):
            count.update({f"rejected: {reason}": int(n) for reason, n in note["rejected"].items()})
    return [(reason, f"{n:,}{_explained(reason, kept)}") for reason, n in count.most_common()]


def _time_rows(dataset: Dataset) -> Rows:
    path = dataset.path / "making.jsonl"
    seconds = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        with suppress(ValueError, KeyError, TypeError):  # a line may be incomplete after a crash
            seconds.append(float(json.loads(line)["seconds"]))
    if not seconds:
        return []
    text = f"median {np.median(seconds):.3g} s, longest {max(seconds):.3g} s, all {duration(sum(seconds))} on one core"
    return [("time per sample", text)]


def _failures(note: Mapping[str, Any]) -> list[str]:
    """Return why a sample was redrawn. A note of the same name by a user may be anything."""
    redrawn = note.get("redrawn")
    return redrawn if isinstance(redrawn, list) else []


def _explained(reason: str, kept: Mapping[str, str]) -> str:
    return next((f" ({why})" for begin, why in kept.items() if reason.startswith(begin)), "")


def _span(sizes: np.ndarray) -> str:
    low, high = int(sizes.min()), int(sizes.max())
    return f"{low:,}" if low == high else f"{low:,} – {high:,}"


def number(value: float) -> str:
    """Format a number with four digits, large ones as integers without exponent."""
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e12 else f"{value:.4g}"


def landmark_grid(found: Mapping[str, float], published: Mapping[str, Published]) -> Grid | None:
    """Build a table of landmarks with the published ones below each; None if they are not statistics of samples."""
    quantities = dict.fromkeys(key.partition(" of ")[2] for key in found)
    if not found or set(found) != {f"{name} of {what}" for what in quantities for name in STATISTICS}:
        return None
    rows = []
    for what in quantities:
        keys = [f"{name} of {what}" for name in STATISTICS]
        rows.append([labelled(what), "these", *(number(found[key]) for key in keys)])
        if all(key in published for key in keys):
            rows.append(["", "published", *(number(published[key].value) for key in keys)])
    return Grid("Landmarks", ["of each sample", "", *STATISTICS], rows, words=2)


def sample_grid(dataset: Dataset, notes: Sequence[Mapping[str, Any]], indices: Sequence[int]) -> Grid:
    """Build a table with one row per sample: description, points, layer groups and range of its targets."""
    schema = dataset.schema
    targets = [(name, schema.fields[name]) for name in schema.named("target")]
    named = any(_name(notes[i]) for i in indices)
    grouped = any("groups" in notes[i] for i in indices)
    columns = ["sample", *["what"] * named, "points", *["groups"] * grouped]
    columns += [", ".join(filter(None, [name, field.unit_text])) for name, field in targets]
    rows = []
    for i in indices:
        values = dataset[i].values
        row = [str(i), *[_name(notes[i])] * named, f"{dataset.sizes[i]:,}"]
        row += [str(notes[i].get("groups", ""))] * grouped
        rows.append(row + [f"{number(values[name].min())} … {number(values[name].max())}" for name, _ in targets])
    return Grid("Samples one by one", columns, rows, words=1 + named)


def _name(note: Mapping[str, Any]) -> str:
    return next((str(note[key]) for key in NAMES if key in note), "")

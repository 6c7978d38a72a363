"""Tables of a dataset: landmarks beside the published ones, and one row per sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flare.data.benchmarks.cards import Published
from flare.data.benchmarks.landmarks import STATISTICS, labelled
from flare.data.dataset import Dataset
from flare.report.page import Grid

NAMES = ("name", "description", "family")
"""Notes that describe a sample; the first one present is used."""


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
    columns += [f"{name}{'' if field.unit == '1' else f', {field.unit}'}" for name, field in targets]
    rows = []
    for i in indices:
        values = dataset[i].values
        row = [
            str(i),
            *[_name(notes[i])] * named,
            f"{dataset.sizes[i]:,}",
            *[str(notes[i].get("groups", ""))] * grouped,
        ]
        rows.append(row + [f"{number(values[name].min())} … {number(values[name].max())}" for name, _ in targets])
    return Grid("Samples one by one", columns, rows, words=1 + named)


def _name(note: Mapping[str, Any]) -> str:
    return next((str(note[key]) for key in NAMES if key in note), "")

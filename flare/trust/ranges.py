"""Does a parameter lie where the training had it? One among many inputs of every point moves a latent code too little
for familiarity to notice, and beyond the training's values a network goes on as it likes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from flare.data.dataset import Dataset
from flare.data.sample import Sample, Schema

Ranges = Mapping[str, tuple[list[float], list[float]]]
"""Parameter -> smallest and largest value in the training split, of each component."""
ROUNDING = 1e-6
"""Of a value that is typed again from a file of single precision, relative."""


def fit_ranges(dataset: Dataset, train: Iterable[int], *, moved: bool = False) -> Ranges:
    """Of all samples of a split.

    Args:
        moved: samples were mirrored or turned in training, so that vectors had other values, too; they get no range.
    """
    schema = dataset.schema
    names = [name for name in schema.named("parameter") if not (moved and len(schema.fields[name].components) > 1)]
    rows = [dataset.read(int(index), roles=["parameter"]).values for index in train]
    stacked = {name: np.stack([row[name] for row in rows]) for name in names}
    return {name: (values.min(0).tolist(), values.max(0).tolist()) for name, values in stacked.items()}


def outside(ranges: Ranges, schema: Schema, sample: Sample) -> tuple[str, ...]:
    """Parameters of a sample that lie elsewhere than the training's, each in a clause."""
    found = []
    for name, limits in ranges.items():
        unit = "" if schema.fields[name].unit == "1" else f" {schema.fields[name].unit}"
        values = np.asarray(sample.values[name], dtype=np.float64)
        for channel, value, low, high in zip(schema.channels_of(name), values, *limits, strict=True):
            if max(low - value, value - high) > ROUNDING * max(abs(low), abs(high)):
                span = f"{low:.6g}" if low == high else f"{low:.6g} to {high:.6g}"
                found.append(f"{channel} = {value:.6g}{unit} lies outside the training's {span}")
    return tuple(found)


def beyond(clause: str) -> str:
    """What is `outside`, as a sentence."""
    return f"WARNING: {clause}; error bars do not hold there"

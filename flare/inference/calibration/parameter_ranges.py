"""Ranges of the parameters in the training samples.

A parameter is one of many inputs and moves the latents too little for the OOD score to notice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from flare.data.dataset import Dataset
from flare.data.sample import Sample, Schema

Ranges = Mapping[str, tuple[list[float], list[float]]]
"""Parameter -> smallest and largest value of each component in the training samples."""
ROUNDING = 1e-6
"""Relative tolerance, for values copied from single-precision files."""


def fit_ranges(dataset: Dataset, train: Iterable[int], *, augmented: bool = False) -> Ranges:
    """Return the ranges of the parameters of training samples.

    Args:
        dataset: The dataset.
        train: Indices of the training samples.
        augmented: Whether samples are mirrored or rotated in training. Vectors then have other values and no range.
    """
    schema = dataset.schema
    names = [name for name in schema.named("parameter") if not (augmented and len(schema.fields[name].components) > 1)]
    rows = [dataset.read(int(index), roles=["parameter"]).values for index in train]
    stacked = {name: np.stack([row[name] for row in rows]) for name in names}
    return {name: (values.min(0).tolist(), values.max(0).tolist()) for name, values in stacked.items()}


def outside_ranges(ranges: Ranges, schema: Schema, sample: Sample) -> tuple[str, ...]:
    """Describe each parameter of a sample that lies outside the range of the training samples."""
    found = []
    for name, limits in ranges.items():
        unit = "" if schema.fields[name].unit == "1" else f" {schema.fields[name].unit}"
        values = np.asarray(sample.values[name], dtype=np.float64)
        for channel, value, low, high in zip(schema.channels_of(name), values, *limits, strict=True):
            if max(low - value, value - high) > ROUNDING * max(abs(low), abs(high)):
                span = f"{low:.6g}" if low == high else f"{low:.6g} to {high:.6g}"
                found.append(f"{channel} = {value:.6g}{unit} lies outside the training's {span}")
    return tuple(found)


def range_warning(description: str) -> str:
    """Return a warning about one parameter that `outside_ranges` describes."""
    return f"WARNING: {description}; error bars do not hold there"

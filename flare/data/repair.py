"""What can be mended in a sample without inventing anything: points and cells left out."""

from __future__ import annotations

import numpy as np

from flare.data.sample import Sample, Schema


def without_points(schema: Schema, sample: Sample, keep: np.ndarray) -> Sample:
    """Only the points where `keep`, (N,) of bool, is True, and the cells that have none of the others."""
    values = {n: v if schema.fields[n].role == "parameter" else v[keep] for n, v in sample.values.items()}
    cells = sample.cells
    if cells is not None:
        number = np.cumsum(keep) - 1
        cells = number[cells[keep[cells].all(1)]]
    return Sample(values, cells, sample.notes)

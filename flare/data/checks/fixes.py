"""Fixes of samples that invent no values: bad points, cells and samples are dropped."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from flare.data.checks.check import check_folder
from flare.data.checks.near_duplicates import find_near_duplicates
from flare.data.checks.sample_checks import Finding, flat_cells
from flare.data.dataset import Dataset
from flare.data.sample import Sample, Schema
from flare.data.writer import DatasetWriter
from flare.utils.errors import DataError
from flare.utils.progress import progress
from flare.utils.text import counted


def drop_points(schema: Schema, sample: Sample, keep: np.ndarray) -> Sample:
    """Return a sample with only the points where `keep`, shape (N,), is True, and the cells between them."""
    values = {n: v if schema.fields[n].role == "parameter" else v[keep] for n, v in sample.values.items()}
    cells = sample.cells
    if cells is not None:
        number = np.cumsum(keep) - 1
        cells = number[cells[keep[cells].all(1)]]
    return Sample(values, cells, sample.notes)


def drop_nonfinite_points(schema: Schema, sample: Sample, finite: np.ndarray) -> Sample:
    """Return a sample with only the points where `finite` is True, and note how many points and cells it lost."""
    kept = drop_points(schema, sample, finite)
    cells = 0 if sample.cells is None or kept.cells is None else len(sample.cells) - len(kept.cells)
    return replace(kept, notes={**sample.notes, "left_out": {"points": int((~finite).sum()), "cells": cells}})


def merge_points(schema: Schema, sample: Sample) -> Sample:
    """Merge points that are equal in position and in every field. Cells refer to the first of them."""
    names = [name for name, field in schema.fields.items() if field.role != "parameter"]
    rows = np.concatenate([sample.values[name] for name in names], axis=1)
    _, first, number = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    if len(first) == len(rows):
        return sample
    keep = np.zeros(len(rows), dtype=bool)
    keep[first] = True
    cells = sample.cells
    if cells is not None:
        cells = (np.cumsum(keep) - 1)[first[number.reshape(-1)]][cells]
    values = {n: v[keep] if n in names else v for n, v in sample.values.items()}
    return Sample(values, cells, sample.notes)


def drop_broken_cells(schema: Schema, sample: Sample) -> Sample:
    """Drop cells whose corners do not exist or coincide, and cells without size."""
    if sample.cells is None or schema.cell_type is None:
        return sample
    points = sample.values[schema.points]
    cells = sample.cells[((sample.cells >= 0) & (sample.cells < len(points))).all(1)]
    flat, _ = flat_cells(schema.cell_type, cells, points)
    return Sample(sample.values, cells[~flat], sample.notes)


def fix_dataset(
    dataset: Dataset, out: str | os.PathLike[str], *, quiet: bool = False
) -> tuple[Dataset, dict[str, int]]:
    """Write a copy of a dataset without points, cells and samples that cannot be right.

    Drops points with NaN or inf, duplicate points with equal values, broken cells, samples without points, and samples
    that nearly equal one of an earlier split: of such a pair, the sample of `train` stays, then that of `calibration`.

    Returns:
        The copy, and the number of dropped `points`, `cells` and `samples`.

    Raises:
        DataError: No sample would be left. Or files have changed since they were written, or splits are impossible: a
            copy would have new checksums and hide it.
    """
    changed = list(check_folder(dataset))
    if changed:
        more = f" ({len(changed) - 1} more of this kind)" if len(changed) > 1 else ""
        raise DataError(f"{dataset.path} is not copied because it has changed. {changed[0]}{more}")
    schema, notes = dataset.schema, dataset.notes()
    dropped = {"points": 0, "cells": 0, "samples": 0}
    leaks = {other for _, other in find_near_duplicates(dataset).leaks}
    about = {"kind": "user", "maker": "flare data check --fix", "of": dataset.fingerprint}
    writer = DatasetWriter(out, schema, {**dataset.about["provenance"], "repaired": about})
    splits: dict[str, list[tuple[int, int]]] = {}
    kept = 0
    with progress(f"fixing {dataset.path}", len(dataset), quiet=quiet) as update:
        for split in dataset.splits:
            start = kept
            for index in map(int, dataset.split(split)):
                sample = dataset[index]
                fixed = _fix_sample(schema, sample)
                update()
                if fixed is None or index in leaks:
                    dropped["samples"] += 1
                    continue
                dropped["points"] += len(sample.values[schema.points]) - len(fixed.values[schema.points])
                if sample.cells is not None and fixed.cells is not None:
                    dropped["cells"] += len(sample.cells) - len(fixed.cells)
                kept += 1
                if kept > len(writer):
                    writer.append(Sample(fixed.values, fixed.cells, notes[index]))
            splits[split] = [(start, kept)]
    if not kept:
        writer.close()
        shutil.rmtree(writer.partial)  # it holds no sample
        raise DataError(f"{dataset.path}: no sample would be left; make the dataset again from sound files")
    return writer.finish(splits), dropped


def find_emptied_splits(before: Dataset, after: Dataset) -> Iterator[Finding]:
    """Find splits of which a fixed copy has no sample left."""
    for split in before.splits:
        count = len(before.split(split))
        if count and not len(after.split(split)):
            what = f"none of its {counted(count, 'sample')} is left: all were broken or near copies of another split"
            yield Finding(f"split {split!r}", what, count, fix="Add other files, or import again with `group`")


def _fix_sample(schema: Schema, sample: Sample) -> Sample | None:
    """Return a fixed sample; None if no point is left or a parameter is NaN or inf."""
    at_points = [n for n, field in schema.fields.items() if field.role != "parameter"]
    if not all(np.isfinite(sample.values[n]).all() for n in schema.fields if n not in at_points):
        return None
    finite = np.isfinite(np.concatenate([sample.values[n] for n in at_points], axis=1)).all(1)
    if not finite.any():
        return None
    sample = drop_broken_cells(schema, sample)  # first: no index may point outside
    sample = sample if finite.all() else drop_points(schema, sample, finite)
    return drop_broken_cells(schema, merge_points(schema, sample))

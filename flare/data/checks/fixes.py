"""Fixes of samples that invent no values: bad points, cells and samples are dropped."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from dataclasses import replace

import numpy as np

from flare.data.checks.check import check_folder
from flare.data.checks.copies import find_copies
from flare.data.checks.sample_checks import flat_cells
from flare.data.dataset import Dataset
from flare.data.sample import Sample, Schema
from flare.data.writer import DatasetWriter
from flare.utils.errors import DataError
from flare.utils.progress import progress


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
    return replace(kept, notes={**sample.notes, "left_out": _losses(schema, sample, kept)})


def _losses(schema: Schema, before: Sample, after: Sample) -> dict[str, int]:
    cells = [0 if sample.cells is None else len(sample.cells) for sample in (before, after)]
    points = [len(sample.values[schema.points]) for sample in (before, after)]
    return {"points": points[0] - points[1], "cells": cells[0] - cells[1]}


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
    that equal one of an earlier split: of such a pair, the sample of `train` stays, then that of `calibration`.

    Returns:
        The copy, and the number of dropped `points`, `cells` and `samples`.

    Raises:
        DataError: No sample of a split would be left. Or files have changed since they were written, or splits are
            impossible: a copy would have new checksums and hide it.
    """
    changed = list(check_folder(dataset))
    if changed:
        raise DataError(f"{dataset.path} is not copied because it has changed. {changed[0]}")
    schema, notes = dataset.schema, dataset.notes()
    leaks, _ = find_copies(dataset, quiet=quiet)
    copies = {other for _, other in leaks}
    dropped = Counter[str]()
    about = {"kind": "user", "maker": "flare data check --fix", "of": dataset.fingerprint}
    writer = DatasetWriter(out, schema, {**dataset.about["provenance"], "repaired": about})
    splits: dict[str, list[tuple[int, int]]] = {}
    kept = 0
    with writer, progress(f"fixing {dataset.path}", len(dataset), quiet=quiet) as update:
        for split in dataset.splits:
            start, members = kept, dataset.split(split)
            for index in map(int, members):
                sample = dataset[index]
                fixed = None if index in copies else _fix_sample(schema, sample)
                update()
                if fixed is None:
                    dropped["samples"] += 1
                    continue
                dropped.update(_losses(schema, sample, fixed))
                kept += 1
                if kept > len(writer):
                    writer.append(Sample(fixed.values, fixed.cells, notes[index]))
            splits[split] = [(start, kept)]
            if len(members) and kept == start:
                shutil.rmtree(writer.partial)
                raise DataError(
                    f"{dataset.path}: no sample of {split!r} would be left; create the dataset again from valid files"
                )
        return writer.finish(splits), dict(dropped)


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

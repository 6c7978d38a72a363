"""What can be mended in a sample without inventing anything: points and cells left out."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from flare.data.checks.sample_checks import Finding, flat_cells
from flare.data.dataset import Dataset
from flare.data.sample import Sample, Schema
from flare.data.writer import DatasetWriter
from flare.utils.errors import DataError
from flare.utils.progress import progress
from flare.utils.text import counted


def without_points(schema: Schema, sample: Sample, keep: np.ndarray) -> Sample:
    """Only the points where `keep`, (N,) of bool, is True, and the cells that have none of the others."""
    values = {n: v if schema.fields[n].role == "parameter" else v[keep] for n, v in sample.values.items()}
    cells = sample.cells
    if cells is not None:
        number = np.cumsum(keep) - 1
        cells = number[cells[keep[cells].all(1)]]
    return Sample(values, cells, sample.notes)


def numbers_only(schema: Schema, sample: Sample, finite: np.ndarray) -> Sample:
    """Only points that are numbers; how much that leaves out is kept with the sample."""
    kept = without_points(schema, sample, finite)
    cells = 0 if sample.cells is None or kept.cells is None else len(sample.cells) - len(kept.cells)
    return replace(kept, notes={**sample.notes, "left_out": {"points": int((~finite).sum()), "cells": cells}})


def merged_points(schema: Schema, sample: Sample) -> Sample:
    """Points that equal an earlier one in place and in every field are left out; cells take the earlier one."""
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


def sound_cells(schema: Schema, sample: Sample) -> Sample:
    """Without cells whose corners do not exist or are not all different, and without cells of no size."""
    if sample.cells is None or schema.cell_type is None:
        return sample
    points = sample.values[schema.points]
    cells = sample.cells[((sample.cells >= 0) & (sample.cells < len(points))).all(1)]
    flat, _ = flat_cells(schema.cell_type, cells, points)
    return Sample(sample.values, cells[~flat], sample.notes)


def repair(dataset: Dataset, out: str | os.PathLike[str], *, quiet: bool = False) -> tuple[Dataset, dict[str, int]]:
    """A copy of a dataset without what cannot be right, and how much was left out.

    Points that are no numbers, points that are there twice with all their values, cells without corners or with two
    equal ones, samples with nothing left, and samples that nearly equal one of an earlier split: of a pair the one of
    `train` stays, and of `calibration` and `test` that of `calibration`.

    Raises:
        DataError: files of the dataset have changed since they were written, or its splits cannot be: a copy would
            have fresh checksums and hide it. Or no sample would be left.
    """
    from flare.data.checks.check import check_folder, find_alike

    changed = list(check_folder(dataset))
    if changed:
        more = f" ({len(changed) - 1} more of the kind)" if len(changed) > 1 else ""
        raise DataError(f"{dataset.path} is not copied, for it is not as it was written. {changed[0]}{more}")
    schema, notes = dataset.schema, dataset.notes()
    left_out = {"points": 0, "cells": 0, "samples": 0}
    leaks = {other for _, other in find_alike(dataset).leaks}
    about = {"kind": "user", "maker": "flare data check --fix", "of": dataset.fingerprint}
    writer = DatasetWriter(out, schema, {**dataset.about["provenance"], "repaired": about})
    splits: dict[str, list[tuple[int, int]]] = {}
    kept = 0
    with progress(f"repairing {dataset.path}", len(dataset), quiet=quiet) as update:
        for split in dataset.splits:
            start = kept
            for index in map(int, dataset.split(split)):
                sample = dataset[index]
                mended = _mended(schema, sample)
                update()
                if mended is None or index in leaks:
                    left_out["samples"] += 1
                    continue
                left_out["points"] += len(sample.values[schema.points]) - len(mended.values[schema.points])
                left_out["cells"] += 0 if sample.cells is None else len(sample.cells) - len(_cells(mended))
                kept += 1
                if kept > len(writer):
                    writer.append(Sample(mended.values, mended.cells, notes[index]))
            splits[split] = [(start, kept)]
    if not kept:
        writer.close()
        shutil.rmtree(writer.partial)  # it holds no sample
        raise DataError(f"{dataset.path}: no sample would be left; make the dataset again, of sound files")
    return writer.finish(splits), left_out


def emptied(before: Dataset, after: Dataset) -> Iterator[Finding]:
    """Splits of which nothing is left: nobody would look for a test that is none."""
    for split in before.splits:
        count = len(before.split(split))
        if count and not len(after.split(split)):
            what = (
                f"nothing is left of its {counted(count, 'sample')}: each was unsound, or nearly one of another split"
            )
            yield Finding(f"split {split!r}", what, count, fix="Bring other files, or split by --group")


def _cells(sample: Sample) -> np.ndarray:
    assert sample.cells is not None
    return sample.cells


def _mended(schema: Schema, sample: Sample) -> Sample | None:
    """The sample without what is wrong with it; None where nothing is left, or a parameter is no number."""
    at_points = [n for n, field in schema.fields.items() if field.role != "parameter"]
    if not all(np.isfinite(sample.values[n]).all() for n in schema.fields if n not in at_points):
        return None
    table = np.concatenate([sample.values[n] for n in at_points], axis=1)
    finite = np.isfinite(table).all(1)
    if not finite.any():
        return None
    sample = sound_cells(schema, sample)  # first: no index may point outside
    sample = sample if finite.all() else without_points(schema, sample, finite)
    return sound_cells(schema, merged_points(schema, sample))

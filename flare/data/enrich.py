"""Datasets made of datasets: solids with what each node has around it, and several as one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from flare.data.dataset import Dataset
from flare.data.sample import Field, Sample, Schema
from flare.data.writer import DatasetWriter, Splits
from flare.mesh.surroundings import FIELDS, surroundings
from flare.utils.errors import DataError, nearest
from flare.utils.progress import progress


def with_surroundings(
    dataset: Dataset, out: str | os.PathLike[str], *, targets: Sequence[str] = (), quiet: bool = False
) -> Dataset:
    """Write the dataset and the fields of `flare.mesh.surroundings` into the new folder `out`, or go on there.

    The result says in its provenance that a model of it is told more than the benchmark's.

    Args:
        targets: further fields to predict, of those that are only kept: what is learnt of one helps with another.
    """
    schema = dataset.schema
    if schema.cell_type != "hexahedron":
        raise DataError(f"{dataset.path} has no hexahedra; what is around a node is found from them")
    twice = [name for name in FIELDS if name in schema.fields]
    if twice:
        raise DataError(f"{dataset.path} has a field {twice[0]!r} already; is it enriched?")
    for name in targets:
        if name not in schema.named("extra"):
            raise DataError(
                f"{dataset.path} keeps no field {name!r} to predict; {nearest(name, schema.named('extra'))}"
            )
    promoted = {name: replace(schema.fields[name], role="target") for name in targets}
    more = {"inputs": "also what each node has around it"} | (
        {"targets": f"also {', '.join(targets)}"} if targets else {}
    )

    def samples(start: int) -> Iterator[Sample]:
        notes = dataset.notes()
        for index in range(start, len(dataset)):
            sample = dataset[index]
            assert sample.cells is not None, "a dataset with a type of cells has them in every sample"
            try:
                around = surroundings(sample.values["points"], sample.cells)
            except DataError as error:
                raise DataError(f"{dataset.path}, sample {index}: {error}") from None
            yield Sample({**sample.values, **around}, sample.cells, notes[index])

    old = dataset.about["provenance"]
    provenance = {**old, "departures": {**old.get("departures", {}), **more}, "made_of": [dataset.fingerprint]}
    schema = replace(schema, fields={**schema.fields, **promoted, **FIELDS})
    return _write(out, schema, provenance, dataset.about["splits"], len(dataset), samples, quiet=quiet)


def joined(datasets: Sequence[Dataset], out: str | os.PathLike[str], *, quiet: bool = False) -> Dataset:
    """Write several datasets of the same fields as one into the new folder `out`, or go on there.

    Splits of the same name become one. A further input, the parameter `source`, is 0 for samples of the first dataset,
    1 for those of the second, and so on: a model can learn how they differ, and is asked for the first kind with 0.
    """
    first = datasets[0]
    for other in datasets[1:]:
        if (other.schema.fields, other.schema.cell_type) != (first.schema.fields, first.schema.cell_type):
            raise DataError(
                f"{first.path} and {other.path} have different fields; only datasets of the same are joined"
            )
    source = Field(role="parameter", components=("source",), description="which of the joined datasets it comes from")
    schema = replace(first.schema, fields={**first.schema.fields, "source": source}, grid=None)
    starts = [sum(len(d) for d in datasets[:n]) for n in range(len(datasets))]
    splits: dict[str, list[tuple[int, int]]] = {}
    for dataset, start in zip(datasets, starts, strict=True):
        for name, ranges in dataset.about["splits"].items():
            splits.setdefault(name, []).extend((a + start, b + start) for a, b in ranges if a < b)

    def samples(begin: int) -> Iterator[Sample]:
        for number, (dataset, start) in enumerate(zip(datasets, starts, strict=True)):
            notes = dataset.notes()
            for index in range(max(0, begin - start), len(dataset)):
                sample = dataset[index]
                yield Sample({**sample.values, "source": np.array([[number]])}, sample.cells, notes[index])

    old = first.about["provenance"]
    told = {**old.get("departures", {}), "joined": f"{len(datasets)} datasets"}
    provenance = {**old, "departures": told, "made_of": [dataset.fingerprint for dataset in datasets]}
    return _write(out, schema, provenance, splits, sum(map(len, datasets)), samples, quiet=quiet)


def _write(
    out: str | os.PathLike[str],
    schema: Schema,
    provenance: dict[str, Any],
    splits: Splits,
    count: int,
    samples: Callable[[int], Iterator[Sample]],
    *,
    quiet: bool,
) -> Dataset:
    """All samples that are not written yet; a folder that is finished and made of the same is opened."""
    if Path(out).exists():
        made = Dataset(out)
        if made.about["provenance"].get("made_of") != provenance["made_of"] or made.schema != schema:
            raise DataError(f"{out} was made of other data; remove it, or choose another folder")
        return made
    writer = DatasetWriter(out, schema, provenance)
    try:
        with progress("writing", count, done=len(writer), quiet=quiet) as advance:
            for sample in samples(len(writer)):
                writer.append(sample)
                advance()
        return writer.finish(splits)
    finally:
        writer.close()

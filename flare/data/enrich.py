"""Datasets derived from datasets: solids with geometric features of each node, and several datasets joined."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from flare.data.dataset import Dataset
from flare.data.generation.job import fill
from flare.data.sample import Field, Sample, Schema
from flare.data.surroundings import FIELDS, surroundings
from flare.data.writer import DatasetWriter, Splits
from flare.utils.errors import DataError, suggest_name


def add_surroundings(
    dataset: Dataset, out: str | os.PathLike[str], *, targets: Sequence[str] = (), quiet: bool = False
) -> Dataset:
    """Write a copy of a dataset with the features of `flare.data.surroundings`, or resume an unfinished copy.

    The provenance of the copy records that a model gets more inputs than the benchmark defines.

    Args:
        dataset: Dataset of axis-aligned hexahedra.
        out: Folder to write.
        targets: Fields with the role `extra` that become targets, too.
        quiet: Report no progress.

    Raises:
        DataError: The dataset has no hexahedra, has these features already, or lacks a field in `targets`.
    """
    schema = dataset.schema
    if schema.cell_type != "hexahedron":
        raise DataError(f"{dataset.path} has no hexahedra, which the features are computed from")
    if FIELDS.keys() & schema.fields.keys():
        raise DataError(f"{dataset.path} has these features already")
    for name in targets:
        if name not in schema.named("extra"):
            hint = suggest_name(name, schema.named("extra"))
            raise DataError(f"{dataset.path} has no extra field {name!r} to predict; {hint}")
    promoted = {name: replace(schema.fields[name], role="target") for name in targets}
    departures = {"inputs": "also what each node has around it"}
    if targets:
        departures["targets"] = f"also {', '.join(targets)}"

    def samples(start: int) -> Iterator[Sample]:
        notes = dataset.notes()
        for index in range(start, len(dataset)):
            sample = dataset[index]
            assert sample.cells is not None, "a dataset with a cell type has cells in every sample"
            try:
                features = surroundings(sample.values["points"], sample.cells)
            except DataError as error:
                raise DataError(f"{dataset.path}, sample {index}: {error}") from None
            yield Sample({**sample.values, **features}, sample.cells, notes[index])

    schema = replace(schema, fields={**schema.fields, **promoted, **FIELDS})
    return _write(out, schema, [dataset], departures, dataset.about["splits"], samples, quiet=quiet)


def join_datasets(datasets: Sequence[Dataset], out: str | os.PathLike[str], *, quiet: bool = False) -> Dataset:
    """Write several datasets with the same fields as one, or resume an unfinished one.

    Splits of the same name are merged. A new parameter `source` is 0 for samples of the first dataset, 1 for those of
    the second, and so on, so that a model can learn how the datasets differ.

    Args:
        datasets: Datasets to join.
        out: Folder to write.
        quiet: Report no progress.

    Raises:
        DataError: The datasets have different fields or cell types.
    """
    first = datasets[0]
    for other in datasets[1:]:
        if (other.schema.fields, other.schema.cell_type) != (first.schema.fields, first.schema.cell_type):
            raise DataError(f"{first.path} and {other.path} have different fields and cannot be joined")
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

    return _write(out, schema, datasets, {"joined": f"{len(datasets)} datasets"}, splits, samples, quiet=quiet)


def _write(
    out: str | os.PathLike[str],
    schema: Schema,
    datasets: Sequence[Dataset],
    departures: dict[str, str],
    splits: Splits,
    samples: Callable[[int], Iterator[Sample]],
    *,
    quiet: bool,
) -> Dataset:
    """Write the samples that are missing, or open `out` if it is finished and made of the same data."""
    old, made_of = datasets[0].about["provenance"], [dataset.fingerprint for dataset in datasets]
    if Path(out).exists():
        made = Dataset(out)
        if made.about["provenance"].get("made_of") != made_of or made.schema != schema:
            raise DataError(f"{out} was made of other data; remove it, or choose another folder")
        return made
    provenance = {**old, "departures": {**old.get("departures", {}), **departures}, "made_of": made_of}
    with DatasetWriter(out, schema, provenance) as writer:
        fill(writer, samples(len(writer)), sum(map(len, datasets)), "writing", quiet=quiet)
        return writer.finish(splits)

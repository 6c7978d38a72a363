"""A dataset of solids with more inputs: what each node has around it, from the mesh itself."""

from __future__ import annotations

import os
from dataclasses import replace

from flare.data.sample import Sample
from flare.data.store import Dataset
from flare.data.writer import DatasetWriter
from flare.errors import DataError
from flare.mesh.surroundings import FIELDS, surroundings
from flare.terminal import progress


def with_surroundings(dataset: Dataset, out: str | os.PathLike[str], *, quiet: bool = False) -> Dataset:
    """Write the dataset and the fields of `flare.mesh.surroundings` into the new folder `out`, or go on there.

    The result says in its provenance that a model of it is told more than the benchmark's.
    """
    schema = dataset.schema
    if schema.cell_type != "hexahedron":
        raise DataError(f"{dataset.path} has no hexahedra; what is around a node is found from them")
    twice = [name for name in FIELDS if name in schema.fields]
    if twice:
        raise DataError(f"{dataset.path} has a field {twice[0]!r} already; is it enriched?")
    old = dataset.about["provenance"]
    departures = {**old.get("departures", {}), "inputs": "also what each node has around it"}
    provenance = {**old, "departures": departures, "enriched_from": dataset.fingerprint}
    writer = DatasetWriter(out, replace(schema, fields={**schema.fields, **FIELDS}), provenance)
    notes = dataset.notes()
    try:
        with progress("enriching", len(dataset), done=len(writer), quiet=quiet) as advance:
            for index in range(len(writer), len(dataset)):
                sample = dataset[index]
                assert sample.cells is not None, "a dataset with a type of cells has them in every sample"
                try:
                    around = surroundings(sample.values["points"], sample.cells)
                except DataError as error:
                    raise DataError(f"{dataset.path}, sample {index}: {error}") from None
                writer.append(Sample({**sample.values, **around}, sample.cells, notes[index]))
                advance()
        return writer.finish({name: dataset.about["splits"][name] for name in dataset.splits})
    finally:
        writer.close()

"""The samples of a dataset as a source of the page."""

from __future__ import annotations

from typing import Any

import numpy as np

from flare.data.dataset import Dataset
from flare.data.sample import Sample
from flare.mesh.topology import grid_triangles, surface_triangles
from flare.utils.errors import DataError
from flare.view.source import VERSION, Arrays, NotThere, Source, unit_of


class DatasetSource(Source):
    """Every field of every sample; surfaces if the dataset has cells or a grid, points otherwise."""

    def __init__(self, dataset: Dataset, *, split: str | None = None) -> None:
        self.dataset, self.schema = dataset, dataset.schema
        self.dimension = len(self.schema.fields[self.schema.points].components)
        if self.dimension not in (2, 3):
            raise DataError(f"{dataset.path}: points of {self.dimension} dimensions cannot be drawn; only 2 or 3")
        splits = [split] if split else dataset.splits
        self.split_of = {int(i): name for name in reversed(splits) for i in dataset.split(name)}
        if not self.split_of:
            raise DataError(f"{dataset.path}: there is no sample in {' or '.join(splits) or 'any split'}")

    def catalogue(self) -> dict[str, Any]:
        """Return the title, fields and samples; see `Source`."""
        schema, sizes, titles = self.schema, self.dataset.sizes, self.dataset.titles()
        return {
            "version": VERSION,
            "title": schema.name,
            "facts": [["dataset", self.dataset.path.name], ["samples", f"{len(self.dataset):,}"]],
            "dimension": self.dimension,
            "length_unit": unit_of(schema.fields[schema.points].unit),
            "fields": [
                {"name": channel, "unit": unit_of(schema.fields[name].unit), "role": schema.fields[name].role}
                for name in schema.named("target", "feature", "extra")
                for channel in self.schema.channels_of(name)
            ],
            "parameters": [
                {"name": name, "unit": unit_of(schema.fields[name].unit)} for name in schema.named("parameter")
            ],
            "samples": [
                {"id": i, "split": split, "points": int(sizes[i]), "name": titles[i]}
                for i, split in sorted(self.split_of.items())
            ],
            "spectra": None,
        }

    def geometry(self, sample: int) -> Arrays:
        """Return points, triangles and parameters; see `Source`."""
        read = self.read(sample)
        arrays = {"points": np.asarray(read.values[self.schema.points])}
        if (triangles := self._triangles(read)) is not None and len(triangles):
            arrays["triangles"] = triangles.astype(np.uint32)
        return arrays | {f"parameter/{name}": read.values[name] for name in self.schema.named("parameter")}

    def field(self, sample: int, name: str) -> Arrays:
        """Return one channel; see `Source`."""
        field, column = self._find(name)
        return {"truth": np.asarray(self.read(sample).values[field][:, column])}

    def read(self, sample: int) -> Sample:
        """Read a sample by its number."""
        if sample not in self.split_of:
            raise NotThere(f"there is no sample {sample}")
        return self.dataset[sample]

    def _triangles(self, sample: Sample) -> np.ndarray | None:
        if sample.cells is not None and self.schema.cell_type:
            return surface_triangles(sample.cells, self.schema.cell_type)
        return None if self.schema.grid is None else grid_triangles(*self.schema.grid)

    def _find(self, channel: str) -> tuple[str, int]:
        """Return the field of a channel and its column."""
        for field in self.schema.named("target", "feature", "extra"):
            if channel in (channels := self.schema.channels_of(field)):
                return field, channels.index(channel)
        raise NotThere(f"there is no field {channel!r}")

"""The samples of a dataset as a source of the page."""

from __future__ import annotations

from typing import Any

import numpy as np

from flare.data.dataset import Dataset
from flare.data.sample import Role, Sample
from flare.mesh.topology import grid_triangles, surface_triangles
from flare.utils.errors import DataError
from flare.view.source import Arrays, NotThere, Source, describe_schema, find_channel

SHOWN: tuple[Role, ...] = ("target", "feature", "extra")


class DatasetSource(Source):
    """Every field of every sample; surfaces if the dataset has cells or a grid, points otherwise."""

    def __init__(self, dataset: Dataset, *, split: str | None = None) -> None:
        self.dataset, self.schema = dataset, dataset.schema
        dimension = len(self.schema.fields[self.schema.points].components)
        if dimension not in (2, 3):
            raise DataError(f"{dataset.path}: points of {dimension} dimensions cannot be drawn; only 2 or 3")
        splits = [split] if split else dataset.splits
        self.split_of = {int(i): name for name in reversed(splits) for i in dataset.split(name)}
        if not self.split_of:
            raise DataError(f"{dataset.path}: there is no sample in {' or '.join(splits) or 'any split'}")

    def catalogue(self) -> dict[str, Any]:
        """Return the title, fields and samples; see `Source`."""
        sizes, titles = self.dataset.sizes, self.dataset.titles()
        facts = [["dataset", self.dataset.path.name], ["samples", f"{len(self.dataset):,}"]]
        samples = [
            {"id": i, "split": split, "points": int(sizes[i]), "name": titles[i]}
            for i, split in sorted(self.split_of.items())
        ]
        return describe_schema(self.schema, SHOWN, title=self.schema.name, facts=facts, samples=samples)

    def geometry(self, sample: int) -> Arrays:
        """Return points, triangles and parameters; see `Source`."""
        read = self.read(sample)
        arrays = {"points": np.asarray(read.values[self.schema.points])}
        if (triangles := self._triangles(read)) is not None and len(triangles):
            arrays["triangles"] = triangles.astype(np.uint32)
        return arrays | {f"parameter/{name}": read.values[name] for name in self.schema.named("parameter")}

    def field(self, sample: int, name: str) -> Arrays:
        """Return one channel; see `Source`."""
        field, column = find_channel(self.schema, SHOWN, name)
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

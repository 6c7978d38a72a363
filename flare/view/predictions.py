"""A single prediction as a source of the viewer, for results of `flare serve`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from flare.data.importing.fields import CENTRES
from flare.mesh.mesh import OTHER
from flare.mesh.topology import outer_triangles
from flare.view.source import Arrays, Source, describe_schema, find_channel

if TYPE_CHECKING:
    from flare.inference.prediction import Prediction


class PredictionSource(Source):
    """One sample: a prediction, compared with fields of the same names that its mesh had.

    Args:
        title: Title of the page.
        prediction: The predicted fields.
        summary: Summary of the result with the number of `points` and the `familiarity`.
    """

    def __init__(self, title: str, prediction: Prediction, summary: Mapping[str, Any]) -> None:
        self.title, self.prediction, self.summary = title, prediction, summary
        self.mesh = prediction.inputs.mesh
        self.schema = prediction.schema

    def catalogue(self) -> dict[str, Any]:
        """Describe the sample; see `flare.view.source.Source`."""
        familiarity = self.summary["familiarity"]
        facts = [["OOD score", f"{familiarity['score']:.2f}, {familiarity['verdict']}"]] if familiarity else []
        samples = [{"id": 0, "split": "upload", "points": self.summary["points"]}]
        catalogue = describe_schema(self.schema, ("target",), title=self.title, facts=facts, samples=samples)
        return catalogue | {"start": "upload"}

    def geometry(self, sample: int) -> Arrays:
        """Return points, triangles and parameters; the page warns of a high OOD score."""
        values = self.prediction.sample.values
        parameters = {name: values[name] for name in self.schema.named("parameter")} | self.prediction.score
        arrays = {"points": _as_float32(values[self.schema.points])}
        arrays |= {f"parameter/{name}": _as_float32(value) for name, value in parameters.items()}
        if self.mesh is not None and self.schema.points != CENTRES and OTHER not in self.mesh.cells:  # without VTK
            surface = outer_triangles(self.mesh)
            if surface is not None:
                arrays["triangles"] = surface[0].astype(np.uint32)
        return arrays

    def field(self, sample: int, name: str) -> Arrays:
        """Return the prediction of one channel, and the truth if the mesh had it."""
        field, column = find_channel(self.schema, ("target",), name)
        predicted = self.prediction.fields[field]
        arrays = {"prediction": predicted}
        truth = self.prediction.kept.get(field) if self.mesh is not None and self.mesh.has_cells else None
        if truth is not None and truth.size == predicted.size:
            arrays["truth"] = truth
        return {key: _as_float32(array.reshape(len(predicted), -1)[:, column]) for key, array in arrays.items()}


def _as_float32(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values, dtype=np.float32)

"""A predicted part as the page of `flare view` asks for it: a catalogue and some arrays, each a file (docs/view.md)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import save_file

from flare.data.importing.fields import CENTRES
from flare.data.importing.meshed import grid_cells, outer_triangles
from flare.utils.files import filling
from flare.view.source import VERSION, unit_of

if TYPE_CHECKING:
    from flare.data.sample import Schema
    from flare.mesh.unstructured import Grid
    from flare.prediction import Prediction

CATALOGUE, GEOMETRY = "catalogue.json", "geometry.safetensors"


def write_view(folder: Path, title: str, prediction: Prediction, grid: Grid | None, said: Mapping[str, Any]) -> None:
    """Write the answers for one part; a field that the mesh brought along is the truth beside the prediction."""
    schema, values_of = prediction.schema, prediction.sample.values
    points = _row_by_row(values_of[schema.points])
    arrays = {"points": points} | {
        f"parameter/{name}": _row_by_row(values_of[name]) for name in schema.named("parameter")
    }
    arrays |= {f"parameter/{name}": _row_by_row(score) for name, score in prediction.score.items()}  # the page warns
    at_cells = schema.points == CENTRES
    triangles = None if grid is None or at_cells else outer_triangles(grid_cells(grid))
    truths = {} if grid is None else prediction.kept
    if triangles is not None:
        arrays["triangles"] = np.ascontiguousarray(triangles)
    with filling(folder) as new:
        save_file(arrays, new / GEOMETRY)
        entries: list[dict[str, str]] = []
        for name, values in prediction.fields.items():
            given = truths.get(name)
            for channel, title_of in enumerate(schema.channels_of(name)):
                columns = {"prediction": values.reshape(len(points), -1)[:, channel]}
                if given is not None and given.size == values.size:
                    columns["truth"] = given.reshape(len(points), -1)[:, channel]
                save_file(
                    {key: _row_by_row(column) for key, column in columns.items()},
                    new / field_file(len(entries)),
                )
                entries.append({"name": title_of, "unit": unit_of(schema.fields[name].unit), "role": "target"})
        catalogue = json.dumps(_catalogue(title, schema, entries, said), allow_nan=False)
        (new / CATALOGUE).write_text(catalogue, encoding="utf-8")


def find_answer(folder: Path, question: str) -> Path | None:
    """The file that answers a question of the page; None where there is no such thing."""
    if question == "catalogue":
        return folder / CATALOGUE
    if question == "samples/0":
        return folder / GEOMETRY
    prefix = "samples/0/fields/"
    if question.startswith(prefix):
        names = [entry["name"] for entry in json.loads((folder / CATALOGUE).read_text(encoding="utf-8"))["fields"]]
        wanted = question.removeprefix(prefix)
        return folder / field_file(names.index(wanted)) if wanted in names else None
    return None


def field_file(number: int) -> str:
    return f"field-{number}.safetensors"


def _catalogue(title: str, schema: Schema, entries: list[dict[str, str]], said: Mapping[str, Any]) -> dict[str, Any]:
    familiarity = said["familiarity"]
    return {
        "version": VERSION,
        "title": title,
        "facts": [["familiarity", f"{familiarity['score']:.2f}, {familiarity['verdict']}"]] if familiarity else [],
        "dimension": len(schema.fields[schema.points].components),
        "length_unit": unit_of(schema.fields[schema.points].unit),
        "fields": entries,
        "parameters": [{"name": name, "unit": unit_of(schema.fields[name].unit)} for name in schema.named("parameter")],
        "samples": [{"id": 0, "split": "upload", "points": said["points"]}],
        "start": "upload",
        "spectra": None,
    }


def _row_by_row(values: np.ndarray) -> np.ndarray:
    """float32 in the order in which safetensors takes the bytes, whatever order an array has them in."""
    return np.ascontiguousarray(values, dtype=np.float32)

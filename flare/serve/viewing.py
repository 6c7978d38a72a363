"""A predicted part as the page of `flare view` asks for it: a catalogue and some arrays, each a file (docs/view.md)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import save_file

from flare.data.meshed import grid_cells
from flare.files import filling

if TYPE_CHECKING:
    from flare.data.sample import Sample, Schema
    from flare.mesh.unstructured import Grid

VERSION = 1
"""Of the contract with the page."""
CATALOGUE, GEOMETRY = "catalogue.json", "geometry.safetensors"


def write_view(
    folder: Path, title: str, schema: Schema, sample: Sample, fields: dict[str, np.ndarray], grid: Grid | None
) -> None:
    """Write the answers for one part; a field that the mesh brought along is the truth beside the prediction."""
    points = sample.values[schema.points].astype(np.float32)
    arrays = {"points": points} | {
        f"parameter/{name}": sample.values[name].astype(np.float32) for name in schema.named("parameter")
    }
    triangles = None if grid is None else _triangles(grid)
    if triangles is not None:
        arrays["triangles"] = triangles
    with filling(folder) as new:
        save_file(arrays, new / GEOMETRY)
        entries: list[dict[str, str]] = []
        for name, values in fields.items():
            given = None if grid is None else grid.point_fields.get(name)
            for channel, title_of in enumerate(_channels(schema, name)):
                columns = {"prediction": values.reshape(len(points), -1)[:, channel]}
                if given is not None and given.size == values.size:
                    columns["truth"] = given.reshape(len(points), -1)[:, channel]
                save_file(
                    {key: np.ascontiguousarray(column, dtype=np.float32) for key, column in columns.items()},
                    new / field_file(len(entries)),
                )
                entries.append({"name": title_of, "unit": _unit(schema, name), "role": "target"})
        (new / CATALOGUE).write_text(json.dumps(_catalogue(title, schema, len(points), entries)), encoding="utf-8")


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


def _catalogue(title: str, schema: Schema, count: int, entries: list[dict[str, str]]) -> dict[str, Any]:
    return {
        "version": VERSION,
        "title": title,
        "facts": [["points", f"{count:,}"]],
        "dimension": len(schema.fields[schema.points].components),
        "length_unit": _unit(schema, schema.points),
        "fields": entries,
        "parameters": [{"name": name, "unit": _unit(schema, name)} for name in schema.named("parameter")],
        "samples": [{"id": 0, "split": "upload", "points": count}],
        "start": "upload",
        "spectra": None,
    }


def _channels(schema: Schema, name: str) -> list[str]:
    components = schema.fields[name].components
    return [name] if len(components) == 1 else [f"{name}.{c}" for c in components]


def _unit(schema: Schema, name: str) -> str:
    """As the page writes it: nothing where a number is dimensionless."""
    unit = schema.fields[name].unit
    return "" if unit == "1" else unit


def _triangles(grid: Grid) -> np.ndarray | None:
    """(T, 3) of a mesh of surfaces; a solid is shown by its points."""
    cells = grid_cells(grid)
    found = [cells["triangle"]] if "triangle" in cells else []
    if "quad" in cells:
        found += [cells["quad"][:, [0, 1, 2]], cells["quad"][:, [0, 2, 3]]]
    return np.concatenate(found).astype(np.uint32) if found else None

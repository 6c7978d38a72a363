"""What comes back: predicted fields and how far to trust them, as a file of the format that was asked for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flare.data.importing.fields import CENTRES
from flare.data.importing.meshed import grid_cells, unit_words
from flare.data.tables import write_outputs
from flare.mesh.file import UNITS
from flare.mesh.unstructured import cloud_grid, write_grid
from flare.serve.viewing import write_view
from flare.trust.ranges import beyond
from flare.utils.errors import DataError
from flare.utils.files import replacing

if TYPE_CHECKING:
    import numpy as np

    from flare.data.sample import Role
    from flare.mesh.unstructured import Grid
    from flare.prediction import Prediction
    from flare.trust.calibration import Calibration, Judgement

REMARK = 300
"""Letters of a remark, at most: it may quote what was sent."""


def about(
    count: int,
    judgement: Judgement | None,
    calibration: Calibration | None,
    remarks: Sequence[str],
    *,
    outside: str = "",
) -> Any:
    """What every answer says beside its fields; `bars` and `familiarity` are null where a run is not calibrated.

    Args:
        outside: of a code that was asked for points beyond its part, in a sentence.
    """
    bars = familiarity = None
    if calibration is not None and calibration.bars is not None:
        hold = not outside and (judgement is None or not judgement.unlike)
        bars = {"level": calibration.bars.level, "coverage": calibration.report.get("coverage"), "hold": hold}
    if calibration is not None and calibration.familiar is not None and judgement is not None:
        rank = judgement.rank or 0
        familiarity = {
            "score": judgement.score,
            "unlike": rank == 0,
            "verdict": calibration.familiar.verdict(rank, judgement.score),
        }
    ranges = map(beyond, judgement.outside if judgement else ())
    said = [remark[:REMARK] for remark in (*remarks, *ranges, *filter(None, [outside]))]
    return {"points": count, "bars": bars, "familiarity": familiarity, "remarks": said}


def write_answer(path: Path, title: str, prediction: Prediction, grid: Grid | None, said: dict[str, Any]) -> None:
    """By the suffix: onto the mesh that came (.vtu), beside the inputs (.npz, .json), or to look at (.view).

    Args:
        title: of a page.
        grid: None for points without a mesh.
        said: `about` it.
    """
    schema, inputs = prediction.schema, prediction.inputs
    judgement = prediction.judgement
    new = {**prediction.added, **prediction.score}
    taken = next((name for name in new if name in prediction.kept), None)
    if taken and path.suffix in (".vtu", ".npz"):
        raise DataError(f"{prediction.name} has a field {taken!r} already; rename it, so that it is not lost")
    if path.suffix == ".view":
        write_view(path, title, prediction, grid, said)
    elif path.suffix == ".vtu":
        at_cells = grid is not None and schema.points == CENTRES
        mesh = cloud_grid(inputs[schema.points]).with_fields(prediction.kept) if grid is None else grid
        fields = prediction.beside([*grid.point_fields, *grid.cell_fields] if grid else [])
        words = prediction.unit_words if grid is None else unit_words(grid)
        values = prediction.of_whole(fields, mesh.values, words)
        if UNITS in values and UNITS in mesh.values and mesh.values[UNITS].dtype.kind == "U":  # among the new ones now
            mesh = replace(mesh, values={name: own for name, own in mesh.values.items() if name != UNITS})
        write_grid(path, mesh.with_fields(**{"cell_fields" if at_cells else "point_fields": fields}, values=values))
    elif path.suffix == ".npz":
        # Corners are numbers of points, which cell centres are not.
        cells = grid_cells(grid) if grid is not None and schema.points != CENTRES else {}
        more = {**prediction.kept, **prediction.added, **prediction.score}
        cells = {kind: corners for kind, corners in cells.items() if kind not in {*inputs, *more}}
        write_outputs(path, schema.fields, inputs, {}, {**cells, **more})
    else:
        bars = (judgement.bars if judgement else None) or {}
        record = {
            name: {
                "unit": schema.fields[name].unit,
                "components": list(schema.fields[name].components),
                "values": values.tolist(),
                "bar": bars[name].tolist() if name in bars else None,
            }
            for name, values in prediction.fields.items()
        }
        # Points may be the server's own, of a surface: without them nobody knows where the values belong.
        taken_in = {name: _uploaded(values, schema.fields[name].role) for name, values in inputs.items()}
        with replacing(path) as temporary:
            temporary.write_text(json.dumps({**said, "inputs": taken_in, "fields": record}, allow_nan=False))


def _uploaded(values: np.ndarray, role: Role) -> Any:
    """An input as an upload in JSON has it: rows of coordinates, and one number where a field has one component."""
    single = role != "points" and values.shape[-1] == 1
    return (values[..., 0] if single else values).tolist()

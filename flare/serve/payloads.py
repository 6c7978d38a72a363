"""Uploads as inputs of a model, and predictions as answer files.

Uploads are read by our own readers only, within limits; nothing is unpickled.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flare.data.importing.fields import layout_of
from flare.mesh import Mesh
from flare.mesh.io.arrays import mesh_from_arrays
from flare.utils.errors import DataError
from flare.utils.files import replace_atomically
from flare.view.predictions import PredictionSource
from flare.view.standalone import record_answers

if TYPE_CHECKING:
    from flare.data.sample import Role, Schema
    from flare.inference.calibration.calibrate import Assessment, Calibration
    from flare.inference.prediction import Prediction

MAX_NOTE = 300
"""Most characters of a note, which may quote the upload."""


def read_json(path: Path, schema: Schema) -> Mesh:
    """Read points and fields by name, as from a file of arrays.

    Raises:
        DataError: The file is damaged, or has no points or values that are not numbers.
    """
    try:
        record = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path.name} is not JSON: {str(error)[:200]}") from None
    if not isinstance(record, dict) or schema.points not in record:
        raise DataError(f"{path.name} must be an object of fields by name, with the points as {schema.points!r}")
    arrays = {name: _numbers(path, name, values) for name, values in record.items()}
    return mesh_from_arrays(path.name, schema.points, arrays, layout_of(schema))


def _numbers(path: Path, name: str, values: Any) -> np.ndarray:
    try:
        array = np.asarray(values)
    except (ValueError, OverflowError):
        array = np.array(None)
    if array.dtype.kind not in "fiu":
        raise DataError(f"{path.name}: {name[:100]!r} must be numbers, or rows of numbers of equal length")
    return array


def summarize(
    count: int,
    assessment: Assessment | None,
    calibration: Calibration | None,
    notes: Sequence[str],
    *,
    outside: str = "",
) -> dict[str, Any]:
    """Return what every answer has besides its fields; `bars` and `familiarity` are null without a calibration.

    Args:
        count: Number of points.
        assessment: Error bars and OOD score of the prediction.
        calibration: Calibration of the model.
        notes: Decisions that were made while the upload was read.
        outside: Warning about queried points outside the encoded geometry.
    """
    bars = familiarity = None
    if calibration is not None and calibration.error_bars is not None:
        hold = not outside and (assessment is None or not assessment.is_ood)
        bars = {"level": calibration.error_bars.level, "coverage": calibration.report.get("coverage"), "hold": hold}
    if calibration is not None and calibration.ood is not None and assessment is not None:
        rank = assessment.rank or 0
        familiarity = {
            "score": assessment.score,
            "unlike": rank == 0,
            "verdict": calibration.ood.verdict(rank),
        }
    ranges = assessment.range_warnings if assessment else ()
    remarks = [note[:MAX_NOTE] for note in (*notes, *ranges, *filter(None, [outside]))]
    return {"points": count, "bars": bars, "familiarity": familiarity, "remarks": remarks}


def write_answer(path: Path, title: str, prediction: Prediction, summary: dict[str, Any]) -> None:
    """Write a prediction in the format of the suffix: on the mesh (.vtu), as arrays (.npz, .json) or for viewing.

    Args:
        path: File to write; `.view` is a folder for the page of `flare view`.
        title: Title of the page.
        prediction: Prediction to write.
        summary: Result of `summarize`.
    """
    if path.suffix == ".view":
        record_answers(PredictionSource(title, prediction, summary), path)
    elif path.suffix in (".vtu", ".npz"):
        prediction.save(path)
    else:
        with replace_atomically(path) as temporary:
            temporary.write_text(json.dumps({**summary, **_json_answer(prediction)}, allow_nan=False))


def _json_answer(prediction: Prediction) -> dict[str, Any]:
    fields, bars = prediction.schema.fields, (prediction.assessment.error_bars if prediction.assessment else None) or {}
    record = {
        name: {
            "unit": fields[name].unit,
            "components": list(fields[name].components),
            "values": values.tolist(),
            "bar": bars[name].tolist() if name in bars else None,
        }
        for name, values in prediction.fields.items()
    }
    # The points of a surface are made by the server, so the answer must include them.
    inputs = {name: _as_uploaded(values, fields[name].role) for name, values in prediction.input_values.items()}
    return {"inputs": inputs, "fields": record}


def _as_uploaded(values: np.ndarray, role: Role) -> Any:
    """Return an input as a JSON upload has it: rows of coordinates, and plain numbers for one component."""
    single = role != "points" and values.shape[-1] == 1
    return (values[..., 0] if single else values).tolist()

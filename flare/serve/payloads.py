"""Uploads as inputs of a model, and predictions as answer files.

Uploads are read by our own readers only, within limits; nothing is unpickled.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from flare.data.importing.fields import missing_fields
from flare.inference.calibration.parameter_ranges import range_warning
from flare.inference.mesh_inputs import ModelInputs, given_twice, mesh_inputs, same_value, split_settings
from flare.mesh.io import ReadLimits
from flare.utils.errors import DataError, FlareError, TooLarge
from flare.utils.files import replace_atomically
from flare.view.predictions import write_view

if TYPE_CHECKING:
    from flare.data.sample import Role, Schema
    from flare.inference.calibration.calibrate import Assessment, Calibration
    from flare.inference.prediction import Prediction
    from flare.inference.surrogate import Surrogate
    from flare.serve.limits import ServerLimits

MAX_NOTE = 300
"""Most characters of a note, which may quote the upload."""
ARGUMENT = re.compile(r'\b(?:features|parameters)=\{"(\w+)": \.\.\.\}')
"""Arguments of the library, such as features={"wind": ...}."""


@contextmanager
def query_names() -> Iterator[None]:
    """Replace arguments in error messages by parameters of the address, such as &set=wind=VALUE."""
    try:
        yield
    except FlareError as error:
        error.args = (ARGUMENT.sub(r"&set=\1=VALUE", str(error)), *error.args[1:])
        raise


def read_upload(
    path: Path,
    surrogate: Surrogate,
    settings: Mapping[str, Any],
    limits: ServerLimits,
    *,
    known: Mapping[str, np.ndarray] | None = None,
    spacing: float | None = None,
) -> ModelInputs:
    """Read an upload by its suffix.

    Args:
        path: Uploaded file.
        surrogate: Model that gets it.
        settings: Features, the same at all points, and parameters from the address: name -> components.
        limits: ServerLimits of the server.
        known: Parameters of the encoded sample that is queried; the file may repeat them, but not change them.
        spacing: Spacing of the training points, if it is known.

    Raises:
        DataError: The upload is damaged or does not fit the model.
        TooLarge: It exceeds a limit.
    """
    with query_names():
        if path.suffix == ".json":
            return _json_inputs(path, surrogate, settings, limits, known or {})
        return mesh_inputs(
            surrogate,
            path,
            **split_settings(surrogate.schema, settings),
            training_spacing=spacing,
            known=known,
            limits=ReadLimits(limits.points, limits.array_bytes),
            log=lambda message: None,
        )


def _json_inputs(
    path: Path, surrogate: Surrogate, settings: Mapping[str, Any], limits: ServerLimits, known: Mapping[str, np.ndarray]
) -> ModelInputs:
    schema = surrogate.schema
    fields, split = _read_json(path, schema), split_settings(schema, settings)
    given = {**known, **settings}
    for name in fields.keys() & given.keys():
        if name in settings or not same_value(fields[name], given[name]):
            raise given_twice(name, path.name)
    points = fields.pop(schema.points, np.zeros(0))
    count = len(np.atleast_1d(points))
    if count == 0:
        raise DataError(f"{path.name} has no points; the model needs {schema.points!r}")
    if count > limits.points:
        raise TooLarge(f"{path.name} has {count:,} points; the limit is {limits.points:,}")
    values = {**fields, **given} | {name: np.tile(value, (count, 1)) for name, value in split["features"].items()}
    missing = [name for name in schema.named("feature", "parameter") if name not in values]
    if missing:
        raise missing_fields(path.name, schema, missing, tuple(values))
    return ModelInputs(surrogate.sample(points, values), None, points, tuple(settings), [], path.name)


def _read_json(path: Path, schema: Schema) -> dict[str, np.ndarray]:
    try:
        record = json.loads(path.read_bytes(), parse_constant=_reject_constant)
    except (ValueError, RecursionError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path.name} is not JSON: {str(error)[:200]}") from None
    if not isinstance(record, dict):
        example = json.dumps({schema.points: [[0.0] * len(schema.fields[schema.points].components)]})
        raise DataError(f"{path.name} must be an object of fields by name, such as {example}")
    return {name: _numbers(path, name, values) for name, values in record.items()}


def _reject_constant(name: str) -> NoReturn:
    raise DataError(f"{name} is not a number")


def _numbers(path: Path, name: str, values: Any) -> np.ndarray:
    try:
        array = np.asarray(values)
    except (ValueError, OverflowError):
        array = np.array(None)
    if array.dtype.kind not in "fiu":
        raise DataError(f"{path.name}: {name[:100]!r} must be numbers, or rows of equally many numbers")
    return array


def summarize(
    count: int,
    judgement: Assessment | None,
    calibration: Calibration | None,
    notes: Sequence[str],
    *,
    outside: str = "",
) -> dict[str, Any]:
    """Return what every answer has besides its fields; `bars` and `familiarity` are null without a calibration.

    Args:
        count: Number of points.
        judgement: Error bars and OOD score of the prediction.
        calibration: Calibration of the model.
        notes: Decisions that were made while the upload was read.
        outside: Warning about queried points outside the encoded geometry.
    """
    bars = familiarity = None
    if calibration is not None and calibration.error_bars is not None:
        hold = not outside and (judgement is None or not judgement.is_ood)
        bars = {"level": calibration.error_bars.level, "coverage": calibration.report.get("coverage"), "hold": hold}
    if calibration is not None and calibration.ood is not None and judgement is not None:
        rank = judgement.rank or 0
        familiarity = {
            "score": judgement.score,
            "unlike": rank == 0,
            "verdict": calibration.ood.verdict(rank),
        }
    ranges = map(range_warning, judgement.outside if judgement else ())
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
        write_view(path, title, prediction, summary)
    elif path.suffix in (".vtu", ".npz"):
        prediction.save(path)
    else:
        with replace_atomically(path) as temporary:
            temporary.write_text(json.dumps({**summary, **_json_answer(prediction)}, allow_nan=False))


def _json_answer(prediction: Prediction) -> dict[str, Any]:
    fields, bars = prediction.schema.fields, (prediction.judgement.error_bars if prediction.judgement else None) or {}
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

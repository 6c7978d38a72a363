"""From a case, as its file has it, to the fields of a schema: import, checks and predictions read files this one way.

A schema whose points are called `cell_centres` has its fields there; every other has them at the points of the mesh.
Data of the other place is averaged, and that is said.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from flare.data.importing.cases import Case
from flare.data.sample import RESERVED, Schema
from flare.utils.errors import ConfigError, DataError, MissingInputError, nearest

logger = logging.getLogger(__name__)


CENTRES = "cell_centres"
"""Name of the points of a schema whose fields are at cell centres."""
AXES = "xyz"
BY_HAND = "--set {name}=VALUE"
"""How the command line takes an input that a file does not have."""


def identifier(name: str) -> str:
    """A field's name as a schema can have it: `Static Pressure (Pa)` is Static_Pressure_Pa."""
    word = re.sub(r"\W+", "_", name).strip("_") or "field"
    return f"f_{word}" if word[0].isdigit() or word in RESERVED else word


def fields_of(
    case: Case,
    schema: Schema,
    names: Sequence[str],
    given: Mapping[str, np.ndarray] | None = None,
    *,
    told: Callable[[str], None] = logger.info,
) -> dict[str, np.ndarray]:
    """The named fields of the schema: (N, channels) each, or (channels,) for a parameter.

    Args:
        given: values that are not in the file, such as parameters from a table.
        told: called with a sentence for whatever is averaged.
    """
    values, missing = {}, list[MissingInputError]()
    for name in names:
        width = len(schema.fields[name].components)
        if name == schema.points:
            array = coordinates(case, schema)
        elif given and name in given:
            array = np.atleast_1d(np.asarray(given[name], dtype=np.float64))
        else:
            try:
                array = _found(case, schema, name, told)
            except MissingInputError as error:  # all of them are said at once
                missing.append(error)
                continue
        if schema.fields[name].role == "parameter":
            shape: tuple[int, ...] = (width,)
        else:
            array = array[:, None] if array.ndim == 1 else array
            shape = (len(array), width)
        if array.shape != shape:
            raise DataError(f"{case.name}: {name!r} has shape {array.shape}; expected {shape}")
        values[name] = array
    if len(missing) == 1:
        raise missing[0]
    if missing:
        lacking = [name for error in missing for name in error.names]
        said = ", ".join(f"{schema.fields[name].role} {name!r}" for name in lacking)
        raise MissingInputError(f"{case.name} has not all inputs: no {said}", *lacking)
    return values


def spread(given: Mapping[str, float | Sequence[float]], schema: Schema, case: Case | int) -> dict[str, np.ndarray]:
    """Numbers given by hand, as `fields_of` takes them: a parameter as it is, a feature at every place of the case."""
    inputs = schema.named("feature", "parameter")
    for name in given:
        if name not in inputs:
            raise ConfigError(f"--set {name}: the model has no such input; {nearest(name, inputs)}")
    if isinstance(case, int):
        count = case
    else:
        count = case.neighbours.cell_count if schema.points == CENTRES and case.neighbours else len(case.points)
    values = {name: np.atleast_1d(np.asarray(value, dtype=np.float64)) for name, value in given.items()}
    features = schema.named("feature")
    return {name: np.tile(value, (count, 1)) if name in features else value for name, value in values.items()}


def coordinates(case: Case, schema: Schema) -> np.ndarray:
    """(N, dimensions): the axes that the schema names, of points or of cell centres."""
    field = schema.fields[schema.points]
    at = case.points
    if schema.points == CENTRES and case.neighbours is not None:  # a table of points has the centres themselves
        at = case.neighbours.centres()
    columns = [AXES.index(axis) if axis in AXES else i for i, axis in enumerate(field.components)]
    if max(columns) >= at.shape[1]:
        raise DataError(
            f"{case.name}: its points have {at.shape[1]} coordinates; asked for {', '.join(field.components)}"
        )
    left = [i for i in range(at.shape[1]) if i not in columns and len(at)]
    for i in left:
        if extends(at.min(0), at.max(0), i):
            raise DataError(
                f"{case.name} is not plane: {AXES[i]} goes from {at[:, i].min():.4g} to {at[:, i].max():.4g}, but the "
                f"fields are of {' and '.join(field.components)}"
            )
    return at[:, columns]


def extends(low: np.ndarray, high: np.ndarray, axis: int) -> bool:
    """Whether what fills the box from `low` to `high` is more than a plane along an axis."""
    size = max(float((high - low).max()), 1e-300)
    return float(high[axis] - low[axis]) > 1e-5 * size


def _found(case: Case, schema: Schema, name: str, told: Callable[[str], None]) -> np.ndarray:
    if schema.fields[name].role == "parameter":
        # A table repeats it in every row. A field of a mesh that differs from point to point is something else.
        meshed = case.neighbours is not None
        repeated = {own: rows for own, rows in case.point_fields.items() if not meshed or (rows == rows[:1]).all()}
        places: list[Mapping[str, np.ndarray]] = [case.parameters, repeated]
    else:
        places = (
            [case.cell_fields, case.point_fields] if schema.points == CENTRES else [case.point_fields, case.cell_fields]
        )
    own = _meant(case, name, [own for place in places for own in place])
    for number, place in enumerate(places):
        if own not in place:
            continue
        array = place[own]
        if number == 0:
            return array
        if schema.fields[name].role == "parameter":
            return _alike(case, name, array)
        assert case.neighbours is not None  # nothing else has cell data
        if place is case.cell_fields:
            told(f"{own!r} is cell data: averaged to the points")
            return case.neighbours.averaged_to_points(array)
        told(f"{own!r} is point data: averaged to the cells")
        return case.neighbours.averaged_to_cells(array)
    known = [identifier(own) for place in places for own in place]
    other = next((values for own, values in case.parameters.items() if identifier(own) == name), None)
    if other is not None:
        raise DataError(f"{case.name}: {name!r} has shape {other.shape}; expected a value at each of its points")
    role = schema.fields[name].role
    others = f"; {nearest(name, known)}" if known else ", nor any other"
    message = f"{case.name} has no {role} {name!r}{others}"
    raise MissingInputError(message, name) if role in ("feature", "parameter") else DataError(message)


def _meant(case: Case, name: str, present: Sequence[str]) -> str:
    """Which of the file's own names is the schema's: the very same, or the only one that is spelled so there."""
    spelled = list(dict.fromkeys(own for own in present if identifier(own) == name))
    if name in spelled or not spelled:
        return name
    if len(spelled) > 1:
        raise DataError(
            f"{case.name}: {' and '.join(map(repr, spelled))} may each be {name!r}; give the one that is meant this "
            f"very name"
        )
    return spelled[0]


def _alike(case: Case, name: str, rows: np.ndarray) -> np.ndarray:
    if (rows != rows[:1]).any():
        raise DataError(f"{case.name}: {name!r} differs between rows; a parameter has one value for the whole sample")
    return np.atleast_1d(rows[0])

"""Fields of a schema from a mesh: import, data checks and predictions read files with the same functions.

A schema whose points are named `cell_centres` has its fields at the cells, every other at the points of the mesh. Data
at the other place is averaged, with a log message.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from flare.data.sample import INPUT_ROLES, RESERVED, Schema
from flare.mesh.io.arrays import CENTRES as CENTRES
from flare.mesh.io.arrays import ArrayLayout
from flare.mesh.mesh import Mesh
from flare.utils.errors import DataError, suggest_name

logger = logging.getLogger(__name__)

AXES = "xyz"


def identifier(name: str) -> str:
    """Return a field name for a dataset: `Static Pressure (Pa)` becomes Static_Pressure_Pa, `points` f_points."""
    word = re.sub(r"\W+", "_", name).strip("_") or "field"
    return f"f_{word}" if word[0].isdigit() or word in (*RESERVED, "points", CENTRES) else word


def layout_of(schema: Schema) -> ArrayLayout:
    """Return the names that a schema expects in files of arrays and tables."""
    return ArrayLayout(
        points_field=schema.points,
        inputs={name: schema.fields[name].components for name in schema.named(*INPUT_ROLES)},
        parameters=schema.named("parameter"),
        numeric=tuple(schema.fields),
        spell=identifier,
    )


def uses_cells(mesh: Mesh, schema: Schema) -> bool:
    """Return whether the fields of a schema are at the cells of a mesh; a table holds cell centers as its points."""
    return schema.points == CENTRES and mesh.has_cells


def extract_fields(
    mesh: Mesh,
    schema: Schema,
    names: Sequence[str],
    given: Mapping[str, np.ndarray] | None = None,
    *,
    log: Callable[[str], None] = logger.info,
) -> dict[str, np.ndarray]:
    """Return fields of a schema from a mesh: (N, components) each, or (components,) for a parameter.

    Args:
        mesh: Mesh with data.
        schema: Schema that names the fields.
        names: Fields to return.
        given: Values that are not in the mesh, such as parameters from a table.
        log: Called with a message for every field that is averaged.

    Raises:
        DataError: A field is missing, ambiguous or has the wrong shape.
    """
    values, missing = {}, list[str]()
    for name in names:
        field = schema.fields[name]
        width = len(field.components)
        if name == schema.points:
            array: np.ndarray | None = coordinates(mesh, schema)
        elif given and name in given:
            array = np.atleast_1d(np.asarray(given[name], dtype=np.float64))
        else:
            array = find_field(mesh, schema, name, log=log)
        if array is None:
            missing.append(name)
            continue
        if field.role == "parameter":
            shape: tuple[int, ...] = (width,)
        else:
            array = array[:, None] if array.ndim == 1 else array
            shape = (len(array), width)
        if array.shape != shape:
            raise DataError(f"{mesh.name}: {name!r} has shape {array.shape}; expected {shape}")
        values[name] = array
    if missing:
        raise missing_fields(mesh.name, schema, missing, (*mesh.point_data, *mesh.cell_data, *mesh.parameters))
    return values


def find_field(
    mesh: Mesh, schema: Schema, name: str, *, log: Callable[[str], None] = lambda message: None
) -> np.ndarray | None:
    """Return a field of a schema as the mesh has it, averaged if it is at the other place; None if it has none.

    Raises:
        DataError: Several fields match the name, or a parameter varies between points.
    """
    if schema.fields[name].role == "parameter":
        # A table repeats a parameter in every row. Varying point data of a mesh is a different quantity.
        constant = {own: v for own, v in mesh.point_data.items() if not mesh.has_cells or (v == v[:1]).all()}
        own = _own_name(mesh, name, [*mesh.parameters, *constant])
        if own in mesh.parameters:
            return mesh.parameters[own]
        if own not in constant:
            return None
        if (constant[own] != constant[own][:1]).any():
            raise DataError(f"{mesh.name}: {name!r} varies between rows; a parameter has one value per sample")
        return np.atleast_1d(constant[own][0])
    at_cells = uses_cells(mesh, schema)
    own = _own_name(mesh, name, [*mesh.point_data, *mesh.cell_data])
    here, there = (mesh.cell_data, mesh.point_data) if at_cells else (mesh.point_data, mesh.cell_data)
    if own in here:
        return here[own]
    if own in there:
        log(f"{own!r} is {'point' if at_cells else 'cell'} data: averaged to the {'cells' if at_cells else 'points'}")
        return mesh.to_cells(there[own]) if at_cells else mesh.to_points(there[own])
    other = next((values for title, values in mesh.parameters.items() if identifier(title) == name), None)
    if other is not None:
        raise DataError(f"{mesh.name}: {name!r} has shape {other.shape}; expected one value per point")
    return None


def missing_fields(where: str, schema: Schema, names: Sequence[str], present: Sequence[str] = ()) -> DataError:
    """Return an error that names the missing fields and the arguments by which inputs can be passed.

    Args:
        where: File or mesh that lacks them.
        schema: Schema of the fields.
        names: Missing fields.
        present: Fields of the file, for suggestions.
    """
    roles = {name: schema.fields[name].role for name in names}
    listed = ", ".join(f"{role} {name!r}" for name, role in roles.items())
    close = f"; {suggest_name(names[0], {identifier(own) for own in present})}" if len(names) == 1 and present else ""
    ways = [f'{role}s={{"{name}": ...}}' for name, role in roles.items() if role in ("feature", "parameter")]
    remedy = f"; pass {' and '.join(ways)}" if ways else ""
    return DataError(f"{where} has no {listed}{close}{remedy}")


def coordinates(mesh: Mesh, schema: Schema) -> np.ndarray:
    """Return the coordinates that the schema names, of points or of cell centers: (N, dimensions).

    Raises:
        DataError: The mesh lacks a coordinate, or extends along one that the schema does not have.
    """
    field = schema.fields[schema.points]
    at = mesh.cell_centers() if uses_cells(mesh, schema) else mesh.points
    columns = [AXES.index(axis) if axis in AXES else i for i, axis in enumerate(field.components)]
    if max(columns) >= at.shape[1]:
        needed = ", ".join(field.components)
        raise DataError(f"{mesh.name} has points of {at.shape[1]} coordinates; the fields need {needed}")
    for i in (i for i in range(at.shape[1]) if i not in columns and len(at)):
        if extends_along(at.min(0), at.max(0), i):
            span = f"{at[:, i].min():.4g} to {at[:, i].max():.4g}"
            raise DataError(
                f"{mesh.name} is not planar: the fields do not depend on {AXES[i]}, which ranges from {span}"
            )
    return at[:, columns]


def extends_along(low: np.ndarray, high: np.ndarray, axis: int) -> bool:
    """Return whether the box from `low` to `high` has a thickness along an axis."""
    size = max(float((high - low).max()), 1e-300)
    return float(high[axis] - low[axis]) > 1e-5 * size


def _own_name(mesh: Mesh, name: str, present: Sequence[str]) -> str:
    """Return the name in the file of a field: the same, or the only one that the schema would spell so."""
    spelled = list(dict.fromkeys(own for own in present if identifier(own) == name))
    if name in spelled or not spelled:
        return name
    if len(spelled) > 1:
        both = " and ".join(map(repr, spelled))
        raise DataError(f"{mesh.name}: {both} could both be {name!r}; rename one of them to {name!r}")
    return spelled[0]

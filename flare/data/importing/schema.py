"""The schema of an import: which fields of the files it has, at points or cells, and in which units."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import numpy as np

from flare.data.checks.sample_checks import plain
from flare.data.importing.case_table import CaseTable
from flare.data.importing.cases import CaseLocation
from flare.data.importing.fields import AXES, CENTRES, extends_along, identifier
from flare.data.importing.survey import FieldSummary, Survey, Where
from flare.data.sample import Field, Role, Schema
from flare.utils.errors import ConfigError, DataError, suggest_name
from flare.utils.text import counted

CellData = Literal["centres", "points"]


def import_schema(
    found: Survey,
    name: str,
    *,
    targets: Sequence[str],
    inputs: Sequence[str],
    units: Mapping[str, str],
    table: CaseTable | None,
    cell_data: CellData | None,
    dimensions: int | None,
    notes: list[str],
) -> Schema:
    """Return the schema of the dataset; decisions are added to `notes`. Arguments are those of `plan_import`."""
    if not targets:
        raise ConfigError(f'name the fields to predict, such as targets="NAME"; {_known(found)}')
    _check_known(found, [*targets, *inputs], table)
    at_centres = _at_centres(found, targets, inputs, cell_data, notes)
    length = _unit("points", units, found, notes)
    points = Field(role="points", components=_axes(found, dimensions, at_centres, notes), unit=length)
    fields = {CENTRES if at_centres else "points": points}
    chosen: list[tuple[str, str]] = [*((n, "input") for n in inputs), *((n, "target") for n in targets)]
    for own, purpose in chosen:
        word = identifier(own)
        if word in fields:
            raise ConfigError(f"{own!r} is requested twice, or another field also becomes {word!r}")
        fields[word] = _field(found, own, purpose, units, at_centres, notes)
    for column, stated in table.units.items() if table else ():
        if column in fields:
            raise ConfigError(f"column {column!r} of the parameter file is also a field of the files; rename it")
        fields[column] = Field(role="parameter", components=(column,), unit=_column_unit(column, stated, units))
    for field_name in units:
        if field_name != "points" and identifier(field_name) not in fields:
            raise ConfigError(
                f"units: {field_name!r} is not a field of the dataset; {suggest_name(field_name, fields)}"
            )
    cell_type = _cell_type(found, at_centres, notes)
    return Schema(name=name, fields=fields, cell_type=cell_type, cell_dimension=None if cell_type else found.dimension)


def constant_inputs(
    found: Survey, inputs: Sequence[str], table: CaseTable | None, locations: Sequence[CaseLocation]
) -> list[str]:
    """Return notes about inputs that are constant over all files, whose effect a model cannot learn."""
    constant = {
        name: plain(np.ravel(field.low if field.first is None else field.first))
        for name in inputs
        for field in found.named(name).values()
        if not field.varies
    }
    if table:
        rows = [table.values(location) for location in locations]
        constant |= {c: plain(rows[0][c]) for c in table.columns if all(row[c] == rows[0][c] for row in rows)}
    return [
        f"input {name!r} is {value} in all {len(locations)} files, so a model cannot learn its effect"
        for name, value in constant.items()
        if len(locations) > 1
    ]


def unused_parameters(found: Survey, used: Iterable[str]) -> list[str]:
    """Return a note about parameters that vary between files and are not inputs; their effect looks like noise.

    Args:
        found: Summary of the files.
        used: Names of inputs and targets, in their own or a schema's spelling.
    """
    known = {identifier(name) for name in used}
    left = [
        name
        for (where, name), field in found.fields.items()
        if where == "whole" and field.varies and identifier(name) not in known
    ]
    if not left:
        return []
    return [f"parameters that vary between files but are not in inputs=: {', '.join(map(repr, left))}"]


def _at_centres(
    found: Survey, targets: Sequence[str], inputs: Sequence[str], requested: CellData | None, notes: list[str]
) -> bool:
    """Return whether fields are at cell centers; fields that a file lacks, or has elsewhere, raise DataError."""
    places: list[set[str]] = []
    for name in [*targets, *inputs]:
        here = found.named(name)
        everywhere = {where for where, field in here.items() if len(field.cases) == len(found.cases)}
        if not everywhere:
            _raise_gaps(found, name, here)
        if name in targets and everywhere == {"whole"}:
            raise DataError(f"{name!r} is a parameter of the whole file; a target must be at points or cells")
        if everywhere != {"whole"}:
            places.append({str(where) for where in everywhere} - {"whole"})
    if requested is not None:
        return requested == "centres"
    if all("points" in where for where in places):
        return False
    if all("cells" in where for where in places):
        notes.append(
            'the fields are cell data and stay at the cell centers (cell_data="points" averages them to the points)'
        )
        return True
    raise ConfigError(
        'some fields are at points, others at cells; use cell_data="points" to average cell data to the points, or '
        'cell_data="centres" to average point data to the cells'
    )


def _raise_gaps(found: Survey, name: str, here: Mapping[Where, FieldSummary]) -> None:
    if len(here) > 1:
        places = ", ".join(
            f"at {where} in {len(f.cases)} files (first: {found.cases[f.cases[0]].name})" for where, f in here.items()
        )
        raise DataError(f"{name!r} is at different places: {places}; export all files alike")
    (field,) = here.values()
    missing = sorted(set(range(len(found.cases))) - set(field.cases))
    raise DataError(
        f"{len(missing)} of {len(found.cases)} files have no {name!r} (first: {found.cases[missing[0]].name}); skip "
        f'them with exclude="NAME", or export them again'
    )


def _axes(found: Survey, dimensions: int | None, at_centres: bool, notes: list[str]) -> tuple[str, ...]:
    """Return the axes to keep; dropping one along which a file extends raises ConfigError."""
    axes, there = found.axes, len(found.cases[0].low)
    if dimensions is not None and dimensions != len(axes):
        axes = tuple(AXES[:dimensions])
        if dimensions > there:
            raise ConfigError(
                f"dimensions={dimensions}: the points of the files have only {counted(there, 'coordinate')}"
            )
        left = [i for i, axis in enumerate(AXES[:there]) if axis not in axes]
        for case in (
            () if at_centres else found.cases
        ):  # the centers of one layer of cells are planar, its points are not
            long = [i for i in left if extends_along(case.low, case.high, i)]
            if long:
                i = long[0]
                raise ConfigError(
                    f"dimensions={dimensions}: {case.name} extends along {AXES[i]}, from {case.low[i]:.4g} to "
                    f"{case.high[i]:.4g}; omit the argument, or export a planar section"
                )
        if left:
            notes.append(f"dimensions={dimensions}: only the coordinates {' and '.join(axes)} are kept")
    elif len(axes) < there:
        notes.append(f"all files lie in one plane: only the coordinates {' and '.join(axes)} are kept")
    return axes


def _field(
    found: Survey, own: str, purpose: str, units: Mapping[str, str], at_centres: bool, notes: list[str]
) -> Field:
    here = found.named(own)
    where, field = _best(here, at_centres)
    if len(field.widths) > 1:
        raise DataError(f"{own!r} has {sorted(field.widths)} components, not the same number in all files")
    role: Role = "target" if purpose == "target" else "parameter" if where == "whole" else "feature"
    others = [f"at {other}" if other != "whole" else "of the whole" for other in here if other != where]
    if others:
        instead = f" (cell_data={'points' if at_centres else 'centres'!r} uses the other)" if where != "whole" else ""
        notes.append(f"{own!r} is at {where} and {' and '.join(others)}: the one at {where} is used{instead}")
    averaged = role != "parameter" and (where == "cells") != at_centres
    if averaged:
        to = "cells" if at_centres else "points"
        notes.append(f"{own!r} is {'point' if at_centres else 'cell'} data: averaged to the {to}")
    word = identifier(own)
    described = "" if word == field.name else f"{field.name!r} in the files"
    unit = _unit(field.name, units, found, notes)
    return Field(role=role, components=_components(word, field.widths), unit=unit, description=described)


def _unit(name: str, asked: Mapping[str, str], found: Survey, notes: list[str]) -> str:
    """Return the unit of a field: the stated one, the requested one, or "1"; two different ones are an error."""
    stated = found.units.get(name, {})
    if len(stated) > 1:
        both = ", ".join(f"{unit} in {found.cases[cases[0]].name}" for unit, cases in stated.items())
        raise DataError(
            f"{name!r} has several units: {both}. Units are not converted: export all files in one unit, or skip some "
            f'with exclude="NAME"'
        )
    unit = next(iter(stated), None)
    requested = _requested_unit(name, asked)
    if unit is None:
        return requested or "1"
    cases = stated[unit]
    if requested not in (None, unit):
        raise ConfigError(
            f"units: {name!r} is requested in {requested}, but {found.cases[cases[0]].name} states {unit}. Units are "
            f"not converted: omit it, or fix the files"
        )
    if len(cases) < len(found.cases) and requested is None:
        notes.append(f"{name!r} is in {unit} in {len(cases)} of {len(found.cases)} files; the others state no unit")
    return unit


def _column_unit(column: str, stated: str, asked: Mapping[str, str]) -> str:
    requested = _requested_unit(column, asked)
    if requested not in (None, stated) and stated != "1":
        raise ConfigError(
            f"units: {column!r} is requested in {requested}, but the parameter file states {stated}. Units are not "
            f"converted: omit it, or fix the file"
        )
    return requested or stated


def _requested_unit(name: str, asked: Mapping[str, str]) -> str | None:
    """Return the requested unit of a field in any spelling; None if there is none."""
    requests = {unit.strip() for own, unit in asked.items() if identifier(own) == identifier(name)}
    if len(requests) > 1:
        raise ConfigError(f"units: {name!r} has several, {' and '.join(sorted(requests))}; keep one")
    if "" in requests:
        raise ConfigError(f'units: that of {name!r} is empty; use "1" for a dimensionless field')
    return next(iter(requests), None)


def _cell_type(found: Survey, at_centres: bool, notes: list[str]) -> str | None:
    cell_type = None if at_centres else found.cell_type
    if found.cell_kinds and cell_type is None and not at_centres:
        kinds = ", ".join(f"{kind} {number:,}" for kind, number in found.cell_kinds.items())
        notes.append(
            f"cells of several types ({kinds}) are not stored, only points and fields; predictions keep all cells"
        )
    elif set(found.cell_kinds) == {"triangle", "quad"} and cell_type:
        notes.append(
            "quadrilaterals are split into triangles, because a dataset has one cell type; predictions keep them"
        )
    return cell_type


def _best(here: Mapping[Where, FieldSummary], at_centres: bool) -> tuple[Where, FieldSummary]:
    order: tuple[Where, ...] = ("cells", "points", "whole") if at_centres else ("points", "cells", "whole")
    return next((where, here[where]) for where in order if where in here)


def _components(name: str, widths: set[int]) -> tuple[str, ...]:
    (width,) = widths
    if width == 1:
        return (name,)
    return tuple(AXES[:width]) if width <= 3 else tuple(f"c{i}" for i in range(width))


def _check_known(found: Survey, wanted: Sequence[str], table: CaseTable | None) -> None:
    """Raise an error for names that no file has; columns of the parameter file are inputs already."""
    columns = table.columns if table else []
    inputs_already = f"columns of {table.path} are inputs already" if table and columns else ""
    for name in wanted:
        if found.named(name):
            continue
        if identifier(name) in columns:
            raise ConfigError(
                f"{name!r} is not a field of the files: {inputs_already}; omit it from inputs and targets"
            )
        close = _known(found, name, columns) + (f"; {inputs_already}" if inputs_already else "")
        raise DataError(f"no file has a field {name!r}; {close}")


def _known(found: Survey, name: str = "", columns: Sequence[str] = ()) -> str:
    names = sorted({own for (_, own) in found.fields})
    if not names:
        return "the files have geometry only, without fields"
    return suggest_name(name, [*names, *columns]) if name else f"the files have {', '.join(names)}"

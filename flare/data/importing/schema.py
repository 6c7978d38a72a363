"""What the schema of an import is: which fields of the files are meant, where they live, and in which unit."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import numpy as np

from flare.data.checks.sample_checks import plain
from flare.data.importing.case_table import CaseTable
from flare.data.importing.cases import Place
from flare.data.importing.fields import AXES, CENTRES, extends, identifier
from flare.data.importing.survey import FieldFound, Survey, Where
from flare.data.sample import Field, Role, Schema
from flare.utils.errors import ConfigError, DataError, nearest
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
    remarks: list[str],
) -> Schema:
    """The fields of the dataset; what was decided is added to `remarks`. Arguments are those of `plan_import`."""
    if not targets:
        raise ConfigError(f"say which field is to be predicted, with --target NAME; {_known(found)}")
    _refuse_unknown(found, [*targets, *inputs], table)
    at_centres = _at_centres(found, targets, inputs, cell_data, remarks)
    length = _unit("points", units, found, remarks)
    points = Field(role="points", components=_axes(found, dimensions, at_centres, remarks), unit=length)
    fields = {CENTRES if at_centres else "points": points}
    chosen: list[tuple[str, str]] = [*((n, "input") for n in inputs), *((n, "target") for n in targets)]
    for own, purpose in chosen:
        word = identifier(own)
        if word in fields:
            raise ConfigError(f"{own!r} is asked for twice, or another field is spelled {word!r} too")
        fields[word] = _field(found, own, purpose, units, at_centres, remarks)
    for column, stated in table.units.items() if table else ():
        if column in fields:
            raise ConfigError(f"the column {column!r} of the parameter file is also a field of the files; rename it")
        fields[column] = Field(role="parameter", components=(column,), unit=_column_unit(column, stated, units))
    for field_name in units:
        if field_name != "points" and identifier(field_name) not in fields:
            raise ConfigError(
                f"a unit is given for {field_name!r}, which is no field of the dataset; {nearest(field_name, fields)}"
            )
    cell_type = _cell_type(found, at_centres, remarks)
    return Schema(name=name, fields=fields, cell_type=cell_type, cell_dimension=None if cell_type else found.dimension)


def constant_inputs(
    found: Survey, inputs: Sequence[str], table: CaseTable | None, places: Sequence[Place]
) -> list[str]:
    """Remarks on inputs that are the same in all files: what they do, no model can learn from these."""
    still = {
        name: plain(np.ravel(field.low if field.first is None else field.first))
        for name in inputs
        for field in found.named(name).values()
        if not field.varies
    }
    if table:
        rows = [table.values(place) for place in places]
        still |= {c: plain(rows[0][c]) for c in table.columns if all(row[c] == rows[0][c] for row in rows)}
    return [
        f"the input {name!r} is {value} in all {len(places)} files: a model learns nothing of what it does"
        for name, value in still.items()
        if len(places) > 1
    ]


def unused_parameters(found: Survey, used: Iterable[str]) -> list[str]:
    """A remark on numbers of the whole that differ from file to file and are no input: what they do looks like noise.

    Args:
        used: names of inputs and targets, in their own or a schema's spelling.
    """
    known = {identifier(name) for name in used}
    left = [
        name
        for (where, name), field in found.fields.items()
        if where == "whole" and field.varies and identifier(name) not in known
    ]
    if not left:
        return []
    differ, are, them = ("differs", "is", "it") if len(left) == 1 else ("differ", "are", "them")
    return [
        f"{', '.join(map(repr, left))} {differ} from file to file and {are} not used; give {them} to the model with "
        f"--input {' '.join(map(shlex.quote, left))}"
    ]


def _at_centres(
    found: Survey, targets: Sequence[str], inputs: Sequence[str], wish: CellData | None, remarks: list[str]
) -> bool:
    """Whether fields live at cell centres; refuses fields that not every file has, or not at the same place."""
    places: list[set[str]] = []
    for name in [*targets, *inputs]:
        here = found.named(name)
        everywhere = {where for where, field in here.items() if len(field.cases) == len(found.cases)}
        if not everywhere:
            _refuse_gaps(found, name, here)
        if name in targets and everywhere == {"whole"}:
            raise DataError(f"{name!r} is one value of a whole file; a target is a field at points or cells")
        if everywhere != {"whole"}:
            places.append({str(where) for where in everywhere} - {"whole"})
    if wish is not None:
        return wish == "centres"
    if all("points" in where for where in places):
        return False
    if all("cells" in where for where in places):
        remarks.append(
            "the fields are cell data: they are taken at the cell centres (--cell-data points averages them)"
        )
        return True
    raise ConfigError(
        "some of the fields are at points, some at cells; say where they shall live: --cell-data points averages cell "
        "data to the points, --cell-data centres averages point data to the cells"
    )


def _refuse_gaps(found: Survey, name: str, here: Mapping[Where, FieldFound]) -> None:
    if len(here) > 1:
        said = ", ".join(
            f"at {where} in {len(f.cases)} files (first: {found.cases[f.cases[0]].name})" for where, f in here.items()
        )
        raise DataError(f"{name!r} is of several kinds: {said}; export all files alike")
    (field,) = here.values()
    missing = sorted(set(range(len(found.cases))) - set(field.cases))
    raise DataError(
        f"{len(missing)} of {len(found.cases)} files have no {name!r} (first: {found.cases[missing[0]].name}); leave "
        f"them out with --exclude NAME, or export them again"
    )


def _axes(found: Survey, dimensions: int | None, at_centres: bool, remarks: list[str]) -> tuple[str, ...]:
    """Of the coordinates that are kept; refuses to leave out one along which a file extends."""
    axes, there = found.axes, len(found.cases[0].low)
    if dimensions is not None and dimensions != len(axes):
        axes = tuple(AXES[:dimensions])
        if dimensions > there:
            raise ConfigError(
                f"--dimensions {dimensions}: the points of the files have only {counted(there, 'coordinate')}"
            )
        left = [i for i, axis in enumerate(AXES[:there]) if axis not in axes]
        for case in () if at_centres else found.cases:  # centres of a layer of cells are plane, its points are not
            long = [i for i in left if extends(case.low, case.high, i)]
            if long:
                i = long[0]
                raise ConfigError(
                    f"--dimensions {dimensions}: {case.name} extends along {AXES[i]}, from {case.low[i]:.4g} to "
                    f"{case.high[i]:.4g}; leave the option out, or export a plane section"
                )
        if left:
            remarks.append(f"only {' and '.join(axes)} of the coordinates are kept, as --dimensions {dimensions} asks")
    elif len(axes) < there:
        remarks.append(f"all files lie in one plane: only {' and '.join(axes)} of the coordinates are kept")
    return axes


def _field(
    found: Survey, own: str, purpose: str, units: Mapping[str, str], at_centres: bool, remarks: list[str]
) -> Field:
    here = found.named(own)
    where, field = _best(here, at_centres)
    if len(field.widths) > 1:
        raise DataError(f"{own!r} has {sorted(field.widths)} components, not the same number in all files")
    role: Role = "target" if purpose == "target" else "parameter" if where == "whole" else "feature"
    others = [f"at {other}" if other != "whole" else "of the whole" for other in here if other != where]
    if others:
        instead = f" (--cell-data {'points' if at_centres else 'centres'} takes the other)" if where != "whole" else ""
        remarks.append(f"{own!r} is at {where} and {' and '.join(others)}: that at {where} is taken{instead}")
    averaged = role != "parameter" and (where == "cells") != at_centres
    if averaged:
        to = "cells" if at_centres else "points"
        remarks.append(f"{own!r} is {'point' if at_centres else 'cell'} data: averaged to the {to}")
    word = identifier(own)
    described = "" if word == field.name else f"{field.name!r} in the files"
    unit = _unit(field.name, units, found, remarks)
    return Field(role=role, components=_components(word, field.widths), unit=unit, description=described)


def _unit(name: str, asked: Mapping[str, str], found: Survey, remarks: list[str]) -> str:
    """Of a field, by its own name in the files: what they state, what is asked for, or none; never two of them."""
    stated = found.units.get(name, {})
    if len(stated) > 1:
        said = ", ".join(f"{unit} in {found.cases[cases[0]].name}" for unit, cases in stated.items())
        raise DataError(
            f"{name!r} is in several units: {said}. Fields are not converted: write all files in one unit, or leave "
            f"some out with --exclude"
        )
    unit = next(iter(stated), None)
    wish = _wish(name, asked)
    if unit is None:
        return wish or "1"
    cases = stated[unit]
    if wish not in (None, unit):
        raise ConfigError(
            f"--unit {name}={wish}: {found.cases[cases[0]].name} says that it is in {unit}. Fields are not converted: "
            f"leave the option out, or mend the files"
        )
    if len(cases) < len(found.cases) and wish is None:
        remarks.append(f"{name!r} is in {unit} by {len(cases)} of {len(found.cases)} files; the others say no unit")
    return unit


def _column_unit(column: str, stated: str, asked: Mapping[str, str]) -> str:
    wish = _wish(column, asked)
    if wish not in (None, stated) and stated != "1":
        raise ConfigError(
            f"--unit {column}={wish}: the parameter file says that it is in {stated}. Parameters are not converted: "
            f"leave the option out, or mend that file"
        )
    return wish or stated


def _wish(name: str, asked: Mapping[str, str]) -> str | None:
    """The unit that is asked for, however the field is spelled; None where none is."""
    wishes = {unit.strip() for own, unit in asked.items() if identifier(own) == identifier(name)}
    if len(wishes) > 1:
        raise ConfigError(f"--unit: {name!r} is given several, {' and '.join(sorted(wishes))}; give one")
    if "" in wishes:
        raise ConfigError(f"--unit {name}= is empty; write one, such as {name}=m, or {name}=1 for none")
    return next(iter(wishes), None)


def _cell_type(found: Survey, at_centres: bool, remarks: list[str]) -> str | None:
    cell_type = None if at_centres else found.cell_type
    if found.cell_kinds and cell_type is None and not at_centres:
        kinds = ", ".join(f"{kind} {number:,}" for kind, number in found.cell_kinds.items())
        remarks.append(
            f"cells of several types ({kinds}) are not kept, points and fields are; predictions keep them all"
        )
    elif set(found.cell_kinds) == {"triangle", "quad"} and cell_type:
        remarks.append("quadrilaterals are split into triangles, for all cells are of one type; predictions keep them")
    return cell_type


def _best(here: Mapping[Where, FieldFound], at_centres: bool) -> tuple[Where, FieldFound]:
    order: tuple[Where, ...] = ("cells", "points", "whole") if at_centres else ("points", "cells", "whole")
    return next((where, here[where]) for where in order if where in here)


def _components(name: str, widths: set[int]) -> tuple[str, ...]:
    (width,) = widths
    if width == 1:
        return (name,)
    return tuple(AXES[:width]) if width <= 3 else tuple(f"c{i}" for i in range(width))


def _refuse_unknown(found: Survey, wanted: Sequence[str], table: CaseTable | None) -> None:
    """Names that no file has; columns of the parameter file are easily taken for such."""
    columns = table.columns if table else []
    inputs_already = f"columns of {table.path} are inputs already" if table and columns else ""
    for name in wanted:
        if found.named(name):
            continue
        if identifier(name) in columns:
            raise ConfigError(
                f"{name!r} is no field of the files: {inputs_already}; leave it out of --input and --target"
            )
        close = _known(found, name, columns) + (f"; {inputs_already}" if inputs_already else "")
        raise DataError(f"no file has a field {name!r}; {close}")


def _known(found: Survey, name: str = "", columns: Sequence[str] = ()) -> str:
    names = sorted({own for (_, own) in found.fields})
    if not names:
        return "the files hold geometry only, and no field to learn"
    return nearest(name, [*names, *columns]) if name else f"there are: {', '.join(names)}"

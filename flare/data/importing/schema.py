"""The schema of an import: which fields of the files it has, at points or cells, and in which units."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from flare.data.importing.case_table import CaseTable
from flare.data.importing.fields import AXES, CENTRES, extends_along, identifier
from flare.data.importing.survey import Survey, Where
from flare.data.sample import Field, Role, Schema
from flare.utils.errors import ConfigError, DataError, suggest_name

CellData = Literal["centres", "points"]
OnNan = Literal["refuse", "drop"]


@dataclass(frozen=True, kw_only=True)
class ImportOptions:
    """Arguments of an import; see `import_data`."""

    targets: Sequence[str]
    inputs: Sequence[str] = ()
    name: str = "imported"
    units: Mapping[str, str] | None = None
    parameters: str | os.PathLike[str] | None = None
    cell_data: CellData | None = None
    dimensions: int | None = None
    test: float | str = 0.2
    calibration: float = 0.15
    group: str | None = None
    seed: int = 0
    on_nan: OnNan = "refuse"
    points: str | None = None
    exclude: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name in ("targets", "inputs", "exclude"):  # one name may come without a list
            value = getattr(self, name)
            object.__setattr__(self, name, [value] if isinstance(value, str) else list(value))


def import_schema(found: Survey, options: ImportOptions, table: CaseTable | None, notes: list[str]) -> Schema:
    """Return the schema of the dataset; decisions are added to `notes`."""
    targets, inputs = options.targets, options.inputs
    names = sorted({own for (_, own) in found.fields})
    if not targets:
        known = f"the files have {', '.join(names)}" if names else "the files have geometry only, without fields"
        raise ConfigError(f'name the fields to predict, such as targets="NAME"; {known}')
    for own in (*targets, *inputs):
        if not found.named(own):
            used = f"; columns of {table.path} are inputs already" if table else ""
            close = suggest_name(own, [*names, *(table.columns if table else ())])
            raise DataError(f"no file has a field {own!r}; {close}{used}")
    wanted = {identifier(field): unit.strip() for field, unit in (options.units or {}).items()}
    at_centres = _at_centres(found, options, notes)
    axes = _axes(found, options.dimensions, at_centres, notes)
    points = Field(role="points", components=axes, unit=_unit("points", found, wanted))
    fields = {CENTRES if at_centres else "points": points}
    chosen: list[tuple[str, bool]] = [*((n, False) for n in inputs), *((n, True) for n in targets)]
    for own, is_target in chosen:
        word = identifier(own)
        if word in fields:
            raise ConfigError(f"{own!r} is requested twice, or another field also becomes {word!r}")
        if word == f"f_{own}":
            notes.append(f"{own!r} is named {word!r} in the dataset")
        fields[word] = _field(found, own, is_target, wanted, at_centres, notes)
    for column, stated in table.units.items() if table else ():
        if column in fields:
            raise ConfigError(f"column {column!r} of the parameter file is also a field of the files; rename it")
        unit = _agreed(column, stated if stated != "1" else None, "the parameter file", wanted)
        fields[column] = Field(role="parameter", components=(column,), unit=unit)
    for field, unit in wanted.items():
        if field not in (*fields, identifier("points")) or not unit:
            raise ConfigError(f"units: {field!r} has no unit, or is no field; {suggest_name(field, fields)}")
    cell_type = None if at_centres else found.cell_type
    if found.cell_kinds and not cell_type and not at_centres:
        kinds = ", ".join(f"{kind} {number:,}" for kind, number in found.cell_kinds.items())
        notes.append(f"cells of several types ({kinds}) are not stored; predictions keep all cells")
    dimension = None if cell_type else found.dimension
    return Schema(name=options.name, fields=fields, cell_type=cell_type, cell_dimension=dimension)


def unused_parameters(found: Survey, used: Iterable[str]) -> list[str]:
    """Return a note about parameters that vary between files and are not inputs; their effect looks like noise.

    Args:
        found: Summary of the files.
        used: Names of inputs and targets, in their own or a schema's spelling.
    """
    known = {identifier(name) for name in used}
    varying = [name for (where, name), field in found.fields.items() if where == "whole" and field.varies]
    left = [name for name in varying if identifier(name) not in known]
    listed = ", ".join(map(repr, left))
    return [f"parameters that vary between files but are not in inputs=: {listed}"] if left else []


def _at_centres(found: Survey, options: ImportOptions, notes: list[str]) -> bool:
    """Return whether fields are at cell centers; fields that a file lacks, or has elsewhere, raise DataError."""
    places: list[set[Where]] = []
    for name in [*options.targets, *options.inputs]:
        here = found.named(name)
        everywhere = {where for where, field in here.items() if len(field.cases) == len(found.cases)}
        if not everywhere:
            where, field = max(here.items(), key=lambda item: len(item[1].cases))
            odd = next(case.name for index, case in enumerate(found.cases) if index not in field.cases)
            many = f"{len(field.cases)} of {len(found.cases)} files, but not in {odd}"
            raise DataError(f'{name!r} is at {where} in {many}; skip some files with exclude="NAME"')
        if everywhere != {"whole"}:
            places.append(everywhere)
        elif name in options.targets:
            raise DataError(f"{name!r} is a parameter of the whole file; a target must be at points or cells")
    if options.cell_data is not None:
        return options.cell_data == "centres"
    if all("points" in where for where in places):
        return False
    if all("cells" in where for where in places):
        notes.append("the fields stay at the cell centers; averages at the points: cell_data=points")
        return True
    raise ConfigError('some fields are at points, others at cells; set cell_data="points" or cell_data="centres"')


def _axes(found: Survey, dimensions: int | None, at_centres: bool, notes: list[str]) -> tuple[str, ...]:
    """Return the axes to keep; dropping one along which a file extends raises ConfigError."""
    there = len(found.cases[0].low)
    axes = found.axes if dimensions in (None, len(found.axes)) else tuple(AXES[:dimensions])
    dropped = [i for i, axis in enumerate(AXES[:there]) if axis not in axes]
    # The centers of one layer of cells are planar, its points are not.
    long = [case.name for case in found.cases for i in dropped if extends_along(case.low, case.high, i)]
    if len(axes) > there or (long and not at_centres):
        problem = f"{long[0]} extends along the others" if long else f"the files have {there} coordinates"
        raise ConfigError(f"dimensions={dimensions} are {' and '.join(axes)}, but {problem}")
    if dropped:
        notes.append(f"only the coordinates {' and '.join(axes)} are kept")
    return axes


def _field(
    found: Survey, own: str, is_target: bool, wanted: Mapping[str, str], at_centres: bool, notes: list[str]
) -> Field:
    here = found.named(own)
    order: tuple[Where, ...] = ("cells", "points", "whole") if at_centres else ("points", "cells", "whole")
    where = next(where for where in order if where in here)
    field = here[where]
    if len(field.widths) > 1:
        raise DataError(f"{own!r} has {sorted(field.widths)} components, not the same number in all files")
    if len(here) > 1:
        notes.append(f"{own!r} is at {' and at '.join(here)}: that at {where} is used")
    role: Role = "target" if is_target else "parameter" if where == "whole" else "feature"
    if role != "parameter" and (where == "cells") != at_centres:
        here_is, to = ("point", "cells") if at_centres else ("cell", "points")
        notes.append(f"{own!r} is {here_is} data: averaged to the {to}")
    word, (width,) = identifier(own), field.widths
    if width == 1:
        components: tuple[str, ...] = (word,)
    else:
        components = tuple(AXES[:width]) if width <= 3 else tuple(f"c{i}" for i in range(width))
    described = "" if word == field.name else f"{field.name!r} in the files"
    return Field(role=role, components=components, unit=_unit(field.name, found, wanted), description=described)


def _unit(name: str, found: Survey, wanted: Mapping[str, str]) -> str:
    """Return the unit that the files state, else the requested one, or "1"; two different ones are an error."""
    stated = {unit: found.cases[cases[0]].name for unit, cases in found.units.get(name, {}).items()}
    if len(stated) > 1:
        both = ", ".join(f"{unit} in {file}" for unit, file in stated.items())
        raise DataError(f"{name!r} has several units, which are not converted: {both}. Export all files in one unit")
    unit, file = next(iter(stated.items()), (None, ""))
    return _agreed(name, unit, file, wanted)


def _agreed(name: str, stated: str | None, where: str, wanted: Mapping[str, str]) -> str:
    asked = wanted.get(identifier(name))
    if stated and asked not in (None, stated):
        raise ConfigError(f"units: {name!r} is requested in {asked}, but {where} states {stated}; nothing is converted")
    return stated or asked or "1"

"""Import of simulation files as a dataset.

    dataset = import_data("results/*.vtu", "data/wings", targets=["pressure"], units={"pressure": "Pa", "points": "m"})

`plan_import` does everything but the writing: it reports what was found and what will be written.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np

from flare.data.checks.fixes import drop_nonfinite_points
from flare.data.checks.near_duplicates import Samples, find_near_duplicates
from flare.data.checks.precision import STEPS, far_axes
from flare.data.dataset import Dataset, sha256
from flare.data.importing.case_table import CaseTable, read_case_table
from flare.data.importing.cases import CaseLocation, Source, find_cases, read_case
from flare.data.importing.fields import AXES, extract_fields
from flare.data.importing.schema import CellData, constant_inputs, import_schema, unused_parameters
from flare.data.importing.survey import Survey, survey
from flare.data.sample import Sample, Schema
from flare.data.splits import (
    ENOUGH_SAMPLES,
    as_share,
    calibration_remarks,
    fewest_calibration_samples,
    joined,
    split_cases,
)
from flare.data.statistics import describe_bad_values
from flare.data.writer import DatasetWriter
from flare.mesh.mesh import Mesh
from flare.utils.errors import ConfigError, DataError
from flare.utils.progress import progress
from flare.utils.text import counted

logger = logging.getLogger(__name__)

OnNan = Literal["refuse", "drop"]
LISTED_FILES = 3
"""Files that a note lists by name."""


@dataclass(frozen=True)
class ImportPlan:
    """What an import will write, with its samples readable by index."""

    schema: Schema
    places: Sequence[CaseLocation]
    """Cases in the order of the samples, split by split."""
    splits: Mapping[str, tuple[int, int]]
    """Name -> [start, stop) of the samples."""
    survey: Survey
    table: CaseTable | None
    notes: Sequence[str]
    """Decisions that were made, one sentence each."""
    on_nan: OnNan
    points: str | None
    choices: Mapping[str, Any]
    """Arguments, as dataset.json records them: the same arguments and files give the same dataset."""
    dropped: Mapping[str, Mapping[str, int]]
    """File -> number of its points and cells that are dropped because of non-finite values."""

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> Sample:
        """Return a sample of the dataset, without points of non-finite values."""
        return replace(self, on_nan="drop").sample(self.places[index])

    def split(self, name: str) -> np.ndarray:
        """Return the indices of the samples of a split."""
        return np.arange(*self.splits[name])

    def sample(self, location: CaseLocation, log: Callable[[str], None] = lambda message: None) -> Sample:
        """Read one case as a sample.

        Raises:
            DataError: A value is not finite and `on_nan` is "refuse", or a parameter is not finite.
        """
        mesh = read_case(location, points=self.points)
        given = self.table.values(location) if self.table else {}
        values = extract_fields(mesh, self.schema, list(self.schema.fields), given, log=log)
        for parameter in self.schema.named("parameter"):
            if not np.isfinite(values[parameter]).all():
                raise DataError(
                    f"{mesh.name}: parameter {parameter!r} is not finite: {values[parameter].tolist()}. Export the "
                    f"file "
                    f'again, or skip it with exclude="{location.path.name}"'
                )
        sample = Sample(values, _cells(mesh, self.schema.cell_type), {"file": location.name})
        fields = {n: v for n, v in values.items() if self.schema.fields[n].role != "parameter"}
        table = np.concatenate(list(fields.values()), axis=1)
        finite = np.isfinite(table).all(1)
        if finite.all() or self.on_nan == "drop":
            return sample if finite.all() else drop_nonfinite_points(self.schema, sample, finite)
        channels = [n for n, v in fields.items() for _ in range(v.shape[1])]
        raise DataError(
            f'{mesh.name}: {describe_bad_values(table, channels)}. Drop those points with on_nan="drop", or list all '
            f"problems with:  flare data check {location.path.parent}"
        )


def plan_import(
    source: Source,
    *,
    targets: Sequence[str] | str,
    inputs: Sequence[str] | str = (),
    name: str = "imported",
    units: Mapping[str, str] | None = None,
    parameters: str | os.PathLike[str] | None = None,
    cell_data: CellData | None = None,
    dimensions: int | None = None,
    test: float | str = 0.2,
    calibration: float = 0.15,
    group: str | None = None,
    seed: int = 0,
    on_nan: OnNan = "refuse",
    points: str | None = None,
    exclude: Sequence[str] | str = (),
    found: Survey | None = None,
    quiet: bool = False,
) -> ImportPlan:
    """Read all files once and plan the dataset; nothing is written.

    Args:
        source: A folder, a pattern, a file, or a list of them.
        targets: Names of the fields to predict.
        inputs: Names of the model inputs: data at points or cells is a feature, of the whole file a parameter.
        name: Name of the dataset.
        units: Field -> unit; `points` is the unit of length. Default: the stated unit, or dimensionless.
        parameters: CSV file with one row per file: a column `file`, and a parameter in each other column.
        cell_data: `centres` keeps the fields at cell centers; `points` averages cell data to the points. None: at the
            points if all fields are there, at the centers if all are there, an error if they are mixed.
        dimensions: Number of coordinates; None drops z if all files lie in one plane.
        test: Share of the files, a pattern of their names, or a .txt file with one name per line.
        calibration: Share of the files held out for error bars; at least the 9 that they need, and 19 for narrower ones
            if the share is close to that, while half of the files remain for training. 0: error bars use half of the
            test files.
        group: Column of the parameter file, or `folder`: files of one group stay in one split.
        seed: Seed of the random split.
        on_nan: `drop` drops points with NaN or infinite values; a parameter with such a value is always an error.
        points: Name of the coordinates in files of arrays, if it is an unusual one.
        exclude: Patterns of names of files to skip.
        found: Result of `survey` for these files, if it exists already.
        quiet: Shows no progress.

    Raises:
        DataError: Files are missing, damaged or inconsistent.
        ConfigError: An argument does not match the files.
    """
    exclude = [exclude] if isinstance(exclude, str) else list(exclude)
    places = find_cases(source, points=points, exclude=exclude)
    found = found or survey(places, points=points, quiet=quiet)
    targets, inputs = ([names] if isinstance(names, str) else list(names) for names in (targets, inputs))
    table = read_case_table(parameters, places, group) if parameters is not None else None
    notes = [*found.notes, *_check_precision(found)]
    schema = import_schema(
        found,
        name,
        targets=targets,
        inputs=inputs,
        units=units or {},
        table=table,
        cell_data=cell_data,
        dimensions=dimensions,
        notes=notes,
    )
    notes += [*(table.unused(places) if table else ()), *constant_inputs(found, inputs, table, places)]
    notes += unused_parameters(found, schema.fields)
    groups = _groups(found, places, table, group, notes)
    parts = split_cases(
        [p.name for p in places],
        groups,
        contents=[case.digest for case in found.cases],
        test=test,
        calibration=calibration,
        fewest=fewest_calibration_samples(),
        enough=ENOUGH_SAMPLES,
        seed=seed,
    )
    notes += calibration_remarks(len(parts.get("calibration", [])), calibration, len(places))
    if group is None:
        notes.append(
            "files are assigned to splits one by one; if several share a design, keep them together with group="
        )
    order = [i for part in parts.values() for i in part]
    ends = np.cumsum([0, *[len(part) for part in parts.values()]]).tolist()
    plan = ImportPlan(
        schema,
        [places[i] for i in order],
        dict(zip(parts, pairwise(ends), strict=True)),
        found,
        table,
        notes,
        on_nan,
        points,
        {
            "targets": targets,
            "inputs": inputs,
            "units": dict(units or {}),
            "parameters": None if parameters is None else _file(parameters),
            "cell_data": cell_data,
            "dimensions": dimensions,
            "test": _choice(test),
            "calibration": calibration,
            "group": group,
            "seed": seed,
            "points": points,
            "exclude": exclude,
        },
        {},
    )
    return _with_dropped(plan) if on_nan == "drop" else plan


def _with_dropped(plan: ImportPlan) -> ImportPlan:
    """Add what will be dropped; only files with non-finite values are read for it."""
    found = plan.survey
    suspects = {found.cases[i].name for field in found.fields.values() for i in field.bad_cases}
    suspects |= {case.name for case in found.cases if case.lost}
    places = [place for place in plan.places if place.name in suspects]
    left_out = {place.name: plan.sample(place).notes.get("left_out") for place in places}
    dropped = {name: count for name, count in left_out.items() if count}
    if not dropped:
        return plan
    points, cells = (sum(count[what] for count in dropped.values()) for what in ("points", "cells"))
    shown = [f"{name} {counted(count['points'], 'point')}" for name, count in [*dropped.items()][:LISTED_FILES]]
    more = f" and {len(dropped) - LISTED_FILES} more, listed in dataset.json" if len(dropped) > LISTED_FILES else ""
    note = (
        f"{counted(points, 'point')} and {counted(cells, 'cell')} of {counted(len(dropped), 'file')} are dropped "
        f"because of NaN or infinite values: {', '.join(shown)}{more}"
    )
    return replace(plan, notes=[*plan.notes, note], dropped=dropped)


def write_import(plan: ImportPlan, out: str | os.PathLike[str], *, quiet: bool = False) -> Dataset:
    """Write the dataset of a plan. An interrupted import resumes when it is called again."""
    check_values(plan)
    writer = DatasetWriter(out, plan.schema, _provenance(plan))
    try:
        with progress("importing", len(plan.places), done=len(writer), unit="files", quiet=quiet) as update:
            for place in plan.places[len(writer) :]:
                writer.append(plan.sample(place))
                update()
    except BaseException:
        writer.close()
        raise
    dataset = writer.finish({name: [part] for name, part in plan.splits.items()})
    try:
        warn_of_leaks(dataset, [place.name for place in plan.places])
    except KeyboardInterrupt:
        logger.info(
            f"{out} is complete; only the search for near duplicates across splits was interrupted. Repeat it with:  "
            f"flare data check {out}"
        )
        raise
    return dataset


def _provenance(plan: ImportPlan) -> dict[str, Any]:
    """Return everything that determines the dataset; an import resumes only if none of it has changed."""
    from flare.utils import __version__

    return {
        "kind": "user",
        "maker": "flare data import",
        "versions": {"flare": __version__, "numpy": np.__version__},
        "choices": plan.choices,
        "contents": {case.name: case.content[:16] for case in plan.survey.cases},
        "remarks": list(plan.notes),
        "on_nan": plan.on_nan,
        "dropped": plan.dropped,
        "files": [place.name for place in plan.places],
    }


def _choice(test: float | str) -> float | str | dict[str, str]:
    share = as_share(test)
    if share is not None:
        return share
    return _file(str(test)) if str(test).endswith(".txt") else test


def _file(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return name and checksum of a list or table; its folder may change, its content may not."""
    return {"name": Path(path).name, "sha256": sha256(Path(path))}


def check_values(plan: ImportPlan) -> None:
    """Raise DataError for non-finite values before anything is written.

    A half-written dataset would block the same import with corrected arguments.
    """
    found = plan.survey
    bad = [field for field in found.fields.values() if field.first_bad]
    if plan.on_nan == "drop":  # which applies to points only
        bad = [field for field in bad if field.where == "whole"]
    suspects = {found.cases[field.first_bad[0]].name for field in bad if field.first_bad}
    suspects |= {case.name for case in found.cases if case.lost and plan.on_nan == "refuse"}
    for place in plan.places:
        if place.name in suspects:
            plan.sample(place)  # raises if the field is part of the dataset


def warn_of_leaks(samples: Samples, names: Sequence[str]) -> None:
    """Log a warning if samples of different splits are near duplicates."""
    leaks = find_near_duplicates(samples).leaks
    if leaks:
        first = " and ".join(names[i] for i in leaks[0])
        logger.info(
            f"WARNING: {counted(len(leaks), 'sample')} nearly equal to one of another split (first: {first}); test "
            f"errors would be too optimistic: keep related files in one group"
        )


def import_data(
    source: Source,
    out: str | os.PathLike[str],
    *,
    targets: Sequence[str] | str,
    inputs: Sequence[str] | str = (),
    name: str = "imported",
    units: Mapping[str, str] | None = None,
    parameters: str | os.PathLike[str] | None = None,
    cell_data: CellData | None = None,
    dimensions: int | None = None,
    test: float | str = 0.2,
    calibration: float = 0.15,
    group: str | None = None,
    seed: int = 0,
    on_nan: OnNan = "refuse",
    points: str | None = None,
    exclude: Sequence[str] | str = (),
    quiet: bool = False,
) -> Dataset:
    """Import simulation files as a dataset. An interrupted import resumes with the same files and arguments.

    Args:
        source: A folder, a pattern, a file, or a list of them.
        out: Folder to write; it must not exist.
        targets: Names of the fields to predict.
        inputs: Names of the model inputs; see `plan_import`, also for the arguments below.
        name: Name of the dataset.
        units: Field -> unit.
        parameters: CSV file with one row per file.
        cell_data: `centres` or `points`.
        dimensions: Number of coordinates.
        test: Share of the files, a pattern, or a .txt file of names.
        calibration: Share of the files held out for error bars.
        group: Column of the parameter file, or `folder`.
        seed: Seed of the random split.
        on_nan: `refuse` or `drop`.
        points: Name of the coordinates in files of arrays.
        exclude: Patterns of names of files to skip.
        quiet: Shows no progress.

    Example:
        >>> import numpy as np, tempfile
        >>> from flare import import_data
        >>> folder = tempfile.mkdtemp()
        >>> for i in range(24):
        ...     points = np.random.default_rng(i).random((50, 2))
        ...     np.savez(f"{folder}/{i}.npz", points=points, heat=np.sin(points[:, 0] + i))
        >>> data = import_data(folder, f"{folder}/data", targets="heat", quiet=True)
        >>> len(data), data.schema.named("target")
        (24, ['heat'])
    """
    plan = plan_import(
        source,
        targets=targets,
        inputs=inputs,
        name=name,
        units=units,
        parameters=parameters,
        cell_data=cell_data,
        dimensions=dimensions,
        test=test,
        calibration=calibration,
        group=group,
        seed=seed,
        on_nan=on_nan,
        points=points,
        exclude=exclude,
        quiet=quiet,
    )
    return write_import(plan, out, quiet=quiet)


def _cells(mesh: Mesh, cell_type: str | None) -> np.ndarray | None:
    if cell_type is None:
        return None
    kept = [mesh.cells[cell_type]] if cell_type in mesh.cells else []
    if cell_type == "triangle" and "quad" in mesh.cells:
        quads = mesh.cells["quad"]
        kept += [quads[:, [0, 1, 2]], quads[:, [0, 2, 3]]]
    return np.concatenate(kept)


def _check_precision(found: Survey) -> list[str]:
    """Raise DataError if points coincide in single precision because they are far from the origin; note few digits."""
    merged = [case for case in found.cases if case.merged]
    far = [(case, axes) for case in found.cases if (axes := far_axes(case.low, case.high))]
    collapsed = [(case, axes) for case, axes in far if case.merged or case.steps < 1]
    if collapsed:
        case, axes = collapsed[0]
        raise DataError(
            f"{counted(len(collapsed), 'file')} so far from the origin that points coincide in the single precision "
            f"of a dataset (first: {case.name}: {case.merged:,} of {case.points:,} coincide, neighbors are "
            f"{case.steps:.2g} steps apart). Move the origin closer in the program that writes the files, "
            f"{_subtract(axes)}"
        )
    notes = []
    if merged:
        notes.append(
            f"{counted(len(merged), 'file')} (first: {merged[0].name}): {merged[0].merged:,} of {merged[0].points:,} "
            f"points coincide in single precision"
        )
    coarse = [(case, axes) for case, axes in far if case.steps < STEPS]
    if coarse:
        case, axes = coarse[0]
        notes.append(
            f"{counted(len(coarse), 'file')} (first: {case.name}): single precision has only {case.steps:,.0f} steps "
            f"between neighboring points so far from the origin; move it closer in the program that writes the files, "
            f"{_subtract(axes)}"
        )
    return notes


def _subtract(axes: Mapping[int, float]) -> str:
    return "such as " + " and ".join(f"{AXES[i]} minus {value:.12g}" for i, value in axes.items())


def _groups(
    found: Survey, places: Sequence[CaseLocation], table: CaseTable | None, group: str | None, notes: list[str]
) -> list[str]:
    """Return the group of every case; files of equal content share one."""
    if group is None:
        groups = [place.name for place in places]
    elif group == "folder":
        groups = [str(place.path.parent) for place in places]
    elif table is None:
        raise ConfigError(
            f"group={group!r} is a column of a parameter file; pass parameters=FILE, or use group='folder'"
        )
    else:
        groups = [table.group(place) for place in places]
    if group is not None:
        notes.append(f"{counted(len(set(groups)), 'group')} by {group!r}: each is in one split")
    digests = [case.digest for case in found.cases]
    same = len(digests) - len(set(digests))
    if same:
        notes.append(f"{counted(same, 'file')} with the same content as another; copies stay in one split")
    return joined(groups, digests)

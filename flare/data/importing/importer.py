"""A folder of your own files as a dataset.

    dataset = import_data("results/*.vtu", "data/wings", targets=["pressure"], units={"pressure": "Pa", "points": "m"})

`plan_import` does all but the writing: what was found, what will become of it, and everything that was decided.
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

from flare.data.checks.check import Samples, find_alike
from flare.data.checks.fixes import numbers_only
from flare.data.checks.precision import STEPS, far_axes
from flare.data.dataset import Dataset, sha256
from flare.data.importing.case_table import CaseTable, read_case_table
from flare.data.importing.cases import Case, Place, Source, find_cases, read_case
from flare.data.importing.fields import AXES, fields_of
from flare.data.importing.schema import CellData, constant_inputs, import_schema, unused_parameters
from flare.data.importing.survey import Survey, survey
from flare.data.sample import Sample, Schema
from flare.data.splits import as_share, calibration_remarks, joined, split_cases
from flare.data.statistics import describe_bad_values
from flare.data.writer import DatasetWriter
from flare.trust.bars import ENOUGH, LEVEL, fewest
from flare.utils.errors import ConfigError, DataError, NoCoordinatesError
from flare.utils.progress import progress
from flare.utils.text import counted

logger = logging.getLogger(__name__)

OnNan = Literal["refuse", "drop"]
SHOWN = 3
"""Files that a remark names."""


@dataclass(frozen=True)
class ImportPlan:
    """What an import will do."""

    schema: Schema
    places: Sequence[Place]
    """In the order of the samples: split by split."""
    splits: Mapping[str, tuple[int, int]]
    """Name -> [start, stop) of the samples."""
    survey: Survey
    table: CaseTable | None
    remarks: Sequence[str]
    """Everything that was decided, in sentences."""
    on_nan: OnNan
    points: str | None
    choices: Mapping[str, Any]
    """What was asked for, as dataset.json keeps it: the same choices and files give the same dataset."""
    dropped: Mapping[str, Mapping[str, int]]
    """File -> how many of its points and cells are left out, for they are no numbers."""

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> Sample:
        """What the dataset would hold, without points that are no numbers."""
        return replace(self, on_nan="drop").sample(self.places[index])

    def split(self, name: str) -> np.ndarray:
        return np.arange(*self.splits[name])

    def sample(self, place: Place, told: Callable[[str], None] = lambda text: None) -> Sample:
        """One case, as the dataset will hold it."""
        case = read_case(place, points=self.points)
        given = self.table.values(place) if self.table else {}
        values = fields_of(case, self.schema, list(self.schema.fields), given, told=told)
        for parameter in self.schema.named("parameter"):
            if not np.isfinite(values[parameter]).all():
                raise DataError(
                    f"{case.name}: the parameter {parameter!r} is no number: {values[parameter].tolist()}. Export it "
                    f"again, or leave the file out with --exclude {place.path.name}"
                )
        cells = _cells(case, self.schema.cell_type)
        sample = Sample(values, cells, {"file": place.name})
        whole = {n: v for n, v in values.items() if self.schema.fields[n].role != "parameter"}
        table = np.concatenate(list(whole.values()), axis=1)
        finite = np.isfinite(table).all(1)
        if finite.all() or self.on_nan == "drop":
            return sample if finite.all() else numbers_only(self.schema, sample, finite)
        channels = [n for n, v in whole.items() for _ in range(v.shape[1])]
        raise DataError(
            f"{case.name}: {describe_bad_values(table, channels)}. Drop those points with --on-nan drop "
            f'(on_nan="drop"), or see every file with:  flare data check {place.path.parent}'
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
    """Read all files once and decide what becomes of them; nothing is written.

    Args:
        source: a folder, a glob, a file, or a list of them.
        targets: names of the fields to predict.
        inputs: names of fields a model is given: at points or cells a feature, of the whole file a parameter.
        name: of the dataset.
        units: field -> unit; `points` is the unit of length. Dimensionless where nobody says; refused where files say
            another.
        parameters: CSV file with a row a file: a column `file`, and parameters in the others.
        cell_data: `centres`: fields live at cell centres; `points`: cell data is averaged to the points. None: at the
            points where all fields are there, at the centres where all are there, an error where they are mixed.
        dimensions: of the points; None leaves out z where all files lie in one plane.
        test: share of the files, or a pattern of their names, or a .txt file with a name a line.
        calibration: share of the files held out for error bars; at least the 9 they need, and 19, for narrower ones,
            where the share is near that; half are left to train. 0: none, and bars come from half of the test files.
        group: column of the parameter file, or `folder`: files of a group stay in one split.
        seed: of the draw of the splits.
        on_nan: `drop` leaves out points with NaN or infinity; a parameter that is one is refused always.
        points: name of the coordinates in files of arrays, where it is an unusual one.
        exclude: patterns of names of files that are left out, unread.
        found: what `survey` said of these files, where it has been asked already.
    """
    exclude = [exclude] if isinstance(exclude, str) else list(exclude)
    places = find_places(source, points=points, exclude=exclude)
    found = found or survey(places, points=points, quiet=quiet)
    targets, inputs = ([names] if isinstance(names, str) else list(names) for names in (targets, inputs))
    table = read_case_table(parameters, places, group) if parameters is not None else None
    remarks = [*found.remarks, *_lost_digits(found)]
    schema = import_schema(
        found,
        name,
        targets=targets,
        inputs=inputs,
        units=units or {},
        table=table,
        cell_data=cell_data,
        dimensions=dimensions,
        remarks=remarks,
    )
    remarks += [*(table.unused(places) if table else ()), *constant_inputs(found, inputs, table, places)]
    remarks += unused_parameters(found, schema.fields)
    groups = _groups(found, places, table, group, remarks)
    parts = split_cases(
        [p.name for p in places],
        groups,
        contents=[case.digest for case in found.cases],
        test=test,
        calibration=calibration,
        fewest=fewest(LEVEL),
        enough=ENOUGH,
        seed=seed,
    )
    remarks += calibration_remarks(len(parts.get("calibration", [])), calibration, len(places))
    if group is None:
        remarks.append("files are drawn one by one; where several are of one design, keep them together with --group")
    order = [i for part in parts.values() for i in part]
    ends = np.cumsum([0, *[len(part) for part in parts.values()]]).tolist()
    plan = ImportPlan(
        schema,
        [places[i] for i in order],
        dict(zip(parts, pairwise(ends), strict=True)),
        found,
        table,
        remarks,
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
    """Says what will be left out; only files with values that are no numbers are read for it."""
    found = plan.survey
    suspects = {found.cases[i].name for field in found.fields.values() for i in field.bad_cases}
    suspects |= {case.name for case in found.cases if case.lost}
    places = [place for place in plan.places if place.name in suspects]
    left_out = {place.name: plan.sample(place).notes.get("left_out") for place in places}
    dropped = {name: count for name, count in left_out.items() if count}
    if not dropped:
        return plan
    points, cells = (sum(count[what] for count in dropped.values()) for what in ("points", "cells"))
    shown = [f"{name} {counted(count['points'], 'point')}" for name, count in [*dropped.items()][:SHOWN]]
    more = f" and {len(dropped) - SHOWN} more, which dataset.json lists" if len(dropped) > SHOWN else ""
    remark = (
        f"{counted(points, 'point')} and {counted(cells, 'cell')} of {counted(len(dropped), 'file')} are left out, for "
        f"they are no numbers: {', '.join(shown)}{more}"
    )
    return replace(plan, remarks=[*plan.remarks, remark], dropped=dropped)


def find_places(source: Source, *, points: str | None = None, exclude: Sequence[str] = ()) -> list[Place]:
    """As `find_cases`; an import can be told what the coordinates are called."""
    try:
        return find_cases(source, points=points, exclude=exclude)
    except NoCoordinatesError as error:
        raise DataError(f"{error}, or say which it is with --points NAME") from None


def write_import(plan: ImportPlan, out: str | os.PathLike[str], *, quiet: bool = False) -> Dataset:
    """The dataset of a plan. A stopped import goes on when called again."""
    refuse_bad_values(plan)
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
            f"{out} is complete; only the search for near copies in two splits was stopped. It is done again by:  "
            f"flare data check {out}"
        )
        raise
    return dataset


def _provenance(plan: ImportPlan) -> dict[str, Any]:
    """All that decides what is in the dataset: an import that was stopped goes on only where nothing of it differs."""
    import flare

    return {
        "kind": "user",
        "maker": "flare data import",
        "versions": {"flare": flare.__version__, "numpy": np.__version__},
        "choices": plan.choices,
        "contents": {case.name: case.content[:16] for case in plan.survey.cases},
        "remarks": list(plan.remarks),
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
    """Of a list or table that was named: where it is may change, what it says may not."""
    return {"name": Path(path).name, "sha256": sha256(Path(path))}


def refuse_bad_values(plan: ImportPlan) -> None:
    """Before the first byte: a half-written dataset would stand in the way of the same command with a remedy."""
    found = plan.survey
    bad = [field for field in found.fields.values() if field.first_bad]
    if plan.on_nan == "drop":  # of points; a parameter belongs to all of them
        bad = [field for field in bad if field.where == "whole"]
    suspects = {found.cases[field.first_bad[0]].name for field in bad if field.first_bad}
    suspects |= {case.name for case in found.cases if case.lost and plan.on_nan == "refuse"}
    for place in plan.places:
        if place.name in suspects:
            plan.sample(place)  # refuses it, where the field is one that was chosen


def warn_of_leaks(samples: Samples, names: Sequence[str]) -> None:
    """Say aloud, quiet or not, that near copies are in two splits."""
    leaks = find_alike(samples).leaks
    if leaks:
        first = " and ".join(names[i] for i in leaks[0])
        logger.info(
            f"WARNING: {counted(len(leaks), 'sample')} nearly equal one of another split (first: {first}); a test "
            f"would flatter: keep them together with --group"
        )


def import_data(source: Source, out: str | os.PathLike[str], **options: object) -> Dataset:
    """Files in, dataset out. A stopped import goes on when called again with the same files and options.

    Args:
        source: a folder, a glob, a file, or a list of them.
        out: folder to write; it must not exist.
        options: those of `plan_import`, of which `targets` must be given: inputs, name, units, parameters, cell_data,
            dimensions, test, calibration, group, seed, on_nan, points, exclude, quiet.
    """
    quiet = bool(options.get("quiet", False))
    return write_import(plan_import(source, **options), out, quiet=quiet)  # type: ignore[arg-type]


def _cells(case: Case, cell_type: str | None) -> np.ndarray | None:
    if cell_type is None:
        return None
    kept = [case.cells[cell_type]] if cell_type in case.cells else []
    if cell_type == "triangle" and "quad" in case.cells:
        quads = case.cells["quad"]
        kept += [quads[:, [0, 1, 2]], quads[:, [0, 2, 3]]]
    return np.concatenate(kept)


def _lost_digits(found: Survey) -> list[str]:
    """Refuses points that collapse in single precision, for they lie far from the origin; remarks on few digits."""
    merged = [case for case in found.cases if case.merged]
    far = [(case, axes) for case in found.cases if (axes := far_axes(case.low, case.high))]
    collapsed = [(case, axes) for case, axes in far if case.merged or case.steps < 1]
    if collapsed:
        case, axes = collapsed[0]
        raise DataError(
            f"{counted(len(collapsed), 'file')} so far from the origin that points collapse in single precision, which "
            f"a dataset has (first: {case.name}: {case.merged:,} of {case.points:,} fall onto another, neighbours are "
            f"{case.steps:.2g} steps apart). Move the origin nearer where the files are made, {_subtract(axes)}"
        )
    remarks = []
    if merged:
        remarks.append(
            f"{counted(len(merged), 'file')} (first: {merged[0].name}): points lie nearer to each other than single "
            f"precision can tell, and become one place: {merged[0].merged:,} of {merged[0].points:,}"
        )
    coarse = [(case, axes) for case, axes in far if case.steps < STEPS]
    if coarse:
        case, axes = coarse[0]
        remarks.append(
            f"{counted(len(coarse), 'file')} (first: {case.name}): so far from the origin single precision has only "
            f"{case.steps:,.0f} steps between neighbouring points; move it nearer where the files are made, "
            f"{_subtract(axes)}"
        )
    return remarks


def _subtract(axes: Mapping[int, float]) -> str:
    return "such as " + " and ".join(f"{AXES[i]} minus {value:.12g}" for i, value in axes.items())


def _groups(
    found: Survey, places: Sequence[Place], table: CaseTable | None, group: str | None, remarks: list[str]
) -> list[str]:
    """Of every case; files that hold the same are put into one, whatever they are called."""
    if group is None:
        groups = [place.name for place in places]
    elif group == "folder":
        groups = [str(place.path.parent) for place in places]
    elif table is None:
        raise ConfigError(
            f"group={group!r} is a column of the parameter file; name that file with --parameters, or use 'folder'"
        )
    else:
        groups = [table.group(place) for place in places]
    if group is not None:
        remarks.append(f"{counted(len(set(groups)), 'group')} by {group!r}: none is in two splits")
    digests = [case.digest for case in found.cases]
    same = len(digests) - len(set(digests))
    if same:
        verb = "holds" if same == 1 else "hold"
        remarks.append(f"{counted(same, 'file')} {verb} exactly what another holds; copies stay in one split")
    return joined(groups, digests)

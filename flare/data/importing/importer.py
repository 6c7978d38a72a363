"""Import of simulation files as a dataset.

    dataset = import_data("results/*.vtu", "data/wings", targets=["pressure"], units={"pressure": "Pa", "points": "m"})

`plan_import` does everything but the writing: it reports what was found and what will be written.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from flare.data.checks.fixes import drop_nonfinite_points
from flare.data.dataset import Dataset, sha256
from flare.data.generation.job import fill
from flare.data.importing.case_table import CaseTable, read_case_table
from flare.data.importing.cases import CaseLocation, Source, find_cases, read_case
from flare.data.importing.fields import extract_fields
from flare.data.importing.schema import CellData, ImportOptions, OnNan, import_schema, unused_parameters
from flare.data.importing.survey import Survey, survey
from flare.data.sample import Sample, Schema
from flare.data.splits import as_share, few_samples_note, joined, split_cases
from flare.data.statistics import describe_bad_values
from flare.data.writer import DatasetWriter
from flare.mesh.mesh import Mesh
from flare.utils.errors import ConfigError, DataError
from flare.utils.text import counted

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ImportPlan:
    """Contents of the dataset that an import will write."""

    schema: Schema
    places: Sequence[CaseLocation]
    """Cases in the order of the samples, split by split."""
    splits: Mapping[str, tuple[int, int]]
    """Name -> [start, stop) of the samples."""
    survey: Survey
    table: CaseTable | None
    notes: Sequence[str]
    """Decisions that were made, one sentence each."""
    options: ImportOptions
    choices: Mapping[str, Any]
    """Arguments, as dataset.json records them: the same arguments and files give the same dataset."""

    def sample(self, location: CaseLocation) -> Sample:
        """Read one case as a sample.

        Raises:
            DataError: A value is not finite and `on_nan` is "refuse", or a parameter is not finite.
        """
        mesh = read_case(location, points=self.options.points)
        given = self.table.values(location) if self.table else {}
        values = extract_fields(mesh, self.schema, list(self.schema.fields), given, log=lambda message: None)
        for name in self.schema.named("parameter"):
            if not np.isfinite(values[name]).all():
                problem = f"{mesh.name}: parameter {name!r} is {values[name].tolist()}"
                raise DataError(f'{problem}; skip the file with exclude="{location.path.name}"')
        sample = Sample(values, _cells(mesh, self.schema.cell_type), {"file": location.name})
        names = self.schema.named("points", "feature", "target")
        table = np.concatenate([values[name] for name in names], axis=1)
        finite = np.isfinite(table).all(1)
        if finite.all():
            return sample
        if self.options.on_nan == "drop":
            return drop_nonfinite_points(self.schema, sample, finite)
        raise DataError(
            f"{mesh.name}: {describe_bad_values(table, self.schema.channels('points', 'feature', 'target'))}. Drop "
            f'those points with on_nan="drop", or list all problems with:  flare data check {location.path.parent}'
        )


def plan_import(source: Source, *, found: Survey | None = None, quiet: bool = False, **options: Any) -> ImportPlan:
    """Read all files once and plan the dataset; nothing is written.

    Args:
        source: A folder, a pattern, a file, or a list of them.
        found: Result of `survey` for these files, if it exists already.
        quiet: Shows no progress.
        options: Keyword arguments of `import_data`.

    Raises:
        DataError: Files are missing, damaged or inconsistent.
        ConfigError: An argument does not match the files.
    """
    asked = ImportOptions(**options)
    choices = {name: value for name, value in vars(asked).items() if name not in ("name", "on_nan")} | {
        "units": dict(asked.units or {}),
        "parameters": None if asked.parameters is None else _file(asked.parameters),
        "test": as_share(asked.test) or (_file(str(asked.test)) if str(asked.test).endswith(".txt") else asked.test),
    }
    places = find_cases(source, points=asked.points, exclude=asked.exclude)
    found = found or survey(places, points=asked.points, quiet=quiet)
    table = read_case_table(asked.parameters, places, asked.group) if asked.parameters is not None else None
    notes = [*found.notes]
    schema = import_schema(found, asked, table, notes)
    notes += [*(table.unused(places) if table else ()), *unused_parameters(found, schema.fields)]
    groups = _groups(found, places, table, asked.group, notes)
    parts = split_cases(
        [p.name for p in places], groups, test=asked.test, calibration=asked.calibration, seed=asked.seed
    )
    if asked.calibration and (note := few_samples_note(len(parts.get("calibration", [])))):
        notes.append(note)
    order = [i for part in parts.values() for i in part]
    ends = np.cumsum([0, *[len(part) for part in parts.values()]]).tolist()
    splits = dict(zip(parts, pairwise(ends), strict=True))
    return ImportPlan(schema, [places[i] for i in order], splits, found, table, notes, asked, choices)


def write_import(plan: ImportPlan, out: str | os.PathLike[str], *, quiet: bool = False) -> Dataset:
    """Write the dataset of a plan. An interrupted import resumes when it is called again."""
    from flare.utils import __version__

    check_values(plan)
    provenance = {  # everything that determines the dataset; an import resumes only if none of it has changed
        "kind": "user",
        "maker": "flare data import",
        "versions": {"flare": __version__, "numpy": np.__version__},
        "choices": plan.choices,
        "contents": {case.name: case.digest[:16] for case in plan.survey.cases},
        "remarks": list(plan.notes),
        "on_nan": plan.options.on_nan,
        "files": [place.name for place in plan.places],
    }
    with DatasetWriter(out, plan.schema, provenance) as writer:
        samples = map(plan.sample, plan.places[len(writer) :])
        fill(writer, samples, len(plan.places), "importing", quiet=quiet)
        dropped = [notes["left_out"] for notes in writer.notes() if "left_out" in notes]
        dataset = writer.finish({name: [part] for name, part in plan.splits.items()})
    if dropped:
        points, cells = (counted(sum(count[what] for count in dropped), what[:-1]) for what in ("points", "cells"))
        logger.info(f"note: {points} and {cells} of {counted(len(dropped), 'file')} are dropped because of NaN or inf")
    return dataset


def _file(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return name and checksum of a list or table; its folder may change, its content may not."""
    if not Path(path).is_file():
        raise DataError(f"{path} does not exist")
    return {"name": Path(path).name, "sha256": sha256(Path(path))}


def check_values(plan: ImportPlan) -> None:
    """Raise DataError for non-finite values before anything is written.

    A half-written dataset would block the same import with corrected arguments.
    """
    finite = {case.name: case.finite for case in plan.survey.cases}
    for place in plan.places:
        if not finite[place.name]:
            plan.sample(place)  # raises if the field is part of the dataset


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
        quiet: Shows no progress.

    Returns:
        The finished dataset.

    Raises:
        DataError: Files are missing, damaged or inconsistent, or have NaN or infinite values.
        ConfigError: An argument does not match the files.

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
    options = {name: value for name, value in locals().items() if name not in ("source", "out", "quiet")}
    return write_import(plan_import(source, quiet=quiet, **options), out, quiet=quiet)


def _cells(mesh: Mesh, cell_type: str | None) -> np.ndarray | None:
    if cell_type is None:
        return None
    kept = [mesh.cells[cell_type]] if cell_type in mesh.cells else []
    if cell_type == "triangle" and "quad" in mesh.cells:
        quads = mesh.cells["quad"]
        kept += [quads[:, [0, 1, 2]], quads[:, [0, 2, 3]]]
    return np.concatenate(kept)


def _groups(
    found: Survey, places: Sequence[CaseLocation], table: CaseTable | None, group: str | None, notes: list[str]
) -> list[str]:
    """Return the group of every case; files of equal content share one."""
    if group is None:
        groups = [place.name for place in places]
        notes.append("files are assigned to splits one by one; if several share a design, use group=")
    elif group == "folder":
        groups = [str(place.path.parent) for place in places]
    elif table is None:
        raise ConfigError(f"group={group!r} is a column of a parameter file; pass it as parameters=FILE")
    else:
        groups = [table.group(place) for place in places]
    digests = [case.digest for case in found.cases]
    same = len(digests) - len(set(digests))
    if same:
        notes.append(f"{counted(same, 'file')} with the same content as another; copies stay in one split")
    return joined(groups, digests)

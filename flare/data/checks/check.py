"""Data checks: read everything once and report, per file or sample, what is wrong and how to fix it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from flare.data.checks.copies import find_copies
from flare.data.checks.sample_checks import (
    FIX_IN_MESHER,
    Finding,
    find_bad_values,
    find_broken_cells,
    find_constant_field,
    find_duplicate_points,
    find_other_units,
    plain,
)
from flare.data.dataset import ArrayFolder, Dataset, sha256
from flare.data.importing.cases import Source, find_cases, read_case
from flare.data.importing.survey import Survey, Where, survey
from flare.data.sample import INPUT_ROLES, Sample, target_array
from flare.data.statistics import describe_zero_field
from flare.mesh.mesh import Mesh
from flare.utils.progress import progress
from flare.utils.text import counted

MIXED = 30
"""Ratio of the largest to the smallest sample from which padding and statistics suffer."""


def check_dataset(dataset: Dataset, *, quiet: bool = False) -> list[Finding]:
    """Check a dataset and return all findings, serious ones first."""
    found = [*check_folder(dataset), *_check_values(dataset, quiet=quiet)]
    return sorted(found, key=lambda finding: not finding.serious)


def check_files(source: Source, *, quiet: bool = False) -> list[Finding]:
    """Check files before they are imported and return all findings, serious ones first.

    Args:
        source: Folder, files or pattern, as for `import_data`.
        quiet: Report no progress.
    """
    places = find_cases(source)
    found = survey(places, quiet=quiet)
    findings = [*_find_mixed_locations(found)]
    first: dict[str, str] = {}
    for index, case in enumerate(found.cases):
        other = first.setdefault(case.digest, case.name)
        if other != case.name:
            what, fix = f"its content equals that of {other}", "The import keeps copies in one split; one is enough"
            findings.append(Finding(case.name, what, 1, index, fix, serious=False))
    sizes = {"the extent": np.array([(case.high - case.low).max() for case in found.cases])}
    sizes |= {f"{name!r} at {where}": np.zeros(len(places)) for where, name in found.fields if where != "whole"}
    with progress("checking", len(places), unit="files", quiet=quiet) as update:
        for index, place in enumerate(places):
            mesh = read_case(place)
            findings += _check_case(mesh, found)
            for where, fields in (("points", mesh.point_data), ("cells", mesh.cell_data)):
                for name, values in fields.items():
                    sizes[f"{name!r} at {where}"][index] = _rms(values)
            update()
    findings += find_other_units(sizes, [case.name for case in found.cases])
    findings += _find_mixed_sizes(str(source), np.array([case.points for case in found.cases]))
    return sorted(findings, key=lambda finding: not finding.serious)


def _check_case(case: Mesh, found: Survey) -> Iterator[Finding]:
    """Check the values of one file."""
    fix = "Import with `on_nan=drop`, or export the file again"
    yield from find_bad_values(case.name, "points", case.points, fix)
    groups: list[tuple[Where, Mapping[str, np.ndarray]]] = [("points", case.point_data), ("cells", case.cell_data)]
    for at, fields in groups:
        for name, values in fields.items():
            yield from find_bad_values(case.name, name, values, fix, at)
            field = found.fields[at, name]
            if field.low < field.high:  # otherwise it is the same in all files
                yield from find_constant_field(case.name, name, values, at)
    remedy = "Export the file again, or leave it out with `exclude`"
    for name, values in case.parameters.items():
        yield from find_bad_values(case.name, name, values, remedy, "values")
    remedy = "Import the file, then fix the dataset with `fix`"
    yield from find_duplicate_points(case.name, case.points, list(case.point_data.values()), remedy)
    for kind, cells in case.cells.items():
        if kind != "other":
            yield from find_broken_cells(case.name, kind, cells, case.points, FIX_IN_MESHER)


def _find_mixed_locations(found: Survey) -> Iterator[Finding]:
    """Find fields that some files lack, or that are at points in one file and at cells in another."""
    files = range(len(found.cases))
    for name in sorted({name for _, name in found.fields}):
        here = found.exactly(name)
        if any(len(field.cases) == len(files) for field in here.values()):
            continue
        if len(here) > 1:
            least = min(here.values(), key=lambda field: len(field.cases))
            what, odd = f"{name!r} is at {' and at '.join(here)}, not at one of them in all files", least.cases
        else:
            odd = sorted(set(files) - {case for field in here.values() for case in field.cases})
            what = f"{name!r} is missing in {len(odd):,} of {counted(len(files), 'file')}"
        fix = "Export all files alike, or leave files out with `exclude`"
        yield Finding(found.cases[odd[0]].name, what, len(odd), odd[0], fix, serious=len(here) > 1)


def check_folder(dataset: ArrayFolder) -> Iterator[Finding]:
    """Check the files and splits of any dataset: changed or missing files, missing samples, samples in two splits."""
    for name, expected in dataset.about["checksums"].items():
        path = dataset.path / name
        if not path.exists() or sha256(path) != expected:
            what = "it is missing, or its checksum is not the one in dataset.json"
            yield Finding(str(path), what, fix="Restore it, or make the dataset again")
    owner: dict[int, str] = {}
    for split in dataset.splits:
        for index in map(int, dataset.split(split)):
            other = owner.setdefault(index, split)
            if index >= len(dataset) or other != split:
                what = f"it has sample {index}, which is also in {other!r} or does not exist"
                yield Finding(f"split {split!r}", what, 1, index, "Restore dataset.json, or make the dataset again")


def _check_values(dataset: Dataset, *, quiet: bool) -> list[Finding]:
    schema = dataset.schema
    names = [f"sample {title}" for title in dataset.titles()]
    sizes: dict[str, list[float]] = {"the extent": []}
    sizes |= {repr(name): [] for name in schema.named("target", "feature")}
    findings: list[Finding] = []
    firsts, varying = dict[str, np.ndarray](), set[str]()
    with progress(f"checking {dataset.path}", len(dataset), quiet=quiet) as update:
        for index, where in enumerate(names):
            sample = dataset[index]
            findings += _check_sample(dataset, sample, where)
            sizes["the extent"].append(_extent(sample.values[schema.points]))
            for name in schema.named("target", "feature"):
                sizes[repr(name)].append(_rms(sample.values[name]))
            for name in schema.named("feature", "parameter"):
                rows = np.atleast_2d(sample.values[name])
                if len(rows) and (rows != firsts.setdefault(name, rows[:1])).any():
                    varying.add(name)
            update()
    for name in firsts.keys() - varying:
        what = f"the input {name!r} is {plain(firsts[name][0])} everywhere: a model learns nothing from it"
        findings.append(Finding(str(dataset.path), what, len(dataset), 0, "Import again without it", serious=False))
    findings += find_other_units(sizes, names)
    leaks, contradictions = find_copies(dataset, quiet=quiet)
    for first, later in leaks:
        what = f"it is the same as {names[first]}, which is in another split"
        fix = f"Leave copies out with `flare data check {dataset.path} --fix FOLDER`, or import with `group`"
        findings.append(Finding(names[later], what, 1, later, fix))
    for first, later in contradictions:
        what = f"its inputs are those of {names[first]}, but its targets differ"
        fix = "Make what differs between the two an input: a feature or a parameter"
        findings.append(Finding(names[later], what, 1, later, fix, serious=False))
    return [*findings, *_find_mixed_sizes(str(dataset.path), dataset.sizes)]


def _find_mixed_sizes(where: str, sizes: np.ndarray) -> Iterator[Finding]:
    smallest, largest = int(sizes.min()), int(sizes.max())
    if largest > MIXED * smallest:
        what = f"samples have {smallest:,} to {largest:,} points"
        fix = "With the setting data.subsample, training draws equally many points from each"
        yield Finding(where, what, len(sizes), int(sizes.argmax()), fix, serious=False)


def _check_sample(dataset: Dataset, sample: Sample, where: str) -> Iterator[Finding]:
    schema = dataset.schema
    fix = f"Write a dataset without them with:  flare data check {dataset.path} --fix FOLDER"
    points = sample.values[schema.points]
    if len(points) == 0:
        yield Finding(where, "it has no points", fix=fix)
        return
    for name in schema.named(*INPUT_ROLES, "target"):
        values = sample.values[name][None] if schema.fields[name].role == "parameter" else sample.values[name]
        yield from find_bad_values(where, name, values, fix)
    for name in schema.named("target"):
        if sample.values[name].any():  # zero everywhere is a serious finding, below
            yield from find_constant_field(where, name, sample.values[name])
    zero = describe_zero_field(schema, target_array(schema, sample))
    if zero:
        yield Finding(where, zero, len(points), 0, "Did the simulation run? Import without the file, with `exclude`")
    fields = [sample.values[n] for n, f in schema.fields.items() if f.role not in ("points", "parameter")]
    yield from find_duplicate_points(where, points, fields, fix)
    if sample.cells is not None and schema.cell_type is not None:
        yield from find_broken_cells(where, schema.cell_type, sample.cells, points, fix)


def _extent(points: np.ndarray) -> float:
    """Return the longest edge of the bounding box."""
    rows = points[np.isfinite(points).all(1)]
    return float(np.ptp(rows.astype(np.float64), axis=0).max()) if len(rows) else 0.0


def _rms(values: np.ndarray) -> float:
    """Return the root mean square of the finite values."""
    finite = values[np.isfinite(values)].astype(np.float64)
    return float(np.sqrt(np.mean(finite**2))) if finite.size else 0.0

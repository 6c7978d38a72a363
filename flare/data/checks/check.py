"""Data checks: read everything once and report, per file or sample, what is wrong and how to fix it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from flare.data.checks.near_duplicates import (
    NearDuplicates,
    channel_ranges,
    find_near_duplicates,
    group_copies,
    signature,
)
from flare.data.checks.sample_checks import (
    FIX_IN_MESHER,
    Finding,
    Quantity,
    find_bad_values,
    find_broken_cells,
    find_constant_field,
    find_duplicate_points,
    find_other_units,
)
from flare.data.dataset import ArrayFolder, Dataset, sha256
from flare.data.importing.cases import Source, find_cases, read_case
from flare.data.importing.survey import Survey, survey
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


def check_files(source: Source, *, points: str | None = None, quiet: bool = False) -> list[Finding]:
    """Check files before they are imported and return all findings, serious ones first.

    Args:
        source: Folder, files or pattern, as for `import_data`.
        points: Name of the coordinates in files of arrays.
        quiet: Report no progress.
    """
    places = find_cases(source, points=points)
    found = survey(places, points=points, quiet=quiet)
    findings = [*_find_mixed_locations(found), *_find_equal_files(found), *_find_constant_fields(found)]
    labels = [case.name for case in found.cases]
    sizes: dict[Quantity, np.ndarray] = {
        (where, name): np.zeros(len(places)) for where, name in found.fields if where != "whole"
    }
    extent = np.array([float((case.high - case.low).max()) for case in found.cases])
    signatures = []
    with progress("checking", len(places), unit="files", quiet=quiet) as update:
        for index, place in enumerate(places):
            case = read_case(place, points=points)
            findings += _check_case(case, found)
            for (where, name), values in sizes.items():
                fields = case.point_data if where == "points" else case.cell_data
                values[index] = _rms(fields[name]) if name in fields else 0.0
            signatures.append(_case_signature(case, found))
            update()
    findings += find_other_units({("extent", ""): extent, **sizes}, labels)
    findings += _find_similar_files(found, np.array(signatures))
    counts = np.array([case.points for case in found.cases])
    findings += _find_mixed_sizes(labels[int(counts.argmax())], counts)
    return sorted(findings, key=lambda finding: not finding.serious)


def _check_case(case: Mesh, found: Survey) -> Iterator[Finding]:
    """Check the values of one file."""
    fix = "Import with `on_nan=drop`, or export the file again"
    yield from find_bad_values(case.name, "points", case.points, fix)
    for at, fields in (("points", case.point_data), ("cells", case.cell_data)):
        for name, values in fields.items():
            yield from find_bad_values(case.name, name, values, fix, at)
            if (at, name) not in _constant_everywhere(found):
                yield from find_constant_field(case.name, name, values, at)
    for name, values in case.parameters.items():
        if not np.isfinite(values).all():
            bad, remedy = int(np.argmin(np.isfinite(values))), "Export the file again, or leave it out with `exclude`"
            yield Finding(case.name, f"the parameter {name!r} is NaN or inf: {values.tolist()}", 1, bad, remedy)
    remedy = "Import the file, then fix the dataset with `fix`"
    yield from find_duplicate_points(case.name, case.points, list(case.point_data.values()), remedy)
    for kind, cells in case.cells.items():
        if kind != "other":
            yield from find_broken_cells(case.name, kind, cells, case.points, FIX_IN_MESHER)


def _constant_everywhere(found: Survey) -> set[tuple[str, str]]:
    return {key for key, field in found.fields.items() if field.low == field.high and len(field.cases) > 1}


def _find_constant_fields(found: Survey) -> Iterator[Finding]:
    """Find fields that have one value in all files. A parameter that never varies is no error of a file."""
    for where, name in sorted(_constant_everywhere(found)):
        field = found.fields[where, name]  # type: ignore[index]
        if where != "whole":
            what = f"{name!r} is {field.low:g} at all {where} of all {len(field.cases)} files that have it"
            fix = "A model learns nothing from it: use it neither as a target nor as an input"
            yield Finding(found.cases[field.cases[0]].name, what, len(field.cases), field.cases[0], fix, serious=False)


def _case_signature(case: Mesh, found: Survey) -> np.ndarray:
    """Return the signature of a file: of its points, and of the fields at points and cells that all files have.

    Fields that count nodes are ignored: they depend on the order of the points.
    """
    everywhere = {key: f for key, f in found.fields.items() if len(f.cases) == len(found.cases)}
    common = {key: f for key, f in everywhere.items() if len(f.widths) == 1 and not f.counts}
    low = np.array([c.low for c in found.cases]).min(0)
    high = np.array([c.high for c in found.cases]).max(0)
    signatures = []
    for where, at, fields in (
        ("points", case.points, case.point_data),
        ("cells", case.cell_centers() if case.has_cells and case.cell_data else None, case.cell_data),
    ):
        if at is None:
            continue
        lows, highs, columns = [low], [high], [at[:, : len(low)]]
        for name in sorted(name for place, name in common if place == where):
            rows = fields[name].reshape(len(at), -1)
            columns.append(rows)
            lows.append(np.full(rows.shape[1], common[where, name].low))  # type: ignore[index]
            highs.append(np.full(rows.shape[1], common[where, name].high))  # type: ignore[index]
        table = np.concatenate(columns, axis=1).astype(np.float64)
        table = table[np.isfinite(table).all(1)]
        table = table if len(table) else np.zeros((1, table.shape[1]))
        signatures.append(signature(table, np.concatenate(lows), np.concatenate(highs)))
    return np.sum(signatures, axis=0)


def _find_similar_files(found: Survey, signatures: np.ndarray) -> Iterator[Finding]:
    for first, *others in group_copies(signatures):
        for other in others:
            if found.cases[first].digest != found.cases[other].digest:  # equal files are another finding
                what = f"it is nearly the same as {found.cases[first].name}, in points and fields"
                fix = "Keep both in one split with `group`, or leave one out with `exclude`"
                yield Finding(found.cases[other].name, what, 1, other, fix, serious=False)


def _find_mixed_locations(found: Survey) -> Iterator[Finding]:
    """Find fields that some files lack, or that are at points in one file and at cells in another."""
    for name in sorted({name for _, name in found.fields}):
        here = found.exactly(name)
        at_both = {"points", "cells"} <= {*here}
        both = sorted({*here["points"].cases} & {*here["cells"].cases}) if at_both else []
        if both:
            what = f"{name!r} is at points and at cells in {counted(len(both), 'file')}"
            fix = "An import uses the values at points; `cell_data=centres` uses those at cells"
            yield Finding(found.cases[both[0]].name, what, len(both), both[0], fix, serious=False)
        if any(len(field.cases) == len(found.cases) for field in here.values()):
            continue
        if len(here) > 1:
            shown = ", ".join(f"at {where} in {counted(len(field.cases), 'file')}" for where, field in here.items())
            least = min(here.values(), key=lambda field: len(field.cases))
            where = found.cases[least.cases[0]].name
            yield Finding(where, f"{name!r} is {shown}", len(least.cases), least.cases[0], "Export all files alike")
            continue
        (field,) = here.values()
        missing = sorted(set(range(len(found.cases))) - set(field.cases))
        what = f"{name!r} is missing in {len(missing):,} of {counted(len(found.cases), 'file')}"
        fix = "To learn or use this field, leave out files without it with `exclude`, or export them again"
        yield Finding(found.cases[missing[0]].name, what, len(missing), missing[0], fix, serious=False)


def _find_equal_files(found: Survey) -> Iterator[Finding]:
    first: dict[str, str] = {}
    for index, case in enumerate(found.cases):
        other = first.setdefault(case.digest, case.name)
        if other != case.name:
            fix = "The import keeps copies in one split; one of them is enough"
            yield Finding(case.name, f"its content equals that of {other}", 1, index, fix, serious=False)


def check_folder(dataset: ArrayFolder) -> Iterator[Finding]:
    """Check the files and splits of any dataset: changed or missing files, missing samples, samples in two splits."""
    for name, expected in dataset.about["checksums"].items():
        path = dataset.path / name
        if not path.exists():
            yield Finding(str(path), "it is missing", fix="Restore it, or make the dataset again")
        elif sha256(path) != expected:
            what = "it has changed since it was written: its checksum differs from dataset.json"
            yield Finding(str(path), what, fix="Restore it, or make the dataset again")
    owner: dict[int, str] = {}
    for split in dataset.splits:
        for index in map(int, dataset.split(split)):
            if index >= len(dataset):
                what = f"it names sample {index}, but there are only {len(dataset)}"
                yield Finding(f"split {split!r}", what, 1, index, "Restore dataset.json")
            elif index in owner:
                what = f"it is in both {owner[index]!r} and {split!r}, which must not share samples"
                yield Finding(f"sample {index}", what, 1, index, "Make the splits again")
            owner[index] = split


def _check_values(dataset: Dataset, *, quiet: bool) -> list[Finding]:
    schema = dataset.schema
    files = [str(note.get("file", "")) for note in dataset.notes()]
    names = [f"sample {i} ({file})" if file else f"sample {i}" for i, file in enumerate(files)]
    channels = schema.channels(*INPUT_ROLES) + schema.channels("target")
    sizes: dict[Quantity, list[float]] = {("extent", ""): []}
    sizes |= {("field", name): [] for name in schema.named("target", "feature")}
    findings: list[Finding] = []
    with progress(f"checking {dataset.path}", len(dataset), quiet=quiet) as update:
        for index in range(len(dataset)):
            sample = dataset[index]
            findings += _check_sample(dataset, sample, names[index])
            for (kind, name), values in sizes.items():
                points = sample.values[schema.points]
                values.append(_extent(points) if kind == "extent" else _rms(sample.values[name]))
            update()
    low, high = channel_ranges(dataset)
    for name, value, largest in zip(channels, low, high, strict=True):
        if value == largest:
            what = f"{name!r} is {value:g} at every point of every sample"
            fix = "A model learns nothing from it: import again without it"
            findings.append(Finding(str(dataset.path), what, len(dataset), 0, fix, serious=False))
    findings += find_other_units(sizes, names)
    with progress("searching for near duplicates", len(dataset), quiet=quiet) as update:
        findings += _report_near_duplicates(dataset, names, find_near_duplicates(dataset, (low, high), update))
    return [*findings, *_find_mixed_sizes(str(dataset.path), dataset.sizes)]


def _find_mixed_sizes(where: str, sizes: np.ndarray) -> Iterator[Finding]:
    smallest, largest = int(sizes.min()), int(sizes.max())
    if smallest and largest > MIXED * smallest:
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


def _report_near_duplicates(dataset: Dataset, names: list[str], found: NearDuplicates) -> Iterator[Finding]:
    """Report near duplicates in two splits, and equal inputs with different targets."""
    for first, later in found.leaks:
        what = f"it is in {found.split[later]!r} and nearly the same as {names[first]} in {found.split[first]!r}"
        fix = (
            f"Leave such copies out with `flare data check {dataset.path} --fix FOLDER`, or import with `group` to "
            f"keep them in one split"
        )
        yield Finding(names[later], what, 1, later, fix)
    for first, later in found.contradictions:
        what = f"its inputs are those of {names[first]}, but its targets differ"
        fix = "Make what differs between the two an input: a feature or a parameter"
        yield Finding(names[later], what, 1, later, fix, serious=False)

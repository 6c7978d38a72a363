"""The data doctor: read everything once and say, file by file, what is wrong and how to mend it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from flare.data.checks.near_duplicates import copies, signature
from flare.data.checks.sample_checks import (
    IN_THE_MESHER,
    Finding,
    Size,
    bad_values,
    broken_cells,
    constant,
    duplicated,
    other_units,
)
from flare.data.dataset import ArrayFolder, Dataset, sha256
from flare.data.importing.cases import Case, Source, find_cases, read_case
from flare.data.importing.survey import Survey, survey
from flare.data.sample import INPUT_ROLES, Sample, Schema, input_array, target_array
from flare.data.statistics import describe_zero_field
from flare.utils.progress import progress
from flare.utils.text import counted

MIXED = 30
"""Times a sample may be larger than another before padding and statistics suffer."""


def check_dataset(dataset: Dataset, *, quiet: bool = False) -> list[Finding]:
    """Every complaint about a dataset, serious ones first. A sound dataset has no serious one."""
    found = [*check_folder(dataset), *_check_values(dataset, quiet=quiet)]
    return sorted(found, key=lambda finding: not finding.serious)


def check_files(source: Source, *, points: str | None = None, quiet: bool = False) -> list[Finding]:
    """Every complaint about files that are not imported yet."""
    places = find_cases(source, points=points)
    found = survey(places, points=points, quiet=quiet)
    findings = [*_mixes(found), *_same_files(found), *_constant_fields(found)]
    labels = [case.name for case in found.cases]
    sizes: dict[Size, np.ndarray] = {
        (where, name): np.zeros(len(places)) for where, name in found.fields if where != "whole"
    }
    extent = np.array([float((case.high - case.low).max()) for case in found.cases])
    marks = []
    with progress("checking", len(places), unit="files", quiet=quiet) as update:
        for index, place in enumerate(places):
            case = read_case(place, points=points)
            findings += _check_case(case, found)
            for (where, name), values in sizes.items():
                fields = case.point_fields if where == "points" else case.cell_fields
                values[index] = _rms(fields[name]) if name in fields else 0.0
            marks.append(_mark(case, found))
            update()
    findings += other_units({("extent", ""): extent, **sizes}, labels)
    findings += _near_files(found, np.array(marks))
    counts = np.array([case.points for case in found.cases])
    findings += mixed_sizes(labels[int(counts.argmax())], counts)
    return sorted(findings, key=lambda finding: not finding.serious)


def _check_case(case: Case, found: Survey) -> Iterator[Finding]:
    """What is wrong with the numbers of one file."""
    fix, export = (
        "Import with --on-nan drop, or export it again",
        "Export it again, or import with --exclude and its name",
    )
    yield from bad_values(case.name, "points", case.points, fix)
    for at, fields in (("points", case.point_fields), ("cells", case.cell_fields)):
        for name, values in fields.items():
            yield from bad_values(case.name, name, values, fix, at)
            if ("points" if at == "points" else "cells", name) not in _everywhere_constant(found):
                yield from constant(case.name, name, values, at)
    for name, values in case.parameters.items():
        if not np.isfinite(values).all():
            bad = int(np.argmin(np.isfinite(values)))
            yield Finding(case.name, f"the parameter {name!r} is no number: {values.tolist()}", 1, bad, export)
    yield from duplicated(
        case.name, case.points, list(case.point_fields.values()), "Import it, and mend the dataset with --fix"
    )
    for kind, cells in case.cells.items():
        if kind != "other":
            yield from broken_cells(case.name, kind, cells, case.points, IN_THE_MESHER)


def _everywhere_constant(found: Survey) -> set[tuple[str, str]]:
    return {key for key, field in found.fields.items() if field.low == field.high and len(field.cases) > 1}


def _constant_fields(found: Survey) -> Iterator[Finding]:
    for where, name in sorted(_everywhere_constant(found)):
        field = found.fields[where, name]  # type: ignore[index]
        if where == "whole":
            continue  # one speed for all is no mistake of a file
        what = f"{name!r} is {field.low:g} at all {where}, as in all {len(field.cases)} files that have it"
        fix = "It tells a model nothing: choose neither --target nor --input"
        yield Finding(found.cases[field.cases[0]].name, what, len(field.cases), field.cases[0], fix, serious=False)


def _mark(case: Case, found: Survey) -> np.ndarray:
    """Signature of a whole file: its points, and the fields at points and at cells that all files have.

    Numbers of nodes are left out: they tell the order of the points, which makes no other part.
    """
    everywhere = {key: f for key, f in found.fields.items() if len(f.cases) == len(found.cases)}
    common = {key: f for key, f in everywhere.items() if len(f.widths) == 1 and not f.counts}
    low = np.array([c.low for c in found.cases]).min(0)
    high = np.array([c.high for c in found.cases]).max(0)
    parts = []
    for where, at, fields in (
        ("points", case.points, case.point_fields),
        ("cells", case.neighbours.centres() if case.neighbours and case.cell_fields else None, case.cell_fields),
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
        parts.append(signature(table, np.concatenate(lows), np.concatenate(highs)))
    return np.sum(parts, axis=0)


def _near_files(found: Survey, marks: np.ndarray) -> Iterator[Finding]:
    for first, *others in copies(marks):
        for other in others:
            if found.cases[first].digest != found.cases[other].digest:  # that has been said
                what = f"is nearly the same as {found.cases[first].name}, in points and fields"
                fix = "Keep both in one split with --group, or leave one out with --exclude"
                yield Finding(found.cases[other].name, what, 1, other, fix, serious=False)


def _mixes(found: Survey) -> Iterator[Finding]:
    """Fields that not all files have, or have at points here and at cells there."""
    for name in sorted({name for _, name in found.fields}):
        here = found.called(name)
        both = (
            sorted(set.intersection(*(set(here[w].cases) for w in ("points", "cells"))))
            if {"points", "cells"} <= {*here}
            else []
        )
        if both:
            what = f"{name!r} is at points and at cells in {len(both)} files"
            fix = "An import takes that of the points; --cell-data centres takes the other"
            yield Finding(found.cases[both[0]].name, what, len(both), both[0], fix, serious=False)
        if any(len(field.cases) == len(found.cases) for field in here.values()):
            continue
        if len(here) > 1:
            said = ", ".join(f"at {where} in {len(field.cases)} files" for where, field in here.items())
            least = min(here.values(), key=lambda field: len(field.cases))
            where = found.cases[least.cases[0]].name
            yield Finding(where, f"{name!r} is {said}", len(least.cases), least.cases[0], "Export all files alike")
            continue
        (field,) = here.values()
        missing = sorted(set(range(len(found.cases))) - set(field.cases))
        others = len(missing) - 1
        nor = f", nor {'has' if others == 1 else 'have'} {counted(others, 'other file')}" if others else ""
        owners = f"{counted(len(field.cases), 'file')} {'has' if len(field.cases) == 1 else 'have'} it"
        what = f"has no {name!r}{nor}; {owners}"
        fix = "Harmless, unless that field is to be learnt: then "
        fix += "leave out files without it with --exclude, or export them again"
        yield Finding(found.cases[missing[0]].name, what, len(missing), missing[0], fix, serious=False)


def _same_files(found: Survey) -> Iterator[Finding]:
    first: dict[str, str] = {}
    for index, case in enumerate(found.cases):
        other = first.setdefault(case.digest, case.name)
        if other != case.name:
            fix = "The import keeps copies in one split; one of them is enough"
            yield Finding(case.name, f"holds exactly what {other} holds", 1, index, fix, serious=False)


def check_folder(dataset: ArrayFolder) -> Iterator[Finding]:
    """Of any dataset: files that are not as they were written, samples that are not there or are in two splits."""
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
                what = f"it names sample {index}; there are only {len(dataset)}"
                yield Finding(f"split {split!r}", what, 1, index, "Restore dataset.json")
            elif index in owner:
                what = f"it is in both {owner[index]!r} and {split!r}: the test would be no test"
                yield Finding(f"sample {index}", what, 1, index, "Make the splits again")
            owner[index] = split


def labels(dataset: Dataset) -> list[str]:
    """`sample 3 (wing_7.vtu)`: what messages call each sample."""
    files = [str(note.get("file", "")) for note in dataset.notes()]
    return [f"sample {i} ({file})" if file else f"sample {i}" for i, file in enumerate(files)]


def _check_values(dataset: Dataset, *, quiet: bool) -> list[Finding]:
    schema, names = dataset.schema, labels(dataset)
    channels = schema.channels(*INPUT_ROLES) + schema.channels("target")
    sizes: dict[Size, list[float]] = {("extent", ""): []}
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
    low, high = _ranges(dataset)
    same = [(name, value) for name, value, most in zip(channels, low, high, strict=True) if value == most]
    findings += [
        Finding(
            str(dataset.path),
            f"{name!r} is {value:g} at every point of every sample",
            len(dataset),
            0,
            "It tells a model nothing: import again without it",
            serious=False,
        )
        for name, value in same
    ]
    findings += other_units(sizes, names)
    with progress("looking for near copies", len(dataset), quiet=quiet) as update:
        findings += _check_likeness(dataset, names, find_alike(dataset, (low, high), update))
    return [*findings, *mixed_sizes(str(dataset.path), dataset.sizes)]


def mixed_sizes(where: str, sizes: np.ndarray) -> Iterator[Finding]:
    smallest, largest = int(sizes.min()), int(sizes.max())
    if smallest and largest > MIXED * smallest:
        what = f"samples have {smallest:,} to {largest:,} points"
        fix = "--data.subsample draws as many of each while training"
        yield Finding(where, what, len(sizes), int(sizes.argmax()), fix, serious=False)


def _check_sample(dataset: Dataset, sample: Sample, where: str) -> Iterator[Finding]:
    schema = dataset.schema
    mend = f"flare data check {dataset.path} --fix FOLDER writes a dataset without them"
    points = sample.values[schema.points]
    if len(points) == 0:
        yield Finding(where, "it has no points", fix=mend)
        return
    for name in schema.named(*INPUT_ROLES, "target"):
        values = sample.values[name][None] if schema.fields[name].role == "parameter" else sample.values[name]
        yield from bad_values(where, name, values, mend)
    for name in schema.named("target"):
        if sample.values[name].any():  # zero everywhere is worse, and said below
            yield from constant(where, name, sample.values[name])
    zero = describe_zero_field(schema, target_array(schema, sample))
    if zero:
        yield Finding(where, zero, len(points), 0, "Import without that file, with --exclude; did this simulation run?")
    fields = [sample.values[n] for n, f in schema.fields.items() if f.role not in ("points", "parameter")]
    yield from duplicated(where, points, fields, mend)
    if sample.cells is not None and schema.cell_type is not None:
        yield from broken_cells(where, schema.cell_type, sample.cells, points, mend)


def _extent(points: np.ndarray) -> float:
    """The longest edge of the box around the points."""
    rows = points[np.isfinite(points).all(1)]
    return float(np.ptp(rows.astype(np.float64), axis=0).max()) if len(rows) else 0.0


def _rms(values: np.ndarray) -> float:
    """Root mean square of a field."""
    finite = values[np.isfinite(values)].astype(np.float64)
    return float(np.sqrt(np.mean(finite**2))) if finite.size else 0.0


def _check_likeness(dataset: Dataset, names: list[str], alike: Alike) -> Iterator[Finding]:
    """Near copies in two splits; equal inputs with unequal answers."""
    for first, later in alike.leaks:
        what = (
            f"it is in {alike.split[later]!r} and nearly the same as {names[first]} in {alike.split[first]!r}: the "
            f"test would be no test"
        )
        fix = f"flare data check {dataset.path} --fix FOLDER leaves such copies out, or split by --group"
        yield Finding(names[later], what, 1, later, fix)
    for first, later in alike.contradictions:
        what = f"its inputs are those of {names[first]}, its targets are not"
        fix = "What differs between the two should be an input: a feature or a parameter"
        yield Finding(names[later], what, 1, later, fix, serious=False)


class Samples(Protocol):
    """A dataset, or an import that would be one."""

    @property
    def schema(self) -> Schema: ...
    @property
    def splits(self) -> Collection[str]: ...
    def split(self, name: str, /) -> np.ndarray: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Sample: ...


@dataclass(frozen=True)
class Alike:
    """Pairs (kept, other) of samples with nearly the same inputs."""

    split: dict[int, str]
    leaks: list[tuple[int, int]]
    """Of two splits; the other is in the later one."""
    contradictions: list[tuple[int, int]]
    """With other targets."""


def find_alike(
    dataset: Samples, ranges: tuple[np.ndarray, np.ndarray] | None = None, update: Callable[[], None] = lambda: None
) -> Alike:
    """Read every sample once more, and compare; `ranges` of all channels, where they are known."""
    order = {name: place for place, name in enumerate(dataset.splits)}
    split = {int(i): name for name in dataset.splits for i in dataset.split(name) if i < len(dataset)}
    inputs, answers = signatures(dataset, *(ranges or _ranges(dataset)), update)
    usual = float(np.median(np.linalg.norm(answers - answers.mean(0), axis=1))) if len(answers) else 0.0
    leaks, contradictions = [], []
    for group in copies(inputs):
        firsts: list[int] = []  # one for each answer: a geometry under several loads has many, and copies of each
        for one in sorted(group, key=lambda i: (order.get(split.get(i, ""), len(order)), i)):
            apart = np.linalg.norm(answers[firsts] - answers[one], axis=1)
            near = np.flatnonzero(apart <= (0.1 * usual or np.inf))
            if not len(near):
                firsts.append(one)
            elif one in split and split[first := firsts[near[0]]] != split[one]:
                leaks.append((first, one))
        contradictions += [(firsts[0], other) for other in firsts[1:]]
    return Alike(split, leaks, contradictions)


def _ranges(dataset: Samples) -> tuple[np.ndarray, np.ndarray]:
    """Lowest and highest value of every input and target channel, of those that are numbers."""
    width = dataset.schema.in_dim + dataset.schema.out_dim
    low, high = np.full(width, np.inf), np.full(width, -np.inf)
    for index in range(len(dataset)):
        rows = _numbers(dataset, dataset[index])
        if len(rows):
            low, high = np.minimum(low, rows.min(0)), np.maximum(high, rows.max(0))
    return low, high


def _numbers(dataset: Samples, sample: Sample) -> np.ndarray:
    """(N, inputs and targets) float64, without points that are no numbers."""
    both = np.concatenate([input_array(dataset.schema, sample), target_array(dataset.schema, sample)], axis=1)
    return both[np.isfinite(both).all(1)].astype(np.float64)


def signatures(
    dataset: Samples, low: np.ndarray, high: np.ndarray, update: Callable[[], None] = lambda: None
) -> tuple[np.ndarray, np.ndarray]:
    """(samples, K) of the inputs, and of inputs and targets together."""
    inputs, both, width = [], [], dataset.schema.in_dim
    for index in range(len(dataset)):
        rows = _numbers(dataset, dataset[index])
        rows = rows if len(rows) else np.zeros((1, rows.shape[1]))
        inputs.append(signature(rows[:, :width], low[:width], high[:width]))
        both.append(signature(rows, low, high))
        update()
    return np.array(inputs), np.array(both)

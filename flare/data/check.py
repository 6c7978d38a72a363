"""The data doctor: read everything once and say, file by file, what is wrong and how to mend it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from flare.data.cases import Source, find_cases, read_case
from flare.data.doctor import Finding, bad_values, broken_cells, constant, duplicated, other_units
from flare.data.likeness import copies, signature
from flare.data.sample import INPUT_ROLES, Sample, Schema, input_array, target_array
from flare.data.statistics import describe_zero_field
from flare.data.store import ArrayFolder, Dataset, sha256
from flare.data.survey import Survey, survey
from flare.terminal import progress

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
    findings = [*_mixes(found), *_same_files(found)]
    labels = [case.name for case in found.cases]
    extent = np.array([float((case.high - case.low).max()) for case in found.cases])
    findings += other_units({"its extent": extent}, labels)
    fix = "Import with --on-nan drop, or export it again"
    with progress("checking", len(places), unit="files", quiet=quiet) as update:
        for place in places:
            case = read_case(place, points=points)
            for name, values in (*case.point_fields.items(), *case.cell_fields.items()):
                findings += bad_values(case.name, name, values, fix)
            findings += duplicated(
                case.name, case.points, "Merge them where the mesh is made, if they are meant as one"
            )
            for kind, cells in case.cells.items():
                if kind != "other":
                    findings += broken_cells(case.name, kind, cells, case.points, "Repair the mesh where it is made")
            update()
    return sorted(findings, key=lambda finding: not finding.serious)


def _mixes(found: Survey) -> Iterator[Finding]:
    """Fields that not all files have, or have at points here and at cells there."""
    for name in sorted({name for _, name in found.fields}):
        here = {where: field for where, field in found.named(name).items() if field.name == name}
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
        what = f"has no {name!r}, nor have {len(missing) - 1} other files; {len(field.cases)} files have it"
        fix = "Leave it out, or export it again, to learn that field"
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
    sizes: dict[str, list[float]] = {"its extent": [], **{repr(name): [] for name in schema.named("target", "feature")}}
    findings: list[Finding] = []
    with progress(f"checking {dataset.path}", 2 * len(dataset), quiet=quiet) as update:
        for index in range(len(dataset)):
            sample = dataset[index]
            findings += _check_sample(dataset, sample, names[index])
            for what, values in sizes.items():
                values.append(_size(dataset, sample, what))
            update()
        low, high = _ranges(dataset)
        same = [(name, value) for name, value, most in zip(channels, low, high, strict=True) if value == most]
        findings += [
            Finding(f"{name!r}", f"it is {value:g} at every point of every sample", len(dataset), 0, serious=False)
            for name, value in same
        ]
        findings += other_units({what: np.array(values) for what, values in sizes.items()}, names)
        findings += _check_likeness(dataset, names, find_alike(dataset, (low, high), update))
    smallest, largest = int(dataset.sizes.min()), int(dataset.sizes.max())
    if smallest and largest > MIXED * smallest:
        what = f"samples have {smallest:,} to {largest:,} points"
        fix = "--data.subsample draws as many of each while training"
        findings.append(Finding(str(dataset.path), what, len(dataset), int(dataset.sizes.argmax()), fix, serious=False))
    return findings


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
        yield from constant(where, name, sample.values[name])
    zero = describe_zero_field(schema, target_array(schema, sample))
    if zero:
        yield Finding(where, zero, len(points), 0, "Leave that sample out; did this simulation run?")
    yield from duplicated(where, points, mend)
    if sample.cells is not None and schema.cell_type is not None:
        yield from broken_cells(where, schema.cell_type, sample.cells, points, mend)


def _size(dataset: Dataset, sample: Sample, what: str) -> float:
    """Of a sample: the longest edge of its box, or the root mean square of a field."""
    schema = dataset.schema
    values = sample.values[schema.points if what == "its extent" else what.strip("'")].astype(np.float64)
    values = values[np.isfinite(values).all(1)]
    if not len(values):
        return 0.0
    return float(np.ptp(values, axis=0).max() if what == "its extent" else np.sqrt(np.mean(values**2)))


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
    def splits(self) -> Mapping[str, object]: ...
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
        first, *others = sorted(group, key=lambda i: (order.get(split.get(i, ""), -1), i))
        for other in others:
            if float(np.linalg.norm(answers[first] - answers[other])) > 0.1 * usual > 0:
                contradictions.append((first, other))
            elif split.get(first) != split.get(other):
                leaks.append((first, other))
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

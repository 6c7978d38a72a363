"""The data doctor: read everything once and say, file by file, what is wrong."""

from __future__ import annotations

import numpy as np

from flare.data.sample import INPUT_ROLES, input_array, target_array
from flare.data.statistics import describe_bad_values
from flare.data.store import Dataset, sha256
from flare.terminal import progress


def check_dataset(dataset: Dataset, *, quiet: bool = False) -> list[str]:
    """Every finding as one line; an empty list means a sound dataset."""
    return [*_check_files(dataset), *_check_splits(dataset), *_check_values(dataset, quiet=quiet)]


def _check_files(dataset: Dataset) -> list[str]:
    findings = []
    for name, expected in dataset.about["checksums"].items():
        path = dataset.path / name
        if not path.exists():
            findings.append(f"{path} is missing")
        elif sha256(path) != expected:
            findings.append(f"{path} has changed since it was written: its checksum differs from dataset.json")
    return findings


def _check_splits(dataset: Dataset) -> list[str]:
    findings = []
    owner: dict[int, str] = {}
    for split in dataset.splits:
        for index in map(int, dataset.split(split)):
            if index >= len(dataset):
                findings.append(f"split {split!r} names sample {index}; there are only {len(dataset)}")
            elif index in owner:
                findings.append(f"sample {index} is in both {owner[index]!r} and {split!r}: the test would be no test")
            owner[index] = split
    return findings


def _check_values(dataset: Dataset, *, quiet: bool) -> list[str]:
    findings = []
    schema = dataset.schema
    with progress(f"checking {dataset.path}", len(dataset), quiet=quiet) as update:
        for index in range(len(dataset)):
            sample = dataset[index]
            inputs, targets = input_array(schema, sample), target_array(schema, sample)
            for array, roles in ((inputs, INPUT_ROLES), (targets, ("target",))):
                problem = describe_bad_values(array, schema.channels(*roles))
                if problem:
                    findings.append(f"sample {index}: {problem}")
            if (
                sample.cells is not None
                and sample.cells.size
                and not 0 <= sample.cells.min() <= sample.cells.max() < len(targets)
            ):
                findings.append(f"sample {index}: cells refer to points it does not have")
            if len(targets) == 0:
                findings.append(f"sample {index}: has no points")
            elif not targets.any():
                findings.append(f"sample {index}: targets are zero at every point")
            elif len(targets) > 1 and (np.ptp(targets, axis=0) == 0).any():
                findings.append(f"sample {index}: a target is the same at every point")
            update()
    return findings

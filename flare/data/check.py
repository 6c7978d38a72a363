"""The data doctor: read everything once and say, file by file, what is wrong."""

from __future__ import annotations

import numpy as np

from flare.data.sample import INPUT_ROLES, input_array, target_array
from flare.data.statistics import describe_bad_values, describe_zero_field
from flare.data.store import ArrayFolder, Dataset, sha256
from flare.terminal import progress


def check_dataset(dataset: Dataset, *, quiet: bool = False) -> tuple[list[str], list[str]]:
    """What is wrong, and what is merely worth knowing, a line each. A sound dataset has nothing wrong."""
    wrong, remarks = _check_values(dataset, quiet=quiet)
    return [*check_files(dataset), *check_splits(dataset), *wrong], remarks


def check_files(dataset: ArrayFolder) -> list[str]:
    """Files that are missing or not as they were written."""
    findings = []
    for name, expected in dataset.about["checksums"].items():
        path = dataset.path / name
        if not path.exists():
            findings.append(f"{path} is missing")
        elif sha256(path) != expected:
            findings.append(f"{path} has changed since it was written: its checksum differs from dataset.json")
    return findings


def check_splits(dataset: ArrayFolder) -> list[str]:
    """Samples that are not there, or in two splits."""
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


def _check_values(dataset: Dataset, *, quiet: bool) -> tuple[list[str], list[str]]:
    findings, schema = [], dataset.schema
    channels = schema.channels(*INPUT_ROLES) + schema.channels("target")
    low, high = np.full(len(channels), np.inf), np.full(len(channels), -np.inf)
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
            else:
                zero = describe_zero_field(schema, targets)
                findings += [f"sample {index}: {zero}"] if zero else []
                both = np.concatenate([inputs, targets], axis=1)
                low, high = np.fmin(low, both.min(0)), np.fmax(high, both.max(0))
            update()
    same = [(name, value) for name, value, most in zip(channels, low, high, strict=True) if value == most]
    return findings, [f"{name!r} is {value:g} at every point of every sample" for name, value in same]

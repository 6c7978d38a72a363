"""Description and checks of a dataset of sequences."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b

import numpy as np

from flare.data.checks.check import check_folder
from flare.data.checks.sample_checks import Finding
from flare.sequence.store import SequenceDataset
from flare.utils.errors import DataError
from flare.utils.progress import progress

PIECE = 1 << 22
"""Array entries checked at a time: arrays may be larger than the memory."""


def check_sequences(dataset: SequenceDataset, *, quiet: bool = False) -> list[Finding]:
    """Return all problems of a dataset, serious ones first."""
    found = [*check_folder(dataset), *_out_of_range(dataset)]
    for label in np.flatnonzero(_class_shares(dataset) == 0):
        what = f"no sample has the class {dataset.schema.classes[label]!r}"
        fix = "Make more samples, or use another seed"
        found.append(Finding(str(dataset.path), what, 0, None, fix, serious=False))
    earlier = set[bytes]()
    with progress(f"checking {dataset.path}", len(dataset), quiet=quiet) as update:
        for split in dataset.splits:
            own = []
            for index in dataset.split(split):
                own.append(b"".join(blake2b(t.tobytes(), digest_size=16).digest() for t in dataset[index].documents))
                update()
            repeated = sum(digest in earlier for digest in own)
            if repeated:  # a model may have memorized them
                what = f"{repeated:,} of {len(own):,} samples are also in an earlier split"
                fix = "Published files have such repeats: report them with the accuracy, or make another dataset"
                found.append(Finding(f"split {split!r}", what, repeated, None, fix, serious=False))
            earlier |= set(own)
    return found


def check_ranges(dataset: SequenceDataset) -> None:
    """Raise DataError for a label, token or length out of range, before a model fails on it with an index error."""
    for finding in _out_of_range(dataset):
        advice = f"List all problems with: flare data check {dataset.path}"
        raise DataError(f"{dataset.path / finding.where}: {finding.what}. {advice}")


def _out_of_range(dataset: SequenceDataset) -> Iterator[Finding]:
    """Yield a finding for every array with labels, lengths or tokens out of range."""
    schema = dataset.schema
    named_lengths = zip(schema.token_arrays.values(), dataset.lengths.T, strict=True)
    arrays: list[tuple[str, np.ndarray, int, int, int | None]] = [
        ("labels", dataset.labels, 0, len(schema.classes) - 1, None),
        *((offsets, lengths, 1, schema.longest, None) for offsets, lengths in named_lengths),
        *((name, tokens, 0, schema.vocabulary - 1, schema.pad) for name, tokens in dataset.tokens.items()),
    ]
    for name, values, low, high, pad in arrays:
        for start in range(0, len(values), PIECE):
            piece = values[start : start + PIECE]
            wrong = np.flatnonzero((piece < low) | (piece > high) | (False if pad is None else piece == pad))
            if wrong.size:
                without = "" if pad is None else f" without {pad} (padding)"
                what = f"entry {start + wrong[0]} is {piece[wrong[0]]}; allowed are {low} … {high}{without}"
                yield Finding(f"{name}.npy", what, len(wrong), int(start + wrong[0]), "Make or read the dataset again")
                break


def describe_sequences(dataset: SequenceDataset) -> list[str]:
    """Return one line each on the task, splits, lengths and classes."""
    schema = dataset.schema
    pad = "no padding id" if schema.pad is None else f"id {schema.pad} is padding"
    lines = [
        f"{schema.name}: {len(dataset):,} {'pairs of ' * (schema.documents == 2)}sequences, "
        f"{dataset.lengths.sum():,} tokens, vocabulary {schema.vocabulary} ({pad})",
        "splits: " + ", ".join(f"{name} {len(dataset.split(name)):,}" for name in dataset.splits),
    ]
    for document, lengths in enumerate(dataset.lengths.T, 1):
        low, middle, high = np.percentile(lengths, [5, 50, 95])
        lines.append(
            f"tokens{f' of document {document}' if schema.documents == 2 else ''}: {lengths.min():,} to "
            f"{lengths.max():,}, mean {lengths.mean():,.1f}, 5 / 50 / 95 % at {low:,.0f} / {middle:,.0f} / {high:,.0f}"
        )
    shares = zip(schema.classes, _class_shares(dataset), strict=True)
    lines.append("classes: " + ", ".join(f"{name} {share:.1%}" for name, share in shares))
    return lines


def _class_shares(dataset: SequenceDataset) -> np.ndarray:
    """Return the share of each class, without labels that are out of range."""
    classes = len(dataset.schema.classes)
    return np.bincount(dataset.labels, minlength=classes)[:classes] / len(dataset)

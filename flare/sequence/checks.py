"""Description and checks of a dataset of sequences."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b

import numpy as np

from flare.data.checks.check import check_folder
from flare.data.checks.sample_checks import Finding
from flare.sequence.store import Example, SequenceDataset
from flare.utils.errors import DataError
from flare.utils.progress import progress

REMAKE = "Make or read the dataset again"
PIECE = 1 << 22
"""Array entries checked at a time: arrays may be larger than the memory."""


def check_sequences(dataset: SequenceDataset, *, quiet: bool = False) -> list[Finding]:
    """Return all problems of a dataset, serious ones first."""
    schema, found = dataset.schema, [*check_folder(dataset)]
    digests = []
    with progress(f"checking {dataset.path}", len(dataset), quiet=quiet) as update:
        for index in range(len(dataset)):
            example = dataset[index]
            where = f"sample {index}"
            if example.label >= len(schema.classes):
                found.append(Finding(where, f"there is no class {example.label}", 1, index, REMAKE))
            for tokens in example.documents:
                if not 1 <= len(tokens) <= schema.longest:
                    what = f"{len(tokens):,} tokens instead of 1 to {schema.longest:,}"
                    found.append(Finding(where, what, 1, index, REMAKE))
                elif tokens.max() >= schema.vocabulary or (schema.pad is not None and (tokens == schema.pad).any()):
                    what = f"token ids outside the vocabulary of {schema.vocabulary}"
                    found.append(Finding(where, what, 1, index, REMAKE))
            digests.append(_digest(example))
            update()
    for label in np.flatnonzero(_class_shares(dataset) == 0):
        what, fix = f"no sample has the class {schema.classes[label]!r}", "Make more samples, or use another seed"
        found.append(Finding(str(dataset.path), what, 0, None, fix, serious=False))
    return found + _repeated(dataset, digests)


def _digest(example: Example) -> bytes:
    """Return a digest of the tokens without the label."""
    return b"".join(blake2b(tokens.tobytes(), digest_size=16).digest() for tokens in example.documents)


def _repeated(dataset: SequenceDataset, digests: list[bytes]) -> list[Finding]:
    """Return a finding for each split that repeats samples of an earlier split, which a model may have memorized."""
    found, earlier = [], set[bytes]()
    for split in dataset.splits:
        own = [digests[index] for index in dataset.split(split) if index < len(digests)]
        repeated = sum(digest in earlier for digest in own)
        if repeated:
            what = f"{repeated:,} of {len(own):,} samples are also in an earlier split"
            fix = "Published files have such repeats: report them with the accuracy, or make another dataset"
            found.append(Finding(f"split {split!r}", what, repeated, None, fix, serious=False))
        earlier |= set(own)
    return found


def describe(dataset: SequenceDataset) -> list[str]:
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


def check_ranges(dataset: SequenceDataset) -> None:
    """Check that labels, tokens and lengths are in range, before a model fails on them with an index error.

    This is quicker than `check_sequences` and stops at the first problem.

    Raises:
        DataError: A label, token or length is out of range; the message names the file and the index.
    """
    schema, advice = dataset.schema, f"List all problems with: flare data check {dataset.path}"
    classes, longest, vocabulary = len(schema.classes), schema.longest, schema.vocabulary
    index = _first(dataset.labels, lambda labels: labels >= classes)
    if index is not None:
        what = f"entry {index} is {dataset.labels[index]}; labels are 0 … {classes - 1}"
        raise DataError(f"{dataset.path / 'labels.npy'}: {what}. {advice}")
    for lengths in dataset.lengths.T:
        index = _first(lengths, lambda some: (some < 1) | (some > longest))
        if index is not None:
            what = f"sample {index} has {lengths[index]:,} tokens instead of 1 to {longest:,}"
            raise DataError(f"{dataset.path}: {what}. {advice}")
    if schema.pad is None and np.iinfo(schema.dtype).max < vocabulary:
        return  # every number that can be stored is a token
    pad = -1 if schema.pad is None else schema.pad
    for name, tokens in dataset.tokens.items():
        index = _first(tokens, lambda some: (some >= vocabulary) | (some == pad))
        if index is not None:
            what = f"entry {index} is {tokens[index]}; tokens are {schema.allowed_tokens}"
            raise DataError(f"{dataset.path / name}.npy: {what}. {advice}")


def _first(values: np.ndarray, wrong: Callable[[np.ndarray], np.ndarray]) -> int | None:
    """Return the index of the first wrong value, if any."""
    for start in range(0, len(values), PIECE):
        found = wrong(values[start : start + PIECE])
        if found.any():
            return start + int(found.argmax())
    return None

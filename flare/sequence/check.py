"""What a dataset of sequences holds, and whether it is sound."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np

from flare.data.checks.check import check_folder
from flare.data.checks.sample_checks import Finding
from flare.sequence.store import Example, SequenceDataset
from flare.utils.progress import progress

AGAIN = "Make or read the dataset again"


def check_sequences(dataset: SequenceDataset, *, quiet: bool = False) -> list[Finding]:
    """Every complaint about a dataset of sequences, serious ones first. A sound dataset has no serious one."""
    schema, found = dataset.schema, [*check_folder(dataset)]
    digests = []
    with progress(f"checking {dataset.path}", len(dataset), quiet=quiet) as update:
        for index in range(len(dataset)):
            example = dataset[index]
            where = f"sample {index}"
            if example.label >= len(schema.classes):
                found.append(Finding(where, f"there is no class {example.label}", 1, index, AGAIN))
            for tokens in example.documents:
                if not 1 <= len(tokens) <= schema.longest:
                    what = f"{len(tokens):,} tokens; 1 to {schema.longest:,} are expected"
                    found.append(Finding(where, what, 1, index, AGAIN))
                elif tokens.max() >= schema.vocabulary or (schema.pad is not None and (tokens == schema.pad).any()):
                    what = f"has token ids that are not of the vocabulary of {schema.vocabulary}"
                    found.append(Finding(where, what, 1, index, AGAIN))
            digests.append(_digest(example))
            update()
    for label in np.flatnonzero(_frequencies(dataset) == 0):
        what, fix = f"no sample is of class {schema.classes[label]!r}", "Make more samples, or another seed"
        found.append(Finding(str(dataset.path), what, 0, None, fix, serious=False))
    return found + _repeated(dataset, digests)


def _digest(example: Example) -> bytes:
    """Of the tokens, not of the label."""
    return b"".join(blake2b(tokens.tobytes(), digest_size=16).digest() for tokens in example.documents)


def _repeated(dataset: SequenceDataset, digests: list[bytes]) -> list[Finding]:
    """Samples that an earlier split has too: a model that learnt them by heart knows their answer."""
    found, earlier = [], set[bytes]()
    for split in dataset.splits:
        own = [digests[index] for index in dataset.split(split) if index < len(digests)]
        known = sum(digest in earlier for digest in own)
        if known:
            what = f"{known:,} of {len(own):,} samples are in an earlier split, token by token"
            fix = "Published files have such repeats; say so beside the accuracy, or make another dataset"
            found.append(Finding(f"split {split!r}", what, known, None, fix, serious=False))
        earlier |= set(own)
    return found


def describe(dataset: SequenceDataset) -> list[str]:
    """Task, splits, lengths and classes, a line each."""
    schema = dataset.schema
    pad = "every id is a real token" if schema.pad is None else f"id {schema.pad} is for padding"
    lines = [
        f"{schema.name}: {len(dataset):,} {'pairs of ' * (schema.documents == 2)}sequences, "
        f"{dataset.lengths.sum():,} tokens of a vocabulary of {schema.vocabulary} ({pad}; no CLS token is stored)",
        "splits: " + ", ".join(f"{name} {len(dataset.split(name)):,}" for name in dataset.splits),
    ]
    for document, lengths in enumerate(dataset.lengths.T, 1):
        low, middle, high = np.percentile(lengths, [5, 50, 95])
        lines.append(
            f"tokens{f' of document {document}' if schema.documents == 2 else ''}: {lengths.min():,} to "
            f"{lengths.max():,}, mean {lengths.mean():,.1f}, 5 / 50 / 95 % at {low:,.0f} / {middle:,.0f} / {high:,.0f}"
        )
    shares = zip(schema.classes, _frequencies(dataset), strict=True)
    lines.append("classes: " + ", ".join(f"{name} {share:.1%}" for name, share in shares))
    return lines


def _frequencies(dataset: SequenceDataset) -> np.ndarray:
    """Share of each class; a label that is of none of them is left to `check_sequences`."""
    classes = len(dataset.schema.classes)
    return np.bincount(dataset.labels, minlength=classes)[:classes] / len(dataset)

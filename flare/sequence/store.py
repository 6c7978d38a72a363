"""Dataset of token sequences on disk: a folder of memory-mapped arrays, all sequences end to end.

    dataset.json    task, vocabulary, classes, padding, splits, provenance, checksums
    samples.jsonl   one line per sample: tokens, checksum of each array, notes of the generator
    tokens.npy      all tokens, in the smallest unsigned integer type that holds the vocabulary
    offsets.npy     where each sequence begins
    labels.npy      the class of each sample

A task of pairs (Retrieval) also has `tokens_2.npy` and `offsets_2.npy` for the second document. Sequences are stored
without padding and without a CLS token: batches add padding, and an encoder that pools by CLS has its own vector.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from flare.data.dataset import ArrayFolder
from flare.data.generation.generate import Generator, make_folder
from flare.data.writer import ArrayWriter, Column, Splits
from flare.utils.errors import DataError

LABEL = np.dtype("<u1")


@dataclass(frozen=True, kw_only=True)
class SequenceSchema:
    """Tokens and classes of a task."""

    name: str
    """Name of the task."""
    vocabulary: int
    """Number of token ids, 0 … vocabulary − 1."""
    classes: tuple[str, ...]
    """Names of the classes, label 0 first."""
    longest: int
    """Most tokens of a sequence."""
    pad: int | None = 0
    """Id of padding, never a real token; None if all sequences have the same length and every id is real."""
    documents: int = 1
    """2 if a sample is a pair of sequences."""

    def __post_init__(self) -> None:
        if not (2 <= self.vocabulary <= 2**16 and 1 <= len(self.classes) <= 256 and self.longest >= 1):
            sizes = f"vocabulary={self.vocabulary}, {len(self.classes)} classes, longest={self.longest}"
            raise DataError(f"{self.name}: {sizes}; must be 2 … 65536, 1 … 256, and at least 1")
        if self.documents not in (1, 2):
            raise DataError(f"{self.name}: documents={self.documents}; use 1, or 2 for pairs")

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(np.min_scalar_type(self.vocabulary - 1)).newbyteorder("<")

    @property
    def token_arrays(self) -> dict[str, str]:
        """Name of each token array -> name of its offsets, one per document."""
        return dict([("tokens", "offsets"), ("tokens_2", "offsets_2")][: self.documents])

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> SequenceSchema:
        return cls(**{**record, "classes": tuple(record["classes"])})


@dataclass(frozen=True)
class Example:
    """A sequence, or a pair of them, with its class."""

    documents: tuple[np.ndarray, ...]
    """Integer tokens of each document."""
    label: int
    notes: Mapping[str, Any] = field(default_factory=dict)
    """Notes of a generator, never used by a model."""

    @property
    def tokens(self) -> np.ndarray:
        """Tokens of the only or first document."""
        return self.documents[0]


class SequenceDataset(ArrayFolder):
    """A finished dataset of sequences."""

    holds = "sequences"

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self.schema: SequenceSchema = self._parse(SequenceSchema.from_json)
        self.labels = self._open("labels")
        self._documents = [(self._open(t), self._open(o)) for t, o in self.schema.token_arrays.items()]
        arrays = {"labels": self.labels, **self.tokens}
        ends = [(int(offsets[-1]),) for _, offsets in self._documents]
        self._refuse_other_shapes(arrays, dict(zip(arrays, [(len(self),), *ends], strict=True)))
        for name, array in arrays.items():
            wanted = LABEL if name == "labels" else self.schema.dtype
            if array.dtype != wanted:
                types = f"has type {array.dtype}, but dataset.json needs {wanted}"
                raise DataError(f"{self.path / name}.npy {types}; restore or remake the dataset")

    def __getitem__(self, index: int) -> Example:
        documents = tuple(tokens[self._place(index, offsets)] for tokens, offsets in self._documents)
        return Example(documents, int(self.labels[index]))

    @property
    def tokens(self) -> dict[str, np.ndarray]:
        """Name of each token array -> tokens of all samples, end to end."""
        return {name: tokens for name, (tokens, _) in zip(self.schema.token_arrays, self._documents, strict=True)}

    @property
    def lengths(self) -> np.ndarray:
        """Numbers of tokens, shape (samples, documents)."""
        return np.stack([np.diff(offsets) for _, offsets in self._documents], axis=1)

    @property
    def first_tokens(self) -> np.ndarray:
        """First token of every sample (of its first document)."""
        tokens, offsets = self._documents[0]
        return tokens[offsets[:-1]]


class SequenceWriter(ArrayWriter[Example, SequenceDataset]):
    """Writer of a dataset of sequences, which appends examples one by one."""

    def __init__(self, path: str | os.PathLike[str], schema: SequenceSchema, provenance: Mapping[str, Any]) -> None:
        self.schema = schema
        about = {"holds": "sequences", "schema": schema.to_json(), "provenance": provenance}
        columns = {name: Column(schema.dtype, None, name) for name in schema.token_arrays}
        super().__init__(path, about, {**columns, "labels": Column(LABEL, None, None)}, schema.token_arrays)

    def append(self, example: Example) -> None:
        where, names = f"sample {len(self)} of {self.path}", self.schema.token_arrays
        arrays = {n: checked_tokens(t, self.schema, where) for n, t in zip(names, example.documents, strict=True)}
        if not 0 <= example.label < len(self.schema.classes):
            raise DataError(f"{where}: label {example.label}; there are {len(self.schema.classes)} classes")
        self.commit({**arrays, "labels": np.array([example.label], LABEL)}, example.notes)

    def finish(self, splits: Splits) -> SequenceDataset:
        self.make_whole(splits)
        return SequenceDataset(self.path)


def checked_tokens(tokens: np.ndarray, schema: SequenceSchema, where: str) -> np.ndarray:
    """Return the tokens of one sequence in the type in which they are stored.

    Raises:
        DataError: The schema does not allow them; the message begins with `where`.
    """
    if tokens.ndim != 1 or not np.issubdtype(tokens.dtype, np.integer):
        raise DataError(f"{where}: tokens are {tokens.dtype} of shape {tokens.shape}; a vector of integers is needed")
    if not 1 <= len(tokens) <= schema.longest:
        raise DataError(f"{where}: {len(tokens):,} tokens; {schema.name} has 1 to {schema.longest:,}")
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or high >= schema.vocabulary or (schema.pad is not None and (tokens == schema.pad).any()):
        without = "" if schema.pad is None else f" without {schema.pad} (padding)"
        raise DataError(f"{where}: token ids are {low} … {high}; allowed are 0 … {schema.vocabulary - 1}{without}")
    return tokens.astype(schema.dtype)


class SequenceGenerator(Generator[SequenceSchema, Example], Protocol):
    """A generator that knows the size of its benchmark."""

    samples: ClassVar[int]
    """All samples."""
    val_samples: ClassVar[int]
    test_samples: ClassVar[int]


def generate_sequences(
    generator: SequenceGenerator,
    path: str | os.PathLike[str],
    *,
    samples: int,
    val_samples: int | None = None,
    test_samples: int | None = None,
    seed: int = 0,
    workers: int = 1,
    scheduler: str | None = None,
    quiet: bool = False,
) -> SequenceDataset:
    """Generate a dataset of sequences, or resume an interrupted one.

    Args:
        generator: Generator of examples.
        path: Folder to write.
        samples: Number of samples: training, then validation, then test samples.
        val_samples: Number of validation samples; None for the same share as in the benchmark.
        test_samples: Number of test samples; None for the same share as in the benchmark.
        seed: Sample i depends only on (seed, i).
        workers: Processes on this machine. The bytes do not depend on it.
        scheduler: Address of a dask scheduler whose workers to use instead.
        quiet: Report no progress.
    """
    shares = [
        max(1, samples * published // generator.samples) if count is None else count
        for count, published in ((val_samples, generator.val_samples), (test_samples, generator.test_samples))
    ]
    sizes = dict(zip(("samples", "val_samples", "test_samples"), (samples, *shares), strict=True))
    how: dict[str, Any] = {"seed": seed, "workers": workers, "scheduler": scheduler, "quiet": quiet}
    benchmark = generator.samples - generator.test_samples, generator.test_samples
    how["other_sizes"] = other_sizes((samples - shares[1], shares[1]), benchmark)
    return make_folder(generator, Path(path), SequenceDataset, SequenceWriter, sizes, at_once=100, **how)


def other_sizes(found: tuple[int, int], published: tuple[int, int]) -> dict[str, str]:
    """Return how the numbers of training (with validation) and test samples differ from the benchmark's, if they do."""
    kinds = zip(found, published, ("train and validate", "test"), strict=True)
    other = [f"{count:,} of {wanted:,} to {kind}" for count, wanted, kind in kinds if count != wanted]
    return {"samples": ", ".join(other)} if other else {}

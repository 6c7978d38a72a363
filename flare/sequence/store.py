"""A dataset of token sequences on disk: a folder of memory-mapped arrays, all sequences end to end.

    dataset.json    task, vocabulary, classes, padding, splits, provenance, checksums
    samples.jsonl   a line a sample: tokens, checksum of each array, the generator's notes
    tokens.npy      all tokens, in the smallest unsigned integer type that holds the vocabulary
    offsets.npy     where each sequence begins
    labels.npy      a class for each sample

A task of pairs (Retrieval) has `tokens_2.npy` and `offsets_2.npy` too, for the second document of each pair. Sequences
are stored without padding and without a CLS token: a batch pads them, an encoder that pools by CLS has its own vector.
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
    """What the sequences of a task are."""

    name: str
    """Of the task."""
    vocabulary: int
    """Token ids are 0 … vocabulary − 1."""
    classes: tuple[str, ...]
    """What each label means, label 0 first."""
    longest: int
    """Tokens of a sequence, at most."""
    pad: int | None = 0
    """Id for a batch to pad with, never a real token; None where every id is real and all sequences are as long."""
    documents: int = 1
    """2 where a sample is a pair of sequences."""

    def __post_init__(self) -> None:
        if not (2 <= self.vocabulary <= 2**16 and 1 <= len(self.classes) <= 256 and self.longest >= 1):
            raise DataError(
                f"{self.name}: vocabulary={self.vocabulary} (2 … 65536), {len(self.classes)} classes (1 … 256), "
                f"longest={self.longest} (at least 1)"
            )
        if self.documents not in (1, 2):
            raise DataError(f"{self.name}: documents={self.documents}; 1, or 2 for pairs")

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(np.min_scalar_type(self.vocabulary - 1)).newbyteorder("<")

    @property
    def token_arrays(self) -> dict[str, str]:
        """Name of an array of tokens -> that of its offsets, a document each."""
        return dict([("tokens", "offsets"), ("tokens_2", "offsets_2")][: self.documents])

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> SequenceSchema:
        return cls(**{**record, "classes": tuple(record["classes"])})


@dataclass(frozen=True)
class Example:
    """A sequence, or a pair of them, and its class."""

    documents: tuple[np.ndarray, ...]
    """(tokens,) integers each."""
    label: int
    notes: Mapping[str, Any] = field(default_factory=dict)
    """What a generator says of it; never fed to a model."""

    @property
    def tokens(self) -> np.ndarray:
        """Of the only, or the first, document."""
        return self.documents[0]


class SequenceDataset(ArrayFolder):
    """A finished dataset of sequences."""

    holds = "sequences"

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self.schema: SequenceSchema = self._parse(SequenceSchema.from_json)
        self.labels = self._open("labels")
        self._documents = [(self._open(t), self._open(o)) for t, o in self.schema.token_arrays.items()]
        arrays, expected = {"labels": self.labels}, {"labels": (len(self),)}
        for name, (tokens, offsets) in zip(self.schema.token_arrays, self._documents, strict=True):
            arrays[name], expected[name] = tokens, (int(offsets[-1]),)
        self._refuse_other_shapes(arrays, expected)
        for name, array in arrays.items():
            wanted = LABEL if name == "labels" else self.schema.dtype
            if array.dtype != wanted:
                raise DataError(
                    f"{self.path / name}.npy holds {array.dtype}, but dataset.json asks for {wanted}. The files do not "
                    f"belong together; restore or remake the dataset."
                )

    def __getitem__(self, index: int) -> Example:
        documents = tuple(tokens[self._place(index, offsets)] for tokens, offsets in self._documents)
        return Example(documents, int(self.labels[index]))

    @property
    def tokens(self) -> dict[str, np.ndarray]:
        """Name of an array -> all tokens of all samples, end to end."""
        return {name: tokens for name, (tokens, _) in zip(self.schema.token_arrays, self._documents, strict=True)}

    @property
    def lengths(self) -> np.ndarray:
        """(samples, documents) tokens."""
        return np.stack([np.diff(offsets) for _, offsets in self._documents], axis=1)

    @property
    def first_tokens(self) -> np.ndarray:
        """(samples,) of the only, or the first, document."""
        tokens, offsets = self._documents[0]
        return tokens[offsets[:-1]]


class SequenceWriter(ArrayWriter[Example, SequenceDataset]):
    """Append examples 0, 1, 2, …, as `SequenceDataset` reads them."""

    def __init__(self, path: str | os.PathLike[str], schema: SequenceSchema, provenance: Mapping[str, Any]) -> None:
        self.schema = schema
        about = {"holds": "sequences", "schema": schema.to_json(), "provenance": provenance}
        columns = {name: Column(schema.dtype, None, name) for name in schema.token_arrays}
        super().__init__(path, about, {**columns, "labels": Column(LABEL, None, None)}, schema.token_arrays)

    def append(self, example: Example) -> None:
        where, names = f"sample {len(self)} of {self.path}", self.schema.token_arrays
        arrays = {n: checked_tokens(t, self.schema, where) for n, t in zip(names, example.documents, strict=True)}
        if not 0 <= example.label < len(self.schema.classes):
            raise DataError(f"{where}: there is no class {example.label}")
        self.commit({**arrays, "labels": np.array([example.label], LABEL)}, example.notes)

    def finish(self, splits: Splits) -> SequenceDataset:
        self.make_whole(splits)
        return SequenceDataset(self.path)


def checked_tokens(tokens: np.ndarray, schema: SequenceSchema, where: str) -> np.ndarray:
    """Tokens of one sequence, in the type they are stored in; refused where the schema does not allow them."""
    if tokens.ndim != 1 or not np.issubdtype(tokens.dtype, np.integer):
        raise DataError(f"{where}: tokens are {tokens.dtype} of shape {tokens.shape}; a vector of integers is needed")
    if not 1 <= len(tokens) <= schema.longest:
        raise DataError(f"{where}: {len(tokens):,} tokens; {schema.name} has 1 to {schema.longest:,}")
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or high >= schema.vocabulary or (schema.pad is not None and (tokens == schema.pad).any()):
        allowed = f"0 … {schema.vocabulary - 1}" + ("" if schema.pad is None else f", and not {schema.pad}, the pad")
        raise DataError(f"{where}: token ids go from {low} to {high}; allowed are {allowed}")
    return tokens.astype(schema.dtype)


class SequenceGenerator(Generator[SequenceSchema, Example], Protocol):
    """One that knows how many samples the benchmark has."""

    samples: ClassVar[int]
    """In all."""
    val_samples: ClassVar[int]
    test_samples: ClassVar[int]


def generate_sequences(
    generator: SequenceGenerator,
    path: str | os.PathLike[str],
    *,
    samples: int,
    val_samples: int,
    test_samples: int,
    seed: int = 0,
    workers: int = 1,
    scheduler: str | None = None,
    quiet: bool = False,
) -> SequenceDataset:
    """Make `samples` examples into the folder `path`, or go on where an earlier call was stopped.

    Args:
        val_samples: those before the last `test_samples`; all before them are for training.
        workers: processes on this machine. The bytes do not depend on it.
        scheduler: address of a dask scheduler, to use its workers instead.
    """
    sizes = {"samples": samples, "val_samples": val_samples, "test_samples": test_samples}
    how: dict[str, Any] = {"seed": seed, "workers": workers, "scheduler": scheduler, "quiet": quiet}
    how["other_sizes"] = other_sizes(
        (samples - test_samples, test_samples), (generator.samples - generator.test_samples, generator.test_samples)
    )
    return make_folder(generator, Path(path), SequenceDataset, SequenceWriter, sizes, at_once=100, **how)


def other_sizes(found: tuple[int, int], published: tuple[int, int]) -> dict[str, str]:
    """How many samples there are in place of the benchmark's, to train and validate with, and to test with; if so."""
    kinds = zip(found, published, ("train and validate", "test"), strict=True)
    other = [f"{count:,} of {wanted:,} to {kind}" for count, wanted, kind in kinds if count != wanted]
    return {"samples": ", ".join(other)} if other else {}

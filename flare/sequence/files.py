"""Readers of published files: from files of a task to a dataset of sequences. Nothing is ever unpickled."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from io import BytesIO
from itertools import accumulate, islice, pairwise
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from flare.data.dataset import sha256
from flare.data.generation.job import already_made, fill, unfinished
from flare.sequence.store import Example, SequenceDataset, SequenceSchema, SequenceWriter, other_sizes
from flare.utils.errors import DataError
from flare.utils.progress import progress

Item = TypeVar("Item")
MOST_PIXELS = 20_000_000
"""Larger images are refused."""


@dataclass(frozen=True, kw_only=True)
class SequenceFiles(ABC):
    """Files of one task."""

    name: ClassVar[str]
    reader: ClassVar[str]
    """Identifier of the reader in the provenance of datasets. It must not change."""
    published: ClassVar[tuple[int, int]]
    """Number of examples in the benchmark: training with validation, and test."""
    form: ClassVar[tuple[str, ...]] = ()
    """Options that change the task; their defaults are the benchmark's."""

    folder: str
    """Folder with the files."""

    @abstractmethod
    def schema(self) -> SequenceSchema: ...

    @abstractmethod
    def files(self) -> dict[str, list[Path]]:
        """Return all files to read, in groups. The dataset records a checksum of each group."""

    @abstractmethod
    def counts(self) -> dict[str, int]:
        """Return the number of examples of each split, in the order of `examples`."""

    @abstractmethod
    def examples(self) -> Iterator[Example]:
        """Yield all examples, always in the same order. Errors name the file and the line."""

    def departures(self) -> dict[str, Any]:
        """Return what differs from the benchmark, so that results are not mistaken for the benchmark's."""
        defaults = {field.name: field.default for field in fields(self)}
        changed = {name: getattr(self, name) for name in self.form if getattr(self, name) != defaults[name]}
        return changed | other_sizes(self.sizes(), self.published)

    def sizes(self) -> tuple[int, int]:
        """Return the numbers to compare with `published`."""
        counts = self.counts()
        return counts["train"] + counts["val"], counts["test"]

    def path(self, file: str) -> Path:
        return Path(self.folder) / file


@dataclass(frozen=True, kw_only=True)
class SplitFiles(SequenceFiles):
    """Files of a task with one file per split."""

    train_file: str
    val_file: str
    test_file: str

    def split_files(self) -> dict[str, Path]:
        names = {"train": self.train_file, "val": self.val_file, "test": self.test_file}
        return {split: self.path(name) for split, name in names.items()}

    def files(self) -> dict[str, list[Path]]:
        return {path.name: [path] for path in self.split_files().values()}

    def counts(self) -> dict[str, int]:
        counts = {}
        for split, path in self.split_files().items():
            counts[split] = sum(1 for _ in self.rows(path))
            if not counts[split]:
                raise DataError(f"{path} has no examples; check that it is complete")
        return counts

    def examples(self) -> Iterator[Example]:
        for path in self.split_files().values():
            for number, line in self.rows(path):
                yield self.parse(line, f"{path}, line {number}")

    def rows(self, path: Path) -> Iterator[tuple[int, str]]:
        """Yield the numbered lines that hold an example each."""
        return read_lines(path)

    @abstractmethod
    def parse(self, line: str, where: str) -> Example:
        """Return the example of a line; `where` begins the message of an error."""


def read_sequences(files: SequenceFiles, out: str | Path, *, quiet: bool = False) -> SequenceDataset:
    """Write a dataset of the files into the folder `out`, or resume an interrupted call."""
    groups = files.files()
    for path in (path for group in groups.values() for path in group):
        if not path.is_file():
            raise DataError(f"{path} is missing; docs/applications/sequences.md lists the files of {files.name}")
    provenance: dict[str, Any] = {
        "kind": "published",
        "reader": files.reader,
        "options": asdict(files) | {"folder": ""},  # the same files in another folder are the same data
        "files": _checksums(groups, quiet=quiet),
    }
    schema = files.schema()
    finished = already_made(Path(out), SequenceDataset, schema, provenance, provenance)
    if finished:
        return finished
    counts = files.counts()
    total = sum(counts.values())
    if departures := files.departures():
        provenance["departures"] = departures
    writer = SequenceWriter(out, schema, provenance)
    ranges = pairwise(accumulate(counts.values(), initial=0))
    with unfinished(writer, total):
        fill(writer, islice(_examples(files), len(writer), None), total, f"reading {files.name}", quiet=quiet)
        return writer.finish({name: [bounds] for name, bounds in zip(counts, ranges, strict=True)})


def _examples(files: SequenceFiles) -> Iterator[Example]:
    try:
        yield from files.examples()
    except OSError as error:
        raise DataError(f"cannot read {error.filename or files.folder}: {error.strerror or error}") from None


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines of a UTF-8 file, from 1, without line ends and without a byte order mark.

    Only \\n and \\r\\n end a line.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            line = line.removeprefix(BOM_UTF8) if number == 1 else line
            yield number, decode(line.removesuffix(b"\n").removesuffix(b"\r"), f"{path}, line {number}")


def decode(text: bytes, where: str) -> str:
    """Decode UTF-8. An error names `where` and the position."""
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        bad = text[error.start]
        raise DataError(f"{where}: byte {error.start} is {bad:#04x}, not UTF-8; convert the file to UTF-8") from None


def read_parquet(path: Path, columns: list[str]) -> dict[str, list[Any]]:
    """Read columns of a parquet file as Python values."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise DataError(f"reading {path} needs the extra:  pip install 'flare-engine[hub]'") from None
    try:
        file = pyarrow.parquet.ParquetFile(path)
        missing = [name for name in columns if name not in file.schema_arrow.names]
        if missing:
            raise DataError(f"{path} has no column {missing[0]!r}; it has {', '.join(file.schema_arrow.names)}")
        return file.read(columns).to_pydict()
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is damaged, truncated or not a parquet file: {error}") from None


def read_image(source: Path | bytes, mode: str, where: str) -> NDArray[np.uint8]:
    """Decode a PNG image.

    Args:
        source: File, or its content.
        mode: `L` for gray, shape (rows, columns), or `RGB`, shape (rows, columns, 3).
        where: Start of error messages.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(BytesIO(source) if isinstance(source, bytes) else source, formats=["PNG"]) as image:
            if image.width * image.height > MOST_PIXELS:
                raise DataError(f"{where}: {image.width} × {image.height} pixels are too many for this task")
            if image.mode != mode:
                raise DataError(f"{where}: the image has mode {image.mode} instead of {mode} (8 bits)")
            return np.array(image)
    except DataError:
        raise
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError, SyntaxError, EOFError, ValueError) as error:
        raise DataError(f"{where}: not a complete PNG image ({error})") from None


def byte_tokens(text: str, longest: int) -> np.ndarray:
    """Return the first `longest` UTF-8 bytes plus one, so that 0 is free for padding."""
    return np.frombuffer(text.encode("utf-8")[:longest], np.uint8).astype(np.uint16) + 1


def shuffled(items: Iterable[Item], seed: int) -> list[Item]:
    """Return the items in an order that depends only on their number and the seed."""
    listed = list(items)
    return [listed[i] for i in np.random.default_rng(seed).permutation(len(listed))]


def _checksums(groups: dict[str, list[Path]], *, quiet: bool) -> dict[str, str]:
    """Return the SHA-256 of each group: of the file, or of the names and checksums of several files."""
    found = {}
    with progress("checksums", sum(map(len, groups.values())), unit="files", quiet=quiet) as update:
        for name, paths in groups.items():
            digests = []
            for path in paths:
                digests.append(sha256(path))
                update()
            lines = (f"{path.name} {digest}\n" for path, digest in zip(paths, digests, strict=True))
            found[name] = digests[0] if len(paths) == 1 else hashlib.sha256("".join(lines).encode()).hexdigest()
    return found

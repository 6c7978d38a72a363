"""Reading the files of a task, published or otherwise, into a dataset of sequences. Nothing is ever unpickled."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from abc import ABC, abstractmethod
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from itertools import accumulate, islice, pairwise
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np

from flare.data.dataset import partial_folder, sha256
from flare.data.generation.job import already_made, fill, unfinished
from flare.sequence.store import Example, SequenceDataset, SequenceSchema, SequenceWriter, other_sizes
from flare.utils.errors import DataError
from flare.utils.files import take_lock
from flare.utils.progress import progress

logger = logging.getLogger(__name__)

Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True)
class SequenceFiles(ABC):
    """The files of one task."""

    name: ClassVar[str]
    published: ClassVar[tuple[int, int]]
    """Examples in the benchmark's files: to train and validate with, and to test with."""
    form: ClassVar[tuple[str, ...]] = ()
    """Options that change what is to be learnt; their defaults are the benchmark's."""

    folder: str
    """Where the files are."""

    @abstractmethod
    def schema(self) -> SequenceSchema: ...

    @abstractmethod
    def files(self) -> dict[str, list[Path]]:
        """All that is read, in groups: the dataset tells a checksum of each."""

    @abstractmethod
    def counts(self) -> dict[str, int]:
        """Examples of each split, in the order in which `examples` gives them."""

    @abstractmethod
    def examples(self) -> Iterator[Example]:
        """All of them, always in the same order. A file that is not as it should be is named, with the line."""

    def departures(self) -> dict[str, Any]:
        """What is not as in the benchmark, so that nobody takes a result for one of it."""
        defaults = {field.name: field.default for field in fields(self)}
        changed = {name: getattr(self, name) for name in self.form if getattr(self, name) != defaults[name]}
        return changed | other_sizes(self.sizes(), self.published)

    def sizes(self) -> tuple[int, int]:
        """As `published`, of these files."""
        counts = self.counts()
        return counts["train"] + counts["val"], counts["test"]

    def path(self, file: str) -> Path:
        return Path(self.folder) / file


def read_sequences(files: SequenceFiles, out: str | Path, *, quiet: bool = False) -> SequenceDataset:
    """Make a dataset of the files, or go on where an earlier call was stopped."""
    groups = files.files()
    for path in (path for group in groups.values() for path in group):
        if not path.is_file():
            raise DataError(f"{path} is missing. See which files there are for {files.name} in docs/lra.md")
    provenance: dict[str, Any] = {
        "kind": "published",
        "reader": f"{type(files).__module__}.{type(files).__name__}",
        "options": asdict(files) | {"folder": ""},  # the same files elsewhere are the same data
        "files": _checksums(groups, quiet=quiet),
    }
    schema = files.schema()
    finished = already_made(Path(out), SequenceDataset, schema, provenance, provenance)
    if finished:
        return finished
    counts = files.counts()
    total = sum(counts.values())
    if total < 1:
        raise DataError(f"{files.folder} has no examples of {files.name}")
    departures = files.departures()
    if departures:
        provenance["departures"] = departures
    _drop_outdated(partial_folder(Path(out)), provenance)
    writer = SequenceWriter(out, schema, provenance)
    ranges = pairwise(accumulate(counts.values(), initial=0))
    with unfinished(writer, total):
        fill(writer, islice(_readable(files), len(writer), None), total, f"reading {files.name}", quiet=quiet)
        return writer.finish({name: [bounds] for name, bounds in zip(counts, ranges, strict=True)})


def _drop_outdated(partial: Path, provenance: Mapping[str, Any]) -> None:
    """Remove what was read of files that have changed since: somebody mended a line, say, and reads them again."""
    try:
        begun = json.loads((partial / "dataset.json").read_text(encoding="utf-8"))["provenance"]
        same = all(begun[key] == provenance[key] for key in ("reader", "options"))
        changed = [name for name, digest in provenance["files"].items() if begun["files"].get(name) != digest]
    except (OSError, ValueError, KeyError, TypeError):
        return  # the writer says best what is wrong with it
    if same and changed:
        with (partial / "samples.jsonl").open("a+b") as log:
            take_lock(log, f"another process is writing {partial}; wait for it, or choose another folder")
            shutil.rmtree(partial)
        logger.info(f"{changed[0]} has changed since {partial} was begun; it is read from the beginning")


def _readable(files: SequenceFiles) -> Iterator[Example]:
    try:
        yield from files.examples()
    except OSError as error:
        raise DataError(f"cannot read {error.filename or files.folder}: {error.strerror or error}") from None


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines of a UTF-8 file, from 1, without their ends; \\n and \\r\\n end a line, nothing else does.

    A mark of UTF-8 at the beginning, as some editors leave it, is none of the text.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            line = line.removeprefix(BOM_UTF8) if number == 1 else line
            yield number, decode(line.removesuffix(b"\n").removesuffix(b"\r"), f"{path}, line {number}")


def decode(text: bytes, where: str) -> str:
    if b"\0" in text:
        raise DataError(f"{where}: has zero bytes, so it is no UTF-8 text (UTF-16 perhaps?); convert it to UTF-8")
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        *earlier, line = text[: error.start].split(b"\n")
        place = f"line {len(earlier) + 1}, byte {len(line)}" if earlier else f"byte {error.start}"
        bad = text[error.start]
        raise DataError(f"{where}: {place} is {bad:#04x}, no UTF-8 text; convert the file to UTF-8") from None


def read_parquet(path: Path, columns: list[str]) -> dict[str, list[Any]]:
    """Columns of a parquet file, as Python values."""
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
        table = file.read(columns)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path} is damaged or truncated, or no parquet file: {error}") from None
    return {name: [_value(cell, f"{path}, row {row}") for row, cell in enumerate(table[name], 1)] for name in columns}


def _value(cell: Any, where: str) -> Any:
    try:
        return cell.as_py()
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: byte {error.start} is {error.object[error.start]:#04x}, no UTF-8 text") from None


def byte_tokens(text: str, longest: int) -> np.ndarray:
    """UTF-8 bytes plus one, so that 0 is free for padding; the first `longest` of them."""
    return np.frombuffer(text.encode("utf-8")[:longest], np.uint8).astype(np.uint16) + 1


def shuffled(items: Iterable[Item], seed: int) -> list[Item]:
    """In an order that depends on their number and the seed alone."""
    listed = list(items)
    return [listed[i] for i in np.random.default_rng(seed).permutation(len(listed))]


def _checksums(groups: dict[str, list[Path]], *, quiet: bool) -> dict[str, str]:
    """SHA-256 of each group: that of the file, or of all the files' names and checksums where there are several."""
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

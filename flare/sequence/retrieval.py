"""Retrieval: classify whether one of two papers of the ACL Anthology Network cites the other, byte by byte."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from flare.sequence.files import SplitFiles, byte_tokens, read_lines
from flare.sequence.store import Example, SequenceSchema
from flare.utils.errors import ConfigError, DataError

CLASSES = ("unrelated", "cited")


@dataclass(frozen=True, kw_only=True)
class RetrievalFiles(SplitFiles):
    """Published files: one per split with tab-separated label, two ids and two texts, without header and quoting.

    The texts are byte strings as Python prints them, such as b'Abstract\\\\n', and are used unchanged.
    """

    name: ClassVar[str] = "retrieval"
    reader: ClassVar[str] = "flare.sequence.retrieval.RetrievalFiles"
    published: ClassVar[tuple[int, int]] = (165_176, 17_437)
    form: ClassVar[tuple[str, ...]] = ("longest",)
    train_file: str = "new_aan_pairs.train.tsv"
    val_file: str = "new_aan_pairs.eval.tsv"
    test_file: str = "new_aan_pairs.test.tsv"
    longest: int = 4000
    """Number of bytes to keep from the beginning of a paper."""

    def __post_init__(self) -> None:
        if self.longest < 1:
            raise ConfigError(f"longest={self.longest}; it must be at least 1")

    def schema(self) -> SequenceSchema:
        return SequenceSchema(name="retrieval", vocabulary=257, classes=CLASSES, longest=self.longest, documents=2)

    def count(self, path: Path) -> int:
        """Return the number of lines. A file that ends in the middle of a text is refused."""
        count, last = 0, b""
        with path.open("rb") as file:
            for line in file:
                count, last = count + 1, line
        if not count:
            raise DataError(f"{path} is empty; check that it is complete")
        text = last.rpartition(b"\t")[2]
        if not last.endswith(b"\n") and not _ends(text):
            raise DataError(f"{path}, line {count}: the text {text[:20]!r} ... does not end; is the file complete?")
        return count

    def examples(self) -> Iterator[Example]:
        for path in self.split_files().values():
            for number, line in read_lines(path):
                yield self._parse(line, f"{path}, line {number}")

    def _parse(self, line: str, where: str) -> Example:
        columns = line.split("\t")
        if len(columns) == 3:
            raise DataError(f"{where}: has ids but no texts; use the file with label, two ids and two texts")
        if len(columns) != 5:
            raise DataError(
                f"{where}: {len(columns)} columns; label, two ids and two texts are expected, separated by tabs"
            )
        label, _, _, *texts = columns
        if label not in ("0", "1", "0.0", "1.0"):
            raise DataError(f"{where}: the label is {label[:20]!r}; 0 or 1 is expected, without a header")
        if not all(text.strip() for text in texts):
            raise DataError(f"{where}: a text is empty")
        return Example(tuple(byte_tokens(text, self.longest) for text in texts), int(float(label)))


def _ends(text: bytes) -> bool:
    """Return whether a printed byte string, b'...', has its closing quote, which no backslash escapes."""
    if text[:2] not in (b"b'", b'b"'):
        return text != b"b"
    inner = text[2:-1]
    backslashes = len(inner) - len(inner.rstrip(b"\\"))
    return len(text) > 2 and text[-1:] == text[1:2] and backslashes % 2 == 0

"""Retrieval: does one of two papers of the ACL Anthology Network cite the other? Each is read byte by byte."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from flare.sequence.files import SequenceFiles, byte_tokens, read_lines
from flare.sequence.store import Example, SequenceSchema
from flare.utils.errors import ConfigError, DataError

CLASSES = ("unrelated", "cited")


@dataclass(frozen=True, kw_only=True)
class RetrievalFiles(SequenceFiles):
    """Tab-separated label, two ids and two texts, without a header and without quoting, a file a split.

    The texts are byte strings as Python writes them, such as b'Abstract\\\\n'; they are kept as they stand.
    """

    name: ClassVar[str] = "retrieval"
    published: ClassVar[tuple[int, int]] = (165_176, 17_437)
    form: ClassVar[tuple[str, ...]] = ("longest",)
    train_file: str = "new_aan_pairs.train.tsv"
    val_file: str = "new_aan_pairs.eval.tsv"
    test_file: str = "new_aan_pairs.test.tsv"
    longest: int = 4000
    """Bytes of a paper that are kept, from its beginning."""

    def __post_init__(self) -> None:
        if self.longest < 1:
            raise ConfigError(f"longest={self.longest}; keep at least one byte of a paper")

    def schema(self) -> SequenceSchema:
        return SequenceSchema(name="retrieval", vocabulary=257, classes=CLASSES, longest=self.longest, documents=2)

    def files(self) -> dict[str, list[Path]]:
        return {file: [self.path(file)] for file in (self.train_file, self.val_file, self.test_file)}

    def counts(self) -> dict[str, int]:
        return {
            split: _count_lines(self.path(file))
            for split, file in (("train", self.train_file), ("val", self.val_file), ("test", self.test_file))
        }

    def examples(self) -> Iterator[Example]:
        for file in self.files():
            for number, line in read_lines(self.path(file)):
                yield self._parse(line, f"{self.path(file)}, line {number}")

    def _parse(self, line: str, where: str) -> Example:
        columns = line.split("\t")
        if len(columns) == 3:
            raise DataError(f"{where}: has ids but no texts; the file with label, two ids and two texts is needed")
        if len(columns) != 5:
            raise DataError(
                f"{where}: {len(columns)} columns; label, two ids and two texts are expected, with tabs between"
            )
        label, _, _, *texts = columns
        if label not in ("0", "1", "0.0", "1.0"):
            raise DataError(f"{where}: the label is {label[:20]!r}; 0 or 1 is expected, and no header")
        if not all(text.strip() for text in texts):
            raise DataError(f"{where}: a text is empty")
        return Example(tuple(byte_tokens(text, self.longest) for text in texts), int(float(label)))


def _count_lines(path: Path) -> int:
    """How many; refuses a file that ends in the middle of a text."""
    count, last = 0, b""
    with path.open("rb") as file:
        for line in file:
            count, last = count + 1, line
    if not count:
        raise DataError(f"{path} is empty; is the file whole?")
    text = last.rpartition(b"\t")[2]
    if not last.endswith(b"\n") and not _ends(text):
        raise DataError(f"{path}, line {count}: its text {text[:20]!r} ... never ends; is the file whole?")
    return count


def _ends(text: bytes) -> bool:
    """Whether a byte string as Python writes it, b'...', has its last quote: one that no backslash takes back."""
    if text[:2] not in (b"b'", b'b"'):
        return text != b"b"
    inner = text[2:-1]
    backslashes = len(inner) - len(inner.rstrip(b"\\"))
    return len(text) > 2 and text[-1:] == text[1:2] and backslashes % 2 == 0

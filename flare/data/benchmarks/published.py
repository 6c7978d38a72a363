"""Readers of the published benchmark files, giving the dataset that our own generators give.

File names, sizes and split rules are parameters with the published values as defaults, so that other files of the same
layout can be read too. Arrays are mapped, not loaded, but for MATLAB's; nothing is unpickled.
"""

from __future__ import annotations

import logging
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from flare.data.benchmarks.cards import Archive, card
from flare.data.dataset import Dataset, sha256
from flare.data.generation.job import already_made, another, fill, unfinished
from flare.data.sample import Sample, Schema
from flare.data.writer import DatasetWriter
from flare.utils.errors import ConfigError, DataError, numpys_reason
from flare.utils.files import taken
from flare.utils.registry import class_named

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class PublishedFiles(ABC):
    """The files of one benchmark. Samples are numbered as they will be in the dataset: training first, then test."""

    name: ClassVar[str]

    folder: str
    """Where the files are."""

    @abstractmethod
    def files(self) -> list[str]:
        """Names of the files that are read."""

    @abstractmethod
    def counts(self) -> tuple[int, int]:
        """Samples to train with, and to test with."""

    @abstractmethod
    def schema(self) -> Schema: ...

    @abstractmethod
    def sample(self, index: int) -> Sample: ...

    @classmethod
    def archive(cls, options: Mapping[str, Any]) -> Archive:
        """Where the files are published that a reader with these options reads."""
        found = card(cls.name).archive
        assert found is not None, "a reader of published files has a card that says where they are"
        return found

    def path(self, file: str) -> Path:
        return Path(self.folder) / file

    def check(self) -> None:
        """Refuse files that are missing or of another layout, before anything is written."""
        if not Path(self.folder).is_dir():
            raise DataError(f"{self.folder} is no folder; name the one that has {', '.join(self.files())}")
        for file in self.files():
            if not self.path(file).is_file():
                raise DataError(f"{self.path(file)} is missing. Fetch the published files with:  {self.fetch()}")
        self.schema()

    def fetch(self) -> str:
        """The command that gets the files."""
        return f"flare data download {self.name}"

    def origin(self) -> dict[str, Any]:
        """The beginning of the dataset's provenance."""
        return {"kind": "published"}

    def checksums(self) -> dict[str, str]:
        """What identifies the files, in the provenance of a dataset."""
        return {file: sha256(self.path(file)) for file in self.files()}


@dataclass(frozen=True, kw_only=True)
class ArrayFiles(PublishedFiles):
    """A benchmark with all its samples together in a few arrays."""

    train: int = 1000
    """Samples to train with."""
    test: int = 200
    """Samples to test with."""

    def __post_init__(self) -> None:
        if self.train < 1 or self.test < 0:
            raise ConfigError(f"train={self.train}, test={self.test}: at least 1 and 0")

    def counts(self) -> tuple[int, int]:
        return self.train, self.test

    def enough(self, available: int, wanted: int, file: str) -> None:
        if available < wanted:
            raise DataError(f"{self.path(file)} has {available:,} samples; {wanted:,} are asked for")


@dataclass(frozen=True, kw_only=True)
class ElasticityFiles(ArrayFiles):
    """(point, xy, sample) and (point, sample). The first samples train, the last test."""

    name: ClassVar[str] = "elasticity"
    points_file: str = "Random_UnitCell_XY_10.npy"
    """Name of the file of coordinates, (point, xy, sample)."""
    stress_file: str = "Random_UnitCell_sigma_10.npy"
    """Name of the file of stresses, (point, sample)."""

    def files(self) -> list[str]:
        return [self.points_file, self.stress_file]

    def schema(self) -> Schema:
        points, stress = self._points, self._stress
        if points.shape != (stress.shape[0], 2, stress.shape[1]):
            raise DataError(
                f"{self.path(self.points_file)} has shape {points.shape}; beside {stress.shape} of {self.stress_file} "
                f"it should be {(stress.shape[0], 2, stress.shape[1])}: point, coordinate, sample"
            )
        self.enough(stress.shape[1], self.train + self.test, self.stress_file)
        return card(self.name).schema()

    def sample(self, index: int) -> Sample:
        total = self._stress.shape[1]
        place = index if index < self.train else total - self.test + (index - self.train)
        values = {"points": self._points[:, :, place], "stress": self._stress[:, place, None]}
        return Sample(values, notes={"published index": place})

    @cached_property
    def _points(self) -> np.ndarray:
        return open_array(self.path(self.points_file), 3)

    @cached_property
    def _stress(self) -> np.ndarray:
        return open_array(self.path(self.stress_file), 2)


@dataclass(frozen=True, kw_only=True)
class DarcyFiles(ArrayFiles):
    """Two MATLAB files with `coeff` and `sol`, (sample, row, column); every `stride`-th point is kept."""

    name: ClassVar[str] = "darcy"
    train_file: str = "piececonst_r421_N1024_smooth1.mat"
    """Name of the file to train with."""
    test_file: str = "piececonst_r421_N1024_smooth2.mat"
    """Name of the file to test with."""
    stride: int = 5
    """Keep every stride-th row and column."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stride < 1:
            raise ConfigError(f"stride={self.stride}: at least 1")

    def files(self) -> list[str]:
        return [self.train_file, self.test_file]

    def schema(self) -> Schema:
        for (a, u), wanted, file in (
            (self._train, self.train, self.train_file),
            (self._test, self.test, self.test_file),
        ):
            if a.ndim != 3 or a.shape != u.shape or a.shape[1] != a.shape[2] or a.shape[1] <= self.stride:
                raise DataError(
                    f"{self.path(file)}: coeff {a.shape} and sol {u.shape} should be (sample, K, K), alike, with K "
                    f"more than stride={self.stride}"
                )
            self.enough(len(a), wanted, file)
        sides = [a.shape[1] for a, _ in (self._train, self._test)]
        if sides[0] != sides[1]:
            raise DataError(f"{self.folder}: samples have {sides[0]} points a side to train with, {sides[1]} to test")
        return card(self.name).schema(grid=(self._resolution, self._resolution))

    def sample(self, index: int) -> Sample:
        (a, u), place = (self._train, index) if index < self.train else (self._test, index - self.train)
        line = np.linspace(0, 1, self._resolution)
        x, y = np.meshgrid(line, line)  # x along a row
        kept = np.s_[place, :: self.stride, :: self.stride]
        columns = {"points": np.stack([x, y], -1), "coefficient": a[kept], "pressure": u[kept]}
        values = {name: value.reshape(self._resolution**2, -1) for name, value in columns.items()}
        return Sample(values, notes={"published index": place})

    @property
    def _resolution(self) -> int:
        return -(-self._train[0].shape[1] // self.stride)

    @cached_property
    def _train(self) -> tuple[np.ndarray, np.ndarray]:
        return _read_matlab(self.path(self.train_file))

    @cached_property
    def _test(self) -> tuple[np.ndarray, np.ndarray]:
        return _read_matlab(self.path(self.test_file))


@dataclass(frozen=True, kw_only=True)
class _MeshFiles(ArrayFiles):
    """X and Y, (sample, i, j), and Q, (sample, channel, i, j). Test samples follow those for training."""

    channels: ClassVar[Mapping[str, slice]]
    """Field -> its channels of Q."""
    x_file: str
    y_file: str
    q_file: str

    def files(self) -> list[str]:
        return [self.x_file, self.y_file, self.q_file]

    def schema(self) -> Schema:
        x, y, q = self._arrays
        count = max(part.stop for part in self.channels.values())
        if x.shape != y.shape or q.shape != (x.shape[0], q.shape[1], *x.shape[1:]) or q.shape[1] < count:
            raise DataError(
                f"{self.folder}: {self.x_file} {x.shape}, {self.y_file} {y.shape}, {self.q_file} {q.shape} should be "
                f"(sample, i, j) twice and (sample, {count} channels, i, j)"
            )
        self.enough(len(x), self.train + self.test, self.x_file)
        return card(self.name).schema(grid=x.shape[1:])

    def sample(self, index: int) -> Sample:
        x, y, q = (array[index] for array in self._arrays)
        values = {"points": np.stack([x.ravel(), y.ravel()], axis=1)}
        for name, part in self.channels.items():
            values[name] = q[part].reshape(part.stop - part.start, -1).T
        return Sample(values, notes={"published index": index})

    @cached_property
    def _arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return tuple(open_array(self.path(file), n) for file, n in zip(self.files(), (3, 3, 4), strict=True))  # type: ignore[return-value]


@dataclass(frozen=True, kw_only=True)
class AirfoilFiles(_MeshFiles):
    """Channels of Q: density, two velocities, pressure, Mach number."""

    name: ClassVar[str] = "airfoil"
    channels: ClassVar[Mapping[str, slice]] = {
        "mach": slice(4, 5),
        "density": slice(0, 1),
        "velocity": slice(1, 3),
        "pressure": slice(3, 4),
    }
    x_file: str = "NACA_Cylinder_X.npy"
    """Name of the file of x, (sample, i, j)."""
    y_file: str = "NACA_Cylinder_Y.npy"
    """Name of the file of y, (sample, i, j)."""
    q_file: str = "NACA_Cylinder_Q.npy"
    """Name of the file of all fields, (sample, channel, i, j)."""


@dataclass(frozen=True, kw_only=True)
class PipeFiles(_MeshFiles):
    """Channels of Q: two velocities, pressure. Test samples are the last of the first `total`."""

    name: ClassVar[str] = "pipe"
    channels: ClassVar[Mapping[str, slice]] = {
        "velocity": slice(0, 1),
        "cross_velocity": slice(1, 2),
        "pressure": slice(2, 3),
    }
    x_file: str = "Pipe_X.npy"
    """Name of the file of x, (sample, i, j)."""
    y_file: str = "Pipe_Y.npy"
    """Name of the file of y, (sample, i, j)."""
    q_file: str = "Pipe_Q.npy"
    """Name of the file of all fields, (sample, channel, i, j)."""
    total: int = 1200
    """Samples of the files that are used at all."""

    def schema(self) -> Schema:
        if self.total < self.train + self.test:
            raise ConfigError(f"total={self.total} is less than train={self.train} and test={self.test}")
        self.enough(len(self._arrays[0]), self.total, self.x_file)
        return super().schema()

    def sample(self, index: int) -> Sample:
        return super().sample(index if index < self.train else self.total - self.test + (index - self.train))


READERS: dict[str, str] = {
    "airfoil": "flare.data.benchmarks.published:AirfoilFiles",
    "darcy": "flare.data.benchmarks.published:DarcyFiles",
    "drivaerml": "flare.data.benchmarks.published_cars:DrivAerMLFiles",
    "drivaerml-boundary": "flare.data.benchmarks.published_cars:DrivAerMLBoundary",
    "elasticity": "flare.data.benchmarks.published:ElasticityFiles",
    "lpbf": "flare.data.benchmarks.published_lpbf:LPBFFiles",
    "pipe": "flare.data.benchmarks.published:PipeFiles",
}
"""Benchmark -> class of the reader of its published files."""


def reader_class(name: str) -> type[PublishedFiles]:
    return class_named(name, READERS, "reader of published files of")


def refuse_another(reader: type[PublishedFiles], out: str | Path) -> None:
    """Refuse a folder that holds other data, before gigabytes are fetched or read."""
    if taken(out):
        dataset = Dataset(out)
        if dataset.about["provenance"].get("reader") != _name(reader):
            kind = dataset.about["provenance"].get("kind")
            raise another(Path(out), f"{dataset.schema.name} ({kind}), not of the published files")


def _name(reader: type[PublishedFiles]) -> str:
    return f"{reader.__module__}.{reader.__name__}"


def read_published(files: PublishedFiles, out: str | Path, *, quiet: bool = False) -> Dataset:
    """Make a dataset folder of the published files, or go on where an earlier call was stopped."""
    out = Path(out)
    refuse_another(type(files), out)
    files.check()
    if not quiet:
        logger.info("checksums of the published files ...")
    provenance = files.origin() | {
        "reader": _name(type(files)),
        "options": asdict(files) | {"folder": ""},  # the same files elsewhere are the same data
        "files": files.checksums(),
    }
    schema, (train, test) = files.schema(), files.counts()
    total = train + test
    finished = already_made(out, Dataset, schema, provenance, provenance)
    if finished:
        return finished
    writer = DatasetWriter(out, schema, provenance)
    with unfinished(writer, total):
        samples = (_sound(files.sample(index), files) for index in range(len(writer), total))
        fill(writer, samples, total, f"reading {files.name}", quiet=quiet)
        return writer.finish({"train": [(0, train)], "test": [(train, total)]})


def _sound(sample: Sample, files: PublishedFiles) -> Sample:
    """The sample, unless it has what is no number in the file, or none any more in single precision."""
    file, number = sample.notes.get("file"), sample.notes.get("published index")
    where = files.path(file) if file else f"{files.folder}, published sample {number}"
    for name, values in sample.values.items():
        with np.errstate(over="ignore"):
            bad = ~np.isfinite(np.asarray(values, dtype=np.float32))
        if bad.any():
            raise DataError(
                f"{where}: {name!r} has NaN or infinity at {bad.sum():,} places (first: {np.argwhere(bad)[0].tolist()})"
            )
    return sample


def open_array(path: Path, dimensions: int) -> np.ndarray:
    """A mapped .npy array of numbers."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise DataError(f"{path} is missing") from None
    except (ValueError, EOFError, OSError) as error:
        raise DataError(f"{path} is damaged or no array of numbers: {numpys_reason(error)}") from None
    if array.ndim != dimensions or 0 in array.shape:
        raise DataError(f"{path} has shape {array.shape}; {dimensions} dimensions are expected, none of them empty")
    return _numbers(array, path)


def _numbers(array: np.ndarray, path: Path) -> np.ndarray:
    if not (np.issubdtype(array.dtype, np.floating) or np.issubdtype(array.dtype, np.integer)):
        raise DataError(f"{path} holds {array.dtype}; real numbers are expected")
    return array


def _read_matlab(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Coefficient and solution."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        found = loadmat(path, variable_names=["coeff", "sol"])
    except FileNotFoundError:
        raise DataError(f"{path} is missing") from None
    except (ValueError, TypeError, OSError, NotImplementedError, EOFError, zlib.error, MatReadError) as error:
        raise DataError(f"{path} is damaged or no MATLAB file (version 4 to 7.2): {error}") from None
    if not {"coeff", "sol"} <= set(found):
        raise DataError(f"{path} has no variables coeff and sol")
    return _numbers(found["coeff"], path), _numbers(found["sol"], path)

"""Readers of the published benchmark files. They give the same schema as the generators of `flare.physics`.

File names, sizes and split rules are options with the published values as defaults, so that other files of the same
layout can be read, too. Arrays are memory-mapped, except MATLAB's; nothing is unpickled.
"""

from __future__ import annotations

import hashlib
import logging
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from flare.data.benchmarks.cards import Archive, card
from flare.data.dataset import Dataset, open_array, sha256
from flare.data.generation.job import already_made, fill, other_dataset, unfinished
from flare.data.sample import Sample, Schema
from flare.data.writer import DatasetWriter
from flare.utils.errors import ConfigError, DataError, numpy_error_reason
from flare.utils.files import is_occupied
from flare.utils.registry import class_named

logger = logging.getLogger(__name__)

SPLITS = ("train", "test")


@dataclass(frozen=True, kw_only=True)
class PublishedFiles(ABC):
    """The files of one benchmark. Samples are numbered as in the dataset: training samples first, then test samples."""

    name: ClassVar[str]

    folder: str
    """Folder of the files."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            least = 0 if name in ("test", "points") else 1
            if isinstance(value, int) and value < least:
                raise ConfigError(f"`{name}={value}`: it must be at least {least}")

    @abstractmethod
    def files(self) -> list[str]:
        """Return the files to read, relative to the folder."""

    @abstractmethod
    def counts(self) -> tuple[int, int]:
        """Return the number of training and of test samples."""

    @abstractmethod
    def schema(self) -> Schema:
        """Return the schema of the dataset. Raises DataError if the files have another layout."""

    @abstractmethod
    def sample(self, index: int) -> Sample:
        """Read one sample."""

    @classmethod
    def archive(cls, options: Mapping[str, Any]) -> Archive:
        """Return the location of the published files for a reader with these options."""
        found = card(cls.name).archive
        assert found is not None, "a benchmark with a reader has an archive on its card"
        return found

    def path(self, file: str) -> Path:
        """Return the path of a file of the folder."""
        return Path(self.folder) / file

    def check(self) -> None:
        """Check that all files are there and have the expected layout. Raises DataError."""
        for file in self.files():
            if not self.path(file).is_file():
                raise DataError(f"{self.path(file)} is missing. Download the published files with:  {self.fetch()}")
        self.schema()

    def fetch(self) -> str:
        """Return the command that downloads the files."""
        return f"flare data download {self.name}"

    def origin(self) -> dict[str, Any]:
        """Return `kind`, and anything else that the provenance of the dataset states about its origin."""
        return {"kind": "published"}

    def checksums(self) -> dict[str, str]:
        """Return checksums that identify the files in the provenance of the dataset."""
        return {file: sha256(self.path(file)) for file in self.files()}


@dataclass(frozen=True, kw_only=True)
class ArrayFiles(PublishedFiles):
    """A benchmark whose samples are stored together in a few arrays."""

    train: int = 1000
    """Number of training samples."""
    test: int = 200
    """Number of test samples."""

    def counts(self) -> tuple[int, int]:
        return self.train, self.test

    def check_count(self, available: int, wanted: int, file: str) -> None:
        """Raise DataError if a file has fewer samples than wanted."""
        if available < wanted:
            raise DataError(f"{self.path(file)} has {available:,} samples, fewer than the {wanted:,} to read")


@dataclass(frozen=True, kw_only=True)
class ElasticityFiles(ArrayFiles):
    """Arrays (point, xy, sample) and (point, sample). The first samples are for training, the last for testing."""

    name: ClassVar[str] = "elasticity"
    points_file: str = "Random_UnitCell_XY_10.npy"
    """File of coordinates, (point, xy, sample)."""
    stress_file: str = "Random_UnitCell_sigma_10.npy"
    """File of stresses, (point, sample)."""

    def files(self) -> list[str]:
        return [self.points_file, self.stress_file]

    def schema(self) -> Schema:
        points, stress = self._arrays
        if points.shape != (len(stress), 2, stress.shape[1]):
            shapes = f"{self.points_file} {points.shape} and {self.stress_file} {stress.shape}"
            raise DataError(f"{self.folder}: {shapes} must be (point, 2, sample) and (point, sample)")
        self.check_count(stress.shape[1], self.train + self.test, self.stress_file)
        return card(self.name).schema()

    def sample(self, index: int) -> Sample:
        points, stress = self._arrays
        place = index if index < self.train else stress.shape[1] - self.test + (index - self.train)
        values = {"points": points[:, :, place], "stress": stress[:, place, None]}
        return Sample(values, notes={"published index": place})

    @cached_property
    def _arrays(self) -> tuple[np.ndarray, np.ndarray]:
        return _open_numbers(self.path(self.points_file), 3), _open_numbers(self.path(self.stress_file), 2)


@dataclass(frozen=True, kw_only=True)
class DarcyFiles(ArrayFiles):
    """Two MATLAB files with `coeff` and `sol`, (sample, row, column), read with a stride."""

    name: ClassVar[str] = "darcy"
    train_file: str = "piececonst_r421_N1024_smooth1.mat"
    """File of training samples."""
    test_file: str = "piececonst_r421_N1024_smooth2.mat"
    """File of test samples."""
    stride: int = 5
    """Keep every stride-th row and column."""

    def files(self) -> list[str]:
        return [self.train_file, self.test_file]

    def schema(self) -> Schema:
        side = self._arrays[0][0].shape[-1]
        for (a, u), wanted, file in zip(self._arrays, self.counts(), self.files(), strict=True):
            if not a.shape[1:] == u.shape[1:] == (side, side) or len(a) != len(u) or side <= self.stride:
                shapes = f"coeff {a.shape} and sol {u.shape} must both be (sample, {side}, {side})"
                raise DataError(f"{self.path(file)}: {shapes}, more than `stride={self.stride}`")
            self.check_count(len(a), wanted, file)
        return card(self.name).schema(grid=(self._resolution, self._resolution))

    def sample(self, index: int) -> Sample:
        (a, u), place = (self._arrays[0], index) if index < self.train else (self._arrays[1], index - self.train)
        line = np.linspace(0, 1, self._resolution)
        x, y = np.meshgrid(line, line)  # x along a row
        kept = np.s_[place, :: self.stride, :: self.stride]
        columns = {"points": np.stack([x, y], -1), "coefficient": a[kept], "pressure": u[kept]}
        values = {name: value.reshape(self._resolution**2, -1) for name, value in columns.items()}
        return Sample(values, notes={"published index": place})

    @property
    def _resolution(self) -> int:
        return -(-self._arrays[0][0].shape[1] // self.stride)

    @cached_property
    def _arrays(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Coefficient and solution of the training samples, and of the test samples."""
        return [_read_matlab(self.path(file)) for file in self.files()]


@dataclass(frozen=True, kw_only=True)
class _MeshFiles(ArrayFiles):
    """Arrays X and Y, (sample, i, j), and Q, (sample, channel, i, j). Test samples follow the training samples."""

    channels: ClassVar[Mapping[str, slice]]
    """Field -> channels of Q."""
    x_file: str
    y_file: str
    q_file: str

    def files(self) -> list[str]:
        return [self.x_file, self.y_file, self.q_file]

    def schema(self) -> Schema:
        x, y, q = self._arrays
        count = max(part.stop for part in self.channels.values())
        if x.shape != y.shape or q.shape != (x.shape[0], q.shape[1], *x.shape[1:]) or q.shape[1] < count:
            found = ", ".join(f"{file} {a.shape}" for file, a in zip(self.files(), self._arrays, strict=True))
            raise DataError(f"{self.folder}: {found} must be two (sample, i, j) and (sample, {count} channels, i, j)")
        self.check_count(len(x), self.train + self.test, self.x_file)
        return card(self.name).schema(grid=x.shape[1:])

    def sample(self, index: int) -> Sample:
        x, y, q = (array[index] for array in self._arrays)
        values = {"points": np.stack([x.ravel(), y.ravel()], axis=1)}
        for name, part in self.channels.items():
            values[name] = q[part].reshape(part.stop - part.start, -1).T
        return Sample(values, notes={"published index": index})

    @cached_property
    def _arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return tuple(_open_numbers(self.path(file), n) for file, n in zip(self.files(), (3, 3, 4), strict=True))  # type: ignore[return-value]


@dataclass(frozen=True, kw_only=True)
class AirfoilFiles(_MeshFiles):
    """Files of Airfoil. Channels of Q: density, two velocities, pressure, Mach number."""

    name: ClassVar[str] = "airfoil"
    channels: ClassVar[Mapping[str, slice]] = {
        "mach": slice(4, 5),
        "density": slice(0, 1),
        "velocity": slice(1, 3),
        "pressure": slice(3, 4),
    }
    x_file: str = "NACA_Cylinder_X.npy"
    """File of x, (sample, i, j)."""
    y_file: str = "NACA_Cylinder_Y.npy"
    """File of y, (sample, i, j)."""
    q_file: str = "NACA_Cylinder_Q.npy"
    """File of all fields, (sample, channel, i, j)."""


@dataclass(frozen=True, kw_only=True)
class PipeFiles(_MeshFiles):
    """Files of Pipe. Channels of Q: two velocities, pressure. Test samples are the last of the first `total`."""

    name: ClassVar[str] = "pipe"
    channels: ClassVar[Mapping[str, slice]] = {
        "velocity": slice(0, 1),
        "cross_velocity": slice(1, 2),
        "pressure": slice(2, 3),
    }
    x_file: str = "Pipe_X.npy"
    """File of x, (sample, i, j)."""
    y_file: str = "Pipe_Y.npy"
    """File of y, (sample, i, j)."""
    q_file: str = "Pipe_Q.npy"
    """File of all fields, (sample, channel, i, j)."""
    total: int = 1200
    """Number of samples in the files that are used."""

    def schema(self) -> Schema:
        self.check_count(self.total, self.train + self.test, f"{self.x_file}, `total={self.total}`,")
        self.check_count(len(self._arrays[0]), self.total, self.x_file)
        return super().schema()

    def sample(self, index: int) -> Sample:
        return super().sample(index if index < self.train else self.total - self.test + (index - self.train))


@dataclass(frozen=True, kw_only=True)
class SplitFolders(PublishedFiles):
    """A benchmark with one file per sample in the folders train/ and test/, sorted by file name."""

    pattern: ClassVar[str] = "*.npz"

    train: int | None = None
    """Number of training samples, the first of their folder; all by default."""
    test: int | None = None
    """Number of test samples, likewise."""

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
        """Split -> files, relative to the folder."""
        found = {}
        for split, wanted in zip(SPLITS, (self.train, self.test), strict=True):
            # Some systems leave hidden files beside the samples.
            there = (path.name for path in self.path(split).glob(self.pattern) if not path.name.startswith("."))
            names = sorted(there, key=self.sort_key)
            if len(names) < (1 if wanted is None else wanted):
                few = f"{len(names):,} files {self.pattern}, fewer than the {wanted or 1:,} to read"
                raise DataError(f"{self.path(split)} has {few}. Download them with `{self.fetch()}`")
            found[split] = [f"{split}/{name}" for name in names[:wanted]]
        return found

    @staticmethod
    def sort_key(file: str) -> Any:
        """Return the key by which files are sorted."""
        return file


def checksum_of_list(files: PublishedFiles, names: list[str]) -> str:
    """Return what `sha256sum FILE ... | sha256sum` prints: one digest for many files keeps the provenance short."""
    lines = "".join(f"{sha256(files.path(name))}  {name}\n" for name in names)
    return hashlib.sha256(lines.encode()).hexdigest()


@contextmanager
def reading_npz(path: Path) -> Iterator[None]:
    """Turn the errors of reading an NPZ file into DataError."""
    try:
        yield
    except DataError:
        raise
    except (OSError, ValueError, TypeError, EOFError, KeyError, RuntimeError, zlib.error, zipfile.BadZipFile) as error:
        raise DataError(f"{path} is damaged or no NPZ file of numbers: {numpy_error_reason(error)}") from None


READERS: dict[str, str] = {
    "airfoil": "flare.data.benchmarks.published:AirfoilFiles",
    "darcy": "flare.data.benchmarks.published:DarcyFiles",
    "drivaerml": "flare.data.benchmarks.published_cars:DrivAerMLFiles",
    "drivaerml-boundary": "flare.data.benchmarks.published_cars:DrivAerMLBoundary",
    "elasticity": "flare.data.benchmarks.published:ElasticityFiles",
    "lpbf": "flare.data.benchmarks.published_lpbf:LPBFFiles",
    "pipe": "flare.data.benchmarks.published:PipeFiles",
}
"""Benchmark -> reader of its published files."""


def reader_class(name: str) -> type[PublishedFiles]:
    """Return the reader of the published files of a benchmark."""
    return class_named(name, READERS, "reader of published files of")


def refuse_another(reader: type[PublishedFiles], out: str | Path) -> None:
    """Raise DataError if `out` holds a dataset that this reader did not write, before gigabytes are downloaded."""
    if is_occupied(out) and Dataset(out).about["provenance"].get("reader") != _name(reader):
        raise other_dataset(Path(out), "not of the published files")


def _name(reader: type[PublishedFiles]) -> str:
    return f"{reader.__module__}.{reader.__name__}"


def read_published(files: PublishedFiles, out: str | Path, *, quiet: bool = False) -> Dataset:
    """Write a dataset of published files, or resume one that was interrupted. A finished one is opened.

    Raises:
        DataError: Files are missing, damaged or hold NaN or inf; or the folder holds another dataset.
    """
    out = Path(out)
    refuse_another(type(files), out)
    files.check()
    if not quiet:
        logger.info("computing checksums of the published files ...")
    provenance = files.origin() | {
        "reader": _name(type(files)),
        "options": asdict(files) | {"folder": ""},  # the data do not depend on the folder
        "files": files.checksums(),
    }
    schema, (train, test) = files.schema(), files.counts()
    total = train + test
    finished = already_made(out, Dataset, schema, provenance, provenance)
    if finished:
        return finished
    writer = DatasetWriter(out, schema, provenance)
    with unfinished(writer, total):
        samples = (_check_finite(files.sample(index), files) for index in range(len(writer), total))
        fill(writer, samples, total, f"reading {files.name}", quiet=quiet)
        return writer.finish({"train": [(0, train)], "test": [(train, total)]})


def _check_finite(sample: Sample, files: PublishedFiles) -> Sample:
    """Return the sample, or raise DataError if a value is NaN or inf in single precision."""
    for name, values in sample.values.items():
        with np.errstate(over="ignore"):
            bad = ~np.isfinite(np.asarray(values, dtype=np.float32))
        if bad.any():
            where = sample.notes.get("file", f"published sample {sample.notes['published index']}")
            many = f"{bad.sum():,} of {bad.size:,} values (first: {np.argwhere(bad)[0].tolist()})"
            raise DataError(f"{files.path(where)}: {name!r} is NaN or inf at {many}")
    return sample


def _open_numbers(path: Path, dimensions: int) -> np.ndarray:
    """Memory-map an .npy file of numbers."""
    array = open_array(path, "download it again")
    if array.ndim != dimensions or 0 in array.shape:
        raise DataError(f"{path} has shape {array.shape}; {dimensions} dimensions are expected, none of them empty")
    return check_numbers(array, path)


def check_numbers(array: np.ndarray, where: object) -> np.ndarray:
    """Return the array, or raise DataError if it does not hold real numbers."""
    if array.dtype.kind not in "fiu":
        raise DataError(f"{where} holds {array.dtype}; real numbers are expected")
    return array


def _read_matlab(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return coefficient and solution."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        found = loadmat(path, variable_names=["coeff", "sol"])
    except (ValueError, TypeError, OSError, NotImplementedError, EOFError, zlib.error, MatReadError) as error:
        raise DataError(f"{path} is missing, damaged or no MATLAB file of version 4 to 7.2: {error}") from None
    if not {"coeff", "sol"} <= set(found):
        raise DataError(f"{path} has no variables coeff and sol")
    return check_numbers(found["coeff"], path), check_numbers(found["sol"], path)

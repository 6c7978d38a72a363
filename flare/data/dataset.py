"""Datasets on disk: a folder of memory-mapped arrays that hold all samples end to end, and a manifest.

    dataset.json    manifest: schema, units, splits, provenance, checksums
    samples.jsonl   one line per sample: number of points and cells, checksum of each array, notes
    offsets.npy     row at which each sample begins; cell_offsets.npy likewise for cells
    <field>.npy     shape (all points, channels), or (samples, channels) for a parameter; cells.npy

Samples may differ in size. `DatasetWriter` (writer.py) writes these folders. Datasets of token sequences use the same
layout: see flare/sequence/store.py.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import numpy as np

from flare.data.benchmarks.cards import command_for
from flare.data.sample import CORNERS, ROLES, Role, Sample, Schema
from flare.utils.errors import DataError, numpy_error_reason, suggest_name
from flare.utils.text import counted

VERSION = 1
"""Version of the folder format, stored in dataset.json."""
PARTIAL = ".partial"
"""Suffix of a dataset folder that is still being written."""
AnySchema = TypeVar("AnySchema")


class NoSample(DataError, IndexError):
    """There is no sample of this number; as an IndexError it also ends a `for` loop."""


class ArrayFolder:
    """A finished folder of arrays, read through memory maps.

    Opening a folder reads no array, and reading a sample reads only that sample. A pickled copy, as worker processes
    get it, holds only the path, so all processes share the mapped pages.

    Args:
        path: Folder with a dataset.json.

    Raises:
        DataError: The folder is missing, unfinished, damaged or of another kind.
    """

    holds: ClassVar[str]
    """Kind of the samples, as stored in dataset.json."""
    schema: Any

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.about = read_about(self.path)
        if held_by(self.about) != self.holds:
            raise DataError(f"{self.path} is a dataset of {held_by(self.about)}; a dataset of {self.holds} is needed")
        self.offsets = self._open("offsets")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r}: {counted(len(self), 'sample')} of {self.schema.name!r})"

    def __reduce__(self) -> tuple[type[Self], tuple[Path]]:
        return type(self), (self.path,)

    def notes(self) -> list[dict[str, Any]]:
        """Return the notes of every sample, see `Sample.notes`."""
        path = self.path / "samples.jsonl"
        try:
            return [json.loads(line)["notes"] for line in path.read_text(encoding="utf-8").splitlines()]
        except (OSError, ValueError, KeyError) as error:
            raise _damaged(path, error) from None

    def files(self) -> list[str]:
        """Return the file of each sample without the folders that all files share; "" if it has none."""
        names = [str(note.get("file", "")) for note in self.notes()]
        folders = [name[: name.split(":")[0].rfind("/") + 1] for name in names]  # `all.h5:run/3` is a case in a file
        shared = os.path.commonprefix(folders)  # noqa: RUF071 - cut at a slash below; commonpath refuses mixtures
        return [name[shared.rfind("/") + 1 :] for name in names]

    def titles(self) -> list[str]:
        """Return a display name of each sample: `3 (wing_7.vtu)`, or `3` if it has no file."""
        return [f"{i} ({file})" if file else str(i) for i, file in enumerate(self.files())]

    @property
    def splits(self) -> list[str]:
        """Names of the splits."""
        return list(self.about["splits"])

    def split(self, name: str) -> np.ndarray:
        """Return the sample indices of a split, such as `train` or `test`.

        Raises:
            DataError: There is no split of this name.
        """
        if name not in self.about["splits"]:
            raise DataError(f"{self.path}: no split {name!r}; {suggest_name(name, self.splits)}")
        ranges = [np.arange(start, stop) for start, stop in self.about["splits"][name]]
        return np.concatenate(ranges) if ranges else np.arange(0)

    @property
    def fingerprint(self) -> str:
        """Digest of the checksums of all arrays, which identifies the content."""
        return hashlib.sha256(json.dumps(self.about["checksums"], sort_keys=True).encode()).hexdigest()[:16]

    def _open(self, name: str) -> np.ndarray:
        return open_array(self.path / f"{name}.npy")

    def _parse(self, schema_from_json: Callable[[Mapping[str, Any]], AnySchema]) -> AnySchema:
        try:
            return schema_from_json(self.about["schema"])
        except (KeyError, TypeError) as error:
            raise _damaged(self.path / "dataset.json", error) from None

    def _place(self, index: int, offsets: np.ndarray) -> slice:
        """Return the rows of sample `index`; -1 is the last one."""
        if isinstance(index, slice):
            raise DataError(f"{self.path}: read one sample at a time, such as [dataset[i] for i in range(0, 2)]")
        if not -len(self) <= index < len(self):
            raise NoSample(f"{self.path}: there is no sample {index}; it has samples 0 … {len(self) - 1}")
        index %= len(self)
        return slice(offsets[index], offsets[index + 1])

    def _refuse_other_shapes(self, arrays: Mapping[str, np.ndarray], expected: Mapping[str, tuple[int, ...]]) -> None:
        for name, shape in expected.items():
            if arrays[name].shape != shape:
                shapes = f"{arrays[name].shape}, but dataset.json and offsets.npy require {shape}"
                raise DataError(f"{self.path / name}.npy has shape {shapes}; restore the dataset or make it again")


AnyFolder = TypeVar("AnyFolder", bound=ArrayFolder)


class Dataset(ArrayFolder):
    """A dataset of fields on points, opened from a folder.

    `len(dataset)` is the number of samples and `dataset[i]` a `Sample` whose arrays are memory maps;
    `for sample in dataset` reads one sample after the other.

    Args:
        path: Dataset folder, as written by `DatasetWriter`, `import_data` or `flare data make`.

    Attributes:
        schema: `Schema` of the samples.
        path: Folder of the dataset.
        about: Content of dataset.json.

    Raises:
        DataError: The folder is missing, unfinished or damaged.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from flare import Dataset, DatasetWriter, Field, Sample, Schema
        >>> fields = {
        ...     "points": Field(role="points", components=("x", "y"), unit="m"),
        ...     "heat": Field(role="target", components=("heat",), unit="W"),
        ... }
        >>> folder = f"{tempfile.mkdtemp()}/plates"
        >>> with DatasetWriter(folder, Schema(name="plates", fields=fields)) as writer:
        ...     for size in (5, 9, 7):
        ...         writer.append(Sample({"points": np.zeros((size, 2)), "heat": np.ones(size)}))
        ...     written = writer.finish({"train": [(0, 2)], "test": [(2, 3)]})
        >>> dataset = Dataset(folder)
        >>> len(dataset), dataset.sizes.tolist(), dataset.split("test").tolist()
        (3, [5, 9, 7], [2])
        >>> dataset[1].values["heat"].shape
        (9, 1)
    """

    holds = "fields"

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self.schema = self._parse(Schema.from_json)
        self._arrays = {name: self._open(name) for name in self.schema.fields}
        if self.schema.cell_type:
            self._cells, self._cell_offsets = self._open("cells"), self._open("cell_offsets")
        self._check_lengths()

    def __getitem__(self, index: int) -> Sample:
        return self.read(index)

    def read(self, index: int, rows: slice | np.ndarray | None = None, *, roles: Collection[Role] = ROLES) -> Sample:
        """Read one sample, or a part of it.

        Args:
            index: Number of the sample; negative numbers count from the end.
            rows: Points to read; the sample then has no cells. None reads all points.
            roles: Roles of the fields to read.

        Raises:
            DataError: There is no sample of this number; the error is an IndexError as well.
        """
        whole = self._place(index, self.offsets)
        values = {}
        for name, array in self._arrays.items():
            role = self.schema.fields[name].role
            if role == "parameter" and role in roles:
                values[name] = array[index]
            elif role in roles:
                values[name] = array[whole] if rows is None else array[whole][rows]
        if not self.schema.cell_type or rows is not None:
            return Sample(values)
        return Sample(values, self._cells[self._place(index, self._cell_offsets)])

    @property
    def sizes(self) -> np.ndarray:
        """Number of points of each sample."""
        return np.diff(self.offsets)

    def _check_lengths(self) -> None:
        arrays, expected = dict(self._arrays), {}
        for name, field in self.schema.fields.items():
            rows = len(self) if field.role == "parameter" else int(self.offsets[-1])
            expected[name] = (rows, len(field.components))
        if self.schema.cell_type:
            arrays["cells"] = self._cells
            expected["cells"] = (int(self._cell_offsets[-1]), CORNERS[self.schema.cell_type])
        self._refuse_other_shapes(arrays, expected)


def looks_like_dataset(path: str | os.PathLike[str]) -> bool:
    """Return whether a folder is a dataset, finished or not, sound or damaged."""
    path = Path(path)
    return (path / "dataset.json").exists() or partial_folder(path).exists() or path.name.endswith(PARTIAL)


def partial_folder(path: Path) -> Path:
    """Return the folder in which the dataset `path` is written before it is complete."""
    path = path if path.name else path.absolute()  # "." has a name, too
    if not path.name:
        raise DataError(f"{path} cannot be a dataset; name a folder")
    return path.with_name(path.name + PARTIAL)


def sha256(path: Path) -> str:
    """Return the SHA-256 digest of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def held_by(about: Mapping[str, Any]) -> str:
    """Return the kind of the samples in a manifest: `fields` or `sequences`."""
    return about.get("holds", "fields")


def read_about(path: Path) -> dict[str, Any]:
    """Return the content of the dataset.json of a finished dataset.

    Raises:
        DataError: There is no finished dataset of this version; the message says what is there instead.
    """
    manifest = path / "dataset.json"
    if path.is_file():
        raise DataError(f"{path} is a file; a dataset is a folder with a dataset.json")
    partial = path if path.name.endswith(PARTIAL) else partial_folder(path)
    if partial.is_dir() and (partial == path or not manifest.exists()):
        log = partial / "samples.jsonl"
        done = log.read_bytes().count(b"\n") if log.exists() else 0
        whole = str(path).removesuffix(PARTIAL)
        raise DataError(f"{whole} is not finished: {done:,} samples are in {partial}; make it again to resume")
    if not manifest.exists():
        if path.is_dir():
            raise DataError(f"{path} is not a dataset: it has no dataset.json")
        command = command_for(path)
        verb = "Download" if "download" in command else "Make"
        raise DataError(
            f"dataset {path} does not exist. {verb} it with `{command}`, import your own files with `flare data import "
            f"FILES --target FIELD --out {path}`, or write arrays with DatasetWriter: docs/reference/dataset-format.md"
        )
    try:
        about = json.loads(manifest.read_text(encoding="utf-8"))
        version = about["version"]
        about["schema"], about["splits"], about["checksums"], about["provenance"]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise _damaged(manifest, error) from None
    if version != VERSION:
        raise DataError(f"{manifest} has format version {version}, this flare reads version {VERSION}; update flare")
    return about


def _damaged(manifest: Path, error: Exception) -> DataError:
    return DataError(f"{manifest} is damaged ({error}); restore it or make the dataset again")


def open_array(path: Path, remedy: str = "restore it or make the dataset again") -> np.ndarray:
    """Memory-map an .npy file. Pickled objects are refused.

    Raises:
        DataError: The file is missing or damaged; the message ends with `remedy`.
    """
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise DataError(f"{path} is missing, damaged or truncated ({numpy_error_reason(error)}); {remedy}") from None

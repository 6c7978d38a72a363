"""A dataset on disk: a folder of memory-mapped arrays, all samples end to end, and `dataset.json` that explains them.

    dataset.json    schema, units, splits, provenance, checksums
    samples.jsonl   a line a sample: points, cells, checksum of each array, the generator's notes
    offsets.npy     where each sample begins; cell_offsets.npy likewise
    <field>.npy     (all points, channels), or (samples, channels) for a parameter; cells.npy

Samples may differ in size. `DatasetWriter` in writer.py makes such folders. Sequences of tokens have folders of the
same kind: see flare/sequence/store.py.
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
from flare.utils.errors import DataError, nearest, numpys_reason

VERSION = 1
"""Of the folder's format, in dataset.json."""
AnySchema = TypeVar("AnySchema")


class ArrayFolder:
    """A finished folder of arrays, read through memory maps: opening costs nothing, a sample reads only itself.

    Worker processes that get a copy of this object map the same files, so they share the pages.
    """

    holds: ClassVar[str]
    """What its samples are made of, as dataset.json says it."""
    schema: Any

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.about = read_about(self.path)
        if held_by(self.about) != self.holds:
            raise DataError(f"{self.path} is a dataset of {held_by(self.about)}; a dataset of {self.holds} is needed")
        self.offsets = self._open("offsets")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __reduce__(self) -> tuple[type[Self], tuple[Path]]:
        return type(self), (self.path,)

    def notes(self) -> list[dict[str, Any]]:
        """What the generator or reader said of each sample."""
        path = self.path / "samples.jsonl"
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
            return [json.loads(line)["notes"] for line in lines]
        except (OSError, ValueError, KeyError) as error:
            raise _damaged(path, error) from None

    def files(self) -> list[str]:
        """The file of each sample, without the folders that all share; "" where it came from none."""
        names = [str(note.get("file", "")) for note in self.notes()]
        folders = [name[: name.split(":")[0].rfind("/") + 1] for name in names]  # a case inside is `all.h5:run/3`
        shared = os.path.commonprefix(folders)  # noqa: RUF071 - cut at a slash below; commonpath refuses mixtures
        return [name[shared.rfind("/") + 1 :] for name in names]

    def titles(self) -> list[str]:
        """What people call each sample: `3 (wing_7.vtu)`, or `3`."""
        return [f"{i} ({file})" if file else str(i) for i, file in enumerate(self.files())]

    @property
    def splits(self) -> list[str]:
        return list(self.about["splits"])

    def split(self, name: str) -> np.ndarray:
        """Indices of the samples of a split, such as `train` or `test`."""
        if name not in self.about["splits"]:
            raise DataError(f"{self.path}: no split {name!r}; {nearest(name, self.splits)}")
        ranges = [np.arange(start, stop) for start, stop in self.about["splits"][name]]
        return np.concatenate(ranges) if ranges else np.arange(0)

    @property
    def fingerprint(self) -> str:
        """Identity of the content: a digest of the checksums of all arrays."""
        return hashlib.sha256(json.dumps(self.about["checksums"], sort_keys=True).encode()).hexdigest()[:16]

    def _open(self, name: str) -> np.ndarray:
        return open_array(self.path / f"{name}.npy")

    def _parse(self, schema_from_json: Callable[[Mapping[str, Any]], AnySchema]) -> AnySchema:
        try:
            return schema_from_json(self.about["schema"])
        except (KeyError, TypeError) as error:
            raise _damaged(self.path / "dataset.json", error) from None

    def _place(self, index: int, offsets: np.ndarray) -> slice:
        if not 0 <= index < len(self):
            raise DataError(f"{self.path}: there is no sample {index}; it has samples 0 … {len(self) - 1}")
        return slice(offsets[index], offsets[index + 1])

    def _refuse_other_shapes(self, arrays: Mapping[str, np.ndarray], expected: Mapping[str, tuple[int, ...]]) -> None:
        for name, shape in expected.items():
            if arrays[name].shape != shape:
                raise DataError(
                    f"{self.path / name}.npy has shape {arrays[name].shape}, but dataset.json and offsets.npy ask for "
                    f"{shape}. The files do not belong together; restore or remake the dataset."
                )


AnyFolder = TypeVar("AnyFolder", bound=ArrayFolder)


class Dataset(ArrayFolder):
    """A finished dataset of fields on points."""

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
        """Sample `index`; with `rows`, only those of its points (and no cells); of `roles`, only such fields."""
        whole = self._place(index, self.offsets)
        values = {}
        for name, array in self._arrays.items():
            if self.schema.fields[name].role not in roles:
                continue
            if self.schema.fields[name].role == "parameter":
                values[name] = array[index]
            else:
                values[name] = array[whole] if rows is None else array[whole][rows]
        if not self.schema.cell_type or rows is not None:
            return Sample(values)
        return Sample(values, self._cells[self._place(index, self._cell_offsets)])

    @property
    def sizes(self) -> np.ndarray:
        """Points of each sample."""
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


PARTIAL = ".partial"


def looks_like_dataset(path: str | os.PathLike[str]) -> bool:
    """Whether a folder is, was meant to be, or is becoming a dataset; not whether it is a sound one."""
    path = Path(path)
    return (path / "dataset.json").exists() or partial_folder(path).exists() or path.name.endswith(PARTIAL)


def partial_folder(path: Path) -> Path:
    """What a dataset folder is called while it is being made."""
    path = path if path.name else path.absolute()  # "." has a name, too
    if not path.name:
        raise DataError(f"{path} cannot be a dataset; name a folder")
    return path.with_name(path.name + PARTIAL)


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def held_by(about: Mapping[str, Any]) -> str:
    """`fields` or `sequences`."""
    return about.get("holds", "fields")


def read_about(path: Path) -> dict[str, Any]:
    """What dataset.json says, or an error that tells what is there instead."""
    manifest = path / "dataset.json"
    if path.is_file():
        raise DataError(f"{path} is a file; a dataset is a folder with a dataset.json")
    partial = path if path.name.endswith(PARTIAL) else partial_folder(path)
    if partial.is_dir() and (partial == path or not manifest.exists()):
        raise DataError(
            f"{str(path).removesuffix(PARTIAL)} is not finished: {_so_far(partial)} in {partial}; run the command that "
            f"makes it again to go on, or remove that folder to start afresh"
        )
    if not manifest.exists():
        if path.is_dir():
            raise DataError(f"{path} is not a dataset: it holds no dataset.json")
        command = command_for(path)
        get = "Fetch" if "download" in command else "Make"
        raise DataError(
            f"dataset {path} does not exist. {get} it with `{command}`, of your own files with `flare data import "
            f"FILES --target FIELD --out {path}`, or of your own arrays: see docs/data.md"
        )
    try:
        about = json.loads(manifest.read_text(encoding="utf-8"))
        version = about["version"]
        about["schema"], about["splits"], about["checksums"], about["provenance"]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise _damaged(manifest, error) from None
    if version != VERSION:
        raise DataError(
            f"{manifest} has format version {version}, this flare reads {VERSION}; update flare or remake it"
        )
    return about


def _damaged(manifest: Path, error: Exception) -> DataError:
    return DataError(f"{manifest} is damaged ({error}); restore it or remake the dataset")


def _so_far(partial: Path) -> str:
    """`12 of 100 samples are`, as far as an unfinished folder tells."""
    try:
        done = (partial / "samples.jsonl").read_bytes().count(b"\n")
        wanted = json.loads((partial / "dataset.json").read_text(encoding="utf-8"))["provenance"].get("samples")
    except (OSError, ValueError, KeyError, AttributeError):
        return "what there is of it is"
    return f"{done:,} samples are" if wanted is None else f"{done:,} of {wanted:,} samples are"


def open_array(path: Path, remedy: str = "restore it or remake the dataset") -> np.ndarray:
    """A mapped array of numbers; `remedy` ends the message where it cannot be read."""
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise DataError(f"{path} is missing; {remedy}") from None
    except (ValueError, EOFError, OSError) as error:
        size = path.stat().st_size
        raise DataError(f"{path} is damaged or truncated ({size:,} bytes: {numpys_reason(error)}); {remedy}") from None

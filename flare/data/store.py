"""A dataset on disk: a folder of memory-mapped arrays, all samples end to end, and `dataset.json` that explains them.

    dataset.json    schema, units, splits, provenance, checksums
    samples.jsonl   a line a sample: points, cells, checksum of each array, the generator's notes
    offsets.npy     where each sample begins; cell_offsets.npy likewise
    <field>.npy     (all points, channels), or (samples, channels) for a parameter; cells.npy

Samples may differ in size. `DatasetWriter` in writer.py makes such folders.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from flare.data.cards import card_names
from flare.data.sample import CORNERS, Sample, Schema
from flare.errors import DataError, nearest

VERSION = 1
"""Of the folder's format, in dataset.json."""


class Dataset:
    """A finished dataset, read through memory maps: opening costs nothing, a sample reads only itself.

    Worker processes that get a copy of this object map the same files, so they share the pages.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.about = _read_about(self.path)
        self.schema = Schema.from_json(self.about["schema"])
        self.offsets = self._open("offsets")
        self._arrays = {name: self._open(name) for name in self.schema.fields}
        if self.schema.cell_type:
            self._cells, self._cell_offsets = self._open("cells"), self._open("cell_offsets")
        self._check_lengths()

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> Sample:
        return self.read(index)

    def __reduce__(self) -> tuple[type[Dataset], tuple[Path]]:
        return Dataset, (self.path,)

    def read(self, index: int, rows: slice | np.ndarray | None = None) -> Sample:
        """Sample `index`; with `rows`, only those of its points (and no cells)."""
        if not 0 <= index < len(self):
            raise DataError(f"{self.path}: there is no sample {index}; it has samples 0 … {len(self) - 1}")
        whole = slice(self.offsets[index], self.offsets[index + 1])
        values = {}
        for name, array in self._arrays.items():
            if self.schema.fields[name].role == "parameter":
                values[name] = array[index]
            else:
                values[name] = array[whole] if rows is None else array[whole][rows]
        if not self.schema.cell_type or rows is not None:
            return Sample(values)
        return Sample(values, self._cells[self._cell_offsets[index] : self._cell_offsets[index + 1]])

    def notes(self) -> list[dict[str, Any]]:
        """What the generator or reader said of each sample."""
        lines = (self.path / "samples.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line)["notes"] for line in lines]

    @property
    def sizes(self) -> np.ndarray:
        """Points of each sample."""
        return np.diff(self.offsets)

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

    def _check_lengths(self) -> None:
        expected = {}
        for name, field in self.schema.fields.items():
            rows = len(self) if field.role == "parameter" else int(self.offsets[-1])
            expected[name] = (rows, len(field.components))
        if self.schema.cell_type:
            expected["cells"] = (int(self._cell_offsets[-1]), CORNERS[self.schema.cell_type])
        for name, shape in expected.items():
            found = self._cells.shape if name == "cells" else self._arrays[name].shape
            if found != shape:
                raise DataError(
                    f"{self.path / name}.npy has shape {found}, but dataset.json and offsets.npy ask for {shape}. "
                    f"The files do not belong together; restore or remake the dataset."
                )


PARTIAL = ".partial"


def partial_folder(path: Path) -> Path:
    """What a dataset folder is called while it is being made."""
    path = path if path.name else path.absolute()  # "." has a name, too
    if not path.name:
        raise DataError(f"{path} cannot be a dataset; name a folder")
    return path.with_name(path.name + PARTIAL)


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_about(path: Path) -> dict[str, Any]:
    manifest = path / "dataset.json"
    if path.is_file():
        raise DataError(f"{path} is a file; a dataset is a folder with a dataset.json")
    partial = path if path.name.endswith(PARTIAL) else partial_folder(path)
    if partial.is_dir() and (partial == path or not manifest.exists()):
        raise DataError(
            f"{str(path).removesuffix(PARTIAL)} is not finished: {_so_far(partial)} in {partial}; run the command that "
            f"makes it again to go on"
        )
    if not manifest.exists():
        if path.is_dir():
            raise DataError(f"{path} is not a dataset: it holds no dataset.json")
        name = path.name if path.name in card_names() else "NAME"
        raise DataError(
            f"dataset {path} does not exist. Make it with `flare data make {name} --out {path}`, or of your own "
            f"arrays: see docs/data.md"
        )
    try:
        about = json.loads(manifest.read_text(encoding="utf-8"))
        version = about["version"]
        Schema.from_json(about["schema"])
        about["splits"], about["checksums"], about["provenance"]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise DataError(f"{manifest} is damaged ({error}); restore it or remake the dataset") from None
    if version != VERSION:
        raise DataError(
            f"{manifest} has format version {version}, this flare reads {VERSION}; update flare or remake it"
        )
    return about


def _so_far(partial: Path) -> str:
    """`12 of 100 samples are`, as far as an unfinished folder tells."""
    try:
        done = (partial / "samples.jsonl").read_bytes().count(b"\n")
        wanted = json.loads((partial / "dataset.json").read_text(encoding="utf-8"))["provenance"].get("samples")
    except (OSError, ValueError, KeyError, AttributeError):
        return "what there is of it is"
    return f"{done:,} samples are" if wanted is None else f"{done:,} of {wanted:,} samples are"


def open_array(path: Path) -> np.ndarray:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise DataError(f"{path} is missing; restore it or remake the dataset") from None
    except (ValueError, EOFError, OSError) as error:
        size = path.stat().st_size
        raise DataError(
            f"{path} is damaged or truncated ({size:,} bytes: {error}); restore it or remake the dataset"
        ) from None

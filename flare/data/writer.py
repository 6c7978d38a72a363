"""Writers of dataset folders that append and commit, so that a killed job resumes and ends with the same bytes.

A sample is appended to every array, then committed by a line in `samples.jsonl`. The folder is called `<name>.partial`
until it is complete, so that an unfinished dataset is never taken for a finished one.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Generic, Self, TypeVar

import numpy as np

from flare.data.dataset import VERSION, AnyFolder, Dataset, partial_folder, sha256
from flare.data.sample import CORNERS, Sample, Schema
from flare.utils.errors import DataError, first_difference
from flare.utils.files import is_occupied, take_lock, write_json
from flare.utils.interrupts import defer_interrupts

FLOAT = np.dtype("<f4")
INDEX = np.dtype("<i8")
Splits = Mapping[str, Sequence[tuple[int, int]]]
"""Split name -> ranges of sample indices, each [start, stop)."""
Appended = TypeVar("Appended")


@dataclass(frozen=True)
class Column:
    """One array that grows with every sample."""

    dtype: np.dtype
    width: int | None
    """Channels of a row; None for a vector."""
    rows: str | None
    """Key of the number of rows of a sample in samples.jsonl, such as `points`; None if every sample has one row."""

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.dtype.itemsize * (1 if self.width is None else self.width)

    def header(self, rows: int) -> bytes:
        """Return an .npy header whose length does not depend on `rows`, so that it can be rewritten in place."""
        shape = (rows,) if self.width is None else (rows, self.width)
        text = f"{{'descr': '{self.dtype.str}', 'fortran_order': False, 'shape': {shape}, }}"
        body = text.ljust(128 - 10 - 1) + "\n"
        return b"\x93NUMPY\x01\x00" + len(body).to_bytes(2, "little") + body.encode("latin1")


class ArrayWriter(Generic[Appended, AnyFolder]):
    """Writer of a folder of arrays; subclasses define what a sample is and which arrays it becomes.

    `len(writer)` is the number of committed samples, hence the index of the next one. Opening an unfinished folder
    resumes it. A `with` block closes the writer.

    Args:
        path: Folder to write. It must not exist.
        about: Content of dataset.json: schema, provenance and anything else that identifies the job.
        columns: Arrays by name.
        offsets: Key of the rows of a column -> name of its offsets array, such as {"points": "offsets"}.

    Raises:
        DataError: The folder exists, holds an unfinished dataset of another job, or is being written by another
            process.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        about: Mapping[str, Any],
        columns: Mapping[str, Column],
        offsets: Mapping[str, str],
    ) -> None:
        self.path = Path(path)
        self.partial = partial_folder(self.path)
        self._about = json.loads(json.dumps({"version": VERSION, **about}))  # as it will be read back
        self._columns, self._offsets = columns, offsets
        if is_occupied(self.path):
            raise DataError(f"{self.path} exists already; choose another folder or remove it")
        self._start_or_resume()

    def __len__(self) -> int:
        return len(self._commits)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def append(self, sample: Appended) -> None:
        """Write one sample and commit it."""
        raise NotImplementedError

    def finish(self, splits: Splits) -> AnyFolder:
        """Complete the folder and open it."""
        raise NotImplementedError

    def commit(self, arrays: Mapping[str, np.ndarray], notes: Mapping[str, Any]) -> None:
        """Append the arrays of one sample in their stored types, then the line that makes them count."""
        try:
            for name, array in arrays.items():
                self._files[name].write(array.tobytes())
                self._files[name].flush()
        except OSError:
            self.close()  # half a sample may be on disk: only a new writer, which cuts it off, may resume
            raise
        counts = dict.fromkeys(self._offsets, 0)
        counts |= {c.rows: len(arrays[name]) for name, c in self._columns.items() if c.rows}
        crc32 = {name: zlib.crc32(array.tobytes()) for name, array in arrays.items()}
        commit: dict[str, Any] = {**counts, "crc32": crc32, "notes": dict(notes)}
        with defer_interrupts():  # the log on disk and the list in memory must agree
            self._log.write(json.dumps(commit).encode() + b"\n")
            self._log.flush()
            self._commits.append(commit)

    @property
    def provenance(self) -> dict[str, Any]:
        """Provenance in dataset.json. Entries that are known only at the end can be added before `finish`."""
        return self._about["provenance"]

    def notes(self) -> list[dict[str, Any]]:
        """Return the notes of every committed sample."""
        return [commit["notes"] for commit in self._commits]

    def make_whole(self, splits: Splits) -> None:
        """Write final array headers, offsets and checksums, and give the folder its final name."""
        if self._log.closed:
            raise DataError(f"{self.path}: this writer is closed; open a new one to resume")
        for name, start, stop in [(name, *part) for name, ranges in splits.items() for part in ranges]:
            if not 0 <= start <= stop <= len(self):
                raise DataError(f"{self.path}: split {name!r} has samples {start} … {stop - 1} of {len(self)}")
        for name, file in self._files.items():
            file.seek(0)
            file.write(self._columns[name].header(self._rows_of(name, self._commits)))
            file.close()
        self._log.close()
        for rows in {column.rows: None for column in self._columns.values() if column.rows}:
            ends = np.cumsum([0, *[c[rows] for c in self._commits]], dtype=INDEX)
            np.save(self.partial / f"{self._offsets[rows]}.npy", ends)
        files = sorted([*self.partial.glob("*.npy"), self.partial / "samples.jsonl"])
        about = self._about | {
            "splits": {name: [list(map(int, r)) for r in ranges] for name, ranges in splits.items()},
            "samples": len(self),
            "checksums": {file.name: sha256(file) for file in files},
        }
        write_json(self.partial / "dataset.json", about)
        self.partial.rename(self.path)

    def close(self) -> None:
        """Close all files. An unfinished folder stays and can be resumed by a new writer."""
        for file in [*self._files.values(), self._log]:
            with suppress(OSError):  # what a full disk did not take is cut off by the next writer
                file.close()

    def _start_or_resume(self) -> None:
        self.partial.mkdir(parents=True, exist_ok=True)
        self._log = (self.partial / "samples.jsonl").open("a+b")
        take_lock(self._log, f"another process is writing {self.partial}; wait for it, or choose another folder")
        commits, ends = _read_commits(self._log)
        if commits:
            self._refuse_another_job()
        else:  # an empty folder may become another job
            write_json(self.partial / "dataset.json", self._about)
        self._files: dict[str, IO[bytes]] = {}
        for name in self._columns:
            path = self.partial / f"{name}.npy"
            path.touch()
            self._files[name] = path.open("r+b")
        self._commits = commits[: self._count_intact(commits)]
        self._log.truncate([0, *ends][len(self._commits)])
        for name, column in self._columns.items():
            file = self._files[name]
            file.seek(0)
            file.write(column.header(0))
            file.truncate(file.tell() + self._rows_of(name, self._commits) * column.row_bytes)
            file.seek(0, os.SEEK_END)

    def _refuse_another_job(self) -> None:
        manifest = self.partial / "dataset.json"
        try:
            begun = json.loads(manifest.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DataError(f"{manifest} is damaged ({error}); remove {self.partial} to start from scratch") from None
        # `departures` follows from options and sizes. Keys that only one version of flare stores are ignored.
        shared = begun["provenance"].keys() & self._about["provenance"].keys() - {"departures"}
        then, now = (
            {
                **{key: about.get(key) for key in self._about if key != "version"},
                "provenance": {key: about["provenance"][key] for key in shared},
            }
            for about in (begun, self._about)
        )
        difference = first_difference(then, now)
        if difference:
            self._log.close()
            key, was, is_now = difference
            change = f"{key} was {was!r}, is now {is_now!r}"
            raise DataError(f"{self.partial} holds an unfinished dataset of another job: {change}; remove it first")

    def _count_intact(self, commits: list[dict[str, Any]]) -> int:
        """Return how many commits have their data on disk: a power cut can lose data that the log names."""
        position = {name: len(column.header(0)) for name, column in self._columns.items()}
        for i, commit in enumerate(commits):
            for name, file in self._files.items():
                count = self._rows_of(name, [commit]) * self._columns[name].row_bytes
                file.seek(position[name])
                if zlib.crc32(file.read(count)) != commit["crc32"][name]:
                    return i
                position[name] += count
        return len(commits)

    def _rows_of(self, name: str, commits: Sequence[Mapping[str, Any]]) -> int:
        rows = self._columns[name].rows
        return len(commits) if rows is None else sum(c[rows] for c in commits)


class DatasetWriter(ArrayWriter[Sample, Dataset]):
    """Writer of a dataset of fields on points, sample by sample.

    Every appended sample is safe on disk. If the program stops, a new writer for the same folder resumes after the
    last committed sample: start with index `len(writer)`. A `with` block closes the writer.

    Args:
        path: Folder to write. It must not exist; until `finish` it is called `<path>.partial`.
        schema: Fields of the samples.
        provenance: Origin of the data, stored in dataset.json. `kind` is `user` unless given.

    Raises:
        DataError: The folder exists, holds an unfinished dataset of another schema or provenance, or is being
            written by another process.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from flare import DatasetWriter, Field, Sample, Schema
        >>> fields = {
        ...     "points": Field(role="points", components=("x", "y"), unit="m"),
        ...     "load": Field(role="parameter", components=("load",), unit="N"),
        ...     "stress": Field(role="target", components=("stress",), unit="MPa"),
        ... }
        >>> with DatasetWriter(f"{tempfile.mkdtemp()}/beams", Schema(name="beams", fields=fields)) as writer:
        ...     for load in (1.0, 2.0, 3.0):
        ...         points = np.random.default_rng(len(writer)).random((50, 2))
        ...         writer.append(Sample({"points": points, "load": np.array([load]), "stress": load * points[:, 0]}))
        ...     dataset = writer.finish({"train": [(0, 2)], "test": [(2, 3)]})
        >>> dataset.splits, dataset[2].values["load"].tolist()
        (['train', 'test'], [3.0])
    """

    def __init__(
        self, path: str | os.PathLike[str], schema: Schema, provenance: Mapping[str, Any] | None = None
    ) -> None:
        self.schema = schema
        columns = {
            name: Column(FLOAT, len(f.components), None if f.role == "parameter" else "points")
            for name, f in schema.fields.items()
        }
        if schema.cell_type:
            columns["cells"] = Column(INDEX, CORNERS[schema.cell_type], "cells")
        about = {"schema": schema.to_json(), "provenance": {"kind": "user"} if provenance is None else provenance}
        super().__init__(path, about, columns, {"points": "offsets", "cells": "cell_offsets"})

    def append(self, sample: Sample) -> None:
        """Write one sample and commit it.

        Args:
            sample: Values of every field of the schema. A field with one component may have shape (N,).

        Raises:
            DataError: Fields, shapes or cells do not match the schema.
        """
        self.commit(self._validated(sample), sample.notes)

    def finish(self, splits: Splits) -> Dataset:
        """Complete the dataset and open it.

        Args:
            splits: Split name -> ranges of sample indices, such as {"train": [(0, 80)], "test": [(80, 100)]}.

        Raises:
            DataError: A range is outside the samples, or the writer is closed.
        """
        self.make_whole(splits)
        return Dataset(self.path)

    def _validated(self, sample: Sample) -> dict[str, np.ndarray]:
        """Return the arrays of a sample as they are stored, or raise an error that names the field."""
        where = f"sample {len(self)} of {self.path}"
        if set(sample.values) != set(self.schema.fields):
            fields = f"fields {sorted(sample.values)}, the schema requires {sorted(self.schema.fields)}"
            raise DataError(f"{where}: has {fields}")
        count = len(sample.values[self.schema.points])
        arrays = {}
        for name, field in self.schema.fields.items():
            rows = 1 if field.role == "parameter" else count
            array, shape = np.ascontiguousarray(sample.values[name], dtype=FLOAT), (rows, len(field.components))
            flat = array.ndim == 1 and 1 in shape and array.size == max(shape)  # (N,) for (N, 1), (C,) for (1, C)
            if array.shape != shape and not flat:
                raise DataError(f"{where}: {name!r} has shape {array.shape}, expected {shape}")
            arrays[name] = array.reshape(shape)
        if (sample.cells is None) != (self.schema.cell_type is None):
            raise DataError(f"{where}: cells and the schema's cell_type={self.schema.cell_type!r} do not agree")
        if sample.cells is not None:
            cells = arrays["cells"] = np.ascontiguousarray(sample.cells, dtype=INDEX)
            corners = self._columns["cells"].width
            if cells.ndim != 2 or cells.shape[1] != corners:
                kind = f"a {self.schema.cell_type} has {corners} points"
                raise DataError(f"{where}: cells have shape {cells.shape}, {kind}")
            if cells.size and not (cells.min() >= 0 and cells.max() < count):
                raise DataError(f"{where}: cells refer to points outside 0 … {count - 1}")
        return arrays


def _read_commits(log: IO[bytes]) -> tuple[list[dict[str, Any]], list[int]]:
    """Return the complete lines of the log and where each ends; a kill may cut the last one short."""
    log.seek(0)
    commits: list[dict[str, Any]] = []
    ends: list[int] = []
    for line in log:
        try:
            commit = json.loads(line)
        except ValueError:
            break
        if not line.endswith(b"\n"):
            break
        commits.append(commit)
        ends.append(len(line) + (ends[-1] if ends else 0))
    return commits, ends

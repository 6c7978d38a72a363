"""The ledger: one JSON record per job, in a file named by the address of the job.

A job that has a record is not done again. Arrays, such as spectra and fields, are stored beside the record in a `.npz`
file, whose checksum is part of the record. Tables and figures are made from these files alone.
"""

from __future__ import annotations

import hashlib
import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import numpy as np

from flare.utils.errors import DataError, first_difference
from flare.utils.files import replace_atomically, write_json

Arrays = dict[str, np.ndarray]
Outcomes = Literal["done", "failed", "unfinished"]


class Defined(Protocol):
    """A job that can be looked up."""

    @property
    def label(self) -> str:
        """First part of the name of the record, such as `elasticity-flare-seed0`."""
        ...

    @property
    def numbers(self) -> Sequence[str]:
        """Keys of the result that must be finite numbers when the job is done."""
        ...

    def definition(self) -> dict[str, Any]:
        """Return everything that the outcome depends on, as JSON, and nothing of this machine."""
        ...


@dataclass(frozen=True)
class Record:
    """The outcome of a job."""

    outcome: Outcomes
    result: Mapping[str, Any] = field(default_factory=dict)
    failure: str = ""
    """Error message of a failed job."""
    made: Mapping[str, Any] = field(default_factory=dict)
    """Commit, versions, hardware, time and memory: everything that differs between machines and runs."""


def address(job: Defined) -> str:
    """Return 16 hexadecimal digits of the hash of a job's definition."""
    text = json.dumps(job.definition(), sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


REMEDY = "Restore it, or remove it to do the job again"


def _damage(record: Record, job: Defined) -> str:
    """Return what is wrong with a record; empty for a valid one."""
    if record.outcome not in get_args(Outcomes):
        return f"outcome is {record.outcome!r}, not one of {', '.join(get_args(Outcomes))}"
    for name, value in (("result", record.result), ("made", record.made)):
        if not isinstance(value, Mapping):
            return f"{name} is {value!r}, not a mapping"
    if record.outcome == "unfinished" and not (record.result.get("curve") and is_finite(record.result.get("epochs"))):
        return "the outcome is unfinished, but result has no curve or no epochs"
    for name in job.numbers if record.outcome == "done" else ():
        if not is_finite(record.result.get(name)):
            return f"the outcome is done, but result.{name} is {record.result.get(name)!r}, not a finite number"
    return ""


def is_finite(value: Any) -> bool:
    """Return whether a value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def check_writable(folder: Path, name: str) -> None:
    """Create a folder, and raise a DataError that calls it `name` if it cannot be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):  # permissions are not enough, as in /proc
            pass
    except OSError as error:
        raise DataError(f"`{name}={folder}` cannot be written to ({error.strerror}); give another folder") from None


class Ledger:
    """A folder of records. Several processes may write to it, because each record is one file, written atomically."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def path(self, job: Defined) -> Path:
        """Return the path of the record of a job."""
        return self.folder / f"{job.label}-{address(job)}.json"

    def labels(self) -> set[str]:
        """Return the labels of all jobs that have a record."""
        return {path.stem.rpartition("-")[0] for path in self.folder.glob("*.json")}

    def check_exists(self) -> None:
        """Raise a DataError if the folder of records does not exist."""
        if not self.folder.is_dir():
            what = "is not a folder" if self.folder.exists() else "does not exist"
            raise DataError(f"records={str(self.folder)!r} {what}; give the folder of the records")

    def find(self, job: Defined) -> Record | None:
        """Return the record of a job, None if there is none.

        Raises:
            DataError: The record is damaged, or its definition is that of another job.
        """
        path = self.path(job)
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            record = Record(found["outcome"], found["result"], found["failure"], found["made"])
            defined = found["job"]
        except FileNotFoundError:
            return None
        except NotADirectoryError:
            self.check_exists()
            raise
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}") from None
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path} is not a record: {error!r}. {REMEDY}") from None
        damage = _damage(record, job)
        if damage:
            raise DataError(f"{path} is damaged: {damage}. {REMEDY}")
        difference = first_difference(json.loads(json.dumps(job.definition())), defined)
        if difference:
            key, here, there = difference
            raise DataError(f"{path} is the record of another job: its {key} is {there!r}, not {here!r}")
        return record

    def arrays(self, job: Defined) -> Arrays:
        """Return the arrays of a job that is done.

        Raises:
            DataError: The job is not done, or the file is missing or differs from its checksum.
        """
        record, path = self.find(job), self.path(job).with_suffix(".npz")
        if record is None or record.outcome != "done":
            raise DataError(f"{self.path(job)} has no arrays: the job is not done")
        try:
            content = path.read_bytes()
        except OSError as error:
            raise DataError(f"{path}, part of a record, cannot be read: {error.strerror}") from None
        if hashlib.sha256(content).hexdigest() != record.result.get("arrays"):
            raise DataError(f"{path} differs from the checksum of its record. Restore it, or remove both")
        with np.load(BytesIO(content), allow_pickle=False) as file:
            return {name: file[name] for name in file.files}

    def write(self, job: Defined, record: Record, arrays: Arrays | None = None) -> None:
        """Write the record of a job, replacing an earlier one. Arrays come first: the record has their checksum."""
        path = self.path(job)
        result = dict(record.result)
        if arrays:
            buffer = BytesIO()
            np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
            result["arrays"] = hashlib.sha256(buffer.getvalue()).hexdigest()
            with replace_atomically(path.with_suffix(".npz")) as temporary:
                temporary.write_bytes(buffer.getvalue())
        entry = asdict(record) | {"result": result}
        write_json(path, {"id": address(job), "job": job.definition(), **entry})

"""The ledger: one JSON record for every job, under the address of what defines the job.

A job that has a record is not done again. Arrays, such as spectra and fields, lie beside the record in a `.npz` file
whose checksum it holds. Every table and picture of the paper's reproduction is made of these files alone.
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
from flare.utils.files import replacing, write_json

Arrays = dict[str, np.ndarray]
Outcomes = Literal["done", "failed", "unfinished"]


class Defined(Protocol):
    """What can be looked up."""

    @property
    def label(self) -> str:
        """For people, the first part of the record's name: such as `elasticity-flare-seed0`."""
        ...

    @property
    def numbers(self) -> Sequence[str]:
        """What its result must have, when it is done, as a finite number each."""
        ...

    def definition(self) -> dict[str, Any]:
        """All that its outcome depends on, as JSON; nothing of this machine."""
        ...


@dataclass(frozen=True)
class Record:
    """What came of a job."""

    outcome: Outcomes
    result: Mapping[str, Any] = field(default_factory=dict)
    failure: str = ""
    """Of a failed job: what went wrong."""
    made: Mapping[str, Any] = field(default_factory=dict)
    """Commit, versions, hardware, seconds, peak memory: all that differs between machines and runs."""


def address(job: Defined) -> str:
    """16 hexadecimal digits of what defines a job: equal for equal jobs, whoever asks."""
    text = json.dumps(job.definition(), sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


WAY_OUT = "Restore it, or remove it to do the job again"
MEASURED = ("seconds", "cpu_seconds", "peak_memory_mb")
"""Under `made`: numbers, or nothing where they were not kept."""


def _damage(record: Record, job: Defined) -> str:
    """What makes a record unfit to be shown, though it be JSON with all its keys; empty where nothing does."""
    if record.outcome not in get_args(Outcomes):
        return f"its outcome is {record.outcome!r}, not one of {', '.join(get_args(Outcomes))}"
    for name, value in (("result", record.result), ("made", record.made)):
        if not isinstance(value, Mapping):
            return f"{name} is {value!r}, not a mapping"
    if not isinstance(record.failure, str) or bool(record.failure) != (record.outcome == "failed"):
        return f"failure is {record.failure!r}, where the outcome is {record.outcome}"
    for name in MEASURED:
        if record.made.get(name) is not None and not is_finite(record.made[name]):
            return f"made.{name} is {record.made[name]!r}, not a number"
    curve = record.result.get("curve", [])
    if not _is_curve(curve):
        return "result.curve is no list of epochs and values"
    if not _is_curve(record.made.get("cpu_curve", [])):
        return "made.cpu_curve is no list of CPU seconds and values"
    if record.outcome == "unfinished" and not (curve and is_finite(record.result.get("epochs"))):
        return "it is unfinished, but does not say how far it has come"
    for name in job.numbers if record.outcome == "done" else ():
        if not is_finite(record.result.get(name)):
            return f"it is done, but result.{name} is {record.result.get(name)!r}, not a finite number"
    return ""


def _is_curve(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(point, list) and len(point) == 2 for point in value)


def is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


class Ledger:
    """A folder of records. Several processes may write to it: each record is one file, whole or not there."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def path(self, job: Defined) -> Path:
        return self.folder / f"{job.label}-{address(job)}.json"

    def labels(self) -> set[str]:
        """Return the labels of all jobs that have a record."""
        return {path.stem.rpartition("-")[0] for path in self.folder.glob("*.json")}

    def refuse_no_folder(self) -> None:
        """For whoever only reads: a folder that is not there has no records, but was hardly meant."""
        if not self.folder.is_dir():
            what = "is no folder" if self.folder.exists() else "is not there"
            raise DataError(f"the folder of records {self.folder} {what}: name another with --records")

    def refuse_unwritable(self) -> None:
        """For whoever is to write much later: make the folder, and see that files can be put into it."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder):
                pass
        except OSError as error:
            raise DataError(
                f"no records can be written into {self.folder}: {error.strerror}. Name another folder with --records"
            ) from None

    def find(self, job: Defined) -> Record | None:
        """The record of a job; None where there is none. Refuses one that is damaged or of another job."""
        path = self.path(job)
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            record = Record(found["outcome"], found["result"], found["failure"], found["made"])
            defined = found["job"]
        except FileNotFoundError:
            return None
        except NotADirectoryError:
            self.refuse_no_folder()
            raise
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}") from None
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path} is no record: {error!r}. {WAY_OUT}") from None
        damage = _damage(record, job)
        if damage:
            raise DataError(f"{path} is damaged: {damage}. {WAY_OUT}")
        difference = first_difference(json.loads(json.dumps(job.definition())), defined)
        if difference:
            key, here, there = difference
            raise DataError(f"{path} is the record of another job: {key} is {there!r} there and {here!r} here")
        return record

    def arrays(self, job: Defined) -> Arrays:
        """The arrays of a job that is done."""
        record, path = self.find(job), self.path(job).with_suffix(".npz")
        if record is None or record.outcome != "done":
            raise DataError(f"{self.path(job)} has no arrays: the job is not done")
        try:
            content = path.read_bytes()
        except OSError as error:
            raise DataError(f"{path}, which belongs to a record, cannot be read: {error.strerror}") from None
        if hashlib.sha256(content).hexdigest() != record.result.get("arrays"):
            raise DataError(f"{path} is not what its record says: restore it, or remove both to do the job again")
        with np.load(BytesIO(content), allow_pickle=False) as file:
            return {name: file[name] for name in file.files}

    def write(self, job: Defined, record: Record, arrays: Arrays | None = None) -> None:
        """Keep what came of a job, in the place of an earlier record of it. Arrays first: a record vouches for them."""
        path = self.path(job)
        result = dict(record.result)
        if arrays:
            buffer = BytesIO()
            np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
            result["arrays"] = hashlib.sha256(buffer.getvalue()).hexdigest()
            with replacing(path.with_suffix(".npz")) as temporary:
                temporary.write_bytes(buffer.getvalue())
        entry = asdict(record) | {"result": result}
        write_json(path, {"id": address(job), "job": job.definition(), **entry})

"""Datasets that are written in one call or in several: find a finished one, resume, report an interruption."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import CancelledError
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flare.data.dataset import AnyFolder
from flare.data.writer import Appended, ArrayWriter
from flare.utils.errors import DataError, first_difference, one_line
from flare.utils.files import is_occupied
from flare.utils.progress import progress

logger = logging.getLogger(__name__)


def already_made(
    path: Path, folder: type[AnyFolder], schema: Any, provenance: Mapping[str, Any], keys: Iterable[str]
) -> AnyFolder | None:
    """Open the dataset at `path` if it is finished.

    Args:
        path: Folder of the dataset.
        folder: Class that opens it.
        schema: Schema it must have.
        provenance: Provenance of the job.
        keys: Keys of the provenance that must agree.

    Returns:
        The dataset, or None if there is none.

    Raises:
        DataError: The folder holds a dataset of another schema or provenance.
    """
    if not is_occupied(path):
        return None
    dataset = folder(path)
    made, job = dataset.about["provenance"], json.loads(json.dumps(dict(provenance)))
    was = {"name": dataset.schema.name, **{key: made.get(key) for key in keys}, "schema": dataset.schema.to_json()}
    wanted = {"name": schema.name, **{key: job[key] for key in keys}, "schema": schema.to_json()}
    difference = first_difference(was, wanted)
    if difference:
        key, there, here = difference
        raise other_dataset(path, f"{key.removeprefix('options.')} is {there!r} there, {here!r} here")
    return dataset


def other_dataset(path: Path, difference: str) -> DataError:
    """Return the error for a folder that holds another dataset than the one to be made."""
    return DataError(f"{path} holds another dataset already: {difference}. Choose another folder, or remove it")


def fill(
    writer: ArrayWriter[Appended, Any], samples: Iterable[Appended], total: int, label: str, *, quiet: bool = False
) -> None:
    """Append `samples`, of which the first has the index `len(writer)`, and report progress towards `total`."""
    with progress(label, total, done=len(writer), quiet=quiet) as update:
        for sample in samples:
            writer.append(sample)
            update()


@contextmanager
def unfinished(writer: ArrayWriter[Any, Any], total: int) -> Iterator[None]:
    """Close the writer after the block and turn failures into messages that say how to resume.

    Raises:
        DataError: A worker died, memory or disk is full, or a sample failed. Committed samples are kept.
    """
    try:
        yield
    except KeyboardInterrupt:
        logger.info(f"{_kept(writer, total)}; run the same command to resume")
        raise
    except (DataError, BrokenProcessPool, MemoryError, CancelledError, OSError) as error:
        if isinstance(error, DataError):
            problem = str(error).rstrip(".")
        elif isinstance(error, OSError):
            problem = f"cannot write {writer.path}: {error.strerror or error}"
        else:
            problem = f"sample {len(writer)} or one of the next failed with {type(error).__name__}: {one_line(error)}"
            problem += ". A worker or the scheduler died, perhaps for lack of memory: try fewer `workers`"
        raise DataError(f"{problem}. {_kept(writer, total)}; run the same command to resume") from None
    finally:
        writer.close()


def _kept(writer: ArrayWriter[Any, Any], total: int) -> str:
    return f"{len(writer)} of {total} samples are kept in {writer.partial}"

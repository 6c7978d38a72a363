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
from flare.utils.errors import DataError, first_difference
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
    made, wanted = dataset.about["provenance"], json.loads(json.dumps(dict(provenance)))
    if dataset.schema.name != schema.name:
        raise other_dataset(path, f"{dataset.schema.name}, not {schema.name}")
    difference = first_difference({key: made.get(key) for key in keys}, {key: wanted[key] for key in keys})
    if difference:
        key, was, now = difference
        raise other_dataset(path, f"{key.removeprefix('options.')} is {was!r} there, {now!r} here")
    if dataset.schema != schema:
        raise other_dataset(path, f"{schema.name} with other fields or another grid")
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
    resume = "run the same command to resume"
    try:
        yield
    except KeyboardInterrupt:
        logger.info(f"{_kept(writer, total)}; {resume}")
        raise
    except DataError as error:
        message = str(error)
        raise DataError(f"{message}{'' if message.endswith(('.', '?')) else '.'} {_kept(writer, total)}") from None
    except (BrokenProcessPool, MemoryError, CancelledError, OSError) as error:
        near = f"sample {len(writer)} of {writer.path} or one of the next"
        if isinstance(error, BrokenProcessPool):
            problem = f"a worker process died while making {near}, perhaps for lack of memory"
            resume += ", with fewer `workers` if need be"
        elif isinstance(error, MemoryError):
            problem, resume = f"not enough memory for {near}: {error}", "use fewer `workers` or a lower resolution"
        elif isinstance(error, OSError):
            problem, resume = f"cannot write {writer.path}: {error.strerror or error}", f"free some space and {resume}"
        else:
            problem, resume = "the dask scheduler stopped", f"start one and {resume}"
        raise DataError(f"{problem}. {_kept(writer, total)}; {resume}") from None
    finally:
        writer.close()


def _kept(writer: ArrayWriter[Any, Any], total: int) -> str:
    return f"{len(writer)} of {total} samples are kept in {writer.partial}"
